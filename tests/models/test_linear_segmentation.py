"""LinearSegmentation against NumPy, `fit`, `predict` and a saved file."""

import keras
import numpy as np

import keras_vit
from keras_vit.tasks import SegmentationLoss

CONFIG = keras_vit.ViTConfig(
    name="tiny", image_size=32, patch_size=8, hidden_dim=16, num_layers=2, num_heads=2, mlp_dim=32, include_top=False
)
RNG = np.random.default_rng(0)


def test_numbers_fit_and_file(tmp_path):
    model = keras_vit.LinearSegmentation(keras_vit.VisionTransformer(CONFIG), classes=3)
    model.encoder.trainable = False
    images, labels = RNG.normal(size=(8, 32, 32, 3)).astype("float32"), np.zeros((8, 32, 32), "int32")
    labels[:, :, 16:], labels[:, :4] = 1, 255
    images[..., 16:, :] += 2
    model.compile(keras.optimizers.Adam(0.05), SegmentationLoss())
    assert sorted(weight.path for weight in model.trainable_variables) == [
        *("batch_norm/beta", "batch_norm/gamma", "class_head/bias", "class_head/kernel"),
    ]
    history = model.fit(images, labels, epochs=15, verbose=0).history["loss"]
    assert history[-1] < 0.5 * history[0]
    model.labels = ("left", "right", "none")
    model.save(tmp_path / "linear.keras")
    again = keras_vit.load(tmp_path / "linear.keras")
    tokens = keras_vit.feature_extractor(model.encoder, "encoder_norm", grid=False).predict(images, verbose=0)
    norm, head = (model.get_layer(name) for name in ("batch_norm", "class_head"))
    gamma, beta, mean, variance = map(keras.ops.convert_to_numpy, norm.weights)
    kernel, bias = map(keras.ops.convert_to_numpy, head.weights)
    expected = ((tokens[:, 1:] - mean) / np.sqrt(variance + 1e-5) * gamma + beta) @ kernel + bias
    np.testing.assert_allclose(again(images)["logits"], expected.reshape(8, 4, 4, 3), rtol=1e-4, atol=1e-4)
    answer = keras_vit.predict(again, RNG.integers(0, 256, (20, 30, 3)).astype("uint8"))
    answer = answer[0] if isinstance(answer, list) else answer
    assert answer.labels.shape == (20, 30) and answer.names == model.labels


def test_features_are_computed_once():
    model = keras_vit.LinearSegmentation(keras_vit.VisionTransformer(CONFIG), classes=3)
    images = RNG.normal(size=(8, 32, 32, 3)).astype("float32")
    model.encoder.trainable = False
    features, head = model.split()
    found = features.predict(images, verbose=0)
    before = keras.ops.convert_to_numpy(model(images)["logits"])
    np.testing.assert_allclose(head(found)["logits"], before, rtol=1e-5, atol=1e-5)
    head.compile(keras.optimizers.Adam(0.05), SegmentationLoss())
    head.fit(found, np.zeros((8, 32, 32), "int32"), verbose=0)
    assert not np.allclose(model(images)["logits"], before, atol=1e-2)
    assert not any(weight.path.startswith("block") for weight in head.weights)
