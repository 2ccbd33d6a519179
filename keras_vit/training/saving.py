"""Saving a model that is trained by several processes, of which one writes."""

import threading

from keras_vit.training import workers
from keras_vit.training.checkpoint_files import write_atomically


def save_model(model, path):
    """Writes a `.keras` file in one piece.

    With several workers the file holds no optimizer, and one of them may call this alone: Keras's own saving makes
    variables, which all workers of a strategy must do together.
    """
    if workers.worker_count(model) == 1:
        write_atomically(path, model.save)
        return
    values = [workers.local_parts(variable)[0].numpy() for variable in model.weights]
    outcome = []
    thread = threading.Thread(target=_save_copy, args=(model, values, path, outcome))  # the strategy is this thread's
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
