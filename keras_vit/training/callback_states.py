"""The state of Keras's own callbacks, saved so that a resumed run continues with it."""

import keras
import numpy as np

# class -> attributes that are numbers or None
_REMEMBERED = {
    keras.callbacks.EarlyStopping: ("wait", "best", "best_epoch", "stopped_epoch"),
    keras.callbacks.ModelCheckpoint: ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
}
_WEIGHTS = {keras.callbacks.EarlyStopping: "best_weights"}  # class -> attribute that is a list of arrays or None


def read_states(callbacks):
    """Return (dict of JSON values, dict from name to array): the state of the callbacks that have one."""
    states, arrays = {}, {}
    for key, callback, names in _known(callbacks):
        states[key] = {name: _number(getattr(callback, name)) for name in names}
        weights = getattr(callback, _WEIGHTS.get(_kind(callback), ""), None)
        arrays.update({f"{key}.{i:05d}": np.asarray(array) for i, array in enumerate(weights or ())})
    return states, arrays


def write_states(callbacks, states, arrays):
    """Restore what `read_states` returned to callbacks of the same classes and order; others keep their own state."""
    for key, callback, names in _known(callbacks):
        for name in names:
            if name in states.get(key, {}):
                setattr(callback, name, states[key][name])
        weights = [arrays[name] for name in sorted(arrays) if name.startswith(f"{key}.")]
        if weights:
            setattr(callback, _WEIGHTS[_kind(callback)], weights)


def expect_last_batch_again(callbacks):
    """Prepare callbacks that count batches: the last batch, already counted, is reported to them once more."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.ModelCheckpoint) and callback._last_batch_seen is not None:
            callback._batches_seen_since_last_saving -= 1
            callback._last_batch_seen -= 1


def _known(callbacks):
    """Yield (key, callback, attributes); the key is the class and the index among callbacks of that class."""
    seen = {}
    for callback in callbacks:
        kind = _kind(callback)
        if kind is not None:
            seen[kind] = seen.get(kind, -1) + 1
            yield f"callback.{kind.__name__}.{seen[kind]}", callback, _REMEMBERED[kind]


def _kind(callback):
    return next((kind for kind in _REMEMBERED if isinstance(callback, kind)), None)


def _number(value):
    return value if value is None or isinstance(value, int) else float(value)
