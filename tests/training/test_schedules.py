import keras
import numpy as np
import pytest

from keras_vit.training import Recipe
from keras_vit.training.compile import create_schedule as create

STEPS, WARMUP, PEAK, START, END = 200, 20, 0.03, 0.001, 0.002
DECAY_AT = (0.3, 0.6, 0.9)


def create_schedule(name, learning_rate, steps, *, warmup_steps=0, **fields):
    fields |= {"warmup_steps": warmup_steps, "steps": steps, "schedule": name, "learning_rate": learning_rate}
    recipe = Recipe(name="toy", source="this test", optimizer="sgd", batch_size=1, **fields)
    return create(recipe, steps, warmup_steps)


def official(step, decay_type, steps=STEPS, warmup_steps=WARMUP, base=PEAK, linear_end=END):
    """vit_jax/utils.py, create_learning_rate_schedule: warms up from 0; the cosine ends at 0."""
    progress = np.clip((step - warmup_steps) / float(steps - warmup_steps), 0.0, 1.0)
    rate = {
        "linear": linear_end + (base - linear_end) * (1.0 - progress),
        "cosine": base * 0.5 * (1.0 + np.cos(np.pi * progress)),
    }[decay_type]
    return rate * (np.minimum(1.0, step / warmup_steps) if warmup_steps else 1.0)


def hyperrule(step, supports=(500, 3000, 6000, 9000, 10_000), base=0.003):
    """big_transfer, bit_hyperrule.py, get_lr, of the rule for up to 500,000 examples."""
    if step < supports[0]:
        return base * step / supports[0]
    return base / 10 ** sum(boundary < step for boundary in supports[1:-1])


def rates(schedule, steps):
    return [float(schedule(step)) for step in steps]


@pytest.mark.parametrize(("steps", "warmup_steps"), [(100, 10), (100, 0), (500, 100), (7, 6), (20_000, 500)])
@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_is_the_official_schedule(name, steps, warmup_steps):
    end = {"final_learning_rate": END} if name == "linear" else {}
    schedule = create_schedule(name, PEAK, steps, warmup_steps=warmup_steps, **end)
    asked = {0, 1, warmup_steps - 1, warmup_steps, warmup_steps + 1, steps // 2, steps - 1, steps, 2 * steps}
    asked = sorted(step for step in asked if step >= 0)
    expected = [official(step, name, steps, warmup_steps) for step in asked]
    np.testing.assert_allclose(rates(schedule, asked), expected, rtol=1e-5, atol=1e-9)


def test_step_is_the_hyperrule():
    schedule = create_schedule("step", 0.003, 10_000, warmup_steps=500, decay_at=DECAY_AT)
    asked = [0, 1, 499, 500, 501, 3000, 3001, 5999, 6000, 6001, 9000, 9001, 9999]
    np.testing.assert_allclose(rates(schedule, asked), [hyperrule(step) for step in asked], rtol=1e-6)


def test_step_by_another_factor_and_without_warmup():
    schedule = create_schedule("step", 1.0, 10, decay_at=(0.5,), decay_factor=0.25)
    np.testing.assert_allclose(rates(schedule, [0, 5, 6, 10, 99]), [1, 1, 0.25, 0.25, 0.25])


@pytest.mark.parametrize("name", ["cosine", "linear"])
@pytest.mark.parametrize("warmup_steps", [0, WARMUP])
def test_start_and_end_that_are_not_zero(name, warmup_steps):
    start = {"warmup_learning_rate": START} if warmup_steps else {}
    schedule = create_schedule(name, PEAK, STEPS, warmup_steps=warmup_steps, final_learning_rate=END, **start)
    middle = warmup_steps + (STEPS - warmup_steps) // 2
    first = START if warmup_steps else PEAK
    expected = [first, (first + PEAK) / 2, PEAK, (PEAK + END) / 2, END, END]
    asked = [0, warmup_steps // 2, warmup_steps, middle, STEPS, 2 * STEPS]
    np.testing.assert_allclose(rates(schedule, asked), expected, rtol=1e-5)


def test_constant():
    assert create_schedule("constant", 0.5, 10) == 0.5
    schedule = create_schedule("constant", 0.5, 10, warmup_steps=4, warmup_learning_rate=0.1)
    np.testing.assert_allclose(rates(schedule, [0, 2, 4, 9, 20]), [0.1, 0.3, 0.5, 0.5, 0.5], rtol=1e-6)


@pytest.mark.parametrize("name", ["cosine", "linear", "step", "constant"])
def test_survives_serialisation(name):
    arguments = {"decay_at": DECAY_AT} if name == "step" else {}
    schedule = create_schedule(name, 0.5, 100, warmup_steps=10, **arguments)
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    assert rates(again, [3, 10, 31, 50, 95]) == rates(schedule, [3, 10, 31, 50, 95])
    assert float(again(5)) == pytest.approx(0.25)


def test_decays_come_after_the_warmup():
    with pytest.raises(ValueError, match=r"after the warm-up; got decay_at=\(0.3, 0.6\) with a warm-up of 40 of 100"):
        create_schedule("step", 0.1, 100, warmup_steps=40, decay_at=(0.3, 0.6))
