"""Forms of operations that compilers fuse, and recomputation with the random numbers of the forward pass.

A reader of the layers needs no more than the docstrings: each function returns the same on every backend. TensorFlow's
remapper recognises GELU and layer norm in one order of elementary operations; an unrecognised form runs step by step,
with a pass over memory for each step. Delete a form when its test in tests/layers shows that Keras no longer needs it.
"""

import contextlib
import contextvars
import functools
import json
import math

import keras
from keras import ops

ONEDNN = "oneDNN"  # TensorFlow inference on a CPU
CONVERTER = "converter"  # to ONNX and LiteRT

_READER = contextvars.ContextVar("reader", default=None)
_RECOMPUTED = contextvars.ContextVar("recomputed", default=False)  # whether `recompute` is calling
_TANH_SCALE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715
_COMPILED_WIDTH = 512  # for smaller layers, compiling GELU costs more than it saves
_RESERVED_DRAWS = 64  # more than a layer draws from one seed generator per call


@contextlib.contextmanager
def written_for(reader):
    """Trace graphs for `reader`, `ONEDNN`, `CONVERTER` or None, for no special form, inside this context."""
    token = _READER.set(reader)
    try:
        yield
    finally:
        _READER.reset(token)


def is_for(reader):
    """Return whether the graph that TensorFlow is tracing is for `reader`."""
    if keras.backend.backend() != "tensorflow" or _READER.get() != reader:
        return False
    return reader != ONEDNN or is_plain_cpu()


def is_plain_cpu():
    """Return whether TensorFlow traces a graph for a CPU as the only device, without several replicas."""
    import tensorflow as tf

    devices = {device.device_type for device in tf.config.list_logical_devices()}
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    return devices == {"CPU"} and replicas == 1 and not tf.executing_eagerly()


def is_on_gpu():
    """Return whether JAX computes on a GPU."""
    if keras.backend.backend() != "jax":
        return False
    import jax

    return jax.default_backend() == "gpu"


def is_compiled_by_jax(x):
    """Return whether JAX is tracing a function of `x`, such as a step of `fit`."""
    if keras.backend.backend() != "jax":
        return False
    import jax

    return isinstance(x, jax.core.Tracer)


def as_one_node(kind, call, *inputs, **attributes):
    """Return `call(*inputs)` in a TensorFlow graph for a converter, which may write one operation in its place.

    Args:
        kind: name of the operation in ONNX.
        call: function of the inputs.
        *inputs: tensors or variables.
        **attributes: attributes of the operation in ONNX.
    """
    import tensorflow as tf

    mark = json.dumps([kind, attributes])
    marked = tf.function(lambda *tensors: call(*tensors), experimental_implements=mark, autograph=False)
    return marked(*(ops.convert_to_tensor(x) for x in inputs))


def gelu(x, approximate, training=False):
    """Return GELU(x) (arXiv 1606.08415), the tanh approximation if `approximate`, else with erf."""
    if is_for(CONVERTER):
        form = functools.partial(ops.gelu, approximate=approximate)  # which LiteRT recognises
        return as_one_node("Gelu", form, x, approximate="tanh" if approximate else "none")
    if keras.backend.backend() != "tensorflow":
        return ops.gelu(x, approximate=approximate)
    if not training:
        return _FORWARD[approximate](x)
    forward, backward = _FORWARD[approximate], _BACKWARD[approximate]
    if x.shape[-1] >= _COMPILED_WIDTH and is_plain_cpu():
        forward, backward = (_compiled(_in_float32(function)) for function in (forward, backward))

    @ops.custom_gradient
    def differentiable(x):
        return forward(x), functools.partial(backward, x)

    return differentiable(x)


@functools.cache
def _compiled(function):
    import tensorflow as tf

    return tf.function(function, jit_compile=True, autograph=False)


@functools.cache
def _in_float32(function):
    """Return the function that computes in float32; its tensors keep their dtype."""
    return lambda *tensors: ops.cast(function(*(ops.cast(x, "float32") for x in tensors)), tensors[0].dtype)


