"""A `fit` that can start in the middle of an epoch.

Keras's `fit` starts every epoch at step 0: `initial_epoch` skips whole epochs, and `keras.callbacks.BackupAndRestore`
repeats the steps of the interrupted epoch on other batches. Delete this file when Keras's `fit` takes the first step of
its first epoch; tests/compat/test_resumable_fit.py checks the private names used here.
"""

import inspect

import keras


class ResumableFit:
    """Let a callback with a method `run_fit` control the call of `fit`; a mixin.

    `run_fit(model, fit, arguments)` gets the named arguments of `fit` as a dict, and returns the result of
    `fit(arguments, steps_done)`. The first epoch then starts after its first `steps_done` steps, without reading data
    for them. Step numbers, progress bar and epochs are those of an uninterrupted run. Optimizer and metrics are built
    before the first callback is called. If the epoch has no steps left, the callbacks get its last step again, without
    training, with the metrics that were set in `on_epoch_begin`.
    """

    _steps_done = None  # of the epoch that fit is about to start

    def fit(self, *args, **kwargs):
        arguments = inspect.signature(keras.Model.fit).bind(self, *args, **kwargs).arguments
        del arguments["self"]
        for callback in keras.tree.flatten(arguments.get("callbacks")):
            if hasattr(callback, "run_fit"):
                return callback.run_fit(self, self._fit_inside, arguments)
        return super().fit(**arguments)

    def _fit_inside(self, arguments, steps_done):
        self._steps_done = steps_done
        try:
            return super().fit(**arguments)
        finally:
            self._steps_done = None

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Override the TensorFlow backend's method, which otherwise builds optimizer and metrics in the first step."""
        super()._maybe_symbolic_build(iterator=iterator, data_batch=data_batch)
        if self._steps_done is not None:
            with self.distribute_strategy.scope():
                self._symbolic_build(iterator=iterator)

    def _symbolic_build(self, iterator=None, data_batch=None):
        super()._symbolic_build(iterator=iterator, data_batch=data_batch)
        if iterator is not None and self._steps_done is not None:
            _skip(self, iterator, self._steps_done)
            self._steps_done = None


def _skip(model, iterator, steps_done):
    """Make the next epoch of an epoch iterator start after its first steps."""
    whole_epoch = iterator._enumerate_iterator

    def rest_of_epoch():
        iterator._enumerate_iterator = whole_epoch
        for step in whole_epoch():
            if step[0] >= steps_done:
                yield step
            else:
                iterator._steps_seen -= iterator.steps_per_execution  # no data was read for it
        if steps_done >= iterator.steps_per_epoch:
            _train_nothing_once(model)
            yield step  # Keras's loop on JAX fails without any step

    iterator._enumerate_iterator = rest_of_epoch


def _train_nothing_once(model):
    train_function, logs = model.train_function, model.get_metrics_result()

    def train_nothing(*arguments):
        model.train_function = train_function
        return logs if len(arguments) == 1 else (logs, arguments[0])  # TensorFlow: iterator; JAX: state, iterator

    model.train_function = train_nothing
