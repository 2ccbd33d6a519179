"""Checkpoints as files: one safetensors file per step, which is whole or is not there."""

import contextlib
import json
import os
import pathlib
import re

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from keras_vit.files import replace_file

_NAME = re.compile(r"step-(\d{9})\.safetensors")
_FORMAT = 1


class CheckpointError(RuntimeError):
    """A checkpoint that could not be written, or one that is not what was written."""


class CheckpointFolder:
    """Folder of checkpoints, named by their step.

    Earlier files are deleted when the new one is on the disk: the newest is whole, whenever the process is killed.

    Args:
        folder: path; it is made when the first checkpoint is written.
        keep: number of earlier checkpoints to keep beside the newest.
    """

    def __init__(self, folder, keep=1):
        self.folder = pathlib.Path(folder)
        self._keep = keep

    def steps(self):
        """Returns the steps of the checkpoints, ascending."""
        names = os.listdir(self.folder) if self.folder.is_dir() else ()
        return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)

    def path(self, step):
        return self.folder / f"step-{step:09d}.safetensors"

    def write(self, step, arrays, state):
        """Writes a checkpoint and deletes those that are older than the ones to keep.

        Args:
            step: number of steps done.
            arrays: dict from name to NumPy array.
            state: dict of JSON values.

        Raises:
            CheckpointError: where the disk is full or refuses; the earlier checkpoints are still there.
        """
        path = self.path(step)
        dtypes = {name: array.dtype.name for name, array in arrays.items()}
        header = json.dumps({"format": _FORMAT, "step": step, "dtypes": dtypes, "state": state})
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            stored = {name: _as_stored(array) for name, array in arrays.items()}
            replace_file(path, lambda partial: save_file(stored, partial, {"checkpoint": header}))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(self._not_written(step, error)) from error
        for old in self.steps()[: -1 - self._keep]:
            self.path(old).unlink()

    def read(self, step):
        """Returns (arrays, state) of a checkpoint.

        Raises:
            CheckpointError: if the file is none that `write` has written.
        """
        path = self.path(step)
        try:
            with safe_open(path, "np") as file:
                header = json.loads(file.metadata()["checkpoint"])
                if header["format"] != _FORMAT:
                    raise CheckpointError(f"{path} must be of format {_FORMAT}; got format {header['format']!r}")
                dtypes = header["dtypes"]
                if set(dtypes) != set(file.keys()) or header["step"] != step:
                    raise ValueError("its header belongs to other arrays")
                arrays = {name: file.get_tensor(name).view(np.dtype(dtype)) for name, dtype in dtypes.items()}
                return arrays, header["state"]
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path} is damaged ({error}); without it, the run goes on from the checkpoint before it"
            ) from error

    def _not_written(self, step, error):
        steps = self.steps()
        if not steps:
            return f"no checkpoint of step {step} could be written to {self.folder}: {error}"
        return (
            f"no checkpoint of step {step} could be written to {self.folder}: {error}; "
            f"the one of step {steps[-1]} is whole: once there is room, the same command goes on from it"
        )


def write_atomically(path, write):
    """`files.replace_file`, with a CheckpointError where the disk is full or refuses."""
    with disk_errors(path):
        replace_file(path, write)


@contextlib.contextmanager
def disk_errors(path):
    """Makes a sentence of what the disk refuses while `path` is written."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{path} could not be written: {error}; once there is room, the same command goes on"
        ) from error


def _as_stored(array):
    """The array with the dtypes that NumPy lacks, such as bfloat16, as integers of their size."""
    array = np.ascontiguousarray(array).reshape(array.shape)  # ascontiguousarray gives a scalar an axis
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array