def _tanh_form(x):
    return (ops.tanh((x + x * (_CUBIC * ops.square(x))) * _TANH_SCALE) + 1) * (0.5 * x)


def _tanh_backward(x, upstream):
    squared = ops.square(x)
    tanh = ops.tanh((x + x * (_CUBIC * squared)) * _TANH_SCALE)
    slope = (1 - ops.square(tanh)) * (x * (_TANH_SCALE / 2 + (1.5 * _CUBIC * _TANH_SCALE) * squared))
    return upstream * (0.5 * (1 + tanh) + slope)


def _erf_backward(x, upstream):
    density = ops.exp(-0.5 * ops.square(x)) * (1 / math.sqrt(2 * math.pi))
    return upstream * (0.5 * (1 + ops.erf(x * math.sqrt(0.5))) + x * density)


# whether it is the tanh approximation -> function
_FORWARD = {True: _tanh_form, False: functools.partial(ops.gelu, approximate=False)}
_BACKWARD = {True: _tanh_backward, False: _erf_backward}


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerNorm(keras.layers.LayerNormalization):
    """Normalise each token over its channels (arXiv 1607.06450, section 3).

    The arguments and results are those of `keras.layers.LayerNormalization`. On TensorFlow, `predict` and `evaluate` on
    a CPU, and exported models, use one fused operation.

    Shapes:
        (..., dim) -> the same
    """

    def call(self, x):
        if self.gamma is None or self.beta is None:
            return super().call(x)
        return _layer_norm(x, self.gamma, self.beta, self.epsilon, otherwise=super().call)


def _layer_norm(x, gamma, beta, epsilon, otherwise):
    """Return (x - mean) / sqrt(variance + epsilon) * gamma + beta of `x` (..., dim), or `otherwise(x)`, the same."""
    if is_for(ONEDNN) and x.dtype in ("float32", "bfloat16") and len(x.shape) in (2, 3):  # the remapper supports these
        return _batch_norm(x, gamma, beta, epsilon)
    if is_for(CONVERTER):
        norm = functools.partial(_quotient, epsilon=epsilon)
        return as_one_node("LayerNormalization", norm, x, gamma, beta, axis=-1, epsilon=epsilon)
    if keras.backend.backend() != "tensorflow" or keras.utils.is_keras_tensor(x):  # XLA decides what JAX stores
        return otherwise(x)
    return _with_own_gradient(x, gamma, beta, epsilon)


def _with_own_gradient(x, gamma, beta, epsilon):
    """Return Keras's layer norm; of the tensors of its size, only `x` is stored for the backward pass."""

    @ops.custom_gradient
    def differentiable(x, gamma, beta):
        backward = _compiled(_norm_backward) if x.shape[-1] >= _COMPILED_WIDTH and is_plain_cpu() else _norm_backward
        outputs = ops.layer_normalization(x, gamma, beta, axis=-1, epsilon=epsilon)
        return outputs, lambda upstream: backward(x, gamma, upstream, epsilon)

    return differentiable(x, ops.copy(gamma), ops.copy(beta))  # tensors, as TensorFlow also watches variables


def _norm_backward(x, gamma, upstream, epsilon):
    """Return the gradients for `x`, `gamma` and `beta`."""
    dtype, wide = x.dtype, keras.backend.result_type(x.dtype, "float32")  # 16-bit tensors are normalised in float32
    x, upstream = ops.cast(x, wide), ops.cast(upstream, wide)
    x = x - ops.mean(x, axis=-1, keepdims=True)
    inverse = ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + epsilon)
    x, rows = x * inverse, tuple(range(len(x.shape) - 1))
    of_weights = (ops.cast(ops.sum(slopes, axis=rows), gamma.dtype) for slopes in (upstream * x, upstream))
    upstream = upstream * ops.cast(gamma, wide)
    shared = ops.mean(upstream, axis=-1, keepdims=True) + x * ops.mean(upstream * x, axis=-1, keepdims=True)
    return ops.cast(inverse * (upstream - shared), dtype), *of_weights


