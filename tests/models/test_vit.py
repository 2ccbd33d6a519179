"""VisionTransformer: layers and their names, outputs, precision, training."""

import math

import keras
import numpy as np
import pytest
from faults import for_each
from keras import ops
from slow_rows import slow_after

from keras_vit import Preprocessing, VisionTransformer, ViTConfig
from keras_vit.compat.initial_values import build_deferred

needs_tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="uses tf.GradientTape")

BLOCKS = ["block_00", "block_01"]

# changes to the tiny config -> names of the layers after the input
NAMES = [
    ({}, ["patch_encoder", "class_token", "position_embs", *BLOCKS, "encoder_norm", "pooling", "head"]),
    ({"pooling": "gap"}, ["patch_encoder", "position_embs", *BLOCKS, "encoder_norm", "pooling", "head"]),
    (
        {"pooling": "gap", "class_token": True},
        ["patch_encoder", "class_token", "position_embs", *BLOCKS, "encoder_norm", "pooling", "head"],
    ),
    (
        {"pooling": "map", "norm_position": "after_pooling"},
        ["patch_encoder", "position_embs", *BLOCKS, "pooling", "encoder_norm", "head"],
    ),
    (
        {"pooling": "first", "representation_size": 6},
        ["patch_encoder", "position_embs", *BLOCKS, "encoder_norm", "pooling", "pre_logits", "head"],
    ),
    (
        {"pooling": "unpooled", "num_registers": 2},
        ["patch_encoder", "class_token", "position_embs", *BLOCKS, "encoder_norm", "head"],
    ),
    (
        {"pooling": "token_unpooled", "include_top": False, "num_layers": 1},
        ["patch_encoder", "class_token", "position_embs", "block_00", "encoder_norm"],
    ),
    (
        {"include_top": False, "representation_size": 6, "dropout_rate": 0.1},
        [
            "patch_encoder",
            "class_token",
            "position_embs",
            "dropout",
            *BLOCKS,
            "encoder_norm",
            "pooling",
            "pre_logits",
        ],
    ),
]


@for_each(("changes", "names"), NAMES)
def test_layers_have_their_names_in_order(changes, names, make_config):
    model = VisionTransformer(make_config(**changes))
    assert [layer.name for layer in model.layers] == ["images", *names]
    assert model.output is model.get_layer(names[-1]).output


def test_names_of_many_blocks_sort(make_config):
    model, _ = build_deferred(lambda: VisionTransformer(make_config(num_layers=12)))
    blocks = [layer.name for layer in model.layers if layer.name.startswith("block")]
    assert blocks == sorted(blocks) and (blocks[0], blocks[-1]) == ("block_00", "block_11")


@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        ({}, (5,)),
        ({"include_top": False}, (16,)),
        ({"include_top": False, "representation_size": 6}, (6,)),
        ({"representation_size": 6}, (5,)),
        ({"pooling": "gap", "include_top": False}, (16,)),
        ({"pooling": "unpooled"}, (16, 5)),
        ({"pooling": "unpooled", "include_top": False}, (16, 16)),
        ({"pooling": "unpooled", "representation_size": 6, "include_top": False}, (16, 6)),
        ({"pooling": "token_unpooled"}, (17, 5)),
        ({"pooling": "token_unpooled", "num_registers": 4, "include_top": False}, (21, 16)),
        ({"image_size": (8, 24), "pooling": "unpooled"}, (12, 5)),
        ({"channels": 1}, (5,)),
    ],
    ids=str,
)
def test_output_shapes(changes, shape, make_model, make_images, run):
    model = make_model(**changes)
    assert tuple(model.output.shape) == (None, *shape)
    assert run(model, make_images(model)).shape == (3, *shape)


