"""layer_states: what was frozen or quantised inside a model is so again after saving and copying."""

import gc
import json

import keras
import numpy as np
import pytest
from slow_rows import slow_after

import keras_vit
from keras_vit.compat.graph import inner_layers
from keras_vit.models.layer_states import layer_states


@pytest.fixture(autouse=True)
def _quick_collection():
    """Keras collects garbage for each layer that it quantises; this keeps other objects out of that."""
    gc.freeze()
    yield
    gc.unfreeze()


def _reopened(model, folder):
    model.save(folder / "model.keras")
    return [keras.models.load_model(folder / "model.keras"), keras_vit.clone(model), keras_vit.resize(model, 32)]


def _as_json(states):
    return json.loads(json.dumps(states))


def _trainable(model):
    return {inner.path: inner.layer.trainable for inner in inner_layers(model)}


def test_a_new_model_has_none(make_model):
    assert layer_states(make_model(dropout_rate=0.1, position_placement="shared")) == {}


def test_frozen_parts_of_blocks(make_model, tmp_path):
    model = make_model()
    model.get_layer("block_00").trainable = False
    model.get_layer("block_00").mlp.dense2.trainable = True  # thawed inside a frozen block
    model.get_layer("block_01").attention.qkv.trainable = False
    assert layer_states(model) == {
        "block_00": {"trainable": False},
        "block_00/mlp/dense2": {"trainable": True},
        "block_01/attention/qkv": {"trainable": False},
    }
    expected = [weight.path for weight in model.trainable_weights]
    assert "block_00/mlp/dense2/kernel" in expected and "block_01/attention/qkv/bias" not in expected
    for again in _reopened(model, tmp_path):
        assert _trainable(again) == _trainable(model)
        assert [weight.path for weight in again.trainable_weights] == expected


def test_a_frozen_model(make_model, tmp_path):
    model = make_model()
    model.trainable = False
    for again in _reopened(model, tmp_path):
        assert not again.trainable_weights


@pytest.mark.parametrize("mode", slow_after(1, ["int8", "int4", "float8"]))
def test_quantised_models(mode, make_model, make_images, run, tmp_path):
    model = make_model(qkv_bias=False)
    model.quantize(mode)
    modes = {inner.path: inner.layer.quantization_mode for inner in inner_layers(model)}
    assert modes["block_01/mlp/dense1"] == modes["head"] == mode
    images = make_images(model)
    opened, copied, resized = _reopened(model, tmp_path)
    for again in (opened, copied, resized):
        assert {inner.path: inner.layer.quantization_mode for inner in inner_layers(again)} == modes
    for again in (opened, copied):
        np.testing.assert_allclose(run(again, images), run(model, images), atol=1e-6)
    assert np.isfinite(run(resized, make_images(resized))).all()


@pytest.mark.skipif(not hasattr(keras.quantizers, "Int8QuantizationConfig"), reason="Keras 3.12 has one way only")
def test_quantised_in_part_and_with_quantisers_of_ones_own(make_model, make_images, run, tmp_path):
    model = make_model()
    quantizer = keras.quantizers.AbsMaxQuantizer(axis=0, value_range=(-100, 100))
    model.quantize(config=keras.quantizers.Int8QuantizationConfig(quantizer, None), filters="dense")
    assert [path.split("/")[1] for path in layer_states(model)] == ["mlp"] * 4
    for again in _reopened(model, tmp_path)[:2]:
        assert _as_json(layer_states(again)) == _as_json(layer_states(model))
        np.testing.assert_allclose(run(again, make_images(model)), run(model, make_images(model)), atol=1e-6)


def test_a_mode_with_calibration_is_refused(make_model, tmp_path):
    model = make_model()
    dense = model.get_layer("block_00").mlp.dense1
    dense.quantize("gptq", config=keras.quantizers.GPTQConfig(dataset=None, tokenizer=None))
    # the config of Keras 3.12 states no mode
    message = "mode must be one of 'int8', 'int4', 'float8'; got mode=('gptq'|'awq'|None)"
    for wrong in ({"mode": "gptq"}, {"mode": "awq"}, {"config": keras.quantizers.GPTQConfig(None, None)}):
        with pytest.raises(ValueError, match=message):
            model.quantize(**wrong)
    message = "layer 'block_00/mlp/dense1' must be quantised as int8, int4, float8; got 'gptq'"
    with pytest.raises(ValueError, match=message):
        model.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match=message):
        keras_vit.clone(model)


@pytest.mark.parametrize("is_quantised", [False, True])
def test_copies_have_lora_of_their_own(is_quantised, make_model, make_images, run):
    model = make_model()
    dense = model.get_layer("block_00").mlp.dense1
    if is_quantised:
        dense.quantize("int8")
    dense.enable_lora(2, lora_alpha=6)
    dense.lora_kernel_b.assign(np.ones((2, 24)))
    copy = keras_vit.clone(model)
    copied = copy.get_layer("block_00").mlp.dense1
    assert (copied.lora_enabled, copied.lora_rank, copied.lora_alpha) == (True, 2, 6)
    assert [weight.path for weight in copy.trainable_weights] == [weight.path for weight in model.trainable_weights]
    np.testing.assert_allclose(run(copy, make_images(model)), run(model, make_images(model)), atol=1e-6)
    copied.lora_kernel_b.assign(np.zeros((2, 24)))
    assert np.abs(run(copy, make_images(model)) - run(model, make_images(model))).max() > 1e-3
    assert np.ptp(keras.ops.convert_to_numpy(dense.lora_kernel_b)) == 0