def _batch_norm(x, gamma, beta, epsilon):
    import tensorflow as tf

    dim, shape = x.shape[-1], tf.shape(x)
    # With a static number of rows, the ones would become a constant, which the remapper does not match.
    rows = tf.raw_ops.PlaceholderWithDefault(input=tf.size(x) // dim, shape=())
    empty = tf.constant([], "float32")
    normalised = tf.raw_ops.FusedBatchNormV3(
        x=tf.reshape(x, (1, -1, dim, 1)),
        scale=tf.fill([rows], 1.0),
        offset=tf.fill([rows], 0.0),
        mean=empty,
        variance=empty,
        epsilon=epsilon,
        data_format="NCHW",
        is_training=True,
    ).y
    gamma, beta = (ops.convert_to_tensor(values, x.dtype) for values in (gamma, beta))
    outputs = tf.add(tf.reshape(normalised, shape) * gamma, beta)  # Keras's addition may become a BiasAdd
    outputs.set_shape(x.shape)
    return outputs


def _quotient(x, gamma, beta, epsilon):
    """Return the layer norm in fewer operations of LiteRT than `ops.layer_normalization` has."""
    centred = x - ops.mean(x, axis=-1, keepdims=True)
    deviation = ops.sqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + epsilon)
    return centred / deviation * gamma + beta


def check_in_call(x, message, is_right, found):
    """Return `x`; a call for which `is_right` is false raises an error, also inside a TensorFlow graph.

    Neither a symbolic call, nor a function that JAX compiles, nor a graph for a converter checks anything.

    Args:
        x: the tensor to return.
        message: what the error says.
        is_right: function that returns a boolean tensor; all of its elements must be true.
        found: function that returns the tensor that the error shows.

    Raises:
        ValueError: in eager mode; in a graph `tf.errors.InvalidArgumentError`.
    """
    if keras.utils.is_keras_tensor(x) or is_compiled_by_jax(x) or is_for(CONVERTER):
        return x
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        if not tf.executing_eagerly():
            checked = tf.debugging.Assert(tf.reduce_all(is_right()), [message + "; got", found()])
            with tf.control_dependencies([checked]):
                return tf.identity(x)
    if not ops.convert_to_numpy(is_right()).all():
        raise ValueError(f"{message}; got {ops.convert_to_numpy(found()).tolist()}")
    return x


def on_rows(call, x):
    """Return `call(x)`; on TensorFlow, `call` usually gets a matrix of all vectors.

    `call` must process each vector along the last axis independently.

    Args:
        call: function from (..., dim) to (..., dim'), such as a dense layer.
        x: (..., dim).
    """
    if keras.backend.backend() != "tensorflow" or len(x.shape) == 2 or is_for(CONVERTER):
        return call(x)
    *leading, dim = x.shape
    rows = call(ops.reshape(x, (-1, dim)))
    if leading.count(None) > 1:
        leading = ops.shape(x)[:-1]
    return ops.reshape(rows, (*(-1 if side is None else side for side in leading), rows.shape[-1]))


def project(dense, x, norm=None, training=None):
    """Return `dense(norm(x))`; in training, the output of the norm is not stored for the backward pass.

    Args:
        dense: a `keras.layers.Dense` without activation.
        x: (..., dim).
        norm: a layer, or None for `dense(x)`.
        training: whether this is a call in training.
    """
    product = lambda x: _products(dense, x, 1)[0] if _is_split(dense) else on_rows(dense, x)  # noqa: E731
    return _after_norm(norm, dense, product, x, training)


