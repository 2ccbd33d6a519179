"""ONNX in float16: right where values exceed its range, and wrong without the operations that stay in float32."""

import collections
import re

import numpy as np
import PIL.Image
import pytest
from drawn import draw
from families import FAMILIES
from served import make_model

import keras_vit
from keras_vit import Preprocessing
from keras_vit.serving import export, fresh_process
from keras_vit.serving.self_check import resized

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")
onnx_file = pytest.importorskip("keras_vit.serving.onnx_file")
onnx_float16 = pytest.importorskip("keras_vit.serving.onnx_float16")

SAMPLES = [np.asarray(draw(seed)) for seed in range(2)]
NONE = {"LIMIT": float("inf"), "_WIDE": ()}


def with_product(value):
    """Return a model in which one channel of each token has this value, as DINOv2 has, through a product of its MLP."""
    model = make_model()
    first, second = model.get_layer("block_00").mlp.dense1, model.get_layer("block_00").mlp.dense2
    kernels = [weight.numpy() for weight in (first.kernel, first.bias, second.kernel)]
    kernels[0][:, 5], kernels[1][5], kernels[2][5, 3] = 0, 10, value / 10
    for weight, values in zip((first.kernel, first.bias, second.kernel), kernels, strict=True):
        weight.assign(values)
    return model


def with_bias(value):
    """Return a model in which one channel of each token has this value after its attention."""
    model = make_model()
    bias = model.get_layer("block_00").attention.proj.bias
    bias.assign([value if channel == 3 else number for channel, number in enumerate(bias.numpy())])
    return model


def with_tiny_tokens():
    """Return a model whose first RMS norm gets values of about 1e-4, of which float16 has no squares."""
    model = FAMILIES["AIMv2"].build(epsilon=1e-9)
    for name in ("patch_norm", "position_embs"):
        (weight,) = model.get_layer(name).weights
        weight.assign(1e-4 * weight.numpy())
    model.preprocessing = Preprocessing(size=32)
    return model


# model -> what must be switched off so that it is wrong, and what may be switched off on its own
MODELS = {
    # the product is infinite; norms in float32 do not help
    "outlier of 90,000": (lambda: with_product(90_000), {"LIMIT": float("inf")}, {"_WIDE": ()}),
    # float16 has 40,000, but not its square: the norms must be in float32, for one reason or the other
    "outlier of 40,000": (lambda: with_bias(40_000), NONE, {"LIMIT": float("inf")}),
    "tiny values": (with_tiny_tokens, {"_WIDE": ()}, {"LIMIT": float("inf")}),
}


def write(model, folder, compute_dtype="float16"):
    onnx_file.write_onnx(model, folder, compute_dtype=compute_dtype, samples=SAMPLES)
    return folder / "model.onnx"


def difference(model, file):
    """The largest difference from the model in memory, of the largest logit; every operation is in its own dtype."""
    pixels = resized(model, SAMPLES[:1])
    inputs = (pixels / 255 - model.preprocessing.mean) / model.preprocessing.std
    expected = np.asarray(model(inputs.astype("float32"), training=False))
    with np.errstate(all="ignore"):
        (found,) = reference.ReferenceEvaluator(onnx.load(file)).run(None, {"images": pixels})
    assert found.dtype == "float32"
    return np.abs(found - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("case", MODELS)
def test_large_and_tiny_values(case, tmp_path, monkeypatch):
    make, harmful, harmless = MODELS[case]
    model, differences = make(), []
    for number, changes in enumerate(({}, harmless, harmful)):
        with monkeypatch.context() as patch:
            for name, value in changes.items():
                patch.setattr(onnx_float16, name, value)
            differences.append(difference(model, write(model, tmp_path / str(number))))
    print(case, differences)
    assert max(differences[:2]) < 0.02 and not differences[2] < 0.1


def test_the_file(tmp_path, caplog):
    model = make_model()
    whole, half = (write(model, tmp_path / dtype, dtype) for dtype in ("float32", "float16"))
    assert 0.5 < half.stat().st_size / whole.stat().st_size < 0.55
    before, after = onnx.load(whole), onnx.load(half)
    onnx.checker.check_model(half, full_check=True)
    assert (after.graph.input, after.graph.output) == (before.graph.input, before.graph.output)
    assert (after.metadata_props, after.opset_import) == (before.metadata_props, before.opset_import)
    sizes = collections.Counter()
    for array in after.graph.initializer:
        sizes[onnx.TensorProto.DataType.Name(array.data_type)] += len(array.raw_data)
    assert sizes["FLOAT16"] > 0.97 * sizes.total()
    kinds = collections.Counter(node.op_type for node in after.graph.node)
    assert kinds["LayerNormalization"] == 3 and kinds["Softmax"] == 1
    assert kinds["Cast"] <= 2 * (3 + 1) + 2  # into and out of each, and of the inputs and outputs
    wide, count = map(int, re.fullmatch(r"(\d+) of (\d+) operations stay in float32", caplog.messages[-1]).groups())
    assert kinds["LayerNormalization"] + kinds["Softmax"] <= wide < count / 4 and count <= kinds.total()


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
@pytest.mark.parametrize("weights", ["ViT-Ti_16-imagenet2012-224.npz", "deit_tiny"])
def test_real_models_on_real_images(real_data, tmp_path, runtime, weights):
    path = real_data / "weights" / weights
    model = keras_vit.load(path) if path.is_dir() else keras_vit.ViT_Ti16(weights=path)
    model.preprocessing = model.preprocessing.replace(size=248, crop=224, interpolation="bicubic")
    files = sorted((real_data / "imagenet200").rglob("*.[jJ]*"))
    assert len(files) == 200
    pixels = resized(model, [np.asarray(PIL.Image.open(file).convert("RGB")) for file in files])
    inputs = ((pixels / 255 - model.preprocessing.mean) / model.preprocessing.std).astype("float32")
    expected = model.predict(inputs, batch_size=20, verbose=0)
    folder = export(model, tmp_path, format=runtime, compute_dtype="float16", check=[str(file) for file in files[:8]])
    found = fresh_process.run(runtime, folder, {"images": pixels})[0]["logits"]
    same = (found.argmax(-1) == expected.argmax(-1)).sum()
    print(runtime, weights, same, np.abs(found - expected).max() / np.abs(expected).max())
    assert same >= 199
    assert sum(file.stat().st_size for file in folder.glob("model.*")) < 0.55 * 4 * model.count_params()
