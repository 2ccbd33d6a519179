"""add_lora and merge_lora: what is frozen, what is trained, and what copies and files hold."""

import keras
import numpy as np
import pytest
from families import FAMILIES, built
from slow_rows import slow_after

import keras_vit
from keras_vit.compat.graph import sublayers
from keras_vit.config import BlockConfig
from keras_vit.models.layer_states import enable_lora_as_in

MERGED = 1e-5  # of the outputs


def _array(tensor):
    return keras.ops.convert_to_numpy(tensor)


def _adapted(model, **arguments):
    """The report of a model whose matrices B are not zero any more."""
    report = keras_vit.add_lora(model, **arguments)
    rng = np.random.default_rng(2)
    for layer in sublayers(model):
        if getattr(layer, "lora_enabled", False):
            layer.lora_kernel_b.assign(rng.normal(size=layer.lora_kernel_b.shape))
    return report


def _trained(model):
    return {weight.path for weight in model.trainable_weights}


def _fit(model, images):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    model.fit(images, np.arange(len(images)) % model.output_shape[-1], epochs=2, verbose=0)


def test_the_kernel_is_that_of_the_paper(make_model, make_images, run):
    """W + alpha / rank * A B, and nothing at the start, when B is zero."""
    model = make_model()
    before, images = run(model, make_images(model)), make_images(model)
    kernel = _array(model.get_layer("block_01").attention.proj.kernel)
    report = keras_vit.add_lora(model, rank=2, targets=["proj"], alpha=6)
    np.testing.assert_array_equal(run(model, images), before)
    assert report.layers == ("block_00/attention/proj", "block_01/attention/proj")
    dense = model.get_layer("block_01").attention.proj
    dense.lora_kernel_b.assign(np.random.default_rng(0).normal(size=dense.lora_kernel_b.shape))
    expected = kernel + 6 / 2 * _array(dense.lora_kernel_a) @ _array(dense.lora_kernel_b)
    np.testing.assert_allclose(_array(dense.kernel), expected, atol=1e-6)
    assert np.abs(run(model, images) - before).max() > 1e-3
    assert dense.lora_kernel_a.shape == (dense.kernel.shape[0], 2) and dense.lora_kernel_a.dtype == "float32"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", slow_after(2, ["BEiT", "DeiT distilled", "plain", "hybrid on a CNN", "Swin", "axial ResNet"])
)
def test_only_lora_and_the_head_learn(name):
    family, model = FAMILIES[name], keras_vit.clone(built(name))
    targets = tuple(dict.fromkeys(family.lora))[:2]
    keras_vit.freeze(model, up_to="head")  # what was frozen before makes no difference
    report = keras_vit.add_lora(model, targets=targets)
    wanted = {weight.path for weight in model.weights if "lora_" in weight.path or weight.path.startswith("head")}
    assert _trained(model) == wanted and len(report.layers) == sum(layer.name in targets for layer in sublayers(model))
    before = {weight.path: _array(weight) for weight in model.weights}
    _fit(model, np.random.default_rng(0).normal(size=(4, *model.input_shape[1:])).astype("float32"))
    changed = {weight.path for weight in model.weights if np.any(_array(weight) != before[weight.path])}
    assert changed == wanted
    sizes = {weight.path: np.prod(weight.shape) for weight in model.weights}
    assert report.trained == sum(sizes[path] for path in wanted) and report.total == sum(sizes.values())
    assert report.lora == sum(size for path, size in sizes.items() if "lora_" in path)
    assert report.share == report.trained / report.total


def test_a_vit_b16_trains_less_than_a_hundredth_of_its_weights():
    """12 blocks of 768 x (768 + 2304) and 768 x (768 + 768) at rank 8: 442,368 of 86 million."""
    config = keras_vit.ViTConfig.from_dict({**_vit_b16().config.to_dict(), "num_layers": 1})
    report = keras_vit.add_lora(keras_vit.VisionTransformer(config))
    assert report.lora == 442_368 // 12 == 8 * (768 + 2304) + 8 * (768 + 768)
    assert report.trained - report.lora == 768 * 10 + 10
    total = _vit_b16().count_params() + 442_368
    assert (442_368 + 7690) / total < 0.0053 < 0.01 < (442_368 + 769_000) / (total + 769_000 - 7690) < 0.014
    text = f"LoRA of rank 8 in 2 layers: {report.trained:,} of {report.total:,} values are trained ("
    assert str(report).startswith(text) and str(report).endswith("36,864 of LoRA and 7,690 of the head")


def _vit_b16():
    from keras_vit.compat.initial_values import build_deferred

    return build_deferred(lambda: keras_vit.ViT_B16(classes=10))[0]


