"""Files of weights for the tests of the readers: made, damaged, read and compared."""

import io
import json
import zipfile

import numpy as np
import pytest
import safetensors.numpy

from keras_vit.checkpoints.readers import open_checkpoint

RNG = np.random.default_rng(0)
ARRAYS = {
    "a/kernel": RNG.normal(size=(3, 4)).astype("float32"),
    "a/bias": RNG.normal(size=5).astype("float32"),
    "scalar": np.array(7.5, "float32"),
}


def write(path, content):
    path.write_bytes(content)
    return path


def npy(array, **kwargs):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asanyarray(array), **kwargs)
    return buffer.getvalue()


def archive(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def read_all(path):
    return {name: entry.read() for name, entry in open_checkpoint(path).entries.items()}


def check_equal(read, expected):
    assert list(read) == list(expected), f"{list(read)} should be {list(expected)}"
    for name, array in expected.items():
        assert read[name].dtype == np.float32, f"{name}: {read[name].dtype}"
        np.testing.assert_array_equal(read[name], np.asarray(array, "float32"), err_msg=name)


def refused(path, *words):
    with pytest.raises(ValueError) as error:
        read_all(path)
    for word in (str(path), *words):
        assert word in str(error.value), f"{word!r} should be in: {error.value}"


def flips(content, count):
    rng = np.random.default_rng(0)
    for _ in range(count):
        damaged = bytearray(content)
        for place in rng.integers(len(content), size=rng.integers(1, 4)):
            damaged[place] = rng.integers(256)
        yield bytes(damaged[: rng.integers(len(content))] if rng.random() < 0.1 else damaged)


def split(folder, count=3):
    """Split model.safetensors of a folder as transformers does."""
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for part in range(count):
        file = f"model-{part + 1:05d}-of-{count:05d}.safetensors"
        chosen = {name: arrays[name] for name in sorted(arrays)[part::count]}
        safetensors.numpy.save_file(chosen, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(chosen, file)
    total = sum(array.nbytes for array in arrays.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
