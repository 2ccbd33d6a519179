"""Runs of training/kill_run.py in other processes, to be killed, and what must be equal of two finished ones."""

import csv
import json
import os
import pathlib
import subprocess
import sys

from safetensors import safe_open

from keras_vit.training.checkpoint_files import CheckpointFolder

SERVER = pathlib.Path(__file__).parent / "training" / "kill_run.py"
STEPS = 24  # of the whole run, see kill_run.py


class Runs:
    """The server of kill_run.py."""

    def __init__(self, log, **environment):
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
        self._log, self._errors = log, open(log, "w", encoding="utf-8")  # noqa: SIM115 - open as long as the server
        self._server = subprocess.Popen(
            [sys.executable, SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )

    def run(self, workdir, after_start=None, **job):
        """Starts the command in `workdir`; returns its exit code, -9 after a kill, and what it said.

        `after_start` is called, with the number of the process, when the first step is about to begin.
        """
        self.start(workdir, **job, **({} if after_start is None else {"die_in": "announced"}))
        if after_start is not None:
            after_start(self.answer()["training"])
        return self.finish()

    def start(self, workdir, **job):
        self._said = os.path.getsize(self._log)
        self._server.stdin.write(json.dumps({"workdir": str(workdir), **job}) + "\n")
        self._server.stdin.flush()

    def finish(self):
        """Waits for the end of the run that was started; returns what `run` does."""
        return self.answer()["exit"], pathlib.Path(self._log).read_text(encoding="utf-8")[self._said :]

    def answer(self):
        line = self._server.stdout.readline()
        while line.startswith("[Gloo]"):  # which connects processes of JAX
            line = self._server.stdout.readline()
        if not line:
            raise RuntimeError(pathlib.Path(self._log).read_text(encoding="utf-8"))
        return json.loads(line)

    def close(self):
        with self._server, self._errors:
            self._server.stdin.close()


def end_state(workdir, steps=STEPS):
    """Every variable of model, optimizer and metrics at the last step, by name, as bytes; and the history."""
    arrays = {name: array.tobytes() for name, array in end_arrays(workdir, steps).items()}
    history = json.loads((workdir / "history.json").read_text())["history"]
    history.pop("images_per_second")
    return arrays, history


def end_arrays(workdir, steps=STEPS):
    """Every variable at the last step, by name, whether one process or several have written it."""
    path = workdir / "checkpoints" / f"step-{steps:09d}"
    if path.is_dir():
        return CheckpointFolder(path.parent).read(steps)[0]
    with safe_open(f"{path}.safetensors", "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict


def step_rows(workdir):
    with open(workdir / "steps.csv", newline="") as file:
        return [{name: row[name] for name in row if name != "images_per_second"} for row in csv.DictReader(file)]


def check_equal(workdir, unbroken, steps=STEPS):
    assert end_state(workdir, steps) == end_state(unbroken, steps)
    assert [int(row["step"]) for row in step_rows(workdir)] == list(range(1, steps + 1))
    assert step_rows(workdir) == step_rows(unbroken)
