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

from keras_vit.files import PARTIAL, hold, remove_partial, replace_file
from keras_vit.training import host_arrays

_NAME = re.compile(r"step-(\d{9})(\.safetensors)?")
_FORMAT = 3
_HEADER = "header.json"  # the metadata of a checkpoint that is a folder
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
            is_chief: whether this process writes all but its parts of JAX arrays.

        Raises:
            CheckpointError: if the disk is full or not writable; the earlier checkpoints are kept.
        """
        if any(map(host_arrays.is_shared, arrays.values())):
            self._write_folder(step, arrays, state, is_chief)
            return
        stored = {name: _as_stored(array) for name, array in arrays.items()}
        forms = {name: (array.dtype.name, _checksum(stored[name])) for name, array in arrays.items()}
        metadata = _metadata(step, forms, state)
        with disk_errors(self.path(step)):
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self.path(step), lambda partial: save_file(stored, partial, metadata))
        self._delete_old()

    def _write_folder(self, step, arrays, state, is_chief):
        forms = {name: (array.dtype.name, host_arrays.checksum(array), array.shape) for name, array in arrays.items()}
        partial, path = self.folder / f"{PARTIAL}{step}", self.folder / f"step-{step:09d}"
        with disk_errors(path):
            host_arrays.save(partial / "arrays", arrays)
            if is_chief:
                (partial / _HEADER).write_text(json.dumps(_metadata(step, forms, state)), encoding="utf-8")
                os.rename(partial, path)
                self._delete_old()
            host_arrays.wait_for_all(path.name)

    def _delete_old(self):
        for old in map(self.path, self.steps()[: -1 - self._keep]):
            if old.is_dir():
                shutil.rmtree(old.rename(self.folder / f"{PARTIAL}{old.name}"))
            else:
                old.unlink()

    def read(self, step, like=None):
        """Return (arrays, state) of a checkpoint, whether one process or several have written it.

        Args:
            step: number of completed steps.
            like: dict from name to array; of a checkpoint that several processes have written, the JAX arrays among
                these are read to the same devices.

        Raises:
            CheckpointError: if the file was not written by `write`, or a checksum does not match.
            ImportError: if several processes have written it, and Orbax is not installed.
        """
        path = self.path(step)
        check = host_arrays.checksum if path.is_dir() else _checksum
        try:
            if path.is_dir():
                header = _header(json.loads((path / _HEADER).read_text(encoding="utf-8")), step)
                forms = {name: (shape, dtype) for name, (dtype, _, shape) in header["arrays"].items()}
                stored = host_arrays.restore(path / "arrays", forms, like or {})
            else:
                with safe_open(path, "np") as file:
                    stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
                    header = _header(file.metadata(), step)
            forms = header["arrays"]
            if set(forms) != set(stored):
                raise ValueError("a header of other arrays")
            for name, (_, checksum, *_) in forms.items():
                if check(stored[name]) != checksum:
                    raise ValueError(f"an array {name} with a wrong checksum")
            arrays = {
                name: array if host_arrays.is_shared(array) else array.view(np.dtype(forms[name][0]))
                for name, array in stored.items()
            }
            return arrays, header["state"]
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            before = max((other for other in self.steps() if other < step), default=0)
            raise CheckpointError(
                f"{self.path(step)} must be a whole checkpoint of step {step} in format {_FORMAT}; got {error}: delete "
                f"it, and the same command resumes from step {before}"
            ) from error


def _metadata(step, forms, state):
    header = json.dumps({"format": _FORMAT, "step": step, "arrays": forms, "state": state})
    return {"checkpoint": header, "checksum": str(zlib.crc32(header.encode()))}


def _header(metadata, step):
    """Return the header of a checkpoint after comparing its checksum, format and step."""
    header = json.loads(metadata["checkpoint"])
    if metadata["checksum"] != str(zlib.crc32(metadata["checkpoint"].encode())):
        raise ValueError("a header with a wrong checksum")
    if (header["format"], header["step"]) != (_FORMAT, step):
        raise ValueError("a header of another format or another step")
    return header


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
        yield


def _checksum(array):
    """Return the CRC-32 of the dtype, shape and bytes of an array."""
    return zlib.crc32(array.reshape(-1).view("u1"), zlib.crc32(f"{array.dtype.str}{array.shape}".encode()))


def _as_stored(array):
    """Return a contiguous array; dtypes that NumPy lacks, such as bfloat16, become integers of the same size."""
    array = np.ascontiguousarray(array).reshape(array.shape)  # ascontiguousarray adds an axis to a scalar
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array
