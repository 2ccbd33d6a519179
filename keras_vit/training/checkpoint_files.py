"""Checkpoint files: one safetensors file per step, written atomically."""

import contextlib
import errno
import json
import os
import pathlib
import re
import zlib

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from keras_vit.files import replace_file
from keras_vit.training.folder_lock import hold

_NAME = re.compile(r"step-(\d{9})\.safetensors")
_FORMAT = 2
_ERROR_NUMBER = re.compile(r"(?:os error |errno = )(\d+)")  # the errno, as safetensors and HDF5 quote it
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_REMEDIES = {
    **dict.fromkeys(_NO_ROOM, "free some space"),
    errno.EROFS: "the file system is read-only: make it writable",
    errno.EACCES: "this user may not write there: change the permissions",
    errno.EPERM: "this user may not write there: change the permissions",
    errno.EFBIG: "the file exceeds the largest size that the process or the file system allows: raise that limit",
}


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written, is damaged or does not fit the model."""


class CheckpointFolder:
    """Folder of checkpoints, named by their step.

    Older files are deleted only after the new one is on disk, so an interruption never leaves the folder without a
    complete checkpoint.

    Args:
        folder: path; created with the first checkpoint.
        keep: number of earlier checkpoints to keep in addition to the newest.
    """

    def __init__(self, folder, keep=1):
        self.folder = pathlib.Path(folder)
        self._keep = keep

    def steps(self):
        """Return the steps of the checkpoints in ascending order."""
        names = os.listdir(self.folder) if self.folder.is_dir() else ()
        return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)

    def path(self, step):
        return self.folder / f"step-{step:09d}.safetensors"

    def write(self, step, arrays, state):
        """Write a checkpoint, then delete the checkpoints that are no longer kept.

        Args:
            step: number of completed steps.
            arrays: dict from name to NumPy array.
            state: dict of JSON values.

        Raises:
            CheckpointError: if the disk is full or not writable; the earlier checkpoints are kept.
        """
        path = self.path(step)
        dtypes = {name: array.dtype.name for name, array in arrays.items()}
        stored = {name: _as_stored(array) for name, array in arrays.items()}
        checksums = {name: _array_checksum(array) for name, array in stored.items()}
        values = {"format": _FORMAT, "step": step, "dtypes": dtypes, "checksums": checksums, "state": state}
        header = json.dumps(values)
        metadata = {"checkpoint": header, "checksum": _text_checksum(header)}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, lambda partial: save_file(stored, partial, metadata))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(self._not_written(step, error)) from error
        for old in self.steps()[: -1 - self._keep]:
            self.path(old).unlink()

    def read(self, step):
        """Return (arrays, state) of a checkpoint.

        Raises:
            CheckpointError: if the file was not written by `write`, or a checksum (CRC-32) does not match.
        """
        path = self.path(step)
        try:
            with safe_open(path, "np") as file:
                metadata = file.metadata()
                header = json.loads(metadata["checkpoint"])
                if header["format"] != _FORMAT:
                    raise CheckpointError(
                        f"{path} must be of format {_FORMAT}; got format {header['format']!r}: {self._without(step)}"
                    )
                if metadata["checksum"] != _text_checksum(metadata["checkpoint"]):
                    raise ValueError("the checksum of its header is wrong")
                dtypes = header["dtypes"]
                if set(dtypes) != set(file.keys()) or header["step"] != step:
                    raise ValueError("its header belongs to other arrays")
                arrays = {}
                for name, dtype in dtypes.items():
                    array = file.get_tensor(name)
                    if _array_checksum(array) != header["checksums"][name]:
                        raise ValueError(f"the checksum of its array {name} is wrong")
                    arrays[name] = array.view(np.dtype(dtype))
                return arrays, header["state"]
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged ({error}): {self._without(step)}") from error

    def _without(self, step):
        """Return what to do about a checkpoint that cannot be used, and what happens then."""
        earlier = [other for other in self.steps() if other < step]
        if not earlier:
            return "it is the only one; delete it, and the same command starts the run again"
        return f"delete it, and the same command resumes from step {earlier[-1]}, the checkpoint before it"

    def _not_written(self, step, error):
        steps = self.steps()
        whole = f"the checkpoint of step {steps[-1]} is intact" if steps else "there is no earlier one"
        then = f"the same command {'resumes from it' if steps else 'starts the run again'}"
        return (
            f"the checkpoint of step {step} could not be written to {self.folder}: {error}; {whole}; "
            f"{_remedy(error, then)}"
        )


def write_atomically(path, write):
    """Call `files.replace_file`; raise a CheckpointError if the disk is full or not writable."""
    with disk_errors(path):
        replace_file(path, write)


@contextlib.contextmanager
def disk_errors(path):
    """Turn disk errors while `path` is written into a CheckpointError that says what to do."""
    try:
        yield
    except BlockingIOError:  # `folder_lock.hold` already explains itself
        raise
    except OSError as error:
        remedy = _remedy(error, "the same command resumes")
        raise CheckpointError(f"{path} could not be written: {error}; {remedy}") from error


@contextlib.contextmanager
def held(workdir):
    """Call `folder_lock.hold`; raise a CheckpointError if the disk is full or not writable."""
    with contextlib.ExitStack() as lock:
        with disk_errors(workdir):
            lock.enter_context(hold(workdir))
        yield


def _remedy(error, then):
    """Return what to do about a system error, followed by `then`."""
    quoted = _ERROR_NUMBER.search(str(error))
    number = int(quoted[1]) if quoted else getattr(error, "errno", None)
    return f"{_REMEDIES.get(number, 'fix that')}, then {then}"


def _array_checksum(array):
    """Return the CRC-32 of the dtype, shape and bytes of an array."""
    form = zlib.crc32(f"{array.dtype.str}{array.shape}".encode())
    return zlib.crc32(array.reshape(-1).view("u1"), form)


def _text_checksum(text):
    return f"{zlib.crc32(text.encode()):08x}"


def _as_stored(array):
    """Return a contiguous array; dtypes that NumPy lacks, such as bfloat16, become integers of the same size."""
    array = np.ascontiguousarray(array).reshape(array.shape)  # ascontiguousarray gives a scalar an axis
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array
