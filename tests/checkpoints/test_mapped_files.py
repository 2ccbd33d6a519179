"""A mapped .safetensors gives exact values, and no model depends on the file after loading."""

import os
import pathlib

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit.checkpoints.names.rules import FORMS, fill, to_ours
from keras_vit.checkpoints.readers import open_checkpoint

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", ["float32", "float16", ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("form", "shape"),
    [("same", ()), ("same", (0, 3)), ("same", (40, 3)), ("transposed", (40, 35)), ("convolution", (3, 2, 5, 33))],
)
def test_filled_arrays_have_the_values_of_the_file_as_ml_dtypes_rounds_them(form, shape, dtype):
    ours = RNG.normal(size=shape).astype("float32")
    theirs = np.ascontiguousarray(FORMS[form](ours, None)).reshape(FORMS[form](ours, None).shape)
    target = np.full((*shape[:-1], 2 * shape[-1]) if shape else (), np.nan, dtype)  # a part of a joined variable
    part = target[..., shape[-1] :] if shape else target
    fill(part, to_ours(theirs, form, shape))
    np.testing.assert_array_equal(part.astype("float32"), ours.astype(dtype).astype("float32"))
    assert np.isnan(target[..., : shape[-1]].astype("float32")).all() if shape else not np.isnan(target)


def test_values_too_large_for_the_dtype_become_infinite_without_a_warning():
    target = np.zeros((20, 20), "float16")
    fill(target, np.full((20, 20), 1e6, "float32").T)
    assert np.isinf(target).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("is_new", [False, True])
def test_a_model_does_not_change_with_its_file(make_model, tiny_zoo, weights_of, tmp_path, dtype, is_new):
    path, source = tmp_path / "a.safetensors", make_model(seed=1)
    keras_vit.save_weights(source, path, layout="timm")
    if is_new:
        model = tiny_zoo(path, classes=3, dtype=dtype)
    else:
        model = make_model(seed=2, dtype=dtype)
        keras_vit.load_weights(model, path)
    with open(path, "r+b") as file:  # in place, so that a mapping would change
        size = os.path.getsize(path)
        file.seek(8 + int.from_bytes(file.read(8), "little"))
        file.write(b"\x3f" * (size - file.tell()))
    expected = weights_of(source)
    for name, array in weights_of(model).items():
        np.testing.assert_array_equal(array, expected[name].astype(array.dtype), err_msg=name)
    maps = pathlib.Path("/proc/self/maps")
    assert not maps.exists() or str(path) not in maps.read_text()


def test_a_file_that_was_cut_short_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file({"a": np.ones((40, 40), "float32")}, path)
    content = path.read_bytes()
    for length in (len(content) - 1, 100, 9, 3):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"a\.safetensors' must be a whole \.safetensors file"):
            open_checkpoint(path)
