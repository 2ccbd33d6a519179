import keras
import numpy as np
import pytest

from keras_vit.training.schedules import warmup_cosine


def official(step, learning_rate, steps, warmup_steps):
    """vit_jax/utils.py, create_learning_rate_schedule, decay_type "cosine"."""
    progress = np.clip((step - warmup_steps) / float(steps - warmup_steps), 0.0, 1.0)
    warmup = np.minimum(1.0, step / warmup_steps) if warmup_steps else 1.0
    return learning_rate * 0.5 * (1.0 + np.cos(np.pi * progress)) * warmup


@pytest.mark.parametrize(("steps", "warmup_steps"), [(100, 10), (100, 0), (500, 100), (7, 6), (20_000, 500)])
def test_is_the_official_schedule(steps, warmup_steps):
    schedule = warmup_cosine(0.03, steps, warmup_steps)
    asked = {0, 1, warmup_steps - 1, warmup_steps, warmup_steps + 1, steps // 2, steps - 1, steps, 2 * steps}
    for step in sorted(step for step in asked if step >= 0):
        expected = official(step, 0.03, steps, warmup_steps)
        np.testing.assert_allclose(float(schedule(step)), expected, rtol=1e-5, atol=1e-9, err_msg=str(step))


def test_survives_serialisation():
    schedule = warmup_cosine(0.5, 100, 10)
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    assert [float(again(step)) for step in (3, 10, 50)] == [float(schedule(step)) for step in (3, 10, 50)]
    assert float(again(5)) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 10), "learning_rate must be a finite number above 0; got learning_rate=0.0"),
        ((0.1, 0), "steps must be an integer of at least 1; got steps=0"),
        ((0.1, 10, -1), "warmup_steps must be an integer of at least 0; got warmup_steps=-1"),
        (
            (0.1, 10, 10),
            "warmup_steps must be fewer than the steps of the run; got warmup_steps=10, steps=10",
        ),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError) as error:
        warmup_cosine(*arguments)
    assert str(error.value) == message
