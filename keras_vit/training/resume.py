"""Resume: continue an interrupted run from the step of its last checkpoint, with identical results."""

import concurrent.futures
import json
import math
import zlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_vit import checks
from keras_vit.training import host_arrays, preemption, workers
from keras_vit.training.checkpoint_files import CHECKPOINTS, CheckpointFolder, held
from keras_vit.training.identity import as_read, check_same_run, describe_optimizer
from keras_vit.training.state import read_callbacks, read_state, write_callbacks, write_state
from keras_vit.typing import PathLike


class NonFiniteError(ArithmeticError):
    """Report that the loss or a weight is infinite or NaN."""


class Resume(keras.callbacks.Callback):
    """Save checkpoints by step and resume from the newest one; a Keras callback.

    ```python
    resume = keras_vit.training.Resume("runs/1", every_steps=500)
    data = keras_vit.data.train_pipeline(source, model.preprocessing, 64, start_step=resume.step)
    model.fit(data, epochs=10, steps_per_epoch=781, callbacks=[resume])
    ```

    After an interruption, the same lines resume the run. They restore the weights, the optimizer, the running metrics,
    the seeds of dropout, the history, the state of Keras's `EarlyStopping`, `ModelCheckpoint` and `ReduceLROnPlateau`,
    and continue with the next batch. On the same kind of device, all results equal those of an uninterrupted run.

    Checkpoints are written every `every_steps` steps, before a validation, at the last step, and on these signals:

    - SIGTERM: `fit` raises `Preempted`, even if the signal came after the last step. The process exits with code 75.
    - Ctrl-C (SIGINT): `fit` raises `Interrupted`, a `KeyboardInterrupt`. A second Ctrl-C raises `KeyboardInterrupt` at
      once; a checkpoint that is being written is still completed.

    Python delivers signals to the main thread only: a `fit` in another thread does not handle them. A SIGINT that the
    process ignores stays ignored. A background thread writes the checkpoints, one at a time. Its errors are raised at
    the next step.

    Use each `Resume`, and the data that start at its `step`, for one `fit`. The model must be one of this package.
    `keras_vit.Model(inputs, outputs)` builds one from any layers, `keras_vit.Model(model.inputs[0], model.outputs[0])`
    from a `keras.Sequential`. With several workers, `workdir` must be a folder that all of them share; only the first
    worker writes. On JAX, each worker writes its parts of the arrays with Orbax (the extra `hosts`), while training
    waits. Any number of processes can resume such a checkpoint, with identical results if it is the same number.

    Args:
        workdir: folder of the run; the files are saved in `workdir/checkpoints`.
        every_steps: steps between two checkpoints.
        keep: number of earlier checkpoints to keep in addition to the newest.
        run: dict of JSON values that identifies the run, such as a recipe. A checkpoint of a run with other values
            raises an error. `{"data": source.fingerprint()}` detects changed images.

    Attributes:
        step: number of completed steps since the start of the run; the data must start at this batch.

    Raises:
        ValueError: from `fit`: on a second `fit`; on arguments that cannot be resumed, such as arrays; on a checkpoint
            of another run or another optimizer; if the workers start different runs or do not share the folder.
        BlockingIOError: from `fit`, if another process trains in `workdir`.
        CheckpointError: if a checkpoint cannot be written, is damaged or does not fit the model.
        ImportError: from `fit`, in several processes on JAX without Orbax.
        NonFiniteError: if the loss or a weight is infinite or NaN; such a checkpoint is not written.
        Preempted: after SIGTERM.
        Interrupted: after Ctrl-C. A second Ctrl-C raises Python's `KeyboardInterrupt`.
    """

    def __init__(
        self, workdir: PathLike, every_steps: int = 500, *, keep: int = 1, run: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self._every = checks.check_integer("every_steps", every_steps)
        self._workdir = checks.check_workdir(workdir, (CHECKPOINTS,))
        self._files = CheckpointFolder(self._workdir / CHECKPOINTS, checks.check_integer("keep", keep, minimum=0))
        self._run = as_read(run or {})
        self._thread = self._write = None
        self._is_used = False
        self.step = self._saved_step()

    def run_fit(self, model: keras.Model, fit: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Call `fit` so that it resumes from the checkpoint; see `keras_vit.Model.fit`.

        Args:
            model: the model whose `fit` was called.
            fit: function of the arguments and of the completed steps of the first epoch.
            arguments: dict of the named arguments of `model.fit`.

        Returns:
            The `History` that `model.fit` returns.

        Raises:
            ValueError, BlockingIOError, CheckpointError, NonFiniteError, Preempted, Interrupted: see the class.
        """
        if self._is_used:
            raise ValueError("a Resume is for one fit: create the Resume and its data again before each fit")
        self._steps_per_epoch, self._last_step = _check_arguments(model, arguments)
        if workers.shares_arrays(model):
            host_arrays.checkpointer()  # raises an error now, not at the first checkpoint
        self._is_chief = workers.is_chief(model)
        with held(self._workdir, self._is_chief):
            return self._run_alone(model, fit, arguments)

    def _run_alone(self, model, fit, arguments):
        optimizer = describe_optimizer(model.optimizer)  # before callbacks change its learning rate
        self._identity = {**self._run, "optimizer": optimizer, "steps_per_epoch": self._steps_per_epoch}
        self._check_workers(model)
        self._others = [one for one in keras.tree.flatten(arguments.get("callbacks")) if one is not self]
        self._saved = self._read(model) if self.step else None
        self._validates = arguments.get("validation_data") is not None
        epoch = max(0, self.step - 1) // self._steps_per_epoch  # an epoch with all steps done is still validated
        # Last of the callbacks, so that the state of the checkpoint overrides what the others set.
        arguments = {**arguments, "callbacks": [*self._others, self], "initial_epoch": epoch}
        self._is_used = True
        one_thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        try:
            with preemption.watch() as self._requests, one_thread as self._thread:
                history = fit(arguments, self.step - epoch * self._steps_per_epoch)
                self._wait()
        finally:
            self._thread = self._write = None
        # A signal may come after the last step, or after the data of an epoch ended early.
        asked = workers.largest(model, self._requests.strongest)
        if asked:
            raise preemption.ENDS[asked](self._saved_step())
        return history

    def set_model(self, model):
        super().set_model(model)
        if self._thread is None:
            raise TypeError(
                "Resume must be passed once, in the list callbacks, and the model must be a keras_vit model, whose fit "
                f"can start inside an epoch; got {type(model).__name__}: build one with "
                "keras_vit.Model(inputs, outputs), or train keras_vit.Model(model.inputs[0], model.outputs[0]), "
                "which has the same layers and weights"
            )

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch
        if self._saved is not None:
            (arrays, state), self._saved = self._saved, None
            write_state(self.model, arrays)
            write_callbacks(self._others, arrays, repeats_batch=self.step == (epoch + 1) * self._steps_per_epoch)
            self.model.history.history, self.model.history.epoch = state["history"], state["epochs"]

    def on_train_batch_end(self, batch, logs=None):
        before, self.step = self.step, self._epoch * self._steps_per_epoch + batch + 1
        self._check_loss((logs or {}).get("loss", 0.0), before)
        asked = workers.largest(self.model, self._requests.strongest)
        # A run that resumes at the end of an epoch gets its last step again; its checkpoint exists.
        if self.step > before and (asked or self._is_due(before)):
            self._save()
        self._end_if(asked)
        if self._write is not None and self._write.done():
            self._wait()

    def on_test_batch_end(self, batch, logs=None):
        self._end_if(workers.largest(self.model, self._requests.strongest))  # the checkpoint exists already

    def _end_if(self, asked):
        if asked:
            self._wait()
            raise preemption.ENDS[asked](self.step)

    def _saved_step(self):
        return max(self._files.steps(), default=0)

    def _check_workers(self, model):
        if self._saved_step() != self.step:
            raise ValueError(
                f"the newest checkpoint in {self._files.folder} must be that of step {self.step}, as it was when this "
                f"Resume was created; it is that of step {self._saved_step()} now: create the Resume and its data "
                "again"
            )
        digest = zlib.crc32(json.dumps(self._identity, sort_keys=True).encode()) >> 1  # 31 bits
        own = np.array([self.step, digest], "int32")
        steps, digests = map(set, workers.gather(model, [own] * len(workers.local_replicas(model))).T.tolist())
        if len(steps) > 1:
            raise ValueError(f"all workers must share workdir; they found steps {sorted(steps)} in {self._workdir}")
        if len(digests) > 1:
            raise ValueError(
                "all workers must start the same run, with equal recipes, models and images; "
                f"got {len(digests)} different ones: compare the files and arguments on the machines"
            )

    def _read(self, model):
        """Return the newest checkpoint, (arrays, state), after comparing it with the run."""
        like = {}
        if workers.shares_arrays(model):
            model.optimizer.build(model.trainable_variables)
            like = read_state(model)
        arrays, state = self._files.read(self.step, like)
        check_same_run(self._files.folder, state["run"], self._identity)
        if self.step > self._last_step:
            raise ValueError(
                f"epochs * steps_per_epoch must be at least {self.step}, the steps done so far; got {self._last_step}"
            )
        return arrays, state

    def _check_loss(self, loss, before):
        if math.isfinite(loss):
            return
        self._wait()
        steps = f"step {self.step}" if self.step == before + 1 else f"steps {before + 1} to {self.step}"
        raise NonFiniteError(
            f"the loss became {loss} in {steps}, the last good checkpoint is that of step {self._saved_step()}: "
            "try a lower learning rate, a longer warm-up or clipping, in a new workdir"
        )

    def _is_due(self, before):
        ends_epoch = self.step % self._steps_per_epoch == 0
        passed = self.step // self._every > before // self._every
        return passed or (ends_epoch and self._validates) or self.step == self._last_step

    def _save(self):
        self._wait()
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()
        arrays = read_state(self.model) | read_callbacks(self._others)
        state = {
            "run": self._identity,
            "history": {name: list(map(float, values)) for name, values in self.model.history.history.items()},
            "epochs": list(self.model.history.epoch),
        }
        if workers.shares_arrays(self.model):
            self._write_checked(self.step, arrays, state)
        elif self._is_chief:
            self._write = self._thread.submit(self._write_checked, self.step, arrays, state)

    def _write_checked(self, step, arrays, state):
        for name, array in arrays.items():
            is_checked = name.startswith(("model.", "optimizer.")) and array.dtype.kind not in "biu"
            finite = keras.ops.isfinite if host_arrays.is_shared(array) else np.isfinite
            if is_checked and not finite(array).all():
                raise NonFiniteError(f"a weight ({name}) is infinite or NaN after step {step}")
        self._files.write(step, arrays, state, self._is_chief)

    def _wait(self):
        """Wait for the checkpoint that is being written and raise its errors."""
        write, self._write = self._write, None
        if write is not None:
            write.result()


def _check_arguments(model, arguments):
    """Return (steps per epoch, steps of the whole run)."""
    steps, first = arguments.get("steps_per_epoch"), arguments.get("initial_epoch", 0)
    x, y = arguments.get("x"), arguments.get("y")
    if any(hasattr(array, "shape") for array in keras.tree.flatten([x, y])) or steps is None or first:
        raise ValueError(
            "fit with Resume requires steps_per_epoch, no initial_epoch, and data x that start at step "
            "resume.step, such as train_pipeline(..., start_step=resume.step), not arrays; got "
            f"steps_per_epoch={steps}, initial_epoch={first}, x={type(x).__name__}, y={type(y).__name__}"
        )
    if steps % model.steps_per_execution:
        raise ValueError(f"steps_per_execution={model.steps_per_execution} must divide steps_per_epoch; got {steps}")
    return steps, arguments.get("epochs", 1) * steps
