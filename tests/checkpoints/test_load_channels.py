"""Weights for RGB in models for images of other channels: the kernels of NumPy, and what is said and refused."""

import keras
import numpy as np
import pytest
from image_sets import encode
from slow_rows import slow_after

import keras_vit
from keras_vit import Preprocessing
from keras_vit.config.base import flattened
from keras_vit.models import build_model

KERNELS = {"vit": "patch_encoder/projection/kernel", "swin": "patch_encoder/projection/kernel"}
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def _array(variable):
    return keras.ops.convert_to_numpy(variable)


def _weights(model):
    return {weight.path: _array(weight) for weight in model.weights}


def _saved(model, folder, layout):
    """Write a model in a layout; `keras` is a `.weights.h5`."""
    if layout == "keras":
        model.save_weights(folder / "model.weights.h5")
        return folder / "model.weights.h5"
    path = folder / {"official": "model.npz", "huggingface": "folder"}.get(layout, "model.safetensors")
    keras_vit.save_weights(model, path, layout)
    return path


def _expected(kernel, channels):
    """timm's `adapt_input_conv`, one channel after the other."""
    if channels == 1:
        return kernel[:, :, 0:1] + kernel[:, :, 1:2] + kernel[:, :, 2:3]
    return np.stack([kernel[:, :, number % 3] * 3 / channels for number in range(channels)], axis=2)


@pytest.mark.parametrize(
    ("kind", "layout", "channels"),
    [
        ("vit", "official", 1),
        ("vit", "timm", 4),
        ("vit", "huggingface", 12),
        *slow_after(0, [("vit", "keras", 2), ("vit", "official", 5)]),
        ("swin", "microsoft", 1),
        *slow_after(0, [("swin", "huggingface", 4), ("hybrid", "official", 1)]),
        ("hybrid", "timm", 4),
        ("bit", "official", 12),
        ("axial_resnet", "keras", 1),
    ],
)
def test_the_first_kernel_is_that_of_timm(make_kind, tmp_path, kind, layout, channels):
    source, model = make_kind(kind), make_kind(kind, seed=1, channels=channels)
    report = keras_vit.load_weights(model, _saved(source, tmp_path, layout))
    theirs, ours = _weights(source), _weights(model)
    path = KERNELS.get(kind, "root_conv/kernel")
    kernel = theirs.pop(path)
    assert kernel.shape[2] == 3 and ours[path].shape[2] == channels
    np.testing.assert_allclose(ours.pop(path), _expected(kernel, channels), rtol=1e-6, atol=1e-7)
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)
    (told,) = report.resized
    how = "summed over RGB" if channels == 1 else f"RGB repeated, times 3 / {channels}"
    how += ", before it is standardised" if kind in ("bit", "hybrid") else ""
    assert told.endswith(f": 3 -> {channels} channels ({how})") and not report.unused and not report.reinitialised
    notes = " ".join(report.notes)
    assert ("grey images are normalised with the averages" in notes) == (channels == 1)
    assert (f"those of {channels} channels are assumed to be 0.5: measure" in notes) == (channels > 1)


@pytest.mark.parametrize("kind", ["vit", "swin", *slow_after(0, ["axial_resnet", "axial"])])
def test_a_grey_image_gives_what_its_rgb_gives(make_kind, tmp_path, kind):
    """The sum identity, to 1e-6 of the largest output."""
    source, model = make_kind(kind), make_kind(kind, seed=1, channels=1)
    keras_vit.load_weights(model, _saved(source, tmp_path, "keras"))
    grey = np.random.default_rng(0).uniform(-1, 1, (3, *model.input_shape[1:])).astype("float32")
    expected = _array(source(np.repeat(grey, 3, axis=-1), training=False))
    difference = np.abs(_array(model(grey, training=False)) - expected).max()
    assert difference <= 1e-6 * max(1, np.abs(expected).max())


def test_twelve_equal_thirds_give_what_rgb_gives(make_kind, tmp_path):
    """Four repeats of RGB with a quarter of each kernel."""
    source, model = make_kind("vit"), make_kind("vit", seed=1, channels=12)
    keras_vit.load_weights(model, _saved(source, tmp_path, "official"))
    images = np.random.default_rng(0).normal(size=(3, 16, 16, 3)).astype("float32")
    expected = _array(source(images, training=False))
    np.testing.assert_allclose(_array(model(np.tile(images, 4), training=False)), expected, atol=1e-5)


def test_load_and_create_model_take_channels(make_kind, tmp_path):
    """With what they say of the images: grey ones have the averages of the file's means and stds."""
    source = make_kind("vit")
    source.preprocessing = Preprocessing(size=16, **IMAGENET)
    path = _saved(source, tmp_path, "timm")
    changes = flattened({"num_heads": 2, "gelu": source.config.gelu, "epsilon": source.config.epsilon})
    grey = keras_vit.load(path, channels=1, **changes)
    assert grey.config.channels == 1 and grey.input_shape == (None, 16, 16, 1)
    np.testing.assert_allclose(grey.preprocessing.mean, [np.mean(IMAGENET["mean"])], rtol=1e-12)
    np.testing.assert_allclose(grey.preprocessing.std, [np.mean(IMAGENET["std"])], rtol=1e-12)
    late = make_kind("vit", channels=1)
    keras_vit.load_weights(late, path)
    assert late.preprocessing == grey.preprocessing and late.preprocessing_source == "stated"
    assert keras_vit.DeiT_Ti16(channels=1, image_size=32, classes=2).preprocessing.mean == grey.preprocessing.mean
    wide = keras_vit.load(path, channels=4, **changes)
    kernel = _weights(source)[KERNELS["vit"]]
    np.testing.assert_allclose(_weights(wide)[KERNELS["vit"]], _expected(kernel, 4), rtol=1e-6)


def test_images_of_other_channels_are_arrays(make_kind, tmp_path):
    """Four channels are not read from an image file, whose fourth would be its transparency."""
    model = make_kind("vit", channels=4)
    path = tmp_path / "image.png"
    path.write_bytes(encode(np.zeros((16, 16, 3), "uint8"), "png"))
    message = "images with 4 channels must be arrays, such as of keras_vit.data.from_arrays; a file gives 1"
    with pytest.raises(ValueError, match=message):
        keras_vit.predict(model, path)
    with pytest.raises(ValueError, match="include_preprocessing=True needs images of 1 or 3 channels"):
        make_kind("vit", channels=4, include_preprocessing=True)


def test_only_rgb_is_converted(make_kind, tmp_path):
    path = _saved(make_kind("vit", channels=4), tmp_path, "timm")
    keras_vit.load_weights(make_kind("vit", channels=4), path)
    for channels in (1, 3, 12):
        with pytest.raises(ValueError, match=rf"shape \(8, 4, 4, 4\), the model needs \(8, {channels}, 4, 4\)"):
            keras_vit.load_weights(make_kind("vit", channels=channels), path)


def test_patches_that_pass_through_a_stem_are_not_converted(make_kind, tmp_path):
    """The first kernel of a hybrid is that of its root; the one of its patches has the channels of the stem."""
    model = make_kind("hybrid", channels=1)
    assert build_model(model.config).get_layer("patch_encoder").projection.kernel.shape[2] > 3
    report = keras_vit.load_weights(model, _saved(make_kind("hybrid"), tmp_path, "official"))
    assert [told.partition(":")[0] for told in report.resized] == ["conv_root/kernel"]