def project_to_heads(dense, x, num_heads, norm=None, training=None):
    """Return the queries, keys and values of each head, each (batch, heads, length, head_dim).

    Args:
        dense: a `keras.layers.Dense` to [query, key, value], each as [head 0, head 1, ...], without activation.
        x: (batch, length, dim).
        num_heads: number of heads.
        norm, training: as in `project`.
    """
    head_dim = dense.units // (3 * num_heads)

    def split(x):
        length = ops.shape(x)[1]
        # Three products give the layout of cuDNN's attention, which needs a copy of each part of a single one.
        if _is_split(dense) or is_on_gpu() and dense.quantization_mode is None:
            shape = (-1, length, num_heads, head_dim)  # -1, as LiteRT loses sizes that are computed at run time
            return [ops.transpose(ops.reshape(part, shape), (0, 2, 1, 3)) for part in _products(dense, x, 3)]
        outputs = ops.reshape(on_rows(dense, x), (-1, length, 3, num_heads, head_dim))
        return ops.unstack(ops.transpose(outputs, (2, 0, 3, 1, 4)), 3)

    return _after_norm(norm, dense, split, x, training)


def _after_norm(norm, dense, call, x, training):
    if norm is None:
        return call(x)
    return recompute([norm, dense], lambda x: call(norm(x)), x, when=training)


def _is_split(dense):
    return is_for(CONVERTER) and dense.quantization_mode is None


def _products(dense, x, parts):
    matmul = ops.matmul
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        matmul = tf.matmul
    width, outputs = dense.units // parts, []
    for start in range(0, dense.units, width):
        outputs.append(matmul(x, ops.convert_to_tensor(dense.kernel[:, start : start + width])))
        if dense.use_bias:
            outputs[-1] += dense.bias[start : start + width]
    return outputs


def absent(x, **_):
    """Return `x`: what stands for a part that a layer does not have."""
    return x


def take_rows(x, places):
    """Return the rows of each sample at its indices.

    Args:
        x: (batch, rows, ...).
        places: integers (batch, taken), from 0.

    Returns:
        (batch, taken, ...)
    """
    if keras.backend.backend() == "tensorflow" and not keras.utils.is_keras_tensor(x):
        import tensorflow as tf

        return tf.gather(x, places, batch_dims=1)
    return ops.take_along_axis(x, ops.reshape(places, (*places.shape, *[1] * (x.ndim - 2))), axis=1)


def recompute(layers, call, *inputs, when=True):
    """Return `call(*inputs)`; only the inputs are stored for the backward pass.

    Inside another `recompute`, or with a `when` that is not true, this is only `call(*inputs)`.

    Args:
        layers: built layers.
        call: function of the inputs; it reads no variables except those of `layers`.
        *inputs: tensors, or lists and dicts of tensors.
        when: whether to recompute.
    """
    if not when or _RECOMPUTED.get():
        return call(*inputs)
    weights = [weight for layer in layers for weight in layer.weights]
    is_weight = set(map(id, weights))
    states = [variable for layer in layers for variable in layer.variables if id(variable) not in is_weight]
    seeds = [ops.copy(state) for state in states]
    tensors = [x for x in keras.tree.flatten(inputs) if _has_gradient(x)]

    def forward(*arguments):
        given, values = iter(arguments[: len(tensors)]), arguments[len(tensors) :]
        # Weights are arguments, so that gradients flow to them; the seeds have their values from before the call.
        mapping = zip([*weights, *states], [*values, *seeds], strict=True)
        token = _RECOMPUTED.set(True)
        try:
            with keras.StatelessScope(state_mapping=mapping):
                return call(*keras.tree.map_structure(lambda x: next(given) if _has_gradient(x) else x, inputs))
        finally:
            _RECOMPUTED.reset(token)

    # Copies, because TensorFlow also watches the variables and would count their gradients twice.
    outputs = keras.remat(forward)(*tensors, *(ops.copy(weight) for weight in weights))
    for state, seed in zip(states, seeds, strict=True):
        state.assign(seed + ops.convert_to_tensor([0, _RESERVED_DRAWS], dtype=seed.dtype))
    return outputs


def _has_gradient(x):
    return x is not None and keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype))
