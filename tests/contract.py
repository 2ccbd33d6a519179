"""The layer harness: what every layer of the package promises, checked on each case of contract_cases.py.

`check_layer` raises an AssertionError that names the broken promise. tests/test_contract.py runs it over all
`CASES`, demands one for every exported layer and shows on broken layers that the harness catches them.
"""

import inspect
import json
import pathlib
import tempfile

import keras
import numpy as np
from contract_cases import CASES
from keras import ops

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")

# Weights whose gradient is zero by mathematics: the softmax over the keys does not see a constant added to
# every product of a query with a key.
WITHOUT_GRADIENT = (
    "key_norm/beta",
    "product_norm/beta",
    "query_position_norm/beta",
    "key_position_norm/beta",
)


def expand(cases=CASES):
    """Returns (layer class, constructor arguments, input shape) for each set of arguments."""
    return [(layer_class, kwargs, shape) for layer_class, sets, shape in cases for kwargs in sets]


def check_layer(layer_class, kwargs, input_shape):
    """Raises AssertionError on the first promise the layer breaks; `input_shape` is without the batch."""
    for check in _CHECKS:
        try:
            check(layer_class, kwargs, input_shape)
        except AssertionError as error:
            error.add_note(f"in {check.__name__} of {layer_class.__name__}(**{kwargs}) on {input_shape}")
            raise


def _check_config(layer_class, kwargs, input_shape):
    """Every argument is in the config with the value given, and from_config builds the same layer."""
    layer = layer_class(**kwargs)
    config = layer.get_config()
    arguments = _arguments(layer_class, kwargs)
    missing = [name for name in arguments if name not in config]
    assert not missing, f"get_config() lacks the arguments {missing}"
    for name, value in arguments.items():
        assert config[name] == value, f"get_config()[{name!r}] is {config[name]!r}, the argument was {value!r}"
    text = json.dumps(config)
    for source in (config, json.loads(text)):
        again = layer_class.from_config(source).get_config()
        assert again == config, f"from_config(get_config()) has the config {again}, not {config}"


def _check_nothing_mutates(layer_class, kwargs, input_shape):
    """Neither build nor call changes the config or the attribute that holds an argument."""
    layer = layer_class(**kwargs)
    before, attributes = layer.get_config(), _argument_attributes(layer, kwargs)
    batch = _batch(input_shape)
    for step, run in (
        ("build", lambda: layer.build(batch.shape)),
        ("call", lambda: layer(batch, training=True)),
    ):
        run()
        assert layer.get_config() == before, f"{step} changed the config from {before} to {layer.get_config()}"
        after = _argument_attributes(layer, kwargs)
        assert after == attributes, f"{step} changed the attributes from {attributes} to {after}"


def _check_shapes(layer_class, kwargs, input_shape):
    """Symbolic, traced and computed shapes and dtypes are those of the eager result."""
    layer = layer_class(**kwargs)
    symbolic = layer(keras.Input(input_shape))
    eager = layer(_batch(input_shape))
    expected = (None, *eager.shape[1:])
    computed = tuple(layer.compute_output_shape((None, *input_shape)))
    assert computed == expected, f"compute_output_shape gives {computed}, the result has {expected}"
    computed = tuple(layer.compute_output_shape((3, *input_shape)))
    assert computed == tuple(eager.shape), f"compute_output_shape gives {computed}, the result has {eager.shape}"
    assert tuple(symbolic.shape) == expected, f"the symbolic shape is {symbolic.shape}, the eager one {expected}"
    eager_dtype = keras.backend.standardize_dtype(eager.dtype)
    assert symbolic.dtype == eager_dtype, f"the symbolic dtype is {symbolic.dtype}, the eager one {eager_dtype}"


def _check_serialisation(layer_class, kwargs, input_shape):
    """keras.saving rebuilds the layer from JSON without being told its class."""
    layer = layer_class(**kwargs)
    text = json.dumps(keras.saving.serialize_keras_object(layer))
    again = keras.saving.deserialize_keras_object(json.loads(text))
    assert type(again) is layer_class, f"deserialising gives a {type(again)}"
    assert again.get_config() == layer.get_config(), f"deserialising gives the config {again.get_config()}"


def _check_saving(layer_class, kwargs, input_shape):
    """A functional model with the layer survives a `.keras` file."""
    model, batch = _model(layer_class(**kwargs), input_shape), _batch(input_shape)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.keras")
        model.save(path)
        again = keras.models.load_model(path)
    _assert_close(again(batch), model(batch), 1e-6, "the reloaded model's output")


def _check_unknown_batch_size(layer_class, kwargs, input_shape):
    """One model takes batches of 1 and 3, compiled for any size too, and samples do not touch each other."""
    model, batch = _model(layer_class(**kwargs), input_shape), _batch(input_shape)
    outputs = model(batch)
    assert len(outputs) == 3, f"a batch of 3 gives {len(outputs)} results"
    _assert_close(model(batch[:1]), outputs[:1], 1e-5, "the output for a batch of 1")
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        compiled = tf.function(model, input_signature=[tf.TensorSpec((None, *input_shape), "float32")])
        _assert_close(compiled(batch), outputs, 1e-5, "the compiled output")


