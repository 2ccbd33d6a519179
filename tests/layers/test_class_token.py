"""ClassToken: class tokens, then registers, then the patch tokens."""

import keras
import numpy as np
import pytest
from faults import for_each

from keras_vit.layers import ClassToken


@pytest.mark.parametrize(("num_class_tokens", "num_registers"), [(1, 0), (2, 3), (0, 2)])
def test_order_is_class_tokens_registers_patches(num_class_tokens, num_registers, randomise):
    layer = ClassToken(num_class_tokens, num_registers)
    patches = np.random.default_rng(1).normal(size=(2, 4, 6)).astype("float32")
    layer.build(patches.shape)
    weights = randomise(layer)
    tokens = keras.ops.convert_to_numpy(layer(patches))
    assert tokens.shape == (2, num_class_tokens + num_registers + 4, 6)
    for sample in range(2):
        rows = list(tokens[sample])
        for name, count in (("class_token", num_class_tokens), ("registers", num_registers)):
            for index in range(count):
                np.testing.assert_array_equal(rows.pop(0), weights[name][0, index].astype("float32"))
        np.testing.assert_array_equal(rows, patches[sample])


def test_class_token_starts_at_zero_and_registers_at_normal_002(initial):
    layer = ClassToken(num_class_tokens=2, num_registers=40)
    layer.build((None, 4, 512))
    weights = initial(layer)
    assert weights["class_token"].shape == (1, 2, 512) and not weights["class_token"].any()
    assert weights["registers"].shape == (1, 40, 512)
    assert weights["registers"].std() == pytest.approx(0.02, rel=0.03)
    assert abs(weights["registers"].mean()) < 0.001


def test_layer_without_registers_has_no_such_weight():
    layer = ClassToken()
    layer.build((None, 4, 6))
    assert [weight.name for weight in layer.weights] == ["class_token"]


def test_unknown_number_of_tokens_stays_unknown():
    assert ClassToken(1, 4).compute_output_shape((None, None, 6)) == (None, None, 6)


@for_each(
    ("arguments", "message"),
    [
        ((0, 0), r"num_class_tokens \+ num_registers must be at least 1; got 0 \+ 0"),
        ((-1, 1), "num_class_tokens must be an integer of at least 0; got num_class_tokens=-1"),
        ((1, 1.5), "num_registers must be an integer of at least 0; got num_registers=1.5"),
        ((True, 1), "num_class_tokens must be an integer of at least 0; got num_class_tokens=True"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ClassToken(*arguments)
