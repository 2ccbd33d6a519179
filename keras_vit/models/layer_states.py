"""Changes to the layers of a built model that a saved model must restore: freezing and quantisation."""

import keras

from keras_vit.compat.graph import inner_layers

QUANTIZATION_MODES = ("int8", "int4", "float8")  # modes that need no calibration data


def layer_states(model):
    """Return how the layers inside a model, at any depth, differ from newly built ones.

    LoRA is not included, because Keras merges it into the kernel when it saves. An inner model, such as the stem of a
    hybrid, stores the states of its layers in its own config.

    Returns:
        Dict of JSON values from the path of a layer (`block_00/mlp`) to its state: `trainable` if it differs from the
        enclosing layer's, `quantization` if the layer is quantised.

    Raises:
        ValueError: if a layer is quantised in a mode that needs calibration data.
    """
    found = ((inner.path, _state(inner)) for inner in inner_layers(model))
    return {path: state for path, state in found if state}


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


def enable_lora_as_in(source, target):
    """Enable LoRA in the layers of `target` that have it in `source`, of the same architecture; return `target`."""
    pairs = zip(inner_layers(source), inner_layers(target), strict=True)
    for old, new in ((old.layer, new.layer) for old, new in pairs):
        if getattr(old, "lora_enabled", False):
            new.enable_lora(old.lora_rank, old.lora_alpha)
    return target


def _state(inner):
    state = {}
    if inner.layer.trainable != inner.is_outer_trainable:
        state["trainable"] = inner.layer.trainable
    mode = inner.layer.quantization_mode
    if mode is not None and not isinstance(inner.layer, keras.Model):
        if mode not in QUANTIZATION_MODES:
            raise ValueError(
                f"a model can be saved and copied when quantised in one of {', '.join(QUANTIZATION_MODES)}; "
                f"layer {inner.path!r} is quantised in {mode!r}"
            )
        config = getattr(inner.layer, "quantization_config", None)  # Keras 3.12 has only the mode
        config = None if config is None else keras.saving.serialize_keras_object(config)
        state["quantization"] = {"mode": mode, "config": config}
    return state
