"""Every exported layer keeps the promises of tests/contract.py, and broken layers are caught."""

import contract
import keras
import pytest
from faults import for_each

from keras_vit import layers

EXPANDED = contract.expand()
IDS = [f"{layer_class.__name__}-{index}" for index, (layer_class, *_) in enumerate(EXPANDED)]
# The default suite checks the last row of each layer alone, with most arguments given, and not the layers that only
# call others: of axial ResNets it checks AxialAttention, of axial blocks the attention, of ResNets the units.
_OTHERS = (layers.AxialStage, layers.AxialBottleneck, layers.AxialTransformerBlock, layers.ResNetStage)
_LAST = {layer_class: index for index, (layer_class, *_) in enumerate(EXPANDED) if layer_class not in _OTHERS}
CASES = [
    pytest.param(*case, marks=() if _LAST.get(case[0]) == index else pytest.mark.slow)
    for index, case in enumerate(EXPANDED)
]


@pytest.mark.parametrize(("layer_class", "kwargs", "input_shape"), CASES, ids=IDS)
def test_layer_keeps_the_contract(layer_class, kwargs, input_shape):
    contract.check_layer(layer_class, kwargs, input_shape)


@for_each("name", layers.__all__)
def test_every_exported_layer_has_a_case(name):
    assert _without_case(name) is None


def test_layer_without_a_case_is_named(monkeypatch):
    monkeypatch.setattr(layers, "Forgotten", type("Forgotten", (keras.layers.Layer,), {}), raising=False)
    assert _without_case("Forgotten") == "Forgotten has no case in tests/contract_cases.py"


def test_every_constructor_argument_is_varied_from_its_default_in_some_case():
    given = {}
    for layer_class, kwargs, _ in EXPANDED:
        for name, default in contract._arguments(layer_class, {}).items():
            given.setdefault((layer_class.__name__, name), False)
            given[layer_class.__name__, name] |= kwargs.get(name, default) != default
    assert [argument for argument, is_varied in given.items() if not is_varied] == []


def _without_case(name):
    classes = [layers.FeaturePyramid, *(layer_class for layer_class, *_ in EXPANDED)]  # it has several outputs
    return None if getattr(layers, name) in classes else f"{name} has no case in tests/contract_cases.py"


@keras.saving.register_keras_serializable(package="toys")
class Sound(keras.layers.Layer):
    """Scales each channel, then drops: keeps every promise. The broken layers differ in one thing each."""

    def __init__(self, factor=1.0, drop_rate=0.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor
        self.drop_rate = drop_rate
        self.dropout = keras.layers.Dropout(drop_rate, dtype=self.dtype_policy)

    def build(self, input_shape):
        self.scale = self.add_weight(name="scale", shape=(input_shape[-1],), initializer="zeros")
        self.built = True

    def call(self, x, training=None):
        return self.dropout(x * self.factor * keras.ops.cast(self.scale, x.dtype), training=training)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "factor": self.factor, "drop_rate": self.drop_rate}


class ConfigKeyLost(Sound):
    def get_config(self):
        config = super().get_config()
        del config["factor"]
        return config


class ConfigValueWrong(Sound):
    def get_config(self):
        return {**super().get_config(), "factor": 1.0}


class ConfigNotInJson(Sound):
    def get_config(self):
        return {**super().get_config(), "factor": self.factor, "extra": {1, 2}}


class MutatedInBuild(Sound):
    def build(self, input_shape):
        super().build(input_shape)
        self.factor = self.factor * input_shape[-1]


class MutatedInCall(Sound):
    def call(self, x, training=None):
        self.drop_rate += 0.1
        return super().call(x, training)


class WrongOutputShape(Sound):
    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], input_shape[-1] + 1)


class NotRegistered(Sound):
    pass


@keras.saving.register_keras_serializable(package="toys")
class WeightNotSaved(Sound):
    def save_own_variables(self, store):
        pass

    def load_own_variables(self, store):
        pass


