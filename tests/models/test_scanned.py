"""scan_layers: the numbers, seeds and files of the model without it; on JAX, see .ci/run."""

import keras
import numpy as np
import pytest
from slow_rows import slow_after

import keras_vit

on_jax = pytest.mark.skipif(keras.backend.backend() != "jax", reason="scan_layers needs JAX")

RATES = {"dropout_rate": 0.2, "attention_dropout_rate": 0.1}
MODELS = {
    "plain": {},
    "dropout": RATES,
    "recomputed": {**RATES, "remat": "block", "layer_scale_init": 0.5},
    "registers": {"num_registers": 2, "pooling": "map", "qk_norm": True},
    "shared positions": {"position_embedding": "relative", "position_placement": "shared"},
    "axial": {"attention": "axial", "pooling": "gap"},
    "any size": {"image_size": "any", "embedding": keras_vit.EmbeddingConfig(position_grid=(4, 4))},
}


def trained(make_model, images, **changes):
    """Answers before and after two steps, the losses, and the model."""
    keras.utils.set_random_seed(3)  # the same seeds for the dropouts
    model = make_model(num_layers=3, **changes)
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = model.predict(images, verbose=0)
    losses = model.fit(images, np.arange(6) % 5, batch_size=3, shuffle=False, verbose=0).history["loss"]
    return before, model.predict(images, verbose=0), losses, model


@on_jax
@pytest.mark.parametrize("name", slow_after(4, list(MODELS)))
def test_scanned_blocks_give_the_same_numbers_and_states(name, make_model):
    images = np.random.default_rng(0).normal(size=(6, 16, 16, 3)).astype("float32")
    expected = trained(make_model, images, **MODELS[name])
    found = trained(make_model, images, **MODELS[name], scan_layers=True)
    for a, b in zip(found[:3], expected[:3], strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6, rtol=2e-6)
    variables = zip(found[3].variables, expected[3].variables, strict=True)  # the states of random numbers among them
    for a, b in variables:
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=2e-6, rtol=2e-6)


@on_jax
def test_files_are_those_of_the_model_without_it(make_model, tmp_path):
    images = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype("float32")
    model, other = make_model(scan_layers=True), make_model()
    other.set_weights([0 * weight for weight in other.get_weights()])
    model.save_weights(tmp_path / "a.weights.h5")
    other.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_allclose(other(images), model(images), atol=2e-6)
    model.save(tmp_path / "a.keras")
    loaded = keras.saving.load_model(tmp_path / "a.keras")
    assert loaded.config.scan_layers
    np.testing.assert_array_equal(loaded(images), model(images))


@on_jax
def test_blocks_with_other_variables_are_refused(make_model):
    model = make_model(scan_layers=True)
    model.get_layer("block_01").mlp.dense1.quantize("int8")
    with pytest.raises(ValueError, match="scan_layers=True needs equal blocks; block_01 differs"):
        model(np.zeros((1, 16, 16, 3), "float32"))


@on_jax
@pytest.mark.parametrize("make", [keras_vit.MaskedAutoencoder, keras_vit.SelfDistillation])
def test_models_that_call_layers_one_by_one_refuse_it(make, make_model):
    with pytest.raises(ValueError, match="scan_layers must be False where layers are called one by one"):
        make(make_model(scan_layers=True))


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has it")
def test_other_backends_refuse_it(make_config):
    with pytest.raises(ValueError, match="scan_layers must be False on this backend; got True on tensorflow"):
        keras_vit.VisionTransformer(make_config(scan_layers=True))
