"""build_deferred and initialise: nothing is drawn, nothing is left behind."""

import keras
import numpy as np
import pytest
from keras.src.backend.common import global_state

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.compat.initial_values import build_at_once, build_deferred, initialise

CONFIG = ViTConfig(
    name="tiny", image_size=16, patch_size=8, hidden_dim=8, num_layers=1, num_heads=2, mlp_dim=12, classes=3,
    num_registers=1, dropout_rate=0.1,
)  # fmt: skip


@pytest.fixture
def draws(monkeypatch):
    """List of the names of random functions of the backend as they are called."""
    calls = []

    def watch(name):
        original = getattr(keras.src.backend.random, name)

        def watched(*args, **kwargs):
            calls.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(keras.src.backend.random, name, watched)

    for name in (
        "normal",
        "uniform",
        "truncated_normal",
        "randint",
        "gamma",
        "beta",
        "binomial",
        "categorical",
    ):
        watch(name)
    return calls


def test_plain_building_draws(draws):
    VisionTransformer(CONFIG)
    assert {"normal", "uniform", "truncated_normal"} <= set(draws)  # the watch works


def test_deferred_building_draws_nothing_and_allocates_nothing(draws):
    model, pending = build_deferred(lambda: VisionTransformer(CONFIG))
    assert draws == []
    assert {id(v) for v in pending} >= {id(v) for v in model.variables}
    assert all(variable._value is None for variable in pending)
    assert model.count_params() == sum(int(np.prod(variable.shape)) for variable in model.weights)


def test_given_values_are_placed_without_a_draw(draws):
    model, pending = build_deferred(lambda: VisionTransformer(CONFIG))
    rng = np.random.default_rng(0)
    arrays = {weight.path: rng.normal(size=weight.shape).astype("float32") for weight in model.weights}
    order = []

    def reader(weight):
        return lambda: order.append(weight.path) or arrays[weight.path]

    initialise(pending, {id(weight): reader(weight) for weight in model.weights})
    assert draws == []
    assert sorted(order) == sorted(arrays)  # each is read once
    for weight in model.weights:
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), arrays[weight.path])
    images = np.zeros((2, 16, 16, 3), "float32")
    assert np.isfinite(keras.ops.convert_to_numpy(model(images, training=True))).all()


def test_variables_without_a_value_draw_from_their_own_initialiser(draws):
    model, pending = build_deferred(lambda: VisionTransformer(CONFIG))
    initialise(pending)
    assert {"normal", "uniform", "truncated_normal"} <= set(draws)
    weights = {weight.path: keras.ops.convert_to_numpy(weight) for weight in model.weights}
    assert weights["position_embs/embedding"].any() and not weights["head/kernel"].any()


def test_model_trains_afterwards():
    model, pending = build_deferred(lambda: VisionTransformer(CONFIG))
    initialise(pending)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = model.get_weights()
    model.train_on_batch(np.ones((2, 16, 16, 3), "float32"), np.array([0, 1]))
    assert any((old != new).any() for old, new in zip(before, model.get_weights(), strict=True))


def test_value_of_another_shape_is_refused():
    model, pending = build_deferred(lambda: VisionTransformer(CONFIG))
    with pytest.raises(ValueError, match=r"shapes of their variables; got \(2, 2\) for \(8, 3\)"):
        initialise(pending, {id(model.get_layer("head").kernel): lambda: np.zeros((2, 2), "float32")})


def test_dtype_of_the_variable_wins():
    model, pending = build_deferred(lambda: VisionTransformer(CONFIG))
    kernel = model.get_layer("head").kernel
    initialise(pending, {id(kernel): lambda: np.full(kernel.shape, 0.5, "float64")})
    assert kernel.dtype == "float32" and (keras.ops.convert_to_numpy(kernel) == 0.5).all()


def test_failure_inside_build_leaves_kerass_state_clean():
    def fail():
        keras.layers.Dense(3).build((None, 2))
        raise KeyError("from inside")

    with pytest.raises(KeyError, match="from inside"):
        build_deferred(fail)
    _check_clean()


def test_success_leaves_kerass_state_clean():
    build_deferred(lambda: VisionTransformer(CONFIG))
    _check_clean()


def test_variables_that_were_pending_before_stay_pending():
    mine = []
    with keras.StatelessScope(initialize_variables=False):
        mine.append(keras.Variable(keras.initializers.Ones(), shape=(2,)))
        _, pending = build_deferred(lambda: keras.Variable(keras.initializers.Ones(), shape=(3,)))
        waiting = global_state.get_global_attribute("uninitialized_variables")
    assert [tuple(v.shape) for v in pending] == [(3,)]
    assert [tuple(v.shape) for v in waiting] == [(2,)]
    keras.src.backend.common.variables.initialize_all_variables()
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(mine[0]), [1, 1])


def _check_clean():
    assert not global_state.get_global_attribute("uninitialized_variables")
    assert not keras.src.backend.common.stateless_scope.in_stateless_scope()
    layer = keras.layers.Dense(3)
    layer.build((None, 2))
    assert keras.ops.convert_to_numpy(layer.kernel).shape == (2, 3)  # it has a value at once


def test_private_names_are_those_of_the_installed_keras():
    with keras.StatelessScope(initialize_variables=False):
        variable = keras.Variable(keras.initializers.Ones(), shape=(2,))
    assert global_state.get_global_attribute("uninitialized_variables") == [variable]
    assert isinstance(variable._initializer, keras.initializers.Ones)
    variable._initializer = lambda shape, dtype=None: keras.ops.full(shape, 7, dtype)
    variable._deferred_initialize()
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), [7, 7])
    global_state.set_global_attribute("uninitialized_variables", [])


def test_what_is_built_at_once_has_the_values_that_it_draws_by_itself():
    def build():
        inputs = keras.Input((3,))
        return keras.Model(inputs, keras.layers.Dropout(0.5)(keras.layers.Dense(4)(inputs)))

    models = []
    for make in (build, lambda: build_at_once(build)):
        keras.utils.set_random_seed(7)
        models.append(make())
    for one, other in zip(*(model.variables for model in models), strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(other))


def test_nothing_is_allocated_inside_of_a_scope_that_defers():
    (_, pending) = build_deferred(lambda: build_at_once(lambda: keras.Variable("zeros", shape=(3,))))
    assert len(pending) == 1
