import keras
import numpy as np
import pytest

from keras_vit import Preprocessing, VisionTransformer, ViTConfig, with_rescaling

CONFIG = ViTConfig(
    name="toy", image_size=8, patch_size=4, hidden_dim=8, num_layers=1, num_heads=2, mlp_dim=8, classes=3
)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_gives_what_the_model_gives_for_standardised_pictures(dtype):
    model = VisionTransformer(CONFIG.replace(dtype=dtype), preprocessing=Preprocessing(size=8, mean=MEAN, std=STD))
    model.layers[-1].kernel.assign(np.random.default_rng(0).normal(size=(8, 3)))
    pixels = np.random.default_rng(1).integers(0, 256, size=(2, 8, 8, 3), dtype="uint8")
    rescaled = with_rescaling(model)
    expected = model.predict(((pixels / 255 - MEAN) / STD).astype("float32"), verbose=0)
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(rescaled.predict(pixels, verbose=0), expected, atol=tolerance)
    assert rescaled.inputs[0].dtype == "uint8"
    assert {id(weight) for weight in rescaled.weights} == {id(weight) for weight in model.weights}


def test_a_model_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="model must be a model of keras_vit; got Sequential"):
        with_rescaling(keras.Sequential())
