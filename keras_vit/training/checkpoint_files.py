"""Checkpoints: a safetensors file per step, or a folder that several processes write together; atomically."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import zlib

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from keras_vit.files import hold, remove_partial, replace_file
from keras_vit.training import host_arrays

_NAME = re.compile(r"step-(\d{9})(\.safetensors)?")
_FORMAT = 3
_INCOMPLETE = ".orbax-checkpoint-tmp"  # end of the names of folders that Orbax has not completed
CHECKPOINTS = "checkpoints"  # name of the folder of checkpoints inside the folder of a run


class CheckpointError(RuntimeError):
    """Report a checkpoint that cannot be written, is damaged or does not fit."""


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
        together = self.folder / f"step-{step:09d}"
        return together if together.is_dir() else self.folder / f"step-{step:09d}.safetensors"

    def write(self, step, arrays, state, is_chief=True):
        """Write a checkpoint, then delete the checkpoints that are no longer kept.

        If some are JAX arrays, the checkpoint is a folder, and all processes that hold parts of them must call this.

        Args:
            step: number of completed steps.
            arrays: dict from name to NumPy or JAX array.
            state: dict of JSON values.
            is_chief: whether this process deletes the checkpoints that are no longer kept.

        Raises:
            CheckpointError: if the disk is full or not writable; the earlier checkpoints are kept.
        """
        is_folder = any(map(host_arrays.is_shared, arrays.values()))
        if is_folder:
            forms = {
                name: (array.dtype.name, host_arrays.checksum(array), array.shape) for name, array in arrays.items()
            }
        else:
            stored = {name: _as_stored(array) for name, array in arrays.items()}
            forms = {name: (array.dtype.name, _checksum(stored[name])) for name, array in arrays.items()}
        header = json.dumps({"format": _FORMAT, "step": step, "arrays": forms, "state": state})
        metadata = {"checkpoint": header, "checksum": str(zlib.crc32(header.encode()))}
        with disk_errors(self.path(step)):
            self.folder.mkdir(parents=True, exist_ok=True)
            if is_folder:
                host_arrays.save(self.folder / f"step-{step:09d}", arrays, metadata)
            else:
                replace_file(self.path(step), lambda partial: save_file(stored, partial, metadata))
        for old in map(self.path, self.steps()[: -1 - self._keep] if is_chief else ()):
            if old.is_dir():
                shutil.rmtree(old.rename(f"{old}{_INCOMPLETE}"))
            else:
                old.unlink()

    def read(self, step, like=None):
        """Return (arrays, state) of a checkpoint, whether one process or several have written it.

        Args:
            step: number of completed steps.
            like: dict from name to array. If several processes have written the checkpoint, an array that is a JAX
                array here is read to the devices of that array.

        Raises:
            CheckpointError: if the file was not written by `write`, or a checksum does not match.
            ImportError: if several processes have written it, and Orbax is not installed.
        """
        path = self.path(step)
        try:
            if path.is_dir():
                stored, metadata, checksum = {}, host_arrays.read_metadata(path), host_arrays.checksum
            else:
                with safe_open(path, "np") as file:
                    stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
                    metadata, checksum = file.metadata(), _checksum
            header = json.loads(metadata["checkpoint"])
            forms = header["arrays"]
            if metadata["checksum"] != str(zlib.crc32(metadata["checkpoint"].encode())):
                raise ValueError("a header with a wrong checksum")
            if path.is_dir():
                shapes = {name: (dtype, shape) for name, (dtype, _, shape) in forms.items()}
                stored = host_arrays.restore(path, shapes, like or {})
            if (header["format"], header["step"], set(forms)) != (_FORMAT, step, set(stored)):
                raise ValueError("a header of another format, another step or other arrays")
            for name, (_, expected, *_) in forms.items():
                if checksum(stored[name]) != expected:
                    raise ValueError(f"an array {name} with a wrong checksum")
            return {name: _as_read(stored[name], dtype) for name, (dtype, *_) in forms.items()}, header["state"]
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            before = max((other for other in self.steps() if other < step), default=0)
            raise CheckpointError(
                f"{self.path(step)} must be a whole checkpoint of step {step} in format {_FORMAT}; got {error}: delete "
                f"it, and the same command resumes from step {before}"
            ) from error


def write_atomically(path, write):
    """Call `files.replace_file`; raise a CheckpointError if the disk is full or not writable."""
    with disk_errors(path):
        replace_file(path, write)


def write_text(path, text):
    write_atomically(path, lambda partial: partial.write_text(text, encoding="utf-8"))


@contextlib.contextmanager
def disk_errors(path):
    """Convert disk errors during the writing of `path` to a CheckpointError that says what to do."""
    try:
        yield
    except BlockingIOError:  # the message of `files.hold` is already clear
        raise
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} could not be written: {error}; free space, or make the folder writable: earlier files are kept, "
            "and the same command resumes from the last checkpoint"
        ) from error


@contextlib.contextmanager
def held(workdir, is_chief):
    """Lock a run's folder in its first worker, and delete incomplete files of interrupted processes.

    Raises:
        BlockingIOError: if another process holds the lock.
        CheckpointError: if the disk is full or not writable.
    """
    with contextlib.ExitStack() as lock:
        if is_chief:
            with disk_errors(workdir):
                lock.enter_context(hold(workdir))
            remove_partial(workdir)
            remove_partial(workdir / CHECKPOINTS)
            for partial in (workdir / CHECKPOINTS).glob(f"*{_INCOMPLETE}"):
                shutil.rmtree(partial)
        yield


def _checksum(array):
    """Return the CRC-32 of the dtype, shape and bytes of an array."""
    return zlib.crc32(array.reshape(-1).view("u1"), zlib.crc32(f"{array.dtype.str}{array.shape}".encode()))


def _as_read(array, dtype):
    return array if host_arrays.is_shared(array) else array.view(np.dtype(dtype))


def _as_stored(array):
    """Return a contiguous array; dtypes that NumPy lacks, such as bfloat16, become integers of the same size."""
    array = np.ascontiguousarray(array).reshape(array.shape)  # ascontiguousarray adds an axis to a scalar
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array
