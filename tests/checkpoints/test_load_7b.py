"""DINOv3 7B loads in bfloat16 from sparse files of zeros: 13.4 GB of weights, held once."""

import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).parents[2]
DIM, MLP, BLOCKS = 4096, 8192, 40
SIZE = 2 * (6716030976 + DIM)  # the published number of parameters, and the mask token
CONFIG = {"model_type": "dinov3_vit", "hidden_size": DIM, "intermediate_size": MLP, "num_hidden_layers": BLOCKS}
CONFIG |= {"num_attention_heads": 32, "num_register_tokens": 4, "use_gated_mlp": True, "hidden_act": "silu"}
CONFIG |= {"query_bias": False, "key_bias": False, "value_bias": False, "layer_norm_eps": 1e-5, "rope_theta": 100.0}
CONFIG |= {"patch_size": 16, "image_size": 224}

CODE = """
import json, sys
import keras_vit
from benchmarks.load import Watched

load = Watched(lambda: keras_vit.load(sys.argv[1], dtype="bfloat16"))
before = load.peak
model = load()
dtypes = sorted({str(weight.dtype) for weight in model.weights})
print(json.dumps([load.peak - before, model.config.name, model.count_params(), dtypes]))
"""


def shapes():
    """Yield (name, shape) of the arrays of facebook/dinov3-vit7b16-pretrain-lvd1689m."""
    yield from {"cls_token": (1, 1, DIM), "mask_token": (1, 1, DIM), "register_tokens": (1, 4, DIM)}.items()
    yield from {"patch_embeddings.weight": (DIM, 3, 16, 16), "patch_embeddings.bias": (DIM,)}.items()
    for block in range(BLOCKS):
        of_block = {f"{part}.{kind}": (DIM,) for part in ("norm1", "norm2") for kind in ("weight", "bias")}
        of_block |= {f"attention.{part}_proj.weight": (DIM, DIM) for part in "qkvo"}
        of_block |= {"attention.o_proj.bias": (DIM,), "mlp.down_proj.weight": (DIM, MLP), "mlp.down_proj.bias": (DIM,)}
        for part in ("gate", "up"):
            of_block |= {f"mlp.{part}_proj.weight": (MLP, DIM), f"mlp.{part}_proj.bias": (MLP,)}
        of_block |= {"layer_scale1.lambda1": (DIM,), "layer_scale2.lambda1": (DIM,)}
        yield from ((f"layer.{block}.{name}", shape) for name, shape in of_block.items())
    yield from {"norm.weight": (DIM,), "norm.bias": (DIM,)}.items()


def write_sparse(path, arrays):
    """Write a .safetensors of zeros in bfloat16 that takes no space on the disk."""
    header, end = {}, 0
    for name, shape in arrays:
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="only Linux states the anonymous memory")
def test_dinov3_7b_loads_in_bfloat16_with_its_weights_in_memory_once(tmp_path):
    """One file, then six, in one test: two tests may run at the same time, and 24 GiB hold one model."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if memory < 20 * 2**30:
        pytest.skip(f"13.4 GB of weights need 20 GiB of memory; here are {memory / 2**30:.1f}")
    embeddings = ("cls_token", "mask_token", "register_tokens", "patch_embeddings.weight", "patch_embeddings.bias")
    arrays = [(f"embeddings.{name}" if name in embeddings else name, shape) for name, shape in shapes()]
    assert 2 * sum(math.prod(shape) for _, shape in arrays) == SIZE
    for parts in (1, 6):
        folder = tmp_path / str(parts)
        folder.mkdir()
        write(folder, arrays, parts)
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, "-c", CODE, str(folder)]
        result = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
        shutil.rmtree(folder)
        assert result.returncode == 0, result.stderr
        growth, name, parameters, dtypes = json.loads(result.stdout.splitlines()[-1])
        assert (name, parameters, dtypes) == ("DINOv3-7B_16", 6716030976, ["bfloat16"])
        assert SIZE < growth < 1.15 * SIZE


def write(folder, arrays, parts):
    names = ["model.safetensors"] if parts == 1 else [f"model-{part:05}.safetensors" for part in range(parts)]
    for part, name in enumerate(names):
        write_sparse(folder / name, arrays[part::parts])
    if parts > 1:
        weight_map = {array: names[number % parts] for number, (array, _) in enumerate(arrays)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(CONFIG))
