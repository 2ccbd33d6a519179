import inspect
import subprocess
import sys

import keras
import numpy as np
import pytest
from slow_rows import slow_after

from keras_vit.compat import saved_objects

OPTIMIZERS = {
    "sgd": (saved_objects.SGD, keras.optimizers.SGD, {"momentum": 0.9}),
    "adamw": (saved_objects.AdamW, keras.optimizers.AdamW, {"epsilon": 1e-6}),
}
FACTORS = (0.25, 0.5, 1.0, 2.0)


def variables():
    rng = np.random.default_rng(1)
    names = ("kernel", "bias", "kernel", "gamma")
    return [keras.Variable(rng.normal(size=(3, 2)).astype("float32"), name=name) for name in names]


def gradients(steps):
    rng = np.random.default_rng(2)
    return rng.normal(size=(steps, len(FACTORS), 3, 2)).astype("float32")


def train(make, learning_rate, steps=6):
    """Values of the variables after some steps of one optimizer for each of them."""
    trained = variables()
    optimizers = make(learning_rate)
    for step in gradients(steps):
        if isinstance(optimizers, list):
            for optimizer, variable, gradient in zip(optimizers, trained, step, strict=True):
                optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
        else:
            optimizers.apply([keras.ops.convert_to_tensor(gradient) for gradient in step], trained)
    return [keras.ops.convert_to_numpy(variable) for variable in trained]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("weight_decay", slow_after(1, [0.3, 0.0]))
@pytest.mark.parametrize("scheduled", [False, True], ids=["constant", "schedule"])
def test_is_a_stock_optimizer_per_variable_with_its_own_learning_rate(name, weight_decay, scheduled):
    ours, stock, arguments = OPTIMIZERS[name]

    def rate(factor):
        return keras.optimizers.schedules.PolynomialDecay(0.1 * factor, 8, 0.0) if scheduled else 0.1 * factor

    def one_each(_):
        decays = [weight_decay, 0.0, weight_decay, 0.0]  # kernels alone
        return [
            stock(rate(factor), weight_decay=decay, **arguments) for factor, decay in zip(FACTORS, decays, strict=True)
        ]

    def together(_):
        return ours(rate(1.0), weight_decay=weight_decay, rate_factors=FACTORS, **arguments)

    for got, expected in zip(train(together, None), train(one_each, None), strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_scaled_gradients_would_not_do_for_adam(name):
    """Why there is an optimizer: with SGD a scaled gradient is a scaled rate, with Adam it is not."""
    ours, stock, arguments = OPTIMIZERS[name]
    scaled, by_rate = variables()[0], variables()[0]
    stock(0.1, weight_decay=0.0, **arguments).apply([0.25 * keras.ops.ones((3, 2))], [scaled])
    ours(0.1, weight_decay=0.0, rate_factors=[0.25], **arguments).apply([keras.ops.ones((3, 2))], [by_rate])
    difference = np.abs(keras.ops.convert_to_numpy(scaled) - keras.ops.convert_to_numpy(by_rate)).max()
    assert difference < 1e-7 if name == "sgd" else difference > 0.05


def test_weight_decay_may_be_a_schedule():
    decay = keras.optimizers.schedules.CosineDecay(0.2, 4, alpha=5.0)  # to 1
    optimizer = saved_objects.SGD(0.1, weight_decay=decay)
    optimizer = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    kernel, bias = variables()[:2]
    expected = keras.ops.convert_to_numpy(kernel)
    for step in range(6):
        optimizer.apply([keras.ops.zeros((3, 2))] * 2, [kernel, bias])
        expected = expected * (1 - 0.1 * (1 + (0.2 - 1) / 2 * (1 + np.cos(np.pi * min(step, 4) / 4))))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(kernel), expected, rtol=1e-5)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(bias), keras.ops.convert_to_numpy(variables()[1]))


RELOADED = """
import sys, keras, keras_vit
for path in sys.argv[1:]:
    model = keras.models.load_model(path)
    variables, optimizer = model.trainable_variables, model.optimizer
    for slot in optimizer.variables[2:]:  # behind the iteration and the learning rate
        slot.assign(0 * slot)
    for variable in variables:
        variable.assign(keras.ops.ones(variable.shape))
    optimizer.apply([keras.ops.zeros(variable.shape) for variable in variables], variables)
    print(*(float(keras.ops.mean(variable)) for variable in variables))
"""


