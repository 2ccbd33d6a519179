"""Numbers that NumPy does not have, and things that are no numbers, in each kind of file; float8 against ml_dtypes."""

import json
import struct

import h5py
import ml_dtypes
import numpy as np
import pytest
from checkpoint_files import read_all
from faults import for_each

from keras_vit.checkpoints.readers import from_float8, open_checkpoint

FLOAT8 = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}


def safetensors_file(path, arrays):
    """Writes {name: (dtype, shape, bytes)} as a file of safetensors, whose NumPy side has no such numbers."""
    header, content = {}, b""
    for name, (dtype, shape, values) in arrays.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(content), len(content) + len(values)]}
        content += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)
    return path


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_float8_is_the_number_that_ml_dtypes_has(dtype, tmp_path):
    codes = np.arange(256, dtype="u1")
    expected = codes.view(FLOAT8[dtype]).astype("float32")
    np.testing.assert_array_equal(from_float8(codes, dtype), expected)
    first = np.arange(3, dtype="<f4")
    arrays = {"a.bias": ("F32", [3], first.tobytes()), "a.weight": (dtype, [4, 64], codes.tobytes())}
    read = read_all(safetensors_file(tmp_path / "a.safetensors", arrays))
    assert read["a.weight"].dtype == np.float32
    np.testing.assert_array_equal(read["a.weight"], expected.reshape(4, 64))
    np.testing.assert_array_equal(read["a.bias"], first)


@for_each(
    "scale", ["a.weight_scale", "a.weight_scale_inv", "a.scale_weight", "a.weight.scale", "a.input_scale", "scaled_fp8"]
)
def test_float8_with_a_scale_is_refused(scale, tmp_path):
    arrays = {"a.weight": ("F8_E4M3", [4], bytes(4)), scale: ("F32", [1], bytes(4))}
    message = rf"'a.weight' is F8_E4M3 and has the scale '{scale}', which is not applied \(convert it"
    with pytest.raises(ValueError, match=message):
        open_checkpoint(safetensors_file(tmp_path / "a.safetensors", arrays))
    for number, name in enumerate(arrays):  # also where they lie in two files
        safetensors_file(tmp_path / f"{number}.safetensors", {name: arrays[name]})
    index = {"weight_map": {name: f"{number}.safetensors" for number, name in enumerate(arrays)}}
    (tmp_path / "a.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=message):
        open_checkpoint(tmp_path)


def test_a_scale_of_another_layer_is_none_of_float8(tmp_path):
    arrays = {
        "a.weight": ("F8_E5M2", [4], bytes(4)),
        "norm.scale": ("F32", [1], bytes(4)),
        "a.scaler": ("F32", [1], bytes(4)),
        "b.weight_scale": ("F32", [1], bytes(4)),
    }
    assert len(read_all(safetensors_file(tmp_path / "a.safetensors", arrays))) == 4


@for_each(
    ("dtype", "size", "name"),
    [
        ("F8_E8M0", 4, "F8_E8M0"),
        ("F4", 2, "F4"),
        ("F6_E2M3", 3, "F6_E2M3"),
        ("F8_E4M3FNUZ", 4, "F8_E4M3FNUZ"),
        ("C64", 32, "complex64"),
    ],
)
def test_other_numbers_of_safetensors_are_refused_by_name(dtype, size, name, tmp_path):
    path = safetensors_file(tmp_path / "a.safetensors", {"x": (dtype, [4], bytes(size))})
    with pytest.raises(ValueError, match=f"array 'x' must hold numbers.*got dtype {name}"):
        read_all(path)


def test_a_dtype_that_safetensors_does_not_know(tmp_path):
    path = safetensors_file(tmp_path / "a.safetensors", {"x": ("I4", [4], bytes(2))})
    with pytest.raises(ValueError, match=r"must be a whole \.safetensors file: .*unknown variant `I4`"):
        read_all(path)


@pytest.mark.parametrize(("dtype", "kept"), [("F64", "f4"), ("F16", "f4"), ("BOOL", "?"), ("U16", "u2")])
def test_numbers_that_numpy_has(dtype, kept, tmp_path):
    values = np.array([0, 1, 1, 0], {"F64": "f8", "F16": "f2", "BOOL": "?", "U16": "u2"}[dtype])
    read = read_all(safetensors_file(tmp_path / "a.safetensors", {"x": (dtype, [4], values.tobytes())}))["x"]
    assert read.dtype == kept
    np.testing.assert_array_equal(read, values)


@for_each(
    "array",
    [
        np.zeros(3, [("a", "f4"), ("b", "i4")]),
        np.zeros(3, "c8"),
        np.array([b"text"]),
        np.array(["text"], h5py.string_dtype()),
    ],
)
def test_hdf5_of_no_numbers(array, tmp_path):
    with h5py.File(tmp_path / "a.weights.h5", "w") as file:
        file["layers/dense/vars/0"] = array
    with pytest.raises(ValueError, match="array 'dense/0' must hold numbers; got dtype"):
        read_all(tmp_path / "a.weights.h5")


def test_hdf5_of_numbers_that_numpy_lacks(tmp_path):
    """A float of 8 bits: sign, 4 of the exponent and 3 of the fraction."""
    with h5py.File(tmp_path / "a.weights.h5", "w") as file:
        group = file.create_group("layers/dense/vars")
        kind = h5py.h5t.IEEE_F32LE.copy()
        kind.set_fields(7, 3, 4, 0, 3)
        kind.set_size(1)
        kind.set_ebias(7)
        space = h5py.h5s.create_simple((4,))
        dataset = h5py.h5d.create(group.id, b"0", kind, space)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.zeros(4, "f4"))
    try:
        read = read_all(tmp_path / "a.weights.h5")["dense/0"]
    except ValueError as error:
        assert "dense" in str(error) and "\n" not in str(error)
    else:  # what HDF5 converts by itself
        assert read.dtype == np.float32 and not read.any()
