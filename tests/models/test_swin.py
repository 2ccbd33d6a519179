"""SwinTransformer: layers and their names, shapes, windows, precision, saving, other sizes."""

import keras
import numpy as np
import pytest
from slow_rows import slow_after

from keras_vit.compat.initial_values import build_deferred
from keras_vit.config import Preprocessing, SwinConfig, ViTConfig
from keras_vit.models.copies import clone
from keras_vit.models.derived import resize
from keras_vit.models.swin import SwinTransformer
from keras_vit.zoo import VARIANTS

TINY = {
    "name": "tiny_swin",
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": (2, 2, 1),
    "num_heads": (1, 2, 4),
    "window_size": 4,
    "classes": 5,
}
NAMES = [
    "patch_encoder",
    "patch_map",
    "patch_norm",
    "stage_1_block_00",
    "stage_1_block_01",
    "stage_1",
    "stage_1_downsample",
    "stage_2_block_00",
    "stage_2_block_01",
    "stage_2",
    "stage_2_downsample",
    "stage_3_block_00",
    "stage_3",
    "encoder_norm",
    "encoder_tokens",
    "pooling",
    "head",
]
BLOCK_PATHS = [
    "norm1/gamma",
    "norm1/beta",
    "attention/qkv/kernel",
    "attention/qkv/bias",
    "attention/relative_position_bias/embedding",
    "attention/proj/kernel",
    "attention/proj/bias",
    "norm2/gamma",
    "norm2/beta",
    "mlp/dense1/kernel",
    "mlp/dense1/bias",
    "mlp/dense2/kernel",
    "mlp/dense2/bias",
]

# at 224 pixels and 1000 classes, counted in the authors' code, which rounds to the paper's 29, 50, 88 and 197 million
PARAMETERS = {"Swin-T": 28_288_354, "Swin-S": 49_606_258, "Swin-B": 87_768_224, "Swin-L": 196_532_476}


def make_swin(**changes):
    model = SwinTransformer(SwinConfig(**{**TINY, **changes}))
    rng = np.random.default_rng(5)
    for weight in model.weights:
        weight.assign(rng.normal(0.05, 0.3, weight.shape).astype("float32"))
    return model


def full_size(name):
    model, _ = build_deferred(lambda: SwinTransformer(VARIANTS[name].config(image_size=224)))
    return model


def test_layers_have_their_names_in_order():
    assert [layer.name for layer in make_swin().layers] == ["images", *NAMES]
    model = make_swin(include_top=False, dropout_rate=0.1)
    names = [*NAMES[:3], "dropout", *NAMES[3:-1]]
    assert [layer.name for layer in model.layers] == ["images", *names]
    assert tuple(model.output.shape) == (None, 32)


def test_variable_paths():
    expected = {
        f"stage_{s}_block_{b:02d}/{path}" for s, b in [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0)] for path in BLOCK_PATHS
    }
    expected |= {f"patch_encoder/projection/{kind}" for kind in ("kernel", "bias")}
    expected |= {f"{norm}/{kind}" for norm in ("patch_norm", "encoder_norm") for kind in ("gamma", "beta")}
    for stage in (1, 2):
        parts = ("norm/gamma", "norm/beta", "reduction/kernel")
        expected |= {f"stage_{stage}_downsample/{part}" for part in parts}
    expected |= {"head/kernel", "head/bias"}
    assert {weight.path for weight in make_swin().weights} == expected


@pytest.mark.parametrize("name", slow_after(1, PARAMETERS))
def test_number_of_parameters(name):
    assert full_size(name).count_params() == PARAMETERS[name]


def test_windows_and_shifts_of_a_full_size():
    blocks = [layer for layer in full_size("Swin-T").layers if "block" in layer.name]
    assert [block.built_window for block in blocks] == [7] * 12
    assert [block.built_shift for block in blocks] == [0, 3] * 5 + [0, 0]  # the last stage is one window
    assert [block.mlp.mlp_dim for block in blocks] == [384] * 2 + [768] * 2 + [1536] * 6 + [3072] * 2
    assert [block.num_heads for block in blocks] == [3] * 2 + [6] * 2 + [12] * 6 + [24] * 2


