"""load_heads and the backbones of training checkpoints: files with the names of DINO, iBOT and DINOv2, made here.

Outputs are compared with the definition of the head in NumPy, and with those of DINOv2's program (a golden case).
"""

import pathlib

import numpy as np
import pytest
import safetensors.numpy
from scipy.special import erf

import keras_vit
from keras_vit import SelfDistillation

GOLDEN = pathlib.Path(__file__).parents[1] / "golden_ssl" / "dinov2_head"
SIZES = {"out_dim": 24, "hidden_dim": 20, "bottleneck_dim": 12}
WIDTH = 16
RNG = np.random.default_rng(0)


def arrays_of_head(last="last_layer"):
    shapes = {"mlp.0": (20, WIDTH), "mlp.2": (20, 20), "mlp.4": (12, 20)}
    arrays = {f"{name}.weight": RNG.normal(size=shape) for name, shape in shapes.items()}
    arrays |= {f"{name}.bias": RNG.normal(size=shape[0]) for name, shape in shapes.items()}
    arrays |= {f"{last}.weight_v": RNG.normal(size=(24, 12)), f"{last}.weight_g": RNG.uniform(0.5, 2, (24, 1))}
    return {name: array.astype("float32") for name, array in arrays.items()}


def formula(arrays, features, last="last_layer"):
    x = features.astype("float64")
    for number in (0, 2, 4):
        x = x * (1 + erf(x / np.sqrt(2))) / 2 if number else x
        x = x @ arrays[f"mlp.{number}.weight"].T + arrays[f"mlp.{number}.bias"]
    x /= np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
    v = arrays[f"{last}.weight_v"].astype("float64")
    return x @ (arrays[f"{last}.weight_g"] * v / np.linalg.norm(v, axis=1, keepdims=True)).T


def written(path, **parts):
    """A file of nested dicts of arrays, whose names are joined by dots; `__` in an argument is a dot."""
    arrays = {
        f"{start.replace('__', '.')}.{name}": array for start, part in parts.items() for name, array in part.items()
    }
    safetensors.numpy.save_file(arrays, path)
    return path


def center(*shape):
    return RNG.normal(size=shape).astype("float32")


@pytest.fixture
def make(make_model):
    def make(method="dino", **changes):
        student = make_model(num_layers=1, patch_size=8, hidden_dim=WIDTH, include_top=False)
        return SelfDistillation(student, method=method, **{**SIZES, **changes})

    return make


def check_head(head, arrays, last="last_layer"):
    features = RNG.normal(size=(5, WIDTH)).astype("float32")
    np.testing.assert_allclose(head(features), formula(arrays, features, last), atol=1e-5)


def test_heads_of_dino(make, tmp_path):
    own, other, centre = arrays_of_head(), arrays_of_head(), center(1, 24)
    heads = {"student__module__head": own, "teacher__head": other}
    path = written(tmp_path / "a.safetensors", **heads, dino_loss={"center": centre}, optimizer={"0": center(3)})
    model = make()
    report = keras_vit.load_heads(model, path)
    check_head(model.student_head, own)
    check_head(model.teacher_head, other)
    assert len(report.used) == 16 and {*report.unused} == {"dino_loss.center", "optimizer.0"}
    np.savez(tmp_path / "b.npz", **{f"head.{name}": array for name, array in other.items()})
    keras_vit.load_heads(model, tmp_path / "b.npz")  # one head for both
    check_head(model.student_head, other)
    check_head(model.teacher_head, other)


def test_outputs_are_those_of_the_program_of_dinov2(make, tmp_path):
    arrays = safetensors.numpy.load_file(GOLDEN / "params.safetensors")
    model = make("dinov2")
    keras_vit.load_heads(model, written(tmp_path / "a.safetensors", teacher__dino_head=arrays))
    with np.load(GOLDEN / "io.npz") as expected:
        np.testing.assert_allclose(model.student_head(expected["features"]), expected["output"], atol=5e-6)


def test_separate_heads_of_dinov2(make, tmp_path):
    heads = [arrays_of_head() for _ in range(4)]
    names = [f"model__{owner}__{head}" for owner in ("student", "teacher") for head in ("dino_head", "ibot_head")]
    path = written(tmp_path / "a.safetensors", **dict(zip(names, heads, strict=True)))
    model = make("dinov2", separate_heads=True)
    assert not keras_vit.load_heads(model, path).unused
    ours = [model.student_head, model.patch_heads[0], model.teacher_head, model.patch_heads[1]]
    for head, arrays in zip(ours, heads, strict=True):
        check_head(head, arrays)
    with pytest.raises(ValueError, match=r"model must have separate_heads=True, as the heads of .*a\.safetensors"):
        keras_vit.load_heads(make("dinov2"), path)
    report = keras_vit.load_heads(make(), path)  # without losses of patches
    assert sum("ibot" in name for name in report.unused) == len(report.unused) == 16


