"""Fused updates against Keras's own; replica_cases.py has the case with two replicas."""

import collections
import functools

import keras
import numpy as np
import pytest
from slow_rows import slow_after

import keras_vit
from keras_vit.compat import saved_objects, tensorflow_fit, tensorflow_optimizers

if keras.backend.backend() != "tensorflow":
    pytest.skip("kernels of TensorFlow", allow_module_level=True)

# name of a weight -> its gradient at a step
GRADIENTS = {
    "kernel": lambda rng, step: rng.normal(size=(3, 4)),
    "bias": lambda rng, step: rng.normal(size=(3, 4)) * (step % 3 == 0),
    "zero_kernel": lambda rng, step: np.zeros((3, 4)),
    "tiny_kernel": lambda rng, step: 1e-20 * rng.normal(size=(3, 4)),
    "large_kernel": lambda rng, step: 1e8 * rng.normal(size=(3, 4)),
    "wild_kernel": lambda rng, step: 10.0 ** rng.integers(-12, 9, (3, 4)) * rng.choice([-1, 0, 1], (3, 4)),
}
FACTORS = (0.25, 1.0, 0.25, 0.5, 1.0, 1.0)


def schedule():
    return keras.optimizers.schedules.CosineDecay(0.0, 20, warmup_target=0.1, warmup_steps=3)


def undecayed_bias():
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.3)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def loss_scaled(inner):
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0)


OPTIMIZERS = {
    "Adam": lambda: keras.optimizers.Adam(0.1),
    "Adam, schedule, decay": lambda: keras.optimizers.Adam(schedule(), epsilon=1e-3, weight_decay=0.1),
    "AdamW, excluded": undecayed_bias,
    "AdamW, accumulated": lambda: keras.optimizers.AdamW(schedule(), gradient_accumulation_steps=2, clipvalue=0.5),
    "AdamW, average": lambda: keras.optimizers.AdamW(0.1, use_ema=True, ema_overwrite_frequency=3, clipnorm=0.5),
    "AdamW, scaled": lambda: loss_scaled(keras.optimizers.AdamW(0.1, global_clipnorm=0.5)),
    "AdamW, rates": lambda: saved_objects.AdamW(schedule(), weight_decay=0.3, rate_factors=FACTORS),
    "AdamW, decay schedule": lambda: saved_objects.AdamW(0.1, weight_decay=schedule()),
    "SGD": lambda: keras.optimizers.SGD(0.1, weight_decay=0.1),
    "SGD, momentum": lambda: keras.optimizers.SGD(schedule(), momentum=0.9, global_clipnorm=0.5),
    "SGD, Nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "SGD, rates": lambda: saved_objects.SGD(0.1, momentum=0.9, weight_decay=0.3, rate_factors=FACTORS),
}


def variables(dtype="float32"):
    rng = np.random.default_rng(1)
    return [keras.Variable(rng.normal(size=(3, 4)), dtype=dtype, name=name) for name in GRADIENTS]


def gradients(steps=6):
    import tensorflow as tf

    rng = np.random.default_rng(2)
    return [[tf.constant(of(rng, step), "float32") for of in GRADIENTS.values()] for step in range(steps)]


def trained(optimizer, steps, *, dtype="float32", compiled=lambda function: function):
    """Trains; returns names and values of the weights and of all that the optimizer keeps."""
    weights = variables(dtype)
    optimizer.build(weights)
    apply = compiled(lambda *step: optimizer.apply(step, weights) and None)
    for step in steps:
        apply(*step)
    return [(v.path.split("/")[-1], keras.ops.convert_to_numpy(v)) for v in [*weights, *optimizer.variables]]


def assert_equal(found, expected):
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (name, values), (_, others) in zip(found, expected, strict=True):
        rtol = 2e-5 if name.endswith("velocity") else 1e-5  # as 1 - beta_2 is in float32
        np.testing.assert_allclose(values, others, rtol=rtol, atol=2e-6, err_msg=name)


def fused(optimizer):
    tensorflow_optimizers.fuse_updates(optimizer)
    return optimizer


@pytest.mark.parametrize("name", slow_after(6, OPTIMIZERS))
def test_gives_what_keras_gives(name):
    assert_equal(trained(fused(OPTIMIZERS[name]()), gradients()), trained(OPTIMIZERS[name](), gradients()))


@pytest.mark.parametrize("name", ["AdamW, rates", "SGD, Nesterov", "SGD"])
def test_compiled_by_xla(name):
    import tensorflow as tf

    compiled = functools.partial(tf.function, jit_compile=True, autograph=False)
    found = trained(fused(OPTIMIZERS[name]()), gradients(3), compiled=compiled)
    assert_equal(found, trained(OPTIMIZERS[name](), gradients(3)))