@pytest.mark.parametrize(
    ("changes", "pooled_from"),
    [
        ({}, lambda tokens: tokens[:, 0]),
        ({"num_registers": 2}, lambda tokens: tokens[:, 0]),
        ({"pooling": "first"}, lambda tokens: tokens[:, 0]),
        ({"pooling": "gap"}, lambda tokens: tokens.mean(axis=1)),
        (
            {"pooling": "gap", "class_token": True, "num_registers": 2},
            lambda tokens: tokens[:, 3:].mean(axis=1),
        ),
        ({"pooling": "gap", "norm_position": "after_pooling"}, lambda tokens: tokens.mean(axis=1)),
    ],
    ids=["token", "token_registers", "first", "gap", "gap_prefix", "gap_after"],
)
def test_pooling_reads_the_right_tokens(changes, pooled_from, make_model, make_images, run):
    model = make_model(**changes)
    before = model.get_layer("pooling").input
    tokens, pooled = run(keras.Model(model.input, [before, model.get_layer("pooling").output]), make_images(model))
    assert tokens.shape[1] == 16 + model.config.num_prefix_tokens
    np.testing.assert_allclose(pooled, pooled_from(tokens), atol=1e-5)
    is_after = changes.get("norm_position") == "after_pooling"
    assert model.get_layer("encoder_norm").output.shape[1:] == ((16,) if is_after else tokens.shape[1:])


def test_pre_logits_is_a_tanh_layer_and_the_head_a_linear_one(make_model, make_images, run):
    model = make_model(representation_size=6)
    names = ["pooling", "pre_logits", "head"]
    pooled, hidden, logits = run(
        keras.Model(model.input, [model.get_layer(name).output for name in names]), make_images(model)
    )
    weights = {name: [ops.convert_to_numpy(w) for w in model.get_layer(name).weights] for name in names}
    np.testing.assert_allclose(hidden, np.tanh(pooled @ weights["pre_logits"][0] + weights["pre_logits"][1]), atol=1e-5)
    np.testing.assert_allclose(logits, hidden @ weights["head"][0] + weights["head"][1], atol=1e-5)


def test_new_model_has_a_head_of_zeros_and_lecun_normal_pre_logits(make_config, make_images, run):
    model = VisionTransformer(make_config(hidden_dim=128, representation_size=256))
    assert not run(model, make_images(model)).any()
    kernel = ops.convert_to_numpy(model.get_layer("pre_logits").kernel)
    assert kernel.std() == pytest.approx(1 / math.sqrt(128), rel=0.03)
    assert np.abs(kernel).max() <= 2 / math.sqrt(128) / 0.87962566 * (1 + 1e-6)  # a normal cut at two deviations
    assert not any(ops.convert_to_numpy(model.get_layer(name).bias).any() for name in ("pre_logits", "head"))


