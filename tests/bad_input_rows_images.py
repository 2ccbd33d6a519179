"""Mistakes for test_bad_inputs.py in images, data, training and serving."""

import keras
import numpy as np
from bad_input_room import IMAGE, jpeg, recipe, tiny

import keras_vit


def unmatched(room):
    for name in ("zebra", "yak"):
        room.write(f"{name}/1.jpg", jpeg())
    (room.folder / "good.npz").unlink()
    model = tiny(classes=3)
    model.labels = ("ant", "bee", "cat")
    return keras_vit.evaluate(model, room.folder)


def export_twice(room):
    keras_vit.export(room.model, room.folder / "served", version=1)
    return keras_vit.export(room.model, room.folder / "served", version=1)


# name -> (function of the room, what it raises, words of the message: the argument, the expectation, the value)
ROWS = {
    # Images
    "PDF named jpg": (
        lambda room: keras_vit.predict(room.model, room.write("p.jpg", b"%PDF-1.7 text")),
        ValueError,
        "p.jpg image JPEG %PDF",
    ),
    "truncated JPEG": (
        lambda room: keras_vit.predict(room.model, room.write("p.jpg", jpeg()[:-100])),
        ValueError,
        "p.jpg complete JPEG truncated",
    ),
    "empty image file": (
        lambda room: keras_vit.predict(room.model, room.write("p.jpg", b"")),
        ValueError,
        "p.jpg empty 0 bytes",
    ),
    "missing image": (
        lambda room: keras_vit.predict(room.model, room.folder / "p.jpg"),
        FileNotFoundError,
        "image p.jpg",
    ),
    "folder as an image": (
        lambda room: keras_vit.predict(room.model, room.folder),
        ValueError,
        "folder image from_directory",
    ),
    "no images": (lambda room: keras_vit.predict(room.model, []), ValueError, "images least one []"),
    "image of zero height": (
        lambda room: keras_vit.predict(room.model, np.zeros((0, 9, 3), "uint8")),
        ValueError,
        "images length 0 (0,9,3)",
    ),
    "floats up to 255 as up to 1": (
        lambda room: keras_vit.predict(room.model, IMAGE.astype("float32")),
        ValueError,
        "images 0 to 1 128 value_range=(0,255)",
    ),
    "NaN pixels": (
        lambda room: keras_vit.predict(room.model, np.full((9, 9, 3), np.nan)),
        ValueError,
        "images finite NaN",
    ),
    "signed pixels": (
        lambda room: keras_vit.predict(room.model, IMAGE.astype("int64")),
        ValueError,
        "images uint8 value_range int64",
    ),
    "wrong rank": (
        lambda room: keras_vit.predict(room.model, np.zeros((1, 1, 9, 9, 3), "uint8")),
        ValueError,
        "images shape (1,1,9,9,3)",
    ),
    "channels first": (
        lambda room: keras_vit.predict(room.model, np.zeros((3, 9, 9), "uint8")),
        ValueError,
        "images channels last (3,9,9)",
    ),
    "no image at all": (
        lambda room: keras_vit.predict(room.model, object()),
        TypeError,
        "images path array object",
    ),
    "top of zero": (
        lambda room: keras_vit.predict(room.model, IMAGE, top=0),
        ValueError,
        "top integer least 1 0",
    ),
    "predict without head": (
        lambda room: keras_vit.predict(tiny(include_top=False), IMAGE),
        ValueError,
        "model head include_top=False",
    ),
    "predict with another model": (
        lambda room: keras_vit.predict(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]), IMAGE),
        ValueError,
        "model keras_vit Sequential",
    ),
    # Data, training, serving
    "classes that match nothing": (unmatched, ValueError, "match labels WordNet 'yak' 'zebra'"),
    "missing folder": (
        lambda room: keras_vit.evaluate(room.model, room.folder / "x"),
        FileNotFoundError,
        "path folder x",
    ),
    "folder without classes": (
        lambda room: keras_vit.data.from_directory(room.folder),
        ValueError,
        "path sub-folder class",
    ),
    "negative batch size": (
        lambda room: keras_vit.evaluate(room.model, room.folder, batch_size=-1),
        ValueError,
        "batch_size integer least 1 -1",
    ),
    "floats as images of a source": (
        lambda room: keras_vit.data.from_arrays(np.zeros((2, 8, 8, 3)), [0, 1]),
        ValueError,
        "images uint8 float64",
    ),
    "labels of another length": (
        lambda room: keras_vit.data.from_arrays(np.zeros((2, 8, 8, 3), "uint8"), [0, 1, 2]),
        ValueError,
        "labels 2 (3,)",
    ),
    "unknown recipe": (
        lambda room: keras_vit.train("quikstart", None, room.folder),
        ValueError,
        "recipe 'quickstart' 'quikstart'",
    ),
    "recipe with a negative batch size": (
        lambda room: recipe(batch_size=-1),
        ValueError,
        "batch_size integer least 1 -1",
    ),
    "recipe with two lengths": (lambda room: recipe(epochs=1, steps=10), ValueError, "one epochs steps steps=10"),
    "recipe with an unknown field": (lambda room: recipe(epoch=3), ValueError, "Recipe 'epoch' 'epochs'"),
    "export of an existing version": (export_twice, FileExistsError, "version never overwritten served/1"),
    "version of zero": (
        lambda room: keras_vit.export(room.model, room.folder / "served", version=0),
        ValueError,
        "version integer least 1 0",
    ),
    "unknown format": (
        lambda room: keras_vit.export(room.model, room.folder, format="tflite2"),
        ValueError,
        "format 'saved_model' 'tflite2'",
    ),
    "export without head": (
        lambda room: keras_vit.export(tiny(include_top=False), room.folder / "served"),
        ValueError,
        "model head include_top=False",
    ),
}