@pytest.mark.slow
def test_survive_load_model_in_a_process_that_only_imports_keras_vit(tmp_path):
    for name, (ours, _, arguments) in OPTIMIZERS.items():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), keras.layers.LayerNormalization()])
        model.compile(ours(0.1, weight_decay=0.5, rate_factors=[0.5, 1.0, 1.0, 0.25], **arguments), "mse")
        model.fit(np.ones((4, 2)), np.ones((4, 2)), verbose=0)
        model.save(tmp_path / f"{name}.keras")
    command = [sys.executable, "-c", RELOADED, *(str(tmp_path / f"{name}.keras") for name in OPTIMIZERS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # the kernel by half the rate, bias, gamma and beta not at all
    means = np.array([line.split() for line in done.stdout.splitlines()], float)
    np.testing.assert_allclose(means, [[1 - 0.1 * 0.5 * 0.5, 1, 1, 1]] * 2, rtol=1e-6)


def test_another_number_of_variables_is_refused():
    optimizer = saved_objects.SGD(0.1, rate_factors=[1.0])
    with pytest.raises(
        ValueError, match="rates or modules for 1 trainable variables; the model has 4: compile it again"
    ):
        optimizer.build(variables())


def test_keras_still_forgets_what_is_not_decayed():
    """When this fails, half of _PerVariable may go."""
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    bias = keras.Variable(np.ones(2, "float32"), name="bias")
    again.apply([keras.ops.zeros(2)], [bias])
    assert float(keras.ops.max(bias)) < 1


def test_keras_still_has_one_learning_rate():
    """When this fails, the other half may go."""
    arguments = inspect.signature(keras.optimizers.AdamW).parameters
    assert [name for name in arguments if "rate" in name or "multiplier" in name] == ["learning_rate"]


MIRRORED = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, numpy as np, tensorflow as tf
from keras_vit.compat import saved_objects

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

def run(strategy):
    with strategy.scope():
        rng = np.random.default_rng(0)
        names = ("kernel", "bias", "kernel")
        weights = [keras.Variable(rng.normal(size=4).astype("float32"), name=name) for name in names]
        optimizer = saved_objects.AdamW(0.1, weight_decay=0.5, epsilon=1e-6, rate_factors=[0.25, 0.5, 1.0])
        optimizer.build(weights)

    @tf.function
    def step():
        share = 1 / strategy.num_replicas_in_sync
        strategy.run(lambda: optimizer.apply([share * (i + 1.0) * tf.ones(4) for i in range(3)], weights))

    for _ in range(3):
        step()
    return np.stack([keras.ops.convert_to_numpy(weight) for weight in weights])

one = run(tf.distribute.get_strategy())
two = run(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
assert abs(one - two).max() < 1e-6, abs(one - two).max()
print("equal")
"""


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.distribute")
def test_replicas_change_nothing():
    done = subprocess.run([sys.executable, "-c", MIRRORED], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.split()[-1] == "equal", done.stderr[-2000:]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_module_has_its_own_norm(name):
    ours, stock, arguments = OPTIMIZERS[name]
    modules = ["a", "a", "b", "b"]

    class Clipped(stock):
        def _clip_gradients(self, grads):
            norms = [np.sqrt(sum(np.square(numpy(g)).sum() for g in grads[part])) for part in (slice(2), slice(2, 4))]
            return [g * min(1.0, 0.5 / (norms[place // 2] + 1e-6)) for place, g in enumerate(grads)]

    numpy = keras.ops.convert_to_numpy
    found = train(lambda rate: ours(rate, modules=modules, global_clipnorm=0.5, weight_decay=0.0, **arguments), 0.1)
    expected = train(lambda rate: Clipped(rate, weight_decay=0.0, **arguments), 0.1)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    again = ours.from_config(ours(0.1, modules=modules, global_clipnorm=0.5, **arguments).get_config())
    assert again.modules == ("a", "a", "b", "b") and again.global_clipnorm == 0.5
