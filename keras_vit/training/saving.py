"""Saving a model that several processes train; one of them writes."""

import threading

from keras_vit.training import workers
from keras_vit.training.checkpoint_files import write_atomically


def save_model(model, path):
    """Write a `.keras` file atomically.

    With several workers, the file contains no optimizer, and a single worker may call this. Keras's own saving would
    create variables, which all workers of a strategy must do together.
    """
    if workers.worker_count(model) == 1:
        write_atomically(path, model.save)
        return
    values = [workers.local_parts(variable)[0].numpy() for variable in model.weights]
    outcome = []
    thread = threading.Thread(target=_save_copy, args=(model, values, path, outcome))  # not under the strategy
    thread.start()
    thread.join()
    if outcome:
        raise outcome[0]


def _save_copy(model, values, path, outcome):
    try:
        copy = type(model).from_config(model.get_config())
        for variable, value in zip(copy.weights, values, strict=True):
            variable.assign(value)
        write_atomically(path, copy.save)
    except Exception as error:
        outcome.append(error)
