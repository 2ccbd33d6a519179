"""fit that can begin in the middle of an epoch.

Keras's fit begins every epoch at step 0: `initial_epoch` skips whole epochs, and `keras.callbacks.BackupAndRestore`
runs the steps of the broken epoch again, on other batches. Delete this file when Keras's fit takes the first step of
its first epoch; tests/compat/test_resumable_fit.py watches over the private names used here.
"""

import inspect

import keras


class ResumableFit:
    """Mixin for a `keras.Model`. It lets a callback that has a method `run_fit` call the fit.

    `run_fit(model, fit, arguments)` gets the dict of the named arguments that fit was called with, and returns what
    `fit(arguments, steps_done)` returns. The first epoch then begins behind its first `steps_done` steps, for which no
    data is taken: numbers of steps, progress bar and epochs are those of an unbroken run. Optimizer and metrics are
    built before the first callback is called. An epoch without steps left shows the callbacks its last step once more,
    without training, with the metrics that were set in `on_epoch_begin`.
    """

    _steps_done = None  # of the epoch that fit is about to begin with

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
        """Of the TensorFlow backend, which builds optimizer and metrics within the first step unless asked."""
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
    """Makes the next epoch of an epoch iterator begin behind its first steps."""
    whole_epoch = iterator._enumerate_iterator

    def rest_of_epoch():
        iterator._enumerate_iterator = whole_epoch
        for step in whole_epoch():
            if step[0] >= steps_done:
                yield step
            else:
                iterator._steps_seen -= iterator.steps_per_execution  # no data was taken for it
        if steps_done >= iterator.steps_per_epoch:
            _train_nothing_once(model)
            yield step  # Keras's loop on JAX fails without any

    iterator._enumerate_iterator = rest_of_epoch


def _train_nothing_once(model):
    train_function, logs = model.train_function, model.get_metrics_result()

    def train_nothing(*arguments):
        model.train_function = train_function
        return logs if len(arguments) == 1 else (logs, arguments[0])  # TensorFlow: iterator; JAX: state, iterator

    model.train_function = train_nothing