def _check_policies(layer_class, kwargs, input_shape):
    """Computes in the policy's dtype, down to the last sub-layer, with float32 weights and finite results."""
    batch = _batch(input_shape)
    reference = None
    for name in POLICIES:
        layer = layer_class(**kwargs, dtype=name)
        layer.build(batch.shape)
        _randomise(layer)
        policy = keras.dtype_policies.get(name)
        output = layer(batch)
        dtype = keras.backend.standardize_dtype(output.dtype)
        assert dtype == policy.compute_dtype, f"{name} gives {dtype} results instead of {policy.compute_dtype}"
        for part in layer._flatten_layers():
            assert part.dtype_policy.name == name, f"{part.path} has the policy {part.dtype_policy.name} under {name}"
        dtypes = {weight.dtype for weight in layer.weights}
        assert dtypes <= {"float32"}, f"{name} has weights of {dtypes} instead of float32"
        values = _numpy(ops.cast(output, "float32"))
        assert np.isfinite(values).all(), f"{name} gives results that are not finite"
        reference = values if reference is None else reference
        _assert_close(values, reference, 0.05 * np.abs(reference).max(), f"the output under {name}")


def _check_gradients(layer_class, kwargs, input_shape):
    """The gradient of a random projection of the output reaches every trainable weight."""
    layer, batch = layer_class(**kwargs), _batch(input_shape)
    cotangent = np.random.default_rng(2).normal(size=layer(batch).shape).astype("float32")
    _randomise(layer)
    if not layer.trainable_weights:
        return
    gradients = _GRADIENTS[keras.backend.backend()](layer, batch, cotangent)
    sizes = {
        weight.path: 0.0 if gradient is None else np.abs(_numpy(gradient)).max()
        for weight, gradient in zip(layer.trainable_weights, gradients, strict=True)
    }
    least = 1e-5 * max(sizes.values())  # below it a float32 gradient is rounding
    lost = [path for path, size in sizes.items() if not size > least and not path.endswith(WITHOUT_GRADIENT)]
    assert not lost, f"no gradient reaches {lost}"
    found = [path for path, size in sizes.items() if size > least and path.endswith(WITHOUT_GRADIENT)]
    assert not found, f"{found} have a gradient that mathematics forbids"


def _check_training(layer_class, kwargs, input_shape):
    """A layer with a rate above 0 is random while training and only then; one without never is."""
    layer, batch = layer_class(**kwargs), _batch(input_shape, size=8)
    layer.build(batch.shape)
    _randomise(layer)
    calm, again = _numpy(layer(batch, training=False)), _numpy(layer(batch, training=False))
    assert np.array_equal(calm, again), "two calls with training=False differ"
    assert np.array_equal(calm, _numpy(layer(batch))), "the default is not training=False"
    busy, again = _numpy(layer(batch, training=True)), _numpy(layer(batch, training=True))
    if any(weight.path.endswith("moving_variance") for weight in layer.weights):  # of batch normalisation
        assert not np.allclose(busy, calm), "training=True equals training=False in spite of batch normalisation"
    elif any(value > 0 for name, value in kwargs.items() if name.endswith("rate")):
        assert busy.shape != calm.shape or not np.allclose(busy, calm), (
            "training=True equals training=False in spite of a rate above 0"
        )
        assert not np.allclose(busy, again), "two calls with training=True are equal in spite of a rate above 0"
    else:
        _assert_close(busy, calm, 1e-6, "the output with training=True of a layer without a rate")


_CHECKS = (
    _check_config,
    _check_nothing_mutates,
    _check_shapes,
    _check_serialisation,
    _check_saving,
    _check_unknown_batch_size,
    _check_policies,
    _check_gradients,
    _check_training,
)


def _arguments(layer_class, kwargs):
    """Values of the constructor's own arguments: those given and the defaults of the rest."""
    parameters = list(inspect.signature(layer_class.__init__).parameters.values())[1:]
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return {p.name: p.default for p in named if p.name not in ("name", "dtype", "trainable")} | kwargs


def _argument_attributes(layer, kwargs):
    names = _arguments(type(layer), kwargs)
    return {name: getattr(layer, name) for name in names if hasattr(layer, name)}


def _model(layer, input_shape):
    inputs = keras.Input(input_shape)
    model = keras.Model(inputs, layer(inputs))
    _randomise(layer)
    return model


def _randomise(layer):
    """Gives every weight other values than its initial ones: zeros and ones would hide what they meet."""
    rng = np.random.default_rng(1)
    for weight in layer.weights:
        values = rng.normal(0.1, 0.4, weight.shape).astype("float32")
        weight.assign(np.abs(values) + 0.2 if weight.path.endswith("moving_variance") else values)


def _batch(input_shape, size=3):
    return np.random.default_rng(0).normal(size=(size, *input_shape)).astype("float32")


def _gradients_tensorflow(layer, batch, cotangent):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = ops.sum(layer(batch) * cotangent)
    return tape.gradient(loss, [weight.value for weight in layer.trainable_weights])


def _gradients_jax(layer, batch, cotangent):
    import jax

    others = [variable.value for variable in layer.non_trainable_variables]

    def loss(weights):
        output, _ = layer.stateless_call(weights, others, batch)
        return ops.sum(output * cotangent)

    return jax.grad(loss)([variable.value for variable in layer.trainable_variables])


def _gradients_torch(layer, batch, cotangent):
    layer.zero_grad()
    ops.sum(layer(batch) * ops.convert_to_tensor(cotangent)).backward()
    return [variable.value.grad for variable in layer.trainable_variables]


_GRADIENTS = {"tensorflow": _gradients_tensorflow, "jax": _gradients_jax, "torch": _gradients_torch}


def _assert_close(values, expected, tolerance, what):
    difference = np.abs(_numpy(values) - _numpy(expected)).max()
    assert difference <= tolerance, f"{what} differs by {difference:.3g}, more than {tolerance:.3g}"


def _numpy(tensor):
    return ops.convert_to_numpy(tensor)
