"""Stock optimizers under two replicas; the numbers come from replica_cases.py, in a process of its own.

test_fit.py has the optimizer that overwrites the weights with their averages.
"""

import keras
import numpy as np
import pytest
from replica_process import run_cases

from keras_vit.compat import tensorflow_optimizers as optimizers

CASES = ("clipped_values", "fused_adamw", "one_device_is_stock", "nadam", "loss_scale", "stock_faults")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return run_cases(tmp_path_factory, "replica_cases.py", CASES)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["clipped_values", "fused_adamw"])
def test_two_replicas_give_what_one_device_gives(found, case):
    assert found[case] < 2e-6


@pytest.mark.slow
def test_nadam_whose_state_is_of_all_variables(found):
    assert found["nadam"] < 2e-6


@pytest.mark.slow
def test_loss_scale_asks_all_replicas(found):
    """Infinity on the second replica alone: that step is left out, and the scale 16 is halved once."""
    assert found["loss_scale"]["difference"] < 1e-3  # float16
    assert found["loss_scale"]["scale"] == 8


@pytest.mark.slow
def test_optimizers_of_one_device_stay_as_they_are(found):
    assert found["one_device_is_stock"]["one"] == []
    assert found["one_device_is_stock"]["two"] == ["_all_reduce_sum_gradients", "_backend_apply_gradients"]


@pytest.mark.slow
def test_keras_is_still_wrong(found):
    """The faults that the corrections of optimizers and steps are for; when one fails, delete its cure."""
    faults = found["stock_faults"]
    assert faults["nothing"] == "no error"  # the comparison itself is sound
    assert "ZeroDivisionError" in faults["global_clipnorm"]  # the weights differ
    assert "merge_call" in faults["gradient_accumulation_steps"]
    assert "merge_call" in faults["ema_overwrite_frequency"]
    assert "placeholder" in faults["steps_per_execution"]


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="strategies of tf.distribute")
@pytest.mark.parametrize("is_one_program", [False, True])  # True: as on TPUs, where XLA compiles all of the step
def test_corrected_optimizer_on_one_device_does_what_it_did(monkeypatch, is_one_program):
    monkeypatch.setattr(optimizers, "_is_one_program", lambda: is_one_program)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(24, 4)).astype("float32"), rng.normal(size=(24, 2)).astype("float32")

    def weights(correct):
        keras.utils.set_random_seed(0)
        arguments = {"gradient_accumulation_steps": 2, "use_ema": True, "ema_overwrite_frequency": 2}
        optimizer = keras.optimizers.AdamW(0.1, global_clipnorm=0.1, epsilon=1e-3, **arguments)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile(optimizer, "mse", jit_compile=is_one_program)
        correct(optimizer)
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        return [*model.get_weights(), *(variable.numpy() for variable in optimizer.variables)]

    expected, found = weights(lambda optimizer: None), weights(optimizers.correct_for_replicas)
    assert len(found) == len(expected)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-6)
