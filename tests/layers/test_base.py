"""The base class of the layers, and the table of argument checks that it shares with the configs."""

import dataclasses
import inspect

import keras
import pytest
from faults import for_each

from keras_vit import checks, config, models
from keras_vit.config.base import ARGUMENTS, one_of, optional
from keras_vit.layers.base import Layer


class Scaled(Layer):
    own_checks = {"strides": one_of((1, 2)), "gelu": optional(one_of(("tanh", "erf")))}

    def __init__(self, num_heads, gelu=None, strides=1, **kwargs):
        super().__init__(**kwargs)
        self.configure(num_heads=num_heads, gelu=gelu, strides=strides)


class Wider(Scaled):
    def __init__(self, mlp_dim, **kwargs):
        super().__init__(**kwargs)
        self.configure(mlp_dim=mlp_dim)


class Plain(Layer):
    def call(self, x):
        return x


def test_arguments_become_attributes_and_the_config_states_all_of_them():
    layer = Wider(8, num_heads=2, dtype="mixed_bfloat16", name="wide")
    assert (layer.mlp_dim, layer.num_heads, layer.gelu, layer.strides) == (8, 2, None, 1)
    own = {"num_heads": 2, "gelu": None, "strides": 1, "mlp_dim": 8}
    assert {name: layer.get_config()[name] for name in own} == own
    assert Wider.from_config(layer.get_config()).get_config() == layer.get_config()
    assert set(Plain().get_config()) == set(layer.get_config()) - set(own) == {"name", "trainable", "dtype"}


@for_each(
    ("arguments", "message"),
    [
        ({"num_heads": 0}, "num_heads must be an integer of at least 1; got num_heads=0"),
        ({"num_heads": None}, "num_heads must be an integer of at least 1; got num_heads=None"),
        ({"num_heads": 2, "gelu": "relu"}, "gelu must be one of 'tanh', 'erf'; got gelu='relu'"),
        ({"num_heads": 2, "strides": 3}, "strides must be one of 1, 2; got strides=3"),
        ({"num_heads": 2, "strides": None}, "strides must be one of 1, 2; got strides=None"),
    ],
)
def test_wrong_arguments_are_refused_and_none_unless_it_is_optional(arguments, message):
    with pytest.raises(ValueError, match=message):
        Scaled(**arguments)


def test_an_argument_without_a_check_is_refused_with_the_place_for_one():
    class Gated(Layer):
        def __init__(self, gate_strength, **kwargs):
            super().__init__(**kwargs)
            self.configure(gate_strength=gate_strength)

    @dataclasses.dataclass(frozen=True)
    class GateConfig(config.Config):
        gate_strength: float = 1.0

    for make in (Gated, GateConfig):
        message = (
            f"{make.__name__} must have a check .* none for 'gate_strength': .* _NAMES in keras_vit/config/base.py"
        )
        with pytest.raises(TypeError, match=message):
            make(0.5)
        make.own_checks = {"gate_strength": checks.check_rate}
        assert make(0.5).gate_strength == 0.5


def test_sublayers_have_the_policy_of_the_layer():
    layer = Plain(dtype="mixed_float16")
    dense = layer.dense(3, "dense", "zeros", (None, 2), use_bias=False)
    assert (dense.dtype_policy.name, dense.kernel.shape, dense.bias) == ("mixed_float16", (2, 3), None)
    assert not layer.sublayer(keras.layers.LayerNormalization, name="norm").built


def test_the_table_has_no_name_that_nothing_uses():
    used = {field.name for value in _subclasses(config.Config) for field in dataclasses.fields(value)}
    ours = [value for value in _subclasses(Layer) if value.__module__.startswith("keras_vit.")]
    ours += [models.MaskedAutoencoder, models.SelfDistillation, *_subclasses(models.TaskModel)]
    used |= {*inspect.signature(models.SelfDistillation.compile).parameters}
    used |= {name for value in ours for name in inspect.signature(value.__init__).parameters}
    assert set(ARGUMENTS) <= used


def _subclasses(parent):
    for child in parent.__subclasses__():
        yield child
        yield from _subclasses(child)
