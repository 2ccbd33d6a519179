"""Mistakes for test_bad_inputs.py in files of weights."""

import numpy as np
from bad_input_room import tiny

import keras_vit
from keras_vit.checkpoints.match import WeightsMismatch


def nan(room):
    kernel = np.zeros((8, 3), "float32")
    kernel[1, 2] = np.nan
    return room.load(room.npz({"head/kernel": kernel}))


# name -> (function of the room, what it raises, words of the message: the argument, the expectation, the value)
ROWS = {
    "missing file": (
        lambda room: room.load(room.folder / "b.npz"),
        FileNotFoundError,
        "weights existing b.npz",
    ),
    "pickled object": (
        lambda room: room.load(room.npz({"head/bias": np.array([{}], object)})),
        ValueError,
        "'head/bias.npy' numbers Python objects",
    ),
    "truncated npz": (
        lambda room: room.load(room.write("t.npz", room.npz().read_bytes()[:-50])),
        ValueError,
        "t.npz whole .npz b'PK",
    ),
    "text named npz": (
        lambda room: room.load(room.write("t.npz", b"weights")),
        ValueError,
        "t.npz whole .npz b'weights'",
    ),
    "empty npz": (lambda room: room.load(room.write("t.npz", b"")), ValueError, "t.npz whole .npz b''"),
    "empty safetensors": (
        lambda room: room.load(room.write("t.safetensors", b"")),
        ValueError,
        "t.safetensors whole",
    ),
    "text named weights.h5": (
        lambda room: room.load(room.write("t.weights.h5", b"x")),
        ValueError,
        "whole .weights.h5 b'x'",
    ),
    "pickle of PyTorch": (
        lambda room: room.load(room.write("m.pth", b"x")),
        ValueError,
        "weights pickle m.pth safetensors",
    ),
    "unknown kind of file": (
        lambda room: room.load(room.write("m.onnx", b"x")),
        ValueError,
        "weights .npz .keras m.onnx",
    ),
    "folder without weights": (
        lambda room: room.load(room.folder),
        FileNotFoundError,
        "folder hold model.safetensors",
    ),
    "missing array": (
        lambda room: room.load(room.npz(without=["cls"])),
        WeightsMismatch,
        "fit missing cls class_token",
    ),
    "extra array": (lambda room: room.load(room.npz({"other": np.zeros(3)})), WeightsMismatch, "fit extra other"),
    "array of another shape": (
        lambda room: room.load(room.npz({"cls": np.zeros((1, 1, 9))})),
        WeightsMismatch,
        "cls shape (1,1,9) needs (1,1,8)",
    ),
    "head of other classes": (
        lambda room: room.load(room.npz({"head/bias": np.zeros(4)}), head="load"),
        WeightsMismatch,
        "head/bias (4,) needs (3,)",
    ),
    "array of texts": (
        lambda room: room.load(room.npz({"cls": np.full((1, 1, 8), "x")})),
        WeightsMismatch,
        "cls str float32",
    ),
    "wrong architecture": (
        lambda room: keras_vit.load_weights(tiny(num_layers=2), room.npz()),
        WeightsMismatch,
        "fit missing encoderblock_1",
    ),
    "no vision transformer": (
        lambda room: room.load(room.npz(without=["embedding/kernel"])),
        ValueError,
        "hold Vision official encoder_norm",
    ),
    "positions of no grid": (
        lambda room: room.load(room.npz({"Transformer/posembed_input/pos_embedding": np.zeros((1, 4, 8))})),
        WeightsMismatch,
        "position table square 2 x 2 got 4 rows",
    ),
    "NaN weights": (nan, UserWarning, "'head/kernel' NaN a.npz"),
    "head of zeros": (
        lambda room: room.load(room.npz({"head/kernel": np.zeros((8, 3))})),
        UserWarning,
        "head a.npz zeros",
    ),
    "layout of another family": (
        lambda room: room.load(room.npz(), layout="flax"),
        ValueError,
        "layout 'official' 'flax'",
    ),
    "unknown way to resize": (
        lambda room: room.load(room.npz(), resize="nearest"),
        ValueError,
        "resize 'bilinear' 'nearest'",
    ),
    "registers in an official file": (
        lambda room: keras_vit.save_weights(tiny(num_registers=2), room.folder / "r.npz"),
        ValueError,
        "'official' class_token/registers",
    ),
    "suffix of another layout": (
        lambda room: keras_vit.save_weights(room.model, room.folder / "r.bin"),
        ValueError,
        "path .npz 'official' r.bin",
    ),
}
