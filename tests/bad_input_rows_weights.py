"""Mistakes for test_bad_inputs.py in files of weights."""

import os

import numpy as np
from bad_input_files import tiny

import keras_vit
from keras_vit.checkpoints.match import WeightsMismatch
from keras_vit.evaluation import read_real_labels


def nan(files):
    kernel = np.zeros((8, 3), "float32")
    kernel[1, 2] = np.nan
    return files.load(files.npz({"head/kernel": kernel}))


def pipe(name, use):
    """Function that hands a pipe to `use`, which would wait for its end for ever."""

    def call(files):
        (files.folder / name).parent.mkdir(exist_ok=True)
        os.mkfifo(files.folder / name)
        return use(files, files.folder / name)

    return call


def endless(name, use):
    """The same for a link to a device without an end."""

    def call(files):
        (files.folder / name).symlink_to("/dev/zero")
        return use(files, files.folder / name)

    return call


def beside(files, path):
    keras_vit.save_weights(files.model, path.parent / "model.safetensors", "timm")
    return files.load(path.parent)


NO_FILES = {
    "pipe of weights": pipe("w.safetensors", lambda files, path: files.load(path)),
    "pipe of Keras": pipe("w.keras", lambda files, path: keras_vit.load(path)),
    "pipe for Keras": pipe("w.weights.h5", lambda files, path: files.model.load_weights(path)),
    "pipe beside weights": pipe("folder/preprocessor_config.json", beside),
    "pipe of an image": pipe("w.jpg", lambda files, path: keras_vit.predict(files.model, path)),
    "pipe of records": pipe("w.tfrecord", lambda files, path: keras_vit.data.from_tfrecord(path)),
    "pipe of labels": pipe("w.json", lambda files, path: read_real_labels(path)),
    "endless weights": endless("w.npz", lambda files, path: keras_vit.create_model("ViT-Ti_16", weights=path)),
    "endless image": endless("w.png", lambda files, path: keras_vit.predict(files.model, path)),
}


# name -> (function of the result of `make_files`, its error, words of the message: argument, expectation, value)
ROWS = {
    **{
        name: (call, ValueError, "must be a regular file; pipe")
        for name, call in NO_FILES.items()
        if os.name == "posix"
    },
    "path that is too long": (
        lambda files: files.load("x" * 5000 + ".safetensors"),
        FileNotFoundError,
        "weights existing 'xxx characters)",
    ),
    "path of an image that is too long": (
        lambda files: keras_vit.predict(files.model, "x" * 5000),
        FileNotFoundError,
        "no image file characters)",
    ),
    "missing file": (
        lambda files: files.load(files.folder / "b.npz"),
        FileNotFoundError,
        "weights existing b.npz",
    ),
    "pickled object": (
        lambda files: files.load(files.npz({"head/bias": np.array([{}], object)})),
        ValueError,
        "'head/bias.npy' numbers Python objects",
    ),
    "truncated npz": (
        lambda files: files.load(files.write("t.npz", files.npz().read_bytes()[:-50])),
        ValueError,
        "t.npz whole .npz b'PK",
    ),
    "text named npz": (
        lambda files: files.load(files.write("t.npz", b"weights")),
        ValueError,
        "t.npz whole .npz b'weights'",
    ),
    "empty npz": (lambda files: files.load(files.write("t.npz", b"")), ValueError, "t.npz whole .npz b''"),
    "empty safetensors": (
        lambda files: files.load(files.write("t.safetensors", b"")),
        ValueError,
        "t.safetensors whole",
    ),
    "text named weights.h5": (
        lambda files: files.load(files.write("t.weights.h5", b"x")),
        ValueError,
        "whole .weights.h5 b'x'",
    ),
    "pickle of PyTorch": (
        lambda files: files.load(files.write("m.pth", b"x")),
        ValueError,
        "weights pickle m.pth safetensors",
    ),
    "unknown kind of file": (
        lambda files: files.load(files.write("m.onnx", b"x")),
        ValueError,
        "weights .npz .keras m.onnx",
    ),
    "folder without weights": (
        lambda files: files.load(files.folder),
        FileNotFoundError,
        "folder hold model.safetensors",
    ),
    "missing array": (
        lambda files: files.load(files.npz(without=["cls"])),
        WeightsMismatch,
        "fit missing cls class_token",
    ),
    "extra array": (lambda files: files.load(files.npz({"other": np.zeros(3)})), WeightsMismatch, "fit extra other"),
    "array of another shape": (
        lambda files: files.load(files.npz({"cls": np.zeros((1, 1, 9))})),
        WeightsMismatch,
        "cls shape (1,1,9) needs (1,1,8)",
    ),
    "head of other classes": (
        lambda files: files.load(files.npz({"head/bias": np.zeros(4)}), head="load"),
        WeightsMismatch,
        "head/bias (4,) needs (3,)",
    ),
    "array of texts": (
        lambda files: files.load(files.npz({"cls": np.full((1, 1, 8), "x")})),
        WeightsMismatch,
        "cls str float32",
    ),
    "wrong architecture": (
        lambda files: keras_vit.load_weights(tiny(num_layers=2), files.npz()),
        WeightsMismatch,
        "fit missing encoderblock_1",
    ),
    "no vision transformer": (
        lambda files: files.load(files.npz(without=["embedding/kernel"])),
        ValueError,
        "hold Vision official encoder_norm",
    ),
    "positions of no grid": (
        lambda files: files.load(files.npz({"Transformer/posembed_input/pos_embedding": np.zeros((1, 4, 8))})),
        WeightsMismatch,
        "position table square 2 x 2 got 4 rows",
    ),
    "NaN weights": (nan, UserWarning, "'head/kernel' NaN a.npz"),
    "head of zeros": (
        lambda files: files.load(files.npz({"head/kernel": np.zeros((8, 3))})),
        UserWarning,
        "head a.npz zeros",
    ),
    "layout of another family": (
        lambda files: files.load(files.npz(), layout="flax"),
        ValueError,
        "layout 'official' 'flax'",
    ),
    "unknown way to resize": (
        lambda files: files.load(files.npz(), resize="nearest"),
        ValueError,
        "resize 'bilinear' 'nearest'",
    ),
    "registers in an official file": (
        lambda files: keras_vit.save_weights(tiny(num_registers=2), files.folder / "r.npz"),
        ValueError,
        "'official' class_token/registers",
    ),
    "suffix of another layout": (
        lambda files: keras_vit.save_weights(files.model, files.folder / "r.bin"),
        ValueError,
        "path .npz 'official' r.bin",
    ),
}
