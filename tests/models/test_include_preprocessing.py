"""include_preprocessing=True: pixel values in, and the numbers of the plain model on prepared images."""

import keras
import numpy as np
import pytest
from slow_rows import slow_after

import keras_vit
from keras_vit import Preprocessing, VisionTransformer, ViTConfig
from keras_vit.models.derived import of_pixels

pytestmark = pytest.mark.usefixtures("eagerly")

CONFIG = ViTConfig(
    name="toy", image_size=8, patch_size=4, hidden_dim=8, num_layers=1, num_heads=2, mlp_dim=8, classes=3
)
PROTOCOL = Preprocessing(size=8, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
PIXELS = np.random.default_rng(1).integers(0, 256, size=(2, 8, 8, 3), dtype="uint8")
PREPARED = ((PIXELS / 255 - PROTOCOL.mean) / PROTOCOL.std).astype("float32")


def make(include, **changes):
    model = VisionTransformer(CONFIG.replace(include_preprocessing=include, **changes), preprocessing=PROTOCOL)
    for index, head in enumerate(layer for layer in model.layers if layer.name.startswith("head")):
        head.kernel.assign(np.random.default_rng(index).normal(size=(8, 3)))
    return model


def pair(**changes):
    """A plain model and one of pixels with its weights."""
    plain, pixels = make(False, **changes), make(True, **changes)
    pixels.set_weights(plain.get_weights())
    return plain, pixels


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    "dtype, tolerance", slow_after(1, [("float32", 1e-5), ("mixed_bfloat16", 1e-2), ("float64", 1e-5)])
)
def test_gives_what_the_plain_model_gives_for_prepared_images(dtype, tolerance):
    plain, pixels = pair(dtype=dtype)
    expected = plain.predict(PREPARED, verbose=0)
    for images in (PIXELS, PIXELS.astype("float32"), PIXELS.astype("int64")):
        np.testing.assert_allclose(pixels.predict(images, verbose=0), expected, atol=tolerance)
    assert len(plain.weights) == len(pixels.weights)
    assert "include_preprocessing: True builds" in keras_vit.ViT_B16.__doc__


@pytest.mark.slow
def test_every_family_has_it():
    for model in (
        keras_vit.create_model("Swin-T", image_size=56, classes=2, include_preprocessing=True),
        keras_vit.create_model("BiT-R50x1", image_size=32, classes=2, include_preprocessing=True),
        keras_vit.create_model("AxialResNet-50", image_size=32, classes=2, include_preprocessing=True),
        keras_vit.create_model("R+ViT-Ti_16", image_size=32, classes=2, include_preprocessing=True),
    ):
        inside = keras_vit.feature_extractor(model, "preprocessing")
        pixels = np.random.default_rng(0).integers(0, 256, (1, *model.input_shape[1:]), "uint8")
        mean, std = model.preprocessing.mean, model.preprocessing.std
        np.testing.assert_allclose(inside.predict(pixels, verbose=0), (pixels / 255 - mean) / std, atol=1e-5)


@pytest.mark.slow
def test_it_is_kept_by_files_and_copies(tmp_path):
    plain, pixels = pair()
    expected = plain.predict(PREPARED, verbose=0)
    pixels.save(tmp_path / "a.keras")
    pixels.save_weights(tmp_path / "a.weights.h5")
    loaded = make(True)
    loaded.load_weights(tmp_path / "a.weights.h5")
    copies = [keras.models.load_model(tmp_path / "a.keras"), keras_vit.clone(pixels), loaded]
    for copy in copies:
        np.testing.assert_allclose(copy.predict(PIXELS, verbose=0), expected, atol=1e-5)
        assert copy.preprocessing == pixels.preprocessing and copy.preprocessing.in_model
    larger = keras_vit.resize(pixels, 16)
    assert larger.config.include_preprocessing and larger.preprocessing.image_size == (16, 16)
    keras_vit.save_weights(pixels, tmp_path / "a.npz")
    keras_vit.load_weights(plain, tmp_path / "a.npz")
    np.testing.assert_allclose(plain.predict(PREPARED, verbose=0), expected, atol=1e-5)


