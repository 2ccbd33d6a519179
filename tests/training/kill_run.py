"""A training run to be killed, for test_kill.py and others: a server that imports once and forks a process per run.

It reads jobs from its standard input, one JSON object per line, and answers on its standard output with the number of
the process that trains, and later with its exit code.
"""

import json
import os
import pathlib
import resource
import signal
import sys
import threading
import time
import traceback

import keras

import keras_vit
from keras_vit.training import Recipe, checkpoint_files, progress

EPOCHS, STEPS = 3, 8
RECIPE = Recipe(
    name="killed",
    source="this test",
    optimizer="adamw",
    learning_rate=1e-3,
    batch_size=16,
    epochs=EPOCHS,
    warmup_steps=4,
    weight_decay=0.1,
    clip_norm=1.0,
    augment=("inception_crop", "flip"),
    mix=("mixup(0.2)",),
    ema_momentum=0.9,
    gradient_accumulation_steps=2,
    model=keras_vit.ViTConfig(
        name="toy",
        image_size=8,
        patch_size=4,
        hidden_dim=16,
        num_layers=1,
        num_heads=2,
        mlp_dim=16,
        classes=10,
        channels=1,
        dropout_rate=0.1,
    ),
)


def train(job):
    """Trains on the digits in `job["workdir"]`, and dies as `job` says."""
    os.environ.update(job.get("environment", {}))
    _record_reads(job["workdir"])
    phase = job.get("die_in")
    if phase is not None:
        _DEATHS[phase](job)
    if "KERAS_DISTRIBUTION_NUM_PROCESSES" in os.environ:
        keras.distribution.initialize()
    with keras_vit.distribution(job.get("strategy", "one"), **job.get("options", {})) as devices:
        source, held_out = keras_vit.data.from_digits()
        keras_vit.train(
            RECIPE.replace(**job.get("recipe", {})),
            source.take(range(RECIPE.batch_size * STEPS)),
            job["workdir"],
            validation=held_out.take(range(32)),
            strategy=devices,
            checkpoint_every=job.get("every", 1),
            verbose=0,
        )


def _record_reads(workdir):
    """Every attempt to read a checkpoint becomes a line in `reads.txt`, with the bytes of the file."""
    read = checkpoint_files.safe_open

    def recorded(path, framework):
        with open(f"{workdir}-reads.txt", "a", encoding="utf-8") as file:
            file.write(f"{path}\n")
        return read(path, framework)

    checkpoint_files.safe_open = recorded


def _die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def _die_in_step(job):
    """Some milliseconds after the beginning of a step."""

    def on_train_batch_begin(self, batch, logs=None):
        if self._epoch * STEPS + batch == job["step"]:
            threading.Timer(job["delay"], _die).start()

    progress.Progress.on_train_batch_begin = on_train_batch_begin


def _die_in_write(job):
    """With a part of the bytes of a checkpoint on the disk; a share of 1 is before the renaming."""
    write = checkpoint_files.save_file

    def write_part(arrays, path, metadata):
        write(arrays, path, metadata)
        if json.loads(metadata["checkpoint"])["step"] == job["step"]:
            os.truncate(path, int(job["share"] * os.path.getsize(path)))
            _die()

    checkpoint_files.save_file = write_part


def _die_in_write_together(job):
    """As soon as Orbax has begun the folder of a step."""

    def watch():
        while not list(pathlib.Path(job["workdir"], "checkpoints").glob(f"step-{job['step']:09d}.*")):
            time.sleep(0.001)
        _die()

    threading.Thread(target=watch, daemon=True).start()


def _die_at_epoch_end(job):
    """Before or after the callbacks of the epoch's end."""
    begin, end = progress.Progress.on_epoch_end, progress.BestModel.on_epoch_end

    def at_begin(self, epoch, logs=None):
        if epoch == job["epoch"] and job["before"]:
            _die()
        begin(self, epoch, logs)

    def at_end(self, epoch, logs=None):
        end(self, epoch, logs)
        if epoch == job["epoch"] and not job["before"]:
            _die()

    progress.Progress.on_epoch_end, progress.BestModel.on_epoch_end = at_begin, at_end


def _fill_disk(job):
    """No file may become larger than a checkpoint's beginning, from a step on."""

    def on_train_batch_begin(self, batch, logs=None):
        if self._epoch * STEPS + batch == job["step"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (job["bytes"], job["bytes"]))

    progress.Progress.on_train_batch_begin = on_train_batch_begin


def _announce(job):
    """Tells when the steps begin, for whoever kills from outside."""

    def on_epoch_begin(self, epoch, logs=None):
        begin(self, epoch, logs)
        if not told:
            told.append(True)
            print(json.dumps({"training": os.getpid()}), flush=True)

    begin, told = progress.Progress.on_epoch_begin, []
    progress.Progress.on_epoch_begin = on_epoch_begin


_DEATHS = {
    "step": _die_in_step,
    "write": _die_in_write,
    "write together": _die_in_write_together,
    "epoch end": _die_at_epoch_end,
    "full disk": _fill_disk,
    "announced": _announce,
}


def main():
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(json.dumps({"exit": os.waitstatus_to_exitcode(status)}), flush=True)


def _run(job):
    """In the forked process: trains and exits as a script would."""
    code = 0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background of a script is deaf to it
    try:
        train(job)
    except SystemExit as error:
        print(error, file=sys.stderr)
        code = error.code
    except KeyboardInterrupt as error:
        print(repr(error), error, file=sys.stderr)
        code = 130
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    keras.config.disable_traceback_filtering()
    main()