def test_copies_and_files(make_model, make_images, run, tmp_path):
    """A copy has LoRA of its own; a file has merged kernels, and what trained nothing but LoRA is frozen."""
    model = make_model(classes=5, block=BlockConfig(key_bias=False))  # biases beside the dense layers
    _adapted(model, rank=2, alpha=3)
    images = make_images(model)
    expected, trained = run(model, images), _trained(model)
    copied = keras_vit.clone(model)
    assert _trained(copied) == trained
    np.testing.assert_allclose(run(copied, images), expected, atol=1e-6)
    model.save(tmp_path / "model.keras")
    files = keras_vit.VisionTransformer(model.config), keras_vit.VisionTransformer(model.config)
    model.save_weights(tmp_path / "model.weights.h5")
    files[0].load_weights(tmp_path / "model.weights.h5")
    keras_vit.save_weights(model, tmp_path / "model.safetensors", "timm")
    keras_vit.load_weights(files[1], tmp_path / "model.safetensors")
    merged = keras_vit.merge_lora(model), keras.models.load_model(tmp_path / "model.keras")
    for other in (*merged, *files):
        assert not any("lora" in weight.path for weight in other.weights)
        np.testing.assert_allclose(run(other, images), expected, atol=MERGED)
    for other in merged:
        assert _trained(other) == {"head/kernel", "head/bias"}
        keras_vit.add_lora(other)  # it can be adapted further
        assert _trained(other) == trained
    np.testing.assert_array_equal(run(model, images), expected)  # the model itself keeps its LoRA


@pytest.mark.slow
def test_a_merged_model_can_be_quantised(make_model, make_images, run):
    model = make_model(classes=5)
    _adapted(model, rank=2)
    merged = keras_vit.merge_lora(model)
    merged.quantize("int8")
    expected = run(model, make_images(model))
    assert 0 < np.abs(run(merged, make_images(model)) - expected).max() < 0.3 * expected.std()
    with pytest.raises(ValueError, match="must not be quantised for merge_lora"):
        keras_vit.merge_lora(merged)
    with pytest.raises(ValueError, match="must not be quantised for add_lora .add LoRA first"):
        keras_vit.add_lora(merged)


def test_loaded_kernels_leave_lora_able_to_learn(make_model, make_images, run, tmp_path):
    """Keras sets both matrices to zero, which no gradient would ever change."""
    model = make_model()
    _adapted(model, rank=2)
    images, expected = make_images(model), run(model, make_images(model))
    model.save_weights(tmp_path / "model.weights.h5")
    model.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(run(model, images), expected, atol=MERGED)
    dense = model.get_layer("block_00").attention.qkv
    assert np.ptp(_array(dense.lora_kernel_a)) > 0 and not _array(dense.lora_kernel_b).any()


@pytest.mark.slow
def test_a_model_around_one_keeps_its_own_layers(make_model, make_images, run):
    inner = make_model(include_top=False)
    outer = keras_vit.Model(inner.input, keras.layers.Dense(3, name="mine")(inner(inner.input)))
    report = keras_vit.add_lora(outer, rank=2)
    assert _trained(outer) == {"mine/kernel", "mine/bias", *(w.path for w in inner.weights if "lora_" in w.path)}
    assert report.trained == sum(np.prod(weight.shape) for weight in outer.trainable_weights)
    _fit(outer, make_images(inner))
    copied = enable_lora_as_in(outer, keras_vit.Model.from_config(outer.get_config()))  # as several workers save it
    copied.set_weights(outer.get_weights())
    np.testing.assert_allclose(run(copied, make_images(inner)), run(outer, make_images(inner)), atol=1e-6)


@pytest.mark.slow
def test_predictions_and_training_follow_when_it_comes_late(make_model, make_images):
    model, images = make_model(classes=3), None
    images = make_images(model)
    _fit(model, images)
    model.predict(images, verbose=0)
    with pytest.warns(UserWarning, match="was compiled before it got LoRA: compile it again"):
        _adapted(model, rank=2)
    np.testing.assert_allclose(model.predict(images, verbose=0), _array(model(images, training=False)), atol=1e-5)


def test_other_models_are_refused(make_model):
    model = make_model()
    with pytest.raises(ValueError, match="must be one of 'qkv', 'proj', 'dense1', 'dense2'; got targets='query'"):
        keras_vit.add_lora(model, targets=("qkv", "query"))
    for targets in ("qkv", (), None):
        with pytest.raises(ValueError, match="targets must be a sequence of names among .'qkv', 'proj'"):
            keras_vit.add_lora(model, targets=targets)
    with pytest.raises(ValueError, match="rank must be an integer of at least 1; got rank=0"):
        keras_vit.add_lora(model, rank=0)
    with pytest.raises(ValueError, match="alpha must be a finite number above 0"):
        keras_vit.add_lora(model, alpha=0)
    assert len(_trained(model)) == len(model.weights)  # nothing was frozen so far
    keras_vit.add_lora(model)
    with pytest.raises(ValueError, match="must not have LoRA yet; tiny has .merge_lora returns a copy without it"):
        keras_vit.add_lora(model)
    with pytest.raises(ValueError, match="no LoRA for load_weights .load before add_lora.; tiny has"):
        keras_vit.load_weights(model, "absent.npz")
    with pytest.raises(ValueError, match="must have dense layers besides its head for LoRA; tiny has none"):
        keras_vit.add_lora(built("BiT"))
    with pytest.raises(TypeError, match="must be or contain one model of keras_vit; got Sequential"):
        keras_vit.add_lora(keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]))
    with pytest.raises(TypeError, match="model must be a model of keras_vit"):
        keras_vit.merge_lora(keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]))
