"""BiTResNet and resnet_stem: layers and their names, paddings, numbers of parameters, precision, saving."""

import keras
import numpy as np
import pytest
from keras import ops
from numpy.lib.stride_tricks import sliding_window_view
from slow_rows import slow_after

from keras_vit.compat.initial_values import build_deferred
from keras_vit.config import BiTConfig, ResNetConfig
from keras_vit.layers.bottleneck import StdConv2D
from keras_vit.models.copies import clone
from keras_vit.models.derived import resize
from keras_vit.models.resnet import BiTResNet, resnet_stem

TINY_BIT = {"name": "BiT-tiny", "image_size": (20, 27), "stage_sizes": (1, 1), "width_factor": 0.5, "classes": 5}
STAGES = ["stage_1", "stage_2"]
SIZES = [(20, 27), (21, 32), (16, 16), (33, 35)]

# arXiv 1912.11370's models: stages, width factor, parameters with 1000 classes
BIT = {
    "BiT-R50x1": ((3, 4, 6, 3), 1, 25_549_352),
    "BiT-R50x3": ((3, 4, 6, 3), 3, 217_319_080),
    "BiT-R101x1": ((3, 4, 23, 3), 1, 44_541_480),
    "BiT-R101x3": ((3, 4, 23, 3), 3, 387_934_888),
    "BiT-R152x2": ((3, 8, 36, 3), 2, 236_335_208),
    "BiT-R152x4": ((3, 8, 36, 3), 4, 936_533_224),
}


def _bit(seed=5, **changes):
    """A tiny model of random weights: zeros would hide the rest."""
    return _randomise(BiTResNet(BiTConfig(**{**TINY_BIT, **changes})), seed)


def _stem(image_size, stage_sizes=(1, 1), **changes):
    images = keras.Input((*image_size, 3))
    config = ResNetConfig(stage_sizes=stage_sizes, **{"width_factor": 0.5, **changes})
    return _randomise(keras.Model(images, resnet_stem(images, config))), config


def _randomise(model, seed=5):
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        weight.assign(rng.normal(0.05, 0.3, weight.shape).astype("float32"))
    return model


def _outputs(model, images, names):
    outputs = keras.Model(model.input, [model.get_layer(name).output for name in names])(images)
    return [ops.convert_to_numpy(output) for output in outputs]


def _max_pool(images, pads, border):
    """3 x 3 with stride 2, after a border of these widths (before, after) down and to the right."""
    images = np.pad(images, ((0, 0), *pads, (0, 0)), constant_values=border)
    return sliding_window_view(images, (3, 3), axis=(1, 2))[:, ::2, ::2].max(axis=(-2, -1))


@pytest.mark.parametrize(
    ("include_top", "tail"),
    [(True, ["final_norm", "final_relu", "pooling", "head"]), (False, ["final_norm", "final_relu", "pooling"])],
)
def test_layers_of_bit_have_their_names_in_order(include_top, tail):
    model = _bit(include_top=include_top)
    assert [layer.name for layer in model.layers] == ["images", "root_conv", "root_pool", *STAGES, *tail]
    assert model.name == "bit_tiny"
    assert model.output.shape == (None, 5 if include_top else 256)


def test_layers_of_the_stem_have_their_names_in_order():
    model, _ = _stem((20, 27))
    assert [layer.name for layer in model.layers[1:]] == ["root_conv", "root_norm", "root_relu", "root_pool", *STAGES]
    root, _ = _stem((20, 27), stage_sizes=())
    assert [layer.name for layer in root.layers[1:]] == ["root_conv", "root_norm", "root_relu", "root_pool"]


def _unit_paths(names, shortcut):
    norms = [f"norm{i}/{name}" for i in (1, 2, 3) for name in ("gamma", "beta")]
    kernels = [f"conv{i}/kernel" for i in (1, 2, 3)]
    return {f"{unit}/{path}" for unit in names for path in norms + kernels} | {f"{names[0]}/{p}" for p in shortcut}


def test_variables_of_bit_have_their_paths():
    shortcut = ["shortcut_conv/kernel"]
    assert {weight.path for weight in _bit(stage_sizes=(1, 2)).weights} == {
        "root_conv/kernel",
        *_unit_paths(["stage_1/unit_01"], shortcut),
        *_unit_paths(["stage_2/unit_01", "stage_2/unit_02"], shortcut),
        "final_norm/gamma",
        "final_norm/beta",
        "head/kernel",
        "head/bias",
    }


