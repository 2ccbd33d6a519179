"""Changes to the layers of a built model: `freeze`, and restoring freezing and quantisation of a saved model."""

import warnings
from typing import Any

import keras

from keras_vit import checks
from keras_vit.compat.graph import graph_calls, inner_layers, sublayers

QUANTIZATION_MODES = ("int8", "int4", "float8")  # modes that need no calibration data


def freeze(model: keras.Model, up_to: str | None = None) -> list[str]:
    """Set `trainable = False` on a layer and on all layers that feed it.

    Call it before `compile`: Keras trains the weights that were trainable when its training step was built. Layers that
    are already frozen stay frozen. Only weights are frozen: dropout and stochastic depth stay active in frozen layers,
    and a frozen `BatchNormalization` uses its stored statistics, as in Keras. To train all weights again, set
    `model.trainable = False`, then `model.trainable = True`, and compile again. On TensorFlow, the second alone does
    nothing, because Keras ignores a value that the model itself has already.

    Args:
        model: a model of this package, or a functional Keras model around one. An inner model counts as one layer and
            is frozen as a whole; to freeze a part of it, pass the inner model.
        up_to: name of a layer of the model, such as `"block_08"` or `"pooling"`; if the layer is called several times,
            the first call counts. None freezes all but the last layers with weights before each output, for a linear
            probe: the head, or the two heads of a distilled model, stay trainable.

    Returns:
        List of the names of the frozen layers, in order from the input, without the input layers.

    Raises:
        TypeError: if `model` is not a functional Keras model.
        ValueError: if it has no layer of that name.
    """
    nodes = graph_calls(model)
    if nodes is None:
        raise TypeError(f"model must be a functional keras model; got {type(model).__name__}")
    chosen = set(_ends(model, nodes, up_to))
    for node in reversed(nodes):  # from outputs to inputs
        if node in chosen:
            chosen.update(node.parent_nodes)
    calls = dict.fromkeys(node.operation for node in nodes if node in chosen)
    layers = [x for x in calls if isinstance(x, keras.Layer) and not isinstance(x, keras.layers.InputLayer)]
    for layer in layers:
        layer.trainable = False
    warn_if_compiled(model, "was frozen")
    return [layer.name for layer in layers]


def quantize(method: Any, mode: str | None = None, **kwargs: Any) -> None:
    """Quantise the dense layers of a model.

    Keras's warnings about layers that cannot be quantised are silenced.

    Args:
        method: the method `quantize` of a Keras model.
        mode: `"int8"`, `"int4"` or `"float8"`. Keras's `"gptq"` and `"awq"` calibrate models of text only.
        **kwargs: as in `keras.Model.quantize`; `config` may state the mode.

    Raises:
        ValueError: if the mode is another.
    """
    checks.check_choice("mode", mode or getattr(kwargs.get("config"), "mode", None), QUANTIZATION_MODES)
    with warnings.catch_warnings():  # Keras warns about each layer that cannot be quantised
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method", UserWarning)
        method(mode, **kwargs)


def warn_if_compiled(model, change):
    """Warn that a model must be compiled again to train after a change, such as `was frozen`."""
    if getattr(model, "optimizer", None) is not None and model.optimizer.built:
        warnings.warn(f"{model.name} was compiled before it {change}: compile it again to train it", stacklevel=3)


def layer_states(model):
    """Return how the layers inside a model, at any depth, differ from newly built ones.

    LoRA is not included, because Keras merges it into the kernel when it saves: a layer that trains nothing but LoRA
    counts as frozen. An inner model, such as the stem of a hybrid, stores the states of its layers in its own config.

    Returns:
        Dict of JSON values from the path of a layer (`block_00/mlp`) to its state: `trainable` if it differs from the
        enclosing layer's, `quantization` if the layer is quantised.

    Raises:
        ValueError: if a layer is quantised in a mode that needs calibration data.
    """
    layers = {inner.path: inner.layer for inner in inner_layers(model) if inner.layer.weights}
    trained = {"": True, **{path: _is_trained(layer) for path, layer in layers.items()}}
    found = {path: _state(path, layer, trained) for path, layer in layers.items()}
    return {path: state for path, state in found.items() if state}


