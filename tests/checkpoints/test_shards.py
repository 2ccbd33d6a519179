"""Weights that Keras splits over several `.weights.h5` files with an index, `.weights.json`."""

import json
import os
import shutil

import h5py
import numpy as np
import pytest
from official_files import check_equal

import keras_vit
from keras_vit.checkpoints.readers import open_checkpoint

GROUP = "/layers/transformer_block/mlp/dense1/vars"


@pytest.fixture(scope="module")
def folder(make_model, tmp_path_factory):
    """A folder with `a.weights.json`, the files that it names and `a.weights.h5`, of the same model."""
    folder, model = tmp_path_factory.mktemp("shards"), make_model(seed=1)
    model.save_weights(folder / "a.weights.json", max_shard_size=2e-6)
    model.save_weights(folder / "a.weights.h5")
    return folder


def test_they_are_the_arrays_of_one_file(folder, make_model, weights_of):
    whole, split = (open_checkpoint(folder / f"a.weights.{suffix}") for suffix in ("h5", "json"))
    assert len(list(folder.glob("a_*.weights.h5"))) > 3
    assert whole.entries.keys() == split.entries.keys()
    for name, entry in whole.entries.items():
        np.testing.assert_array_equal(split.entries[name].read(), entry.read())
    model = make_model(seed=2)
    keras_vit.load_weights(model, folder / "a.weights.json")
    check_equal(weights_of(model), weights_of(make_model(seed=1)))
    with pytest.raises(ValueError, match="num_heads=2; the model has 4"):  # the metadata of the index
        keras_vit.load_weights(make_model(num_heads=4), folder / "a.weights.json")


def _without(folder, files, index):
    del index["weight_map"][GROUP]


def _to_another(folder, files, index):
    index["weight_map"][GROUP] = [next(file for file in files if file not in index["weight_map"][GROUP])]


def _of_two(folder, files, index):
    index["weight_map"][GROUP] = files


def _copy(folder, files, index):
    [file] = index["weight_map"][GROUP]
    other = files[-1]
    with h5py.File(folder / file) as source, h5py.File(folder / other, "r+") as target:
        target.require_group(GROUP)
        for name in source[GROUP]:
            target[GROUP].attrs["name"] = "dense1"
            target[f"{GROUP}/{name}"] = source[f"{GROUP}/{name}"][()]
    index["weight_map"][GROUP] = [file, other]


def _outside(folder, files, index):
    shutil.copy(folder / files[0], folder.parent / files[0])
    index["weight_map"][GROUP] = [f"../{files[0]}"]


def _a_pipe(folder, files, index):
    (folder / files[0]).unlink()
    os.mkfifo(folder / files[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_without, "must name the one file of every array.*also has 'block_00/mlp/dense1/0'"),
        (_to_another, "must name the one file of every array"),
        (_of_two, f"must name the files that hold the arrays.*has no {GROUP}"),
        (_copy, "must name the one file of every array"),
        (_outside, r"must name \.weights\.h5 files in its folder; got '\.\./a_00000"),
        (_a_pipe, "must be a regular file"),
        (lambda folder, files, index: (folder / files[1]).unlink(), "No such file.*a_00001"),
        (lambda folder, files, index: (folder / files[1]).write_bytes(b"text"), "must be a whole .weights.json file"),
        (lambda folder, files, index: index.update(weight_map=3), "must have a weight_map"),
        (lambda folder, files, index: index["weight_map"].update({GROUP: {}}), "in its folder; got {}"),
    ],
)
def test_what_contradicts_the_index_is_refused(folder, tmp_path, change, words):
    folder = shutil.copytree(folder, tmp_path / "copy")
    path = folder / "a.weights.json"
    index = json.loads(path.read_text())
    change(folder, sorted(file.name for file in folder.glob("a_*.weights.h5")), index)
    path.write_text(json.dumps(index))
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        open_checkpoint(path)
