"""Weights in several files: the index says which file holds an array."""

import json
import shutil

import keras
import numpy as np
import pytest
import safetensors.numpy
from checkpoint_files import split

import keras_vit
from keras_vit.checkpoints.readers import open_checkpoint


def logits(model):
    images = np.random.default_rng(1).normal(size=(2, *model.input.shape[1:])).astype("float32")
    return keras.ops.convert_to_numpy(model(images))


def test_the_map_decides_which_file_holds_an_array(make_model, tmp_path, caplog):
    source = make_model(gelu="erf", epsilon=1e-5)
    folder = tmp_path / "folder"
    keras_vit.save_weights(source, folder, "huggingface")
    split(folder)
    index = folder / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    files, mapped = sorted(set(values["weight_map"].values())), values["weight_map"]
    name = next(name for name in mapped if name.startswith("classifier.w"))

    def written(file, arrays, **changes):
        safetensors.numpy.save_file(arrays, folder / file)
        index.write_text(json.dumps({**values, "weight_map": {**mapped, **changes}}))
        return folder

    for file in files:  # a stale copy before and after the file of the map
        arrays = safetensors.numpy.load_file(folder / file)
        loaded = keras_vit.load(written(file, {name: np.full_like(arrays.get(name, logits(source)), 3.0), **arrays}))
        np.testing.assert_array_equal(logits(loaded), logits(source))
        assert (f"{name!r} in {file!r} is not read" in caplog.text) == (file != mapped[name])
        written(file, arrays)
    arrays = safetensors.numpy.load_file(folder / files[0])
    for changes, more, message in (
        ({"absent.weight": files[0]}, {}, "arrays; 'model-00001-of-00003.safetensors' has no 'absent.weight'"),
        ({name: next(file for file in files if file != mapped[name])}, {}, f"has no '{name}'"),
        ({}, {"unlisted": np.zeros(2, "float32")}, "must list every array; 'unlisted' is in 'model-00001-of"),
        ({name: "folder.safetensors"}, {}, "must name .safetensors files in its folder; got 'folder.safet"),
        ({name: f"{'a' * 300}.safetensors"}, {}, "weights must be an existing file or folder; got '"),
    ):
        (folder / "folder.safetensors").mkdir(exist_ok=True)
        shutil.copy(folder / files[0], folder / "folder.safetensors" / "model.safetensors")
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            open_checkpoint(written(files[0], {**arrays, **more}, **changes))