def test_variables_of_the_stem_have_their_paths():
    shortcut = ["shortcut_conv/kernel", "shortcut_norm/gamma", "shortcut_norm/beta"]
    assert {weight.path for weight in _stem((20, 27), (1, 2))[0].weights} == {
        "root_conv/kernel",
        "root_norm/gamma",
        "root_norm/beta",
        *_unit_paths(["stage_1/unit_01"], shortcut),
        *_unit_paths(["stage_2/unit_01", "stage_2/unit_02"], shortcut),
    }


@pytest.mark.parametrize("name", slow_after(1, BIT))
def test_number_of_parameters(name):
    stage_sizes, width_factor, count = BIT[name]
    config = BiTConfig(name=name, image_size=224, stage_sizes=stage_sizes, width_factor=width_factor)
    model, _ = build_deferred(lambda: BiTResNet(config))
    assert model.count_params() == count


@pytest.mark.parametrize("border", ["zeros", "minus_infinity"])
@pytest.mark.parametrize("size", SIZES)
def test_root_of_bit_pads_all_sides_alike(size, border):
    model = _bit(image_size=size, max_pool_padding=border, stage_sizes=(1,))
    images = np.random.default_rng(1).normal(size=(2, *size, 3)).astype("float32")
    conv, pool = _outputs(model, images, ["root_conv", "root_pool"])
    reference = StdConv2D(32, 7, 2, "valid", 1e-10, "variance")
    padded = np.pad(images, ((0, 0), (3, 3), (3, 3), (0, 0)))
    reference.build(padded.shape)
    reference.set_weights(model.get_layer("root_conv").get_weights())
    np.testing.assert_allclose(conv, ops.convert_to_numpy(reference(padded)), atol=1e-5)
    expected = _max_pool(conv, ((1, 1), (1, 1)), 0.0 if border == "zeros" else -np.inf)
    np.testing.assert_allclose(pool, expected, atol=1e-29)  # where the border is the largest
    assert pool.shape[1:3] == tuple(-(-side // 4) for side in size)


@pytest.mark.parametrize("size", SIZES)
def test_root_of_the_stem_pads_as_tensorflow_does(size):
    model, config = _stem(size)
    images = np.random.default_rng(1).normal(size=(2, *size, 3)).astype("float32")
    norm, pool = _outputs(model, images, ["root_norm", "root_pool"])
    pads = [(0, 1) if side % 2 == 0 else (1, 1) for side in norm.shape[1:3]]
    np.testing.assert_array_equal(pool, _max_pool(np.maximum(norm, 0), pads, -np.inf))
    assert model.output.shape == (None, *config.feature_size(size), 256)
    assert model(images).shape == (2, *config.feature_size(size), 256)


def _layer_epsilons(model):
    unit = model.get_layer("stage_1").units[0]
    convs = [(conv.epsilon, conv.epsilon_form) for conv in (model.get_layer("root_conv"), unit.conv2)]
    assert convs[0] == convs[1]
    return unit.norm1.epsilon, *convs[0]


def test_epsilons_of_the_config_reach_every_layer():
    assert _layer_epsilons(_stem((16, 16))[0]) == (1e-6, 1e-5, "deviation")
    assert _layer_epsilons(_stem((16, 16), style="timm")[0]) == (1e-5, 1e-8, "variance")
    stem, _ = _stem((16, 16), gn_epsilon=1e-3, std_epsilon=1e-4)
    assert _layer_epsilons(stem) == (1e-3, 1e-4, "deviation")
    assert stem.get_layer("root_norm").epsilon == 1e-3
    bit = _bit(gn_epsilon=1e-3, std_epsilon=1e-4)
    assert _layer_epsilons(bit) == (1e-3, 1e-4, "variance")
    assert bit.get_layer("final_norm").epsilon == 1e-3


def test_head_is_the_mean_of_the_last_map_times_its_kernel():
    model = _bit()
    images = np.random.default_rng(1).normal(size=(2, 20, 27, 3)).astype("float32")
    features, pooled, logits = _outputs(model, images, ["final_relu", "pooling", "head"])
    assert features.min() == 0
    np.testing.assert_allclose(pooled, features.mean(axis=(1, 2)), rtol=1e-5, atol=1e-6)
    kernel, bias = model.get_layer("head").get_weights()
    np.testing.assert_allclose(logits, pooled @ kernel + bias, rtol=1e-4, atol=1e-5)


def test_a_new_head_is_zero_and_has_the_activation():
    model = BiTResNet(BiTConfig(**TINY_BIT, classifier_activation="softmax", channels=1))
    scores = ops.convert_to_numpy(model(np.ones((2, 20, 27, 1), "float32")))
    np.testing.assert_allclose(scores, 0.2)


def test_batches_of_any_size_give_the_same_logits():
    model = _bit(stage_sizes=(1,))
    images = np.random.default_rng(1).normal(size=(5, 20, 27, 3)).astype("float32")
    together = model.predict(images, batch_size=3, verbose=0)  # the last batch has 2
    alone = np.concatenate([ops.convert_to_numpy(model(image[None])) for image in images])
    assert np.ptp(together, axis=0).min() > 0.01
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-4)


def test_every_weight_is_trained():
    model = _bit()
    before = {weight.path: weight.numpy() for weight in model.trainable_weights}
    assert len(before) == len(model.weights)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, run_eagerly=True)
    images = np.random.default_rng(1).normal(size=(4, 20, 27, 3)).astype("float32")
    model.fit(images, np.array([0, 1, 2, 3]), batch_size=4, verbose=0)
    for weight in model.trainable_weights:
        assert np.isfinite(weight.numpy()).all(), weight.path
        assert (weight.numpy() != before[weight.path]).any(), weight.path


