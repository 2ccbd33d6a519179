"""load_weights: when a head is loaded, when it starts anew, and what goes with it."""

import re

import numpy as np
import pytest
import safetensors.numpy
from official_files import check_equal, npz, official_arrays
from slow_rows import slow_after

import keras_vit


def test_another_number_of_classes(make_model, weights_of, arrays, tmp_path, caplog):
    model = make_model(classes=5)
    report = keras_vit.load_weights(model, npz(tmp_path / "a.npz", arrays))
    assert report.reinitialised == ("head/kernel", "head/bias")
    assert tuple(report.unused) == ("head/kernel", "head/bias")
    assert report.missing == ()
    line = "  new head: head/kernel, head/bias start at zero, in place of head/kernel, head/bias of the file\n"
    assert line in caplog.text and "unused" not in caplog.text
    weights = weights_of(model)
    assert not weights["head/kernel"].any() and not weights["head/bias"].any()
    check_equal(weights, weights_of(make_model(seed=1)), leave_out=("head/kernel", "head/bias"))


def test_head_load_insists(refused, make_model, arrays):
    lines = refused(arrays, make_model(classes=5), head="load")
    assert lines[1:] == [
        "  ! head/kernel: shape (8, 3), the model needs (8, 5)",
        "  ! head/bias: shape (3,), the model needs (5,)",
    ]


def test_head_reinitialise_of_a_head_that_fits(make_model, weights_of, arrays, tmp_path):
    model = make_model()
    report = keras_vit.load_weights(model, npz(tmp_path / "a.npz", arrays), head="reinitialise")
    assert report.reinitialised == tuple(report.unused) == ("head/kernel", "head/bias")
    assert not weights_of(model)["head/kernel"].any()


def test_a_file_without_head(make_model, weights_of, arrays, tmp_path, refused):
    del arrays["head/kernel"], arrays["head/bias"]
    model = make_model()
    report = keras_vit.load_weights(model, npz(tmp_path / "a.npz", arrays))
    assert report.missing == report.reinitialised == ("head/kernel", "head/bias")
    assert "  new head: head/kernel, head/bias start at zero; the file has no head\n" in f"{report}\n"
    assert not weights_of(model)["head/kernel"].any()
    assert refused(arrays, head="load")[1] == "  - missing head/kernel (for head/kernel)"


# kind of a model, layout of its file
_FILES = [("vit", "official"), ("distilled", "huggingface"), ("bit", "official"), ("swin", "timm"), ("vit", "timm")]
_FILES += [("vit", "huggingface"), ("distilled", "timm"), ("swin", "microsoft"), ("swin", "huggingface")]


def _damaged(arrays):
    """Yield what may be wrong with a trained head, and the arrays."""
    names = [name for name in arrays if re.search("head|classifier", name)]
    kernel, bias = (next(name for name in names if (arrays[name].ndim > 1) == is_kernel) for is_kernel in (True, False))
    axes = (0, 1, 3, 2) if arrays[kernel].ndim == 4 else (1, 0)
    yield "no bias", {name: array for name, array in arrays.items() if name != bias}
    yield "no kernel", {name: array for name, array in arrays.items() if name != kernel}
    yield "long bias", {**arrays, bias: np.zeros(5, "float32")}
    yield "transposed", {**arrays, kernel: np.ascontiguousarray(arrays[kernel].transpose(axes))}
    yield "int8", {**arrays, kernel: arrays[kernel].astype("int8")}
    dist = [name for name in names if re.search("head_dist|distillation", name)]
    if dist:
        yield "no second head", {name: array for name, array in arrays.items() if name not in dist}
        yield "no first head", {name: array for name, array in arrays.items() if name in dist or name not in names}
        short = {name: arrays[name][:2] for name in dist}
        yield "second head of other classes", {**arrays, **short}