@keras.saving.register_keras_serializable(package="toys")
class SamplesTouch(Sound):
    def call(self, x, training=None):
        return super().call(x - keras.ops.mean(x, axis=0, keepdims=True), training)


@keras.saving.register_keras_serializable(package="toys")
class IgnoresThePolicy(Sound):
    def call(self, x, training=None):
        return keras.ops.cast(super().call(x, training), "float32")


@keras.saving.register_keras_serializable(package="toys")
class SubLayerIgnoresThePolicy(Sound):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dropout = keras.layers.Dropout(self.drop_rate, dtype="float32")

    def call(self, x, training=None):
        return keras.ops.cast(super().call(x, training), self.compute_dtype)


@keras.saving.register_keras_serializable(package="toys")
class OverflowsInFloat16(Sound):
    def call(self, x, training=None):
        return super().call(x * 1e4 * 1e4, training) / 1e8


@keras.saving.register_keras_serializable(package="toys")
class WeightWithoutGradient(Sound):
    def build(self, input_shape):
        super().build(input_shape)
        self.idle = self.add_weight(name="idle", shape=(input_shape[-1],), initializer="ones")

    def call(self, x, training=None):
        return super().call(x, training) + keras.ops.cast(keras.ops.stop_gradient(self.idle), x.dtype)


@keras.saving.register_keras_serializable(package="toys")
class NeverDrops(Sound):
    def call(self, x, training=None):
        return super().call(x, training=False)


@keras.saving.register_keras_serializable(package="toys")
class AlwaysNoisy(Sound):
    def call(self, x, training=None):
        return super().call(x, training) * (1.0 if training is None else 1.1)


# broken layer, its arguments, what the harness says
BROKEN = (
    (ConfigKeyLost, {"factor": 2.0}, r"get_config\(\) lacks the arguments \['factor'\]"),
    (ConfigValueWrong, {"factor": 2.0}, r"get_config\(\)\['factor'\] is 1\.0, the argument was 2\.0"),
    (MutatedInBuild, {"factor": 2.0}, r"build changed the config"),
    (MutatedInCall, {}, r"call changed the config"),
    (WrongOutputShape, {}, r"compute_output_shape gives \(None, 4, 7\), the result has \(None, 4, 6\)"),
    (WeightNotSaved, {}, r"the reloaded model's output differs by"),
    (SamplesTouch, {}, r"the output for a batch of 1 differs by"),
    (IgnoresThePolicy, {}, r"mixed_bfloat16 gives float32 results instead of bfloat16"),
    (SubLayerIgnoresThePolicy, {}, r"has the policy float32 under mixed_bfloat16"),
    (OverflowsInFloat16, {}, r"mixed_float16 gives results that are not finite"),
    (WeightWithoutGradient, {}, r"no gradient reaches \['weight_without_gradient(_\d+)?/idle'\]"),
    (NeverDrops, {"drop_rate": 0.5}, r"training=True equals training=False in spite of a rate above 0"),
    (AlwaysNoisy, {}, r"the default is not training=False"),
)


@pytest.mark.parametrize(("layer_class", "kwargs", "message"), BROKEN, ids=[case[0].__name__ for case in BROKEN])
def test_broken_layer_is_caught(layer_class, kwargs, message):
    with pytest.raises(AssertionError, match=message):
        contract.check_layer(layer_class, kwargs, (4, 6))


def test_config_that_is_no_json_is_caught():
    with pytest.raises(TypeError, match="set is not JSON serializable"):
        contract.check_layer(ConfigNotInJson, {}, (4, 6))


def test_layer_that_keras_cannot_find_is_caught():
    with pytest.raises(TypeError, match="Could not locate class 'NotRegistered'"):
        contract._check_serialisation(NotRegistered, {}, (4, 6))


@pytest.mark.parametrize("kwargs", [{}, {"factor": 2.0, "drop_rate": 0.5}])
def test_sound_layer_passes(kwargs):
    contract.check_layer(Sound, kwargs, (4, 6))
