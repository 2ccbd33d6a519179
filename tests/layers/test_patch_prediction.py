import keras
import numpy as np
from keras import ops

from keras_vit.layers.patch_corruption import PatchPrediction


def test_is_a_dense_layer_on_the_tokens_of_those_patches():
    rng = np.random.default_rng(0)
    tokens, places = rng.normal(size=(2, 6, 4)).astype("float32"), np.array([[0, 3], [2, 1]])
    layer = PatchPrediction((5, 3), num_prefix_tokens=2)
    assert not np.any(ops.convert_to_numpy(layer(tokens, places))), "starts at zero"
    kernel, bias = rng.normal(size=(4, 15)).astype("float32"), rng.normal(size=15).astype("float32")
    layer.projection.kernel.assign(kernel)
    layer.projection.bias.assign(bias)
    chosen = np.stack([row[2:][at] for row, at in zip(tokens, places, strict=True)])
    expected = (chosen @ kernel + bias).reshape(2, 2, 5, 3)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(tokens, places)), expected, atol=1e-5)


def test_config_and_symbolic_shape():
    layer = PatchPrediction((5,), num_prefix_tokens=1)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert again.get_config() == layer.get_config()
    outputs = again(keras.Input((4, 6)), keras.Input((2,), dtype="int32"))
    assert tuple(outputs.shape) == (None, 2, 5)