@pytest.mark.parametrize(("kind", "layout"), slow_after(3, _FILES))
def test_a_trained_head_is_loaded_or_refused(make_kind, in_zoo, weights_of, tmp_path, kind, layout):
    """In every way of loading; a file with another number of classes has a new head if the user asks for one."""
    path = tmp_path / ("a.npz" if layout == "official" else "a.safetensors")
    create, source = in_zoo(kind), make_kind(kind, 1)
    keras_vit.save_weights(source, path, layout)
    arrays = dict(np.load(path)) if layout == "official" else safetensors.numpy.load_file(path)
    arguments = {"num_heads": 2} if kind in ("vit", "distilled") else {}
    ways = [lambda: keras_vit.load_weights(make_kind(kind), path)]
    if kind != "bit":  # the others build every BiT
        ways += [lambda: create(path), lambda: keras_vit.load(path, **arguments)]
        check_equal(weights_of(keras_vit.load(path, **arguments)), weights_of(source))
    check_equal(weights_of(create(path)), weights_of(source))
    fewer = create(path, classes=2)
    assert fewer.config.classes == 2 and not fewer.get_layer("head").kernel.numpy().any()
    for damage, changed in _damaged(arrays):
        np.savez(path, **changed) if layout == "official" else safetensors.numpy.save_file(changed, path)
        for number, way in enumerate(ways):
            if damage == "no bias" and number and "num_heads" in arguments:
                continue  # a model whose head has no bias
            with pytest.raises(ValueError, match="head|classifier|arrays fit none"):
                way()
                pytest.fail(f"{damage}, way {number}")


def test_create_model_builds_the_head_of_the_file(make_model, in_zoo, tmp_path, caplog):
    source = make_model(seed=1, classes=5)
    keras_vit.save_weights(source, tmp_path / "a.npz")
    model = keras_vit.create_model("tiny", weights=tmp_path / "a.npz", image_size=16) if in_zoo("vit") else None
    np.testing.assert_array_equal(model.get_layer("head").kernel, source.get_layer("head").kernel)
    assert "built with classes=5, as the file states" in caplog.text


def test_a_model_without_head(make_model, weights_of, arrays, tmp_path):
    model = make_model(include_top=False)
    report = keras_vit.load_weights(model, npz(tmp_path / "a.npz", arrays))
    assert tuple(report.unused) == ("head/kernel", "head/bias") and report.reinitialised == ()
    check_equal(weights_of(model), weights_of(make_model(seed=1, include_top=True)), ("head/kernel", "head/bias"))
    for head in ("load", "reinitialise"):
        with pytest.raises(ValueError, match=rf"head='{head}' is for a model with a head; tiny has include_top=False"):
            keras_vit.load_weights(model, tmp_path / "a.npz", head=head)


def test_pre_logits_go_together_with_the_head(make_model, weights_of, tmp_path, refused):
    source = make_model(seed=1, representation_size=8)  # the head would fit
    arrays = official_arrays(source, tmp_path / "a.npz")
    model = make_model()
    report = keras_vit.load_weights(model, npz(tmp_path / "b.npz", arrays))
    assert report.reinitialised == ("head/kernel", "head/bias")
    assert set(report.unused) == {"head/kernel", "head/bias", "pre_logits/kernel", "pre_logits/bias"}
    assert any("pre_logits and its head are dropped" in note for note in report.notes)
    assert not weights_of(model)["head/kernel"].any()
    same = make_model(representation_size=8)
    assert keras_vit.load_weights(same, tmp_path / "b.npz").unused == {}
    check_equal(weights_of(same), weights_of(source))
    lines = refused(official_arrays(make_model(), tmp_path / "c.npz"), make_model(representation_size=8))
    assert "  - missing pre_logits/kernel (for pre_logits/kernel)" in lines


def test_a_head_of_zeros_warns(make_model, tiny_zoo, arrays, tmp_path):
    arrays["head/kernel"] = np.zeros_like(arrays["head/kernel"])
    path = npz(tmp_path / "a.npz", arrays)
    with pytest.warns(
        UserWarning, match=r"the head in .*a\.npz is all zeros.*the same score until the head is trained"
    ):
        keras_vit.load_weights(make_model(), path)
    with pytest.warns(UserWarning, match="all zeros"):
        tiny_zoo(path, classes=3)
    keras_vit.load_weights(make_model(classes=5), path)  # a head that is not loaded does not warn


def test_create_model_follows_the_file_to_its_pre_logits(make_model, weights_of, tiny_zoo, tmp_path):
    source = make_model(seed=1, representation_size=5)
    keras_vit.save_weights(source, tmp_path / "a.npz")
    check_equal(weights_of(tiny_zoo(tmp_path / "a.npz", classes=3)), weights_of(source))
    assert tiny_zoo(tmp_path / "a.npz", classes=4).config.representation_size is None
    assert tiny_zoo(tmp_path / "a.npz", classes=4).get_layer("head").kernel.shape == (8, 4)
