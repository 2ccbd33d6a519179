"""The classic decoder of ViTPose; tests/test_golden.py compares whole models with transformers."""

import keras
import numpy as np
from conftest import TESTS

import keras_vit
from keras_vit.models.vitpose import ViTPose

FOLDER = TESTS / "golden_tasks" / "vitpose_simple"


def test_a_saved_model_with_a_classic_decoder_is_the_same(tmp_path):
    encoder = keras_vit.load(FOLDER).encoder
    model = ViTPose(encoder, 3, "classic")
    images = np.random.default_rng(0).normal(size=(1, *encoder.config.image_size, 3)).astype("float32")
    heatmaps = model(images)
    assert heatmaps.shape == (1, 24, 16, 3)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras")(images), heatmaps)


def test_first_heatmaps_are_nearly_zero():
    """As of the authors' code; with Keras's default, a large first error would change the encoder."""
    encoder = keras_vit.load(FOLDER).encoder
    for decoder in ("simple", "classic"):
        kernel = ViTPose(encoder, 17, decoder).get_layer("decoder").conv1.kernel
        np.testing.assert_allclose(np.std(kernel), 0.001, rtol=0.15)