def test_classifier_activation_gives_probabilities(make_model, make_images, run):
    model, plain = make_model(classifier_activation="softmax"), make_model()
    probabilities, logits = run(model, make_images(model)), run(plain, make_images(plain))
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1.0, atol=1e-6)
    np.testing.assert_allclose(probabilities, np.exp(logits) / np.exp(logits).sum(-1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize(("gelu", "epsilon"), [(None, None), ("erf", 1e-12)])
def test_gelu_and_epsilon_reach_every_layer(gelu, epsilon, make_config):
    model = VisionTransformer(make_config(gelu=gelu, epsilon=epsilon, qk_norm=True, pooling="map"))
    layers = list(model._flatten_layers())
    norms = [layer for layer in layers if isinstance(layer, keras.layers.LayerNormalization)]
    assert len(norms) == 2 * 4 + 1 + 1  # two blocks with norms of queries and keys, the pooling's, the encoder's
    assert {norm.epsilon for norm in norms} == {epsilon or 1e-6}
    gelus = [layer.gelu for layer in layers if type(layer).__name__ == "MlpBlock"]
    assert gelus == [gelu or "tanh"] * 3


@for_each(("num_layers", "rates"), [(1, [0.0]), (2, [0.0, 0.3]), (4, [0.0, 0.1, 0.2, 0.3])])
def test_stochastic_depth_grows_linearly(num_layers, rates, make_config):
    model = VisionTransformer(make_config(num_layers=num_layers, drop_path_rate=0.3))
    blocks = [model.get_layer(f"block_{index:02d}") for index in range(num_layers)]
    assert [block.drop_path.rate for block in blocks] == pytest.approx(rates)


def test_dropout_stands_after_positions_and_in_every_block(make_config):
    model = VisionTransformer(make_config(dropout_rate=0.1, attention_dropout_rate=0.2))
    dropout = model.get_layer("dropout")
    assert dropout.rate == 0.1 and dropout.input is model.get_layer("position_embs").output
    for name in BLOCKS:
        block = model.get_layer(name)
        assert (block.dropout.rate, block.mlp.dropout.rate, block.attention.dropout.rate) == (0.1, 0.1, 0.2)


def test_config_states_what_was_left_open(make_config):
    config = VisionTransformer(make_config()).config
    assert (config.gelu, config.epsilon, config.dtype) == ("tanh", 1e-6, "float32")
    assert config == make_config(gelu="tanh", epsilon=1e-6, dtype="float32")


def test_name_is_the_variants_folded_or_the_one_given(make_config):
    config = make_config(name="R50+ViT-B_16")
    assert VisionTransformer(config).name == "r50_vit_b16"
    assert VisionTransformer(config, name="mine").name == "mine"


@for_each("config", [None, "ViT-B_16", {"name": "tiny"}, Preprocessing()])
def test_config_of_another_type_is_refused(config):
    with pytest.raises(TypeError, match=rf"config must be a keras_vit.ViTConfig; got {type(config).__name__}"):
        VisionTransformer(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classifier_activation": "sofmax"}, "activation function identifier: sofmax"),
        ({"dtype": "float17"}, "'float17'"),
    ],
)
def test_names_that_keras_does_not_know_are_refused(changes, message, make_config):
    with pytest.raises(ValueError, match=message):
        VisionTransformer(make_config(**changes))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("is_global", [False, True])
def test_mixed_precision_computes_in_16_bits_and_ends_in_float32(policy, is_global, make_model, make_images, run):
    if is_global:
        keras.config.set_dtype_policy(policy)
    model = make_model(dtype=None if is_global else policy, pooling="map", layer_scale_init=0.1)
    compute = policy.removeprefix("mixed_")
    assert model.config.dtype == policy
    for layer in model.layers[1:-1]:
        assert (layer.dtype_policy.name, layer.output.dtype) == (policy, compute), layer.name
    head = model.get_layer("head")
    assert (head.dtype_policy.name, model.output.dtype) == ("float32", "float32")
    assert {weight.dtype for weight in model.weights} == {"float32"}
    logits = model(make_images(model))
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    keras.config.set_dtype_policy("float32")
    exact = run(make_model(pooling="map", layer_scale_init=0.1), make_images(model))
    logits = ops.convert_to_numpy(logits)
    assert np.isfinite(logits).all()
    assert 0 < np.abs(logits - exact).max() < 0.1 * np.abs(exact).max()


def test_summary_has_one_line_per_block():
    config = ViTConfig(
        name="ViT-B_16",
        image_size=224,
        patch_size=16,
        hidden_dim=768,
        num_layers=12,
        num_heads=12,
        mlp_dim=3072,
    )
    model, _ = build_deferred(lambda: VisionTransformer(config))
    text = []
    model.summary(print_fn=lambda line, **_: text.append(line), line_length=120)
    rows = [line for line in "\n".join(text).splitlines() if "│" in line]
    assert len(rows) == len(model.layers) == 19  # the input, six layers and twelve blocks
    assert sum("TransformerBlock" in row for row in rows) == 12
    assert "86,567,656" in "\n".join(text)


@needs_tensorflow
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_gradients_are_finite_and_reach_every_weight(policy, make_model, make_images):
    model = make_model(dtype=policy, layer_scale_init=0.1, num_registers=1, representation_size=6)
    _, gradients = _gradients(model, make_images(model))
    for weight, gradient in zip(model.trainable_weights, gradients, strict=True):
        gradient = ops.convert_to_numpy(gradient)
        assert np.isfinite(gradient).all() and gradient.any(), weight.path


@needs_tensorflow
@pytest.mark.parametrize(
    "changes",
    slow_after(
        1,
        [
            {"dropout_rate": 0.2, "attention_dropout_rate": 0.2, "drop_path_rate": 0.5},
            {},
            {"dtype": "mixed_bfloat16", "dropout_rate": 0.2},
        ],
    ),
    ids=str,
)
def test_remat_gives_the_same_loss_and_gradients(changes, make_model, make_images):
    results = []
    for remat in (None, "attention", "block"):
        keras.utils.set_random_seed(3)  # the same seeds for the dropouts
        model = make_model(remat=remat, **changes)
        results.append(_gradients(model, make_images(model)))
    (loss, gradients), *others = results
    for other_loss, other_gradients in others:
        np.testing.assert_allclose(other_loss, loss, rtol=1e-6)
        for gradient, other in zip(gradients, other_gradients, strict=True):
            np.testing.assert_allclose(other, gradient, atol=1e-4 * np.abs(gradient).max() + 1e-7)


def _gradients(model, images):
    import tensorflow as tf

    cotangent = np.random.default_rng(8).normal(size=(len(images), *model.output.shape[1:])).astype("float32")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(images, training=True) * cotangent)
    return loss.numpy(), tape.gradient(loss, [weight.value for weight in model.trainable_weights])