def test_heads_of_another_kind(make, tmp_path):
    arrays = arrays_of_head()
    file = written(tmp_path / "a.safetensors", teacher__head=arrays)
    with pytest.raises(ValueError, match="model must have separate_heads=False, as the heads of"):
        keras_vit.load_heads(make("dinov2", separate_heads=True), file)
    second = {name.replace("layer", "layer2"): array for name, array in arrays.items() if "last" in name}  # iBOT's
    with pytest.raises(ValueError, match=r"\['last_layer2.weight_g', 'last_layer2.weight_v'\] differ"):
        keras_vit.load_heads(make("dinov2"), written(file, teacher__head=arrays | second))
    with pytest.raises(ValueError, match="it has none"):
        keras_vit.load_heads(make("dinov2"), written(file, teacher__ibot_head=arrays))


def test_refused(make, tmp_path):
    arrays, file, model = arrays_of_head(), tmp_path / "a.safetensors", make(out_dim=8, bottleneck_dim=6)
    before = model.get_weights()
    wrong = r"a\.safetensors': out_dim=24, bottleneck_dim=12, hidden_dim=20, a student of width 16 and three dense "
    for changes, message in (
        ({}, wrong + r"layers; \['last_layer.weight_g', 'last_layer.weight_v', 'mlp.4.bias', 'mlp.4.weight'\] differ"),
        ({"mlp.1.running_mean": center(20)}, r"\['last_layer.weight_g', .* 'mlp.1.running_mean'"),
        ({"mlp.6.weight": center(20, 20)}, r"\['last_layer.weight_g', .* 'mlp.6.weight'"),
    ):
        with pytest.raises(ValueError, match=message):
            keras_vit.load_heads(model, written(file, teacher__head={**arrays, **changes}))
    partial = {name: array for name, array in arrays.items() if name != "mlp.2.bias"}
    with pytest.raises(ValueError, match=r"three dense layers; \['mlp.2.bias'\] differ"):
        keras_vit.load_heads(make(), written(file, teacher__head=partial))
    with pytest.raises(
        ValueError, match=r"it has none. The published files of DINOv2 and DINOv3 .*encoder_warmup_steps"
    ):
        keras_vit.load_heads(model, written(file, head={"weight": center(3, 16), "bias": center(3)}))
    (tmp_path / "dino_vitbase8_pretrain_full_checkpoint.pth").write_bytes(b"\x80\x02")
    with pytest.raises(ValueError, match=r"must not be a pickle.*Convert it once"):
        keras_vit.load_heads(model, tmp_path / "dino_vitbase8_pretrain_full_checkpoint.pth")
    with pytest.raises(TypeError, match=r"model must be a keras_vit.SelfDistillation; got VisionTransformer"):
        keras_vit.load_heads(model.student, file)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize(
    "names", [("student__module__", "teacher__", "head"), ("m__student__", "m__teacher__", "dino_head")]
)
def test_backbone_of_the_teacher_is_loaded(make_model, weights_of, tmp_path, names):
    models, parts = [make_model(seed=seed, include_top=False) for seed in (1, 2)], {}
    for model, owner in zip(models, names[:2], strict=True):
        keras_vit.save_weights(model, tmp_path / "a.safetensors", "timm")
        parts[f"{owner}backbone"] = safetensors.numpy.load_file(tmp_path / "a.safetensors")
        parts[f"{owner}{names[2]}"] = arrays_of_head()
    path = written(tmp_path / "a.safetensors", **parts, dino_loss={"center": center(1, 24)})
    model = make_model(seed=3, include_top=False)
    report = keras_vit.load_weights(model, path)
    count = len(parts[f"{names[0]}backbone"]) + 17
    assert f"only the backbone of the teacher is read, not {count} other arrays" in report.notes
    for found in (model, keras_vit.load(path, num_heads=2, image_size=16)):
        for name, expected in weights_of(models[1]).items():
            np.testing.assert_array_equal(weights_of(found)[name], expected)