@pytest.mark.slow
def test_images_are_mapped_once_by_predict_and_evaluate():
    plain, pixels = pair()
    assert keras_vit.preprocess(PIXELS, pixels.preprocessing).max() == PIXELS.max()
    for (_, score), (_, expected) in zip(
        keras_vit.predict(pixels, PIXELS)[0], keras_vit.predict(plain, PIXELS)[0], strict=True
    ):
        assert score == pytest.approx(expected, abs=1e-5)
    source = keras_vit.data.from_arrays(PIXELS, [0, 1], ["a", "b", "c"])
    first, second = (keras_vit.evaluate(model, source) for model in (plain, pixels))
    assert first == second
    np.testing.assert_allclose(pixels.preprocessing.to_images(PIXELS), PIXELS / 255, atol=1e-6)
    with pytest.raises(ValueError, match="preprocessing must have in_model=True for toy, built with include_preproc"):
        keras_vit.evaluate(pixels, source, preprocessing=PROTOCOL)
    with pytest.raises(ValueError, match="must have the mean and std that toy applies itself"):
        keras_vit.evaluate(pixels, source, preprocessing=Preprocessing(size=8, in_model=True))


def test_the_layer_follows_the_preprocessing():
    plain, pixels = pair()
    pixels.predict(PIXELS, verbose=0)  # compiled with the old values
    pixels.preprocessing = Preprocessing(size=8)
    expected = plain.predict(PIXELS / np.float32(127.5) - 1, verbose=0)
    np.testing.assert_allclose(pixels.predict(PIXELS, verbose=0), expected, atol=1e-5)
    assert pixels.preprocessing == Preprocessing(size=8, in_model=True)


def test_a_distilled_model_trains_both_its_heads():
    plain, pixels = pair(distilled=True)
    expected = [keras.ops.convert_to_numpy(logits) for logits in plain.call_heads(PREPARED, training=True)]
    for logits, wanted in zip(pixels.call_heads(PIXELS.astype("float32"), training=True), expected, strict=True):
        np.testing.assert_allclose(keras.ops.convert_to_numpy(logits), wanted, atol=1e-5)


def test_blocks_keep_their_names_and_attention_its_inputs():
    plain, pixels = pair()
    expected = keras_vit.feature_extractor(plain, "block_00").predict(PREPARED, verbose=0)
    np.testing.assert_allclose(
        keras_vit.feature_extractor(pixels, "block_00").predict(PIXELS, verbose=0), expected, atol=1e-5
    )
    maps = [
        keras_vit.analysis.attention_rollout(model, images)
        for model, images in ((plain, PREPARED), (pixels, PIXELS.astype("float32")))
    ]
    np.testing.assert_allclose(*maps, atol=1e-5)


def test_it_needs_images():
    with pytest.raises(ValueError, match="include_preprocessing=True needs images of 1 or 3 channels .*channels=4"):
        CONFIG.replace(include_preprocessing=True, channels=4)
    grey = VisionTransformer(CONFIG.replace(include_preprocessing=True, channels=1))
    assert grey.predict(PIXELS[..., :1], verbose=0).shape == (2, 3)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_the_model_around_another_shares_its_weights(dtype):
    model = make(False, dtype=dtype)
    around = of_pixels(model)
    expected = model.predict(PREPARED, verbose=0)
    np.testing.assert_allclose(around.predict(PIXELS, verbose=0), expected, atol=1e-5 if dtype == "float32" else 2e-2)
    assert around.inputs[0].dtype == "uint8"
    assert {id(weight) for weight in around.weights} == {id(weight) for weight in model.weights}
    built_so = make(True)
    assert of_pixels(built_so) is built_so
    with pytest.raises(TypeError, match="model must be a model of keras_vit; got Sequential"):
        of_pixels(keras.Sequential())
