import inspect

import keras
import numpy as np
import pytest

from keras_vit.compat.saved_objects import Warmup

SCHEDULES = keras.optimizers.schedules


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (0.3, [0.1, 0.15, 0.3, 0.3, 0.3]),
        (SCHEDULES.PolynomialDecay(0.3, 10, 0.1), [0.1, 0.15, 0.3, 0.2, 0.1]),
    ],
    ids=["constant", "schedule"],
)
def test_rises_and_hands_over(after, expected):
    schedule = Warmup(0.1, 0.3, 4, after)
    again = SCHEDULES.deserialize(SCHEDULES.serialize(schedule))
    for made in (schedule, again):
        np.testing.assert_allclose([float(made(step)) for step in (0, 1, 4, 9, 14)], expected, rtol=1e-6)


def test_keras_still_has_no_warmup_but_in_cosine_decay():
    """When this fails, Warmup may go."""
    schedules = [kind for kind in vars(SCHEDULES).values() if inspect.isclass(kind)]
    with_warmup = [kind.__name__ for kind in schedules if "warmup_steps" in inspect.signature(kind).parameters]
    assert len(schedules) > 5 and with_warmup == ["CosineDecay"]
