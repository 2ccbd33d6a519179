"""PatchDropout: what it keeps in training, and models that train with it."""

import keras
import numpy as np
import pytest
from faults import for_each
from keras import ops
from slow_rows import slow_after

import keras_vit
from keras_vit import PatchDropout, VisionTransformer, ViTConfig

CONFIG = ViTConfig(
    name="tiny", image_size=16, patch_size=4, hidden_dim=8, num_layers=1, num_heads=2, mlp_dim=8, classes=3
)


@pytest.mark.parametrize(("rate", "kept"), [(0.5, 8), (0.9, 1), (0.99, 1), (0.3, 11)])
def test_keeps_the_prefix_and_a_share_of_the_patches(rate, kept):
    tokens = np.arange(4 * 18, dtype="float32").reshape(4, 18, 1)
    layer = PatchDropout(rate, num_prefix_tokens=2, seed=1)
    first, second = (ops.convert_to_numpy(layer(tokens, training=True)) for _ in range(2))
    assert first.shape == (4, 2 + kept, 1)
    np.testing.assert_array_equal(first[:, :2], tokens[:, :2])
    for image, row in zip(tokens, first, strict=True):
        assert len(set(row[2:, 0])) == kept and set(row[2:, 0]) <= set(image[2:, 0])
    assert kept == 1 or {tuple(x) for x in first[:, 2:, 0] % 18} != {tuple(x) for x in second[:, 2:, 0] % 18}
    for unchanged in (layer(tokens), PatchDropout(0.0)(tokens, training=True)):
        np.testing.assert_array_equal(unchanged, tokens)


def test_gradient_reaches_the_kept_tokens():
    """Each kept token is used once, so that a uniform gradient is one for it and zero for the others."""
    tokens = np.ones((2, 9, 3), "float32")
    layer = PatchDropout(0.5, num_prefix_tokens=1, seed=3)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            x = tf.constant(tokens)
            tape.watch(x)
            loss = tf.reduce_sum(layer(x, training=True))
        gradient = tape.gradient(loss, x).numpy()
    else:
        import jax

        layer.build(tokens.shape)

        def loss(x):
            return layer.stateless_call([], [v.value for v in layer.non_trainable_variables], x, training=True)[0].sum()

        gradient = np.asarray(jax.grad(loss)(tokens))
    assert set(np.unique(gradient)) == {0.0, 1.0} and (gradient[:, 0] == 1).all()
    assert gradient[:, :, 0].sum(axis=1).tolist() == [5, 5]


@pytest.mark.parametrize(
    "changes", slow_after(1, [{"distilled": True, "num_registers": 1}, {"pooling": "map", "remat": "block"}])
)
def test_models_train_with_fewer_tokens_and_answer_with_all(changes):
    config = CONFIG.replace(**changes, **{"embedding.patch_drop_rate": 0.5})
    model, plain = VisionTransformer(config), VisionTransformer(config.replace(**{"embedding.patch_drop_rate": 0.0}))
    for new, old in zip(model.weights, plain.weights, strict=True):
        new.assign(old)
    images = np.random.default_rng(0).normal(size=(4, 16, 16, 3)).astype("float32")
    np.testing.assert_array_equal(model(images), plain(images))
    prefix, block = config.num_prefix_tokens, keras.Model(model.input, model.get_layer("block_00").output)
    assert block(images, training=True).shape[1] == prefix + 8
    assert block(images).shape[1] == prefix + 16
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert np.isfinite(model.fit(images, np.arange(4) % 3, verbose=0).history["loss"][0])
    assert keras_vit.clone(model).config == model.config


@for_each(
    ("changes", "message"),
    [
        ({"pooling": "unpooled"}, "got pooling='unpooled', embedding.patch_drop_rate=0.5"),
        ({"window.size": 2, "pooling": "gap"}, "window needs a token for each place of the patch grid"),
        ({"attention": "axial", "pooling": "gap"}, "attention='axial'"),
        ({"token_merging": 2}, "token_merging=2"),
        ({"position_placement": "shared"}, "position_placement='shared'"),
        ({"image_size": "any", "embedding.position_grid": (4, 4)}, "image_size='any'"),
        ({"embedding.patch_drop_rate": 1.0}, r"patch_drop_rate must be a number in \[0, 1\); got patch_drop_rate=1.0"),
    ],
)
def test_refused(changes, message):
    values = {"embedding.patch_drop_rate": 0.5, **changes}
    if "window.size" in values:
        values["window"] = {"size": values.pop("window.size")}
    with pytest.raises(ValueError, match=message):
        CONFIG.replace(**values)
