"""measured_preprocessing, and images of other channels than grey and colour on their way to a model."""

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import Preprocessing
from keras_vit.data import from_arrays, from_directory, measured_preprocessing

PIXELS = (np.random.default_rng(0).integers(0, 256, (9, 8, 8, 12)) * np.linspace(0.2, 1, 12)).astype("uint8")
WIDE = Preprocessing(size=8, mean=(0.5,) * 12, std=(0.5,) * 12)


@pytest.fixture(scope="module")
def source():
    return from_arrays(PIXELS, np.arange(9) % 2)


def test_statistics_are_those_of_the_pixels(source):
    found = measured_preprocessing(source, WIDE)
    levels = PIXELS.reshape(-1, 12) / 255
    np.testing.assert_allclose(found.mean, levels.mean(0), rtol=1e-6)
    np.testing.assert_allclose(found.std, levels.std(0), rtol=1e-5)
    assert found.replace(mean=WIDE.mean, std=WIDE.std) == WIDE
    for other in (WIDE.replace(in_model=True), WIDE.native(4, max_tokens=4)):  # the pixels are the same
        again = measured_preprocessing(source, other)
        assert (again.mean, again.std) == (found.mean, found.std)
        assert again.replace(mean=other.mean, std=other.std) == other


def test_some_images_are_drawn(source):
    drawn = measured_preprocessing(source, WIDE, images=4, seed=1)
    assert drawn == measured_preprocessing(source, WIDE, images=4, seed=1) != measured_preprocessing(source, WIDE, 4)
    chosen = np.sort(np.random.default_rng(1).permutation(9)[:4])
    np.testing.assert_allclose(drawn.mean, PIXELS[chosen].mean((0, 1, 2)) / 255, rtol=1e-6)


def test_files_have_their_own_statistics(tmp_path):
    (tmp_path / "a").mkdir()
    for number in range(2):
        Image.fromarray(PIXELS[number, ..., :3]).save(tmp_path / "a" / f"{number}.png")
    found = measured_preprocessing(from_directory(tmp_path), Preprocessing(size=8))
    np.testing.assert_allclose(found.mean, PIXELS[:2, ..., :3].mean((0, 1, 2)) / 255, rtol=1e-6)


def test_unreadable_files_are_left_out(tmp_path):
    for number in range(3):
        Image.fromarray(PIXELS[number, ..., :3]).save(tmp_path / f"{number}.png")
    (tmp_path / "1.png").write_bytes((tmp_path / "1.png").read_bytes()[:-40])
    source, wanted = keras_vit.data.from_files(tmp_path), PIXELS[[0, 2], ..., :3].mean((0, 1, 2)) / 255
    found = measured_preprocessing(source, Preprocessing(size=8), max_corrupt=0.4)
    np.testing.assert_allclose(found.mean, wanted, rtol=1e-6)
    with pytest.raises(ValueError, match=r"1 of 3 images cannot be read; max_corrupt=0.01 allows 0: .*1\.png"):
        measured_preprocessing(source, Preprocessing(size=8))


def test_refused(source, tmp_path):
    with pytest.raises(ValueError, match="images must differ in each channel; channel 5 is 0 everywhere"):
        measured_preprocessing(from_arrays(PIXELS * (np.arange(12) != 5).astype("uint8"), np.arange(9)), WIDE)
    with pytest.raises(ValueError, match=r"image must have shape \(height, width, 4 channels\); got \(8, 8, 12\)"):
        measured_preprocessing(source, Preprocessing(size=8, mean=(0.5,) * 4, std=(0.5,) * 4))
    Image.fromarray(PIXELS[0, ..., :3]).save(tmp_path / "0.png")
    with pytest.raises(ValueError, match="images with 12 channels must be arrays, such as of .*; a file gives 1"):
        measured_preprocessing(keras_vit.data.from_files(tmp_path), WIDE)


def test_a_model_keeps_them(source, tmp_path):
    sizes = {"image_size": 8, "patch_size": 4, "hidden_dim": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 8}
    config = keras_vit.ViTConfig(name="wide", channels=12, include_top=False, **sizes)
    model = keras_vit.resize(keras_vit.VisionTransformer(config), "any")
    assert model.preprocessing.channels == 12
    model.preprocessing = measured_preprocessing(source, model.preprocessing)
    model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").preprocessing == model.preprocessing
    crops, _ = next(iter(keras_vit.data.multi_crop_pipeline(source, model.preprocessing, 9, local_size=4)))
    assert crops["global"].shape == (9, 2, 8, 8, 12) and crops["local"].shape == (9, 8, 4, 4, 12)
    [whole] = keras_vit.data.eval_pipeline(source, model.preprocessing, 9).take(1)
    expected = (PIXELS / 255 - model.preprocessing.mean) / model.preprocessing.std
    np.testing.assert_allclose(whole[0], expected, atol=1e-5)
    assert keras_vit.evaluation.embed(model, source).features.shape == (9, 16)
