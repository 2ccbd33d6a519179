"""Resume: a killed run goes on at the step of its last checkpoint, inside the epoch, as if nothing had happened."""

import concurrent.futures
import contextlib
import json
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_vit import checks
from keras_vit.compat.resumable_fit import ResumableFit
from keras_vit.files import remove_partial
from keras_vit.training import callback_states, preemption, workers
from keras_vit.training.checkpoint_files import CheckpointFolder, held
from keras_vit.training.state import check_same_run, describe_optimizer, read_state, write_state
from keras_vit.typing import PathLike


class NonFiniteError(ArithmeticError):
    """The loss or a weight has become infinite or no number."""


class Resume(keras.callbacks.Callback):
    """Callback that writes checkpoints by step and goes on from the newest.

    ```python
    resume = keras_vit.training.Resume("runs/1", every_steps=500)
    data = keras_vit.data.train_pipeline(source, model.preprocessing, 64, start_step=resume.step)
    model.fit(data, epochs=10, steps_per_epoch=781, callbacks=[resume])
    ```

    The same lines go on after a kill: with the weights, the optimizer, the running metrics, the seeds of dropout, the
    history, the state of Keras's `EarlyStopping`, `ModelCheckpoint` and `ReduceLROnPlateau`, and with the batch that
    was next. On one kind of device every number is then that of an unbroken run.

    A checkpoint is written every `every_steps` steps, before a validation, at the last step, and when the process is
    asked to end: after SIGTERM `fit` raises `Preempted`, also where it came after the last step, and the process exits
    with code 75; after the first Ctrl-C (SIGINT) it raises `Interrupted`, which is a `KeyboardInterrupt`. A second
    Ctrl-C raises `KeyboardInterrupt` at once, though a checkpoint that is half written is finished. Signals reach the
    main thread alone: a `fit` in another one leaves them as they are; a SIGINT that the process ignores stays ignored.
    Values are copied between two steps and written by a thread, one checkpoint at a time; what fails there is raised at
    the next step.

    A `Resume` and the data that begin at its `step` are for one `fit`. The model must be one of this package:
    `keras_vit.Model(inputs, outputs)` makes one of any layers, `keras_vit.Model(model.inputs[0], model.outputs[0])`
    of a `keras.Sequential`. With several workers, `workdir` must be a folder that
    all of them see; the first writes.

    Args:
        workdir: folder of the run; the files lie in `workdir/checkpoints`.
        every_steps: steps from one checkpoint to the next.
        keep: number of earlier checkpoints to keep beside the newest.
        run: dict of JSON values that tells one run from another, such as a recipe. A checkpoint of a run with other
            values is refused. `{"data": source.fingerprint()}` recognises other images.

    Attributes:
        step: number of steps done, counted from the beginning of the run: the batch at which the data must start.

    Raises:
        ValueError: from `fit`, on a second `fit`, on arguments with which it cannot resume, such as arrays, and on a
            checkpoint of another run or of another optimizer than the model was compiled with.
        BlockingIOError: from `fit`, if another process trains in `workdir`.
        CheckpointError: on a checkpoint that cannot be written, is damaged or does not fit the model.
        NonFiniteError: when the loss or a weight is no finite number; no such checkpoint is written.
        Preempted: after SIGTERM.
        Interrupted: after Ctrl-C; after a second one the `KeyboardInterrupt` of Python.
    """

    def __init__(
        self, workdir: PathLike, every_steps: int = 500, *, keep: int = 1, run: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self._every = checks.check_integer("every_steps", every_steps)
        self._workdir = checks.check_workdir(workdir)
        self._files = CheckpointFolder(self._workdir / "checkpoints", checks.check_integer("keep", keep, minimum=0))
        self._run = json.loads(json.dumps(run or {}))  # as a file gives it back: tuples are lists
        self._thread = self._write = None
        self._is_used = False
        self.step = self._saved_step()

    def run_fit(self, model: keras.Model, fit: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Calls `fit` so that it goes on from the checkpoint; `ResumableFit` tells how.

        Args:
            model: the model whose `fit` was called.
            fit: function of the arguments and of the steps done in the first epoch.
            arguments: dict of the named arguments of `model.fit`.

        Returns:
            What `model.fit` returns, the `History`.

        Raises:
            ValueError, BlockingIOError, CheckpointError, NonFiniteError, Preempted, Interrupted: as the class says.
        """
        if self._is_used:
            raise ValueError(
                "a Resume is for one fit, as the data begin at its step: "
                "make the Resume, and the data from its step, anew before each fit"
            )
        self._steps_per_epoch, self._last_step = _check_arguments(model, arguments)
        with held(self._workdir) if workers.is_chief(model) else contextlib.nullcontext():
            return self._run_alone(model, fit, arguments)

    def _run_alone(self, model, fit, arguments):
        self._check_step(model)
        self._optimizer = describe_optimizer(model.optimizer)  # now: in a run its learning rate may be changed
        others = [callback for callback in keras.tree.flatten(arguments.get("callbacks")) if callback is not self]
        self._others, self._saved = others, self._read()
        self._validates = arguments.get("validation_data") is not None
        epoch, steps_done = self._position()
        if workers.is_chief(model):
            remove_partial(self._files.folder)
        # Last of the callbacks: what the checkpoint says is the last word at the beginning of the epoch.
        arguments = {**arguments, "callbacks": [*others, self], "initial_epoch": epoch}
        self._is_used = True
        try:
            with preemption.watch() as self._requests, _one_thread() as self._thread:
                history = fit(arguments, steps_done)
                self._wait()
        finally:
            self._thread = self._write = None
        asked = workers.largest(model, self._requests.strongest)  # after the last step, or in an epoch cut short
        if asked:
            raise preemption.ENDS[asked](self._saved_step())
        return history

    def set_model(self, model):
        super().set_model(model)
        if self._thread is None:
            raise TypeError(_not_resumable(model))

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch
        if self._saved is not None:
            (arrays, state), self._saved = self._saved, None
            write_state(self.model, arrays)
            callback_states.write_states(self._others, state["callbacks"], arrays)
            if self.step == (epoch + 1) * self._steps_per_epoch:
                callback_states.expect_last_batch_again(self._others)
            self.model.history.history = {name: list(values) for name, values in state["history"].items()}
            self.model.history.epoch = list(state["epochs"])

    def on_train_batch_end(self, batch, logs=None):
        before, self.step = self.step, self._epoch * self._steps_per_epoch + batch + 1
        self._check_loss((logs or {}).get("loss", 0.0), before)
        asked = workers.largest(self.model, self._requests.strongest)
        if asked or self._is_due(before):
            self._save()
        self._end_if(asked)
        if self._write is not None and self._write.done():
            self._wait()

    def on_test_batch_end(self, batch, logs=None):
        self._end_if(workers.largest(self.model, self._requests.strongest))  # the checkpoint was written before

    def _end_if(self, asked):
        if asked:
            self._wait()
            raise preemption.ENDS[asked](self.step)

    def _saved_step(self):
        return max(self._files.steps(), default=0)

    def _check_step(self, model):
        if self._saved_step() != self.step:
            raise ValueError(
                f"the newest checkpoint in {self._files.folder} must be the one of step {self.step}, as it was when "
                f"this Resume was made; it is of step {self._saved_step()} now: make the Resume, and the data from its "
                "step, anew"
            )
        steps = workers.gather(model, [np.int64(self.step)] * len(workers.local_replicas(model)))
        if len(set(steps.tolist())) > 1:
            raise ValueError(
                "workdir must be one folder that all workers share; "
                f"they found checkpoints of steps {sorted(set(steps.tolist()))} in {self._files.folder}"
            )

    def _read(self):
        """The newest checkpoint, None at the beginning of a run."""
        if self.step == 0:
            return None
        arrays, state = self._files.read(self.step)
        check_same_run(self._files.folder, state["run"], self._run)
        check_same_run(self._files.folder, {"optimizer": state["optimizer"]}, {"optimizer": self._optimizer})
        if state["steps_per_epoch"] != self._steps_per_epoch:
            raise ValueError(
                f"steps_per_epoch must be that of the run in {self._files.folder}, {state['steps_per_epoch']}; "
                f"got steps_per_epoch={self._steps_per_epoch}"
            )
        if self.step > self._last_step:
            raise ValueError(
                f"epochs * steps_per_epoch must be at least the {self.step} steps done in {self._files.folder}; "
                f"got {self._last_step}"
            )
        return arrays, state

    def _position(self):
        """(epoch, steps done of it): an epoch whose steps are all done still has its validation to come."""
        epoch = max(0, self.step - 1) // self._steps_per_epoch
        return epoch, self.step - epoch * self._steps_per_epoch

    def _check_loss(self, loss, before):
        if not math.isfinite(loss):
            steps = f"step {self.step}" if self.step == before + 1 else f"steps {before + 1} to {self.step}"
            raise NonFiniteError(f"the loss became {loss} in {steps}; {self._good_checkpoint()}")

    def _good_checkpoint(self):
        self._wait()
        steps = self._files.steps()
        kept = f"the checkpoint of step {steps[-1]} is good" if steps else "there is no checkpoint yet"
        return f"{kept}; a lower learning rate, a longer warm-up or clipping may help, in a new workdir"

    def _is_due(self, before):
        ends_epoch = self.step % self._steps_per_epoch == 0
        passed = self.step // self._every > before // self._every
        return passed or (ends_epoch and self._validates) or self.step == self._last_step

    def _save(self):
        self._wait()
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()
        callbacks, weights = callback_states.read_states(self._others)
        arrays = {**read_state(self.model), **weights}
        state = {
            "run": self._run,
            "optimizer": self._optimizer,
            "steps_per_epoch": self._steps_per_epoch,
            "history": {name: list(map(float, values)) for name, values in self.model.history.history.items()},
            "epochs": list(self.model.history.epoch),
            "callbacks": callbacks,
        }
        if workers.is_chief(self.model):
            self._write = self._thread.submit(self._write_checked, self.step, arrays, state)

    def _write_checked(self, step, arrays, state):
        for name, array in arrays.items():
            if name.startswith(("model.", "optimizer.")) and not _is_finite(array):
                raise NonFiniteError(f"a weight ({name}) is no finite number after step {step}")
        self._files.write(step, arrays, state)

    def _wait(self):
        """Waits for the checkpoint that is being written, and raises what went wrong with it."""
        write, self._write = self._write, None
        if write is not None:
            write.result()


def _one_thread():
    return concurrent.futures.ThreadPoolExecutor(1, "checkpoint")


def _not_resumable(model):
    """Why `fit` did not call `run_fit`."""
    if isinstance(model, ResumableFit):
        return "Resume must be given once to fit, in the list callbacks; got a second one, or one in a CallbackList"
    if not (getattr(model, "built", False) and getattr(model, "inputs", None)):
        remedy = "make it of layers, as keras_vit.Model(inputs, outputs)"
    else:  # in the structure that the model takes: Keras warns of a list of one
        is_chain = isinstance(model, keras.Sequential)
        ends = "model.inputs[0], model.outputs[0]" if is_chain else "model.input, model.output"
        remedy = f"train keras_vit.Model({ends}), which has the same layers and weights"
    return (
        f"Resume needs a model of keras_vit, whose fit can begin inside an epoch; got {type(model).__name__}: {remedy}"
    )


def _check_arguments(model, arguments):
    """Returns (steps per epoch, steps of the whole run)."""
    x = keras.tree.flatten(arguments.get("x"))
    if arguments.get("y") is not None or any(hasattr(array, "shape") for array in x):
        raise ValueError(
            "x must be data that begin at step `resume.step`, such as train_pipeline(..., start_step=resume.step), "
            f"with Resume; got arrays ({type(x[0]).__name__}), which every fit begins anew"
        )
    steps = arguments.get("steps_per_epoch")
    if steps is None:
        raise ValueError(
            "steps_per_epoch must be given to fit with Resume: its data goes on from epoch to epoch, "
            "such as that of train_pipeline(..., start_step=resume.step)"
        )
    if arguments.get("initial_epoch"):
        raise ValueError(f"initial_epoch must be left out with Resume, which sets it; got {arguments['initial_epoch']}")
    if steps % model.steps_per_execution:
        raise ValueError(
            "steps_per_epoch must be divisible by steps_per_execution; "
            f"got steps_per_epoch={steps}, steps_per_execution={model.steps_per_execution}"
        )
    return steps, arguments.get("epochs", 1) * steps


def _is_finite(array):
    return array.dtype.kind in "biu" or bool(np.isfinite(array).all())
