"""What was done to the layers inside a model after it was built, to be saved and done again: freezing, quantising."""

import keras

from keras_vit.compat.sublayers import inner_layers

QUANTIZATION_MODES = ("int8", "int4", "float8")  # those without data to calibrate on


def layer_states(model):
    """Returns what is no longer as it was built in the layers inside a model, however deep.

    LoRA is not among it, for Keras adds it to the kernel when it saves. A model inside the model, such as the stem of a
    hybrid, keeps the states of its layers in its own config.

    Returns:
        Dict of JSON values, from the path of a layer (`block_00/mlp`) to its state: `trainable` where that is not what
        it is in the layer around it, `quantization` where it is quantised.

    Raises:
        ValueError: if a layer is quantised in a mode that needs data to calibrate on.
    """
    found = ((inner.path, _state(inner)) for inner in inner_layers(model))
    return {path: state for path, state in found if state}


def restore_layer_states(model, states):
    """Brings the layers of a newly built model to the states that `layer_states` gave."""
    layers = {inner.path: inner.layer for inner in inner_layers(model)}
    for path, state in states.items():  # outer layers come before those inside them
        if "trainable" in state:
            layers[path].trainable = state["trainable"]
        if "quantization" in state:
            mode, config = state["quantization"]["mode"], state["quantization"]["config"]
            arguments = {} if config is None else {"config": keras.saving.deserialize_keras_object(config)}
            layers[path].quantize(mode, **arguments)


def enable_lora_as_in(source, target):
    """Enables LoRA in the layers of `target`, of the same architecture, that have it in `source`; returns `target`."""
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