def test_stochastic_depth_grows_linearly_over_all_stages():
    blocks = [layer for layer in make_swin(drop_path_rate=0.4).layers if "block" in layer.name]
    rates = [block.drop_path_rate for block in blocks]
    np.testing.assert_allclose(rates, [0.0, 0.1, 0.2, 0.3, 0.4])


def test_options_reach_the_layers():
    options = {"dropout_rate": 0.1, "qkv_bias": False, "gelu": "tanh", "epsilon": 1e-3, "mlp_ratio": 1.5}
    model = make_swin(classifier_activation="softmax", channels=1, **options)
    block = model.get_layer("stage_2_block_01")
    assert (block.dropout_rate, block.qkv_bias, block.mlp.gelu) == (0.1, False, "tanh")
    assert (block.epsilon, block.mlp.mlp_dim) == (1e-3, 24)
    norms = [model.get_layer(name) for name in ("patch_norm", "encoder_norm")]
    norms.append(model.get_layer("stage_1_downsample").norm)
    assert [norm.epsilon for norm in norms] == [1e-3] * 3
    images = np.random.default_rng(6).normal(size=(3, 32, 32, 1)).astype("float32")
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model(images)).sum(axis=1), 1.0, atol=1e-5)


# Patches of 2: maps 13 x 11, 7 x 6 and 4 x 3; 6 x 22, 3 x 11 and 2 x 6
@pytest.mark.parametrize("image_size", slow_after(1, [[(26, 22)], [(12, 44)]]))
def test_stages_are_maps_and_samples_do_not_touch(image_size, run):
    model = make_swin(image_size=image_size)
    images = np.random.default_rng(6).normal(size=(3, *image_size, 3)).astype("float32")
    stages = [model.get_layer(f"stage_{stage}").output for stage in (1, 2, 3)]
    assert [tuple(stage.shape) for stage in stages] == [
        (None, *model.config.stage_size(stage), model.config.stage_dim(stage)) for stage in range(3)
    ]
    several = keras.Model(model.input, [*stages, model.get_layer("pooling").output, model.output])
    together, alone = run(several, images), run(several, images[1:2])
    for many, one in zip(together, alone, strict=True):
        np.testing.assert_allclose(many[1:2], one, atol=2e-5 * np.abs(many).max())
    assert np.abs(together[-1][0] - together[-1][1]).max() > 1e-3


def test_pooling_is_the_mean_of_the_normalised_map(run):
    model = make_swin(include_top=False)
    images = np.random.default_rng(6).normal(size=(2, 32, 32, 3)).astype("float32")
    normed, features = run(keras.Model(model.input, [model.get_layer("encoder_norm").output, model.output]), images)
    assert normed.shape == (2, 4, 4, 32)
    np.testing.assert_allclose(features, normed.mean(axis=(1, 2)), atol=1e-6)


def test_odd_blocks_see_beyond_their_window():
    """A pixel of the first window reaches the next window in the shifted block and not before."""
    model = make_swin(depths=(2,), num_heads=(1,))
    names = ["stage_1_block_00", "stage_1_block_01"]
    maps = keras.Model(model.input, [model.get_layer(name).output for name in names])
    images = np.random.default_rng(6).normal(size=(1, 32, 32, 3)).astype("float32")
    changed = images.copy()
    changed[0, 7, 7] += 1.0  # token (3, 3), the last of the first 4 x 4 window
    before, after = (
        (np.abs(keras.ops.convert_to_numpy(x) - keras.ops.convert_to_numpy(y)).max(axis=-1)[0] > 1e-7)
        for x, y in zip(maps(images), maps(changed), strict=True)
    )
    reached = np.zeros((16, 16), bool)
    reached[:4, :4] = True
    np.testing.assert_array_equal(before, reached)
    # Shifted windows begin at 0, 2, 6 ...: those of rows and columns 0 to 1 and 2 to 5 touch what has changed.
    reached[:6, :6] = True
    np.testing.assert_array_equal(after, reached)