def test_mixed_bfloat16_gives_float32_logits_near_the_exact_ones():
    images = np.random.default_rng(1).normal(size=(3, 20, 27, 3)).astype("float32")
    exact, mixed = _bit(), _bit(dtype="mixed_bfloat16")
    assert mixed.get_layer("stage_2").units[0].conv2.compute_dtype == "bfloat16"
    assert mixed.output.dtype == "float32"
    expected = ops.convert_to_numpy(exact(images))
    difference = np.abs(ops.convert_to_numpy(mixed(images)) - expected).max()
    assert 0 < difference < 0.05 * np.abs(expected).max()


def test_global_policy_is_kept_in_the_config():
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = BiTResNet(BiTConfig(**TINY_BIT))
    assert model.config.dtype == model.get_layer("stage_1").units[0].norm1.dtype_policy.name == "mixed_bfloat16"


@pytest.mark.parametrize("include_top", slow_after(1, [True, False]))
def test_saved_model_is_the_same(tmp_path, include_top):
    model = _bit(include_top=include_top, max_pool_padding="minus_infinity", gn_epsilon=1e-4)
    model.get_layer("stage_1").trainable = False
    images = np.random.default_rng(1).normal(size=(2, 20, 27, 3)).astype("float32")
    model.save(tmp_path / "bit.keras")
    again = keras.saving.load_model(tmp_path / "bit.keras")
    assert type(again) is BiTResNet
    assert again.config == model.config
    assert not again.get_layer("stage_1").trainable
    np.testing.assert_array_equal(ops.convert_to_numpy(again(images)), ops.convert_to_numpy(model(images)))
    model.save_weights(tmp_path / "bit.weights.h5")
    other = _bit(seed=9, include_top=include_top, max_pool_padding="minus_infinity", gn_epsilon=1e-4)
    other.load_weights(tmp_path / "bit.weights.h5")
    np.testing.assert_array_equal(ops.convert_to_numpy(other(images)), ops.convert_to_numpy(model(images)))


def test_clone_and_resize_keep_every_weight():
    model = _bit()
    for copy, size in ((clone(model), (20, 27)), (resize(model, (33, 24)), (33, 24))):
        assert type(copy) is BiTResNet
        assert copy.config == model.config.replace(image_size=size)
        for new, old in zip(copy.weights, model.weights, strict=True):
            np.testing.assert_array_equal(new.numpy(), old.numpy())
        assert copy(np.zeros((1, *size, 3), "float32")).shape == (1, 5)


def test_channels_are_last_whatever_the_image_data_format():
    images = np.random.default_rng(1).normal(size=(2, 20, 27, 3)).astype("float32")
    expected = [ops.convert_to_numpy(model(images)) for model in (_bit(), _stem((20, 27))[0])]
    keras.config.set_image_data_format("channels_first")
    try:
        found = [ops.convert_to_numpy(model(images)) for model in (_bit(), _stem((20, 27))[0])]
    finally:
        keras.config.set_image_data_format("channels_last")
    for output, reference in zip(found, expected, strict=True):
        np.testing.assert_array_equal(output, reference)


def test_other_configs_are_refused():
    with pytest.raises(TypeError, match="config must be a keras_vit.BiTConfig; got ResNetConfig"):
        BiTResNet(ResNetConfig(stage_sizes=(1,)))