@pytest.mark.slow
@pytest.mark.parametrize("remat", [None, "attention", "block"])
def test_fit_lowers_the_loss(remat, make_config):
    model = VisionTransformer(make_config(remat=remat, dropout_rate=0.05, drop_path_rate=0.1))
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, size=64).astype("int32")
    images = rng.normal(0, 0.3, size=(64, 16, 16, 3)).astype("float32")
    images[np.arange(64), :, 3 * labels] += 2  # the class is a bright column
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    history = model.fit(images, labels, batch_size=16, epochs=10, verbose=0).history
    assert history["loss"][0] == pytest.approx(math.log(5), rel=0.35)  # a head of zeros starts at chance
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert history["accuracy"][-1] > 0.8


def test_lora_on_a_blocks_dense_layer(make_model, make_images, run):
    model = make_model()
    dense = model.get_layer("block_00").mlp.dense1
    before = run(model, make_images(model))
    kernel = ops.convert_to_numpy(dense.kernel)
    dense.enable_lora(2)
    np.testing.assert_allclose(run(model, make_images(model)), before, atol=1e-6)  # it starts at the identity
    trainable = [weight.path for weight in dense.trainable_weights]
    assert [path.rsplit("/", 1)[1] for path in trainable] == ["bias", "lora_kernel_a", "lora_kernel_b"]
    dense.lora_kernel_b.assign(np.ones((2, 24)))
    assert np.abs(run(model, make_images(model)) - before).max() > 0.01
    lora = ops.convert_to_numpy(dense.lora_kernel_a) @ np.ones((2, 24))
    np.testing.assert_allclose(ops.convert_to_numpy(dense.kernel), kernel + lora, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["attention.qkv", "attention.proj", "mlp.dense1", "mlp.dense2"])
def test_int8_on_a_blocks_dense_layer(part, make_model, make_images, run):
    model = make_model()
    before = run(model, make_images(model))
    block = model.get_layer("block_00")
    group, name = part.split(".")
    dense = getattr(getattr(block, group), name)
    dense.quantize("int8")
    assert dense._kernel.dtype == "int8"
    after = run(model, make_images(model))
    assert 0 < np.abs(after - before).max() < 0.05 * np.abs(before).max()