def test_mixed_precision(run):
    model = make_swin(depths=(2, 1), num_heads=(1, 2))
    mixed = SwinTransformer(model.config.replace(dtype="mixed_bfloat16"))
    mixed.set_weights(model.get_weights())
    images = np.random.default_rng(6).normal(size=(2, 32, 32, 3)).astype("float32")
    dtypes = {layer.name: layer.compute_dtype for layer in mixed.layers}
    assert dtypes.pop("head") == mixed.output.dtype == "float32"
    assert dtypes.pop("images") in ("float32", "bfloat16") and set(dtypes.values()) == {"bfloat16"}
    assert {weight.dtype for weight in mixed.weights} == {"float32"}
    exact = run(model, images)
    np.testing.assert_allclose(run(mixed, images), exact, atol=0.03 * np.abs(exact).max())


def test_the_global_policy_is_taken_and_stated():
    keras.config.set_dtype_policy("mixed_bfloat16")
    assert SwinTransformer(SwinConfig(**TINY)).config.dtype == "mixed_bfloat16"


@pytest.mark.slow
def test_saved_model_of_a_rectangular_image_reloads(run, tmp_path):
    image_size = (26, 44)
    model = make_swin(image_size=image_size, dropout_rate=0.1, drop_path_rate=0.1)
    model.labels = list("abcde")
    model.get_layer("stage_1_block_00").trainable = False
    model.save(tmp_path / "swin.keras")
    again = keras.models.load_model(tmp_path / "swin.keras")
    assert type(again) is SwinTransformer
    assert (again.config, again.labels) == (model.config, tuple("abcde"))
    assert not again.get_layer("stage_1_block_00").trainable
    images = np.random.default_rng(6).normal(size=(2, *image_size, 3)).astype("float32")
    np.testing.assert_allclose(run(again, images), run(model, images), atol=1e-6)
    copy = clone(model)
    np.testing.assert_allclose(run(copy, images), run(model, images), atol=1e-6)


def test_another_size_with_the_same_windows_keeps_every_weight():
    model = make_swin()
    for new, old in zip(resize(model, (48, 64)).weights, model.weights, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(new), keras.ops.convert_to_numpy(old))


def test_another_size_resizes_the_tables_of_the_windows_that_change():
    model = make_swin()
    smaller = resize(model, 16, "bicubic")  # maps of 8, 4 and 2 tokens: the last window shrinks from 4 to 2
    path = "attention/relative_position_bias/embedding"
    changed = [
        new.path
        for new, old in zip(smaller.weights, model.weights, strict=True)
        if new.shape != old.shape or not np.array_equal(*map(keras.ops.convert_to_numpy, (new, old)))
    ]
    assert changed == [f"stage_3_block_00/{path}"]
    old, new = (
        keras.ops.convert_to_numpy(m.get_layer("stage_3_block_00").attention.relative_position_bias.embedding)
        for m in (model, smaller)
    )
    assert (old.shape, new.shape) == ((49, 4), (9, 4))
    np.testing.assert_allclose(new[4], old[24], atol=1e-6)  # the middle of both tables, offset (0, 0)


def test_head_and_projections_start_as_a_cut_normal_of_0_02():
    model = SwinTransformer(SwinConfig(**{**TINY, "embed_dim": 32, "classes": 40}))
    kernels = {w.path: keras.ops.convert_to_numpy(w) for w in model.weights if w.path.endswith("kernel")}
    for path in (
        "head/kernel",
        "stage_1_downsample/reduction/kernel",
        "stage_3_block_00/attention/qkv/kernel",
    ):
        assert np.abs(kernels[path]).max() <= 0.04
        assert kernels[path].std() == pytest.approx(0.88 * 0.02, rel=0.05)
    assert not keras.ops.convert_to_numpy(model.get_layer("head").bias).any()


def test_description():
    preprocessing = Preprocessing(size=32, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    model = SwinTransformer(SwinConfig(**TINY), preprocessing=preprocessing, name="mine")
    assert (model.name, model.preprocessing) == ("mine", preprocessing)
    assert SwinTransformer(SwinConfig(**{**TINY, "name": "Swin-T"})).name == "swin_t"


def test_config_of_another_family_is_refused():
    vit = ViTConfig(name="v", image_size=16, patch_size=4, hidden_dim=16, num_layers=1, num_heads=2, mlp_dim=8)
    with pytest.raises(TypeError, match="config must be a keras_vit.SwinConfig; got ViTConfig"):
        SwinTransformer(vit)
