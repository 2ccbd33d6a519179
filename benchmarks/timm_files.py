"""Load a tiny copy of each published ViT and Swin file of timm, and compare its outputs with timm's.

It needs `pip install -e '.[tensorflow,bench]'`, and downloads nothing. A copy has the structure of the published file
(heads of the same width, the same patches, norms and positions), two blocks, two heads and random weights. timm saves
it, with the config.json of the published file, and `keras_vit.load` reads it.
"""

import json
import pathlib
import tempfile

import numpy as np

from benchmarks.report import Table, is_installed

NEEDED = ("torch", "timm")
MODULES = (
    *("beit", "deit", "eva", "naflexvit", "swin_transformer", "vision_transformer"),
    *("vision_transformer_hybrid", "vision_transformer_relpos", "vision_transformer_sam"),
)
GRID = 4  # patches per side of the images, of the models without windows
BLOCKS = 2
NOTE = (
    "Each difference is the largest one from timm's outputs (logits, or pooled features without a head), relative to "
    "the largest output. The copies have random weights. Hybrids are computed in float64: over the 50 layers of a "
    "ResNet, rounding to float32 alone changes timm's own outputs by 2e-5."
)


def run(options):
    """Yield the table of all files."""
    if missing := [name for name in NEEDED if not is_installed(name)]:
        raise SystemExit(f"timm_files needs {', '.join(NEEDED)}; missing: {', '.join(missing)}")
    yield table(names())


def table(chosen):
    """Return the table of some published names, such as `vit_base_patch16_224.augreg_in1k`."""
    rows = [[name, *compared(name)] for name in chosen]
    return Table("Published files of timm", NOTE, ("file", "identified as", "largest difference"), rows)


def names():
    """Return the published names, `architecture.tag`, of the modules of timm that have Vision Transformers."""
    import timm

    published = timm.list_pretrained()
    return [name for name in published if timm.models.model_entrypoint(name).__module__.split(".")[-1] in MODULES]


def compared(name):
    """Return what `keras_vit.load` identifies in the tiny copy of a file, and the difference; or its refusal."""
    import keras_vit

    with tempfile.TemporaryDirectory() as folder:
        model = save_copy(name, folder)
        dtype = "float64" if hasattr(getattr(model, "patch_embed", None), "backbone") else "float32"
        try:
            ours = keras_vit.load(folder, dtype=dtype)
        except ValueError as error:
            return [f"refused: {str(error).replace(folder, 'FOLDER')}", "-"]
        report = keras_vit.describe(folder)
        images = np.random.default_rng(1).normal(size=(2, *ours.input_shape[1:])).astype(dtype)
        return [report.variant or report.family or report.config.network, difference(ours, model, images)]


def difference(ours, model, images):
    """Return the largest difference of the outputs of two models, relative to the largest output of timm's."""
    import torch

    found, theirs = np.asarray(ours(images)), torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
    model = model.to(theirs.dtype)
    with torch.no_grad():  # without a head, SAM has a feature map, which timm's own call pools
        expected = model.forward_features(theirs).permute(0, 2, 3, 1) if found.ndim == 4 else model(theirs)
    if found.shape != tuple(expected.shape):
        return f"shapes {found.shape} and {tuple(expected.shape)}"
    return f"{np.abs(found - expected.numpy()).max() / np.abs(expected.numpy()).max():.1e}"


def save_copy(name, folder, given=None, unstated=None):
    """Save the tiny copy of a published file as timm does; return timm's model.

    Args:
        name: name of the file, or of its architecture.
        folder: where it is saved.
        given: further arguments of timm's constructor, which config.json states as `model_args`.
        unstated: further ones, which it does not state; None states all.
    """
    import timm
    import torch

    with torch.device("meta"):
        full = timm.create_model(name, **(given or {}), **(unstated or {}))
    arguments = {**(given or {}), **tiny_arguments(full)}
    if full.num_classes:
        arguments["num_classes"] = 10
    model = timm.create_model(name, **{**arguments, **(unstated or {}), **tiny_arguments(full)}).eval()
    generator = torch.Generator().manual_seed(0)
    for key, values in model.named_parameters():
        is_scale = values.ndim == 1 and key.endswith(("weight", "gamma", "gamma_1", "gamma_2"))
        values.data = torch.randn(values.shape, generator=generator) * 0.1 + is_scale
    stated = {**arguments, **dict.fromkeys(unstated or {})}
    timm.models.save_for_hf(model, pathlib.Path(folder), model_args=stated, safe_serialization=True)
    if unstated:
        path = pathlib.Path(folder) / "config.json"
        config = json.loads(path.read_text())
        config["model_args"] = {key: value for key, value in config["model_args"].items() if key not in unstated}
        path.write_text(json.dumps(config))
    return model


def tiny_arguments(full):
    """Return the arguments of timm's constructor for a copy with two blocks and two heads."""
    if hasattr(full, "layers"):  # Swin
        heads = full.layers[0].blocks[0].attn.num_heads
        window = full.layers[0].blocks[0].window_size[0]
        arguments = {"embed_dim": full.embed_dim // heads, "depths": (2, 2, 2, 2), "num_heads": (1, 2, 4, 8)}
        return arguments | {"img_size": 32 * window}
    block = full.blocks[0]
    heads = (block.attn if hasattr(block, "attn") else block).num_heads
    arguments = {"embed_dim": 2 * (full.embed_dim // heads), "depth": BLOCKS, "num_heads": 2}
    if "mci" in full.pretrained_cfg["architecture"]:  # its stem has the width of the blocks
        return {"depth": BLOCKS}
    if "sapiens2" in full.pretrained_cfg["architecture"]:  # one number per block
        arguments["num_kv_heads"] = (2, 1)
    if hasattr(full, "embeds") or getattr(full, "rope", None) is not None:  # timm scales rotary positions to a size
        return arguments
    step = 32 if hasattr(full.patch_embed, "backbone") else full.patch_embed.patch_size[0]
    if hasattr(full, "neck"):  # SAM, whose windows have 14 x 14 patches, and whose last block is global
        return arguments | {"depth": len(full.blocks), "img_size": 4 * GRID * step}
    return arguments | {"img_size": GRID * step}