def graph_of_step(optimizer, count):
    """The operations in one step on `count` weights."""
    import tensorflow as tf

    weights = [keras.Variable(np.ones(2, "float32"), name="kernel") for _ in range(count)]
    optimizer.build(weights)
    apply = tf.function(lambda *step: optimizer.apply(step, weights) and None, autograph=False)
    return apply.get_concrete_function(*(tf.TensorSpec(2) for _ in weights)).graph.get_operations()


def operations(optimizer, count):
    """The types of the operations in one step on `count` weights, without those that bring tensors in."""
    return collections.Counter(one.type for one in graph_of_step(optimizer, count) if one.type != "Placeholder")


def test_no_update_starts_before_all_gradients_are_there():
    """Every update needs values, such as the powers of beta, that wait for the operation that returns all gradients."""
    operations = graph_of_step(fused(keras.optimizers.Adam()), 3)
    [gradients] = [one for one in operations if one.type == "IdentityN"]
    waiting = {one for one in operations if gradients in one.control_inputs}
    for update in (one for one in operations if one.type == "ResourceApplyAdam"):
        needed, left = set(), [update]
        while left:
            needed.add(one := left.pop())
            left += [tensor.op for tensor in one.inputs if tensor.op not in needed]
        assert needed & waiting


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Adam", {"ResourceApplyAdam"}),
        ("AdamW, scheduled", {"ResourceApplyAdam", "ReadVariableOp", "Mul", "AssignSubVariableOp"}),
        ("SGD", {"ResourceApplyGradientDescent", "ReadVariableOp", "Mul", "AssignSubVariableOp"}),
        ("SGD, Nesterov", {"ResourceApplyKerasMomentum"}),
    ],
)
def test_operations_that_a_weight_adds(name, expected):
    make = {**OPTIMIZERS, "AdamW, scheduled": lambda: keras.optimizers.AdamW(schedule())}[name]
    own = operations(fused(make()), 3) - operations(fused(make()), 2)
    assert own == collections.Counter({*expected, "Identity"})  # Identity is the sum over one replica
    stock = operations(make(), 3) - operations(make(), 2)
    assert stock.total() > own.total()  # when this fails for all, delete the half of compat/tensorflow_optimizers.py


class OwnStep(keras.optimizers.Adam):
    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, gradient)


@pytest.mark.parametrize("make", [OwnStep, lambda: keras.optimizers.AdamW(amsgrad=True), keras.optimizers.Lion])
def test_other_optimizers_stay_as_they_are(make):
    optimizer = make()
    before = dict(vars(optimizer))
    assert vars(fused(optimizer)) == before


def sparse(steps):
    import tensorflow as tf

    return [[tf.IndexedSlices(gradient[:2], [2, 0], [3, 4]) for gradient in step] for step in steps]


@pytest.mark.parametrize("name", slow_after(1, ["AdamW, rates", "AdamW, excluded", "SGD, momentum"]))
@pytest.mark.parametrize(
    ("change", "dtype"),
    [(sparse, "float32"), (lambda steps: [[g[:1] for g in step] for step in steps], "float32"), (list, "float64")],
    ids=["sparse", "broadcast", "float64"],
)
def test_what_the_kernels_cannot_do_is_done_by_keras(name, change, dtype):
    steps = change(gradients(3))
    found = trained(fused(OPTIMIZERS[name]()), steps, dtype=dtype)
    for (key, one), (_, other) in zip(found, trained(OPTIMIZERS[name](), steps, dtype=dtype), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-7, err_msg=key)


def fitted(epochs, model=None, **arguments):
    if model is None:
        keras.utils.set_random_seed(3)
        inputs = keras.Input((4,))
        model = keras_vit.Model(inputs, keras.layers.Dense(2, name="dense")(inputs))
        model.compile(keras.optimizers.AdamW(schedule(), global_clipnorm=1.0, name="adamw"), "mse", **arguments)
    x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
    model.fit(x, x[:, :2] ** 2, batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return model


def numbers(model):
    return [(v.path, keras.ops.convert_to_numpy(v)) for v in [*model.weights, *model.optimizer.variables]]


def test_saved_and_loaded_between_epochs_it_gives_the_same_bits(tmp_path):
    first = fitted(1)
    first.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again.optimizer) is keras.optimizers.AdamW
    assert "_distributed_tf_update_step" in vars(again.optimizer)
    for (name, found), (_, expected) in zip(numbers(fitted(1, again)), numbers(fitted(2)), strict=True):
        np.testing.assert_array_equal(found, expected, err_msg=name)


@pytest.mark.parametrize(
    "arguments", slow_after(1, [{"steps_per_execution": 3}, {"jit_compile": True}, {"run_eagerly": True}])
)
def test_however_fit_runs_it(monkeypatch, arguments):
    found = numbers(fitted(2, **arguments))
    monkeypatch.setattr(tensorflow_fit, "fuse_updates", lambda optimizer: None)
    assert_equal(found, numbers(fitted(2)))
