"""A reader's version: the forward pass of a plain ViT in NumPy, layer by layer beside the named layers of the model.

The equations are those of arXiv 2010.11929, section 3.1 and appendix A. `params` has the weights by their paths.
"""

import math

import keras
import numpy as np

from keras_vit import VisionTransformer, ViTConfig

CONFIG = ViTConfig(
    name="toy", image_size=(8, 12), patch_size=4, hidden_dim=12, num_layers=2, num_heads=3, mlp_dim=20, classes=5
)


def forward(images, params, config):
    """Yields the name and the output of each named layer."""

    def dense(x, name):
        return x @ params[f"{name}/kernel"] + params[f"{name}/bias"]

    def layer_norm(x, name):
        mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-6) * params[f"{name}/gamma"] + params[f"{name}/beta"]

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def attention(z, name):
        qkv = dense(z, f"{name}/qkv").reshape(batch, -1, 3, config.num_heads, head_dim)
        q, k, v = qkv.transpose(2, 0, 3, 1, 4)  # Eq. 5; each (batch, heads, tokens, head_dim)
        powers = np.exp(q @ k.swapaxes(2, 3) / math.sqrt(head_dim))
        weights = powers / powers.sum(axis=-1, keepdims=True)  # Eq. 6
        heads = (weights @ v).transpose(0, 2, 1, 3)  # Eq. 7
        return dense(heads.reshape(batch, -1, config.hidden_dim), f"{name}/proj")  # Eq. 8

    def mlp(z, name):
        return dense(gelu(dense(z, f"{name}/dense1")), f"{name}/dense2")

    batch, head_dim = len(images), config.hidden_dim // config.num_heads
    (rows, columns), (height, width) = config.grid_size, config.patch_size
    patches = images.reshape(batch, rows, height, columns, width, 3).transpose(0, 1, 3, 2, 4, 5)
    kernel = params["patch_encoder/projection/kernel"].reshape(-1, config.hidden_dim)
    z = patches.reshape(batch, rows * columns, -1) @ kernel + params["patch_encoder/projection/bias"]
    yield "patch_encoder", z
    z = np.concatenate([np.repeat(params["class_token/class_token"], batch, axis=0), z], axis=1)
    yield "class_token", z
    z = z + params["position_embs/embedding"]  # Eq. 1
    yield "position_embs", z
    for name in (f"block_{index:02d}" for index in range(config.num_layers)):
        z = z + attention(layer_norm(z, f"{name}/norm1"), f"{name}/attention")  # Eq. 2
        z = z + mlp(layer_norm(z, f"{name}/norm2"), f"{name}/mlp")  # Eq. 3
        yield name, z
    z = layer_norm(z, "encoder_norm")
    yield "encoder_norm", z
    yield "pooling", z[:, 0]  # Eq. 4
    yield "head", dense(z[:, 0], "head")


def test_every_named_layer_has_the_value_of_the_equations():
    model, rng = VisionTransformer(CONFIG), np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.normal(0, 0.3, weight.shape))
    params = {weight.path: keras.ops.convert_to_numpy(weight).astype("float64") for weight in model.weights}
    images = rng.normal(size=(2, 8, 12, 3))
    named = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    outputs = keras.Model(model.input, [layer.output for layer in named])(images.astype("float32"))
    expected = dict(forward(images, params, CONFIG))
    assert [layer.name for layer in named] == list(expected)
    for (name, value), output in zip(expected.items(), outputs, strict=True):
        np.testing.assert_allclose(output, value, atol=2e-5, err_msg=name)