def restore_layer_states(model, states):
    """Apply the states from `layer_states` to the layers of a newly built model."""
    layers = {inner.path: inner.layer for inner in inner_layers(model)}
    for path, state in states.items():  # outer layers come before inner ones
        if "trainable" in state:
            layers[path].trainable = state["trainable"]
        if "quantization" in state:
            mode, config = state["quantization"]["mode"], state["quantization"]["config"]
            arguments = {} if config is None else {"config": keras.saving.deserialize_keras_object(config)}
            layers[path].quantize(mode, **arguments)


def enable_lora_as_in(source, target, skip=()):
    """Enable LoRA in the layers of `target` that have it in `source`, except in the layers `skip`; return `target`."""
    old = {inner.path: inner.layer for inner in inner_layers(source)}
    for inner in inner_layers(target):
        like = None if inner.path.partition("/")[0] in skip else old.get(inner.path)
        if like is not None:
            inner.layer.trainable = like.trainable  # `layer_states` calls layers with nothing but LoRA frozen
        if has_lora(like):
            inner.layer.enable_lora(like.lora_rank, like.lora_alpha)
        elif isinstance(like, keras.Model):
            enable_lora_as_in(like, inner.layer)
    return target


def has_lora(layer):
    """Return whether a layer has LoRA."""
    return getattr(layer, "lora_enabled", False)


def lora_layers(model):
    """Return the layers of a model, at any depth, that have LoRA."""
    return [layer for layer in sublayers(model) if has_lora(layer)]


def keep_resize(model, config):
    """Give the position layers of a model the `embedding.resize` of another config, which becomes the model's.

    Args:
        model: a model of this package.
        config: its config, with another method of resizing position tables.
    """
    model._config = config
    for layer in sublayers(model):
        if hasattr(layer, "resize_from") and hasattr(layer, "resize"):
            layer.resize = config.embedding.resize
    model.train_function = model.test_function = model.predict_function = None  # they hold the old method


def restart_lora(model):
    """Start LoRA anew: Keras sets both matrices to zero when it loads a merged kernel, and zeros would never change."""
    for layer in lora_layers(model):
        layer.lora_kernel_a.assign(keras.initializers.HeUniform()(layer.lora_kernel_a.shape))
        layer.lora_kernel_b.assign(keras.ops.zeros(layer.lora_kernel_b.shape))


def _is_trained(layer):
    own = [weight for weight in layer.weights if not weight.name.startswith("lora_")]
    return layer.trainable and (len(own) == len(layer.weights) or any(weight.trainable for weight in own))


def _state(path, layer, trained):
    state = {} if trained[path] == trained[path.rpartition("/")[0]] else {"trainable": trained[path]}
    mode = layer.quantization_mode
    if mode is not None and not isinstance(layer, keras.Model):
        if mode not in QUANTIZATION_MODES:
            raise ValueError(f"layer {path!r} must be quantised as {', '.join(QUANTIZATION_MODES)}; got {mode!r}")
        config = getattr(layer, "quantization_config", None)  # Keras 3.12 has only the mode
        state["quantization"] = {"mode": mode, "config": keras.saving.serialize_keras_object(config)}
    return state


def _ends(model, nodes, up_to):
    """Return the calls that end the frozen part."""
    if up_to is None:
        return [parent for node in nodes if getattr(node.operation, "weights", ()) for parent in node.parent_nodes]
    names = [layer.name for layer in model.layers]
    if up_to not in names:
        known, hint = ", ".join(map(repr, names)), _hint(model, names, up_to)
        raise ValueError(f"up_to must name a layer of {model.name!r}, one of {known}; got up_to={up_to!r}{hint}")
    return [next(node for node in nodes if node.operation.name == up_to)]


def _hint(model, names, up_to):
    for layer in model.layers:
        if isinstance(layer, keras.Model) and up_to in [inner.name for inner in layer.layers]:
            return f" (a layer of the inner model {layer.name!r}: freeze(model.get_layer({layer.name!r}), {up_to!r}))"
    return checks.suggestion(up_to, names)
