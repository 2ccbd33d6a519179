"""Mistakes for test_bad_inputs.py in images, data, training and serving."""

import keras
import numpy as np
from bad_input_files import IMAGE, jpeg, recipe, tiny

import keras_vit


def unmatched(files):
    for name in ("zebra", "yak"):
        files.write(f"{name}/1.jpg", jpeg())
    (files.folder / "good.npz").unlink()
    model = tiny(classes=3)
    model.labels = ("ant", "bee", "cat")
    return keras_vit.evaluate(model, files.folder)


# name -> (function of the result of `make_files`, its error, words of the message: argument, expectation, value)
ROWS = {
    # Images
    "PDF named jpg": (
        lambda files: keras_vit.predict(files.model, files.write("p.jpg", b"%PDF-1.7 text")),
        ValueError,
        "p.jpg image JPEG %PDF",
    ),
    "truncated JPEG": (
        lambda files: keras_vit.predict(files.model, files.write("p.jpg", jpeg()[:-100])),
        ValueError,
        "p.jpg complete JPEG truncated",
    ),
    "empty image file": (
        lambda files: keras_vit.predict(files.model, files.write("p.jpg", b"")),
        ValueError,
        "p.jpg empty 0 bytes",
    ),
    "missing image": (
        lambda files: keras_vit.predict(files.model, files.folder / "p.jpg"),
        FileNotFoundError,
        "image p.jpg",
    ),
    "folder as an image": (
        lambda files: keras_vit.predict(files.model, files.folder),
        ValueError,
        "folder image from_directory",
    ),
    "no images": (lambda files: keras_vit.predict(files.model, []), ValueError, "images least one []"),
    "image of zero height": (
        lambda files: keras_vit.predict(files.model, np.zeros((0, 9, 3), "uint8")),
        ValueError,
        "images length 0 (0,9,3)",
    ),
    "floats up to 255 as up to 1": (
        lambda files: keras_vit.predict(files.model, IMAGE.astype("float32")),
        ValueError,
        "images 0 to 1 128 value_range=(0,255)",
    ),
    "NaN pixels": (
        lambda files: keras_vit.predict(files.model, np.full((9, 9, 3), np.nan)),
        ValueError,
        "images finite NaN",
    ),
    "signed pixels": (
        lambda files: keras_vit.predict(files.model, IMAGE.astype("int64")),
        ValueError,
        "images uint8 value_range int64",
    ),
    "wrong rank": (
        lambda files: keras_vit.predict(files.model, np.zeros((1, 1, 9, 9, 3), "uint8")),
        ValueError,
        "images shape (1,1,9,9,3)",
    ),
    "channels first": (
        lambda files: keras_vit.predict(files.model, np.zeros((3, 9, 9), "uint8")),
        ValueError,
        "images channels last (3,9,9)",
    ),
    "no image at all": (
        lambda files: keras_vit.predict(files.model, object()),
        TypeError,
        "images path array object",
    ),
    "top of zero": (
        lambda files: keras_vit.predict(files.model, IMAGE, top=0),
        ValueError,
        "top integer least 1 0",
    ),
    "predict without head": (
        lambda files: keras_vit.predict(tiny(include_top=False), IMAGE),
        ValueError,
        "model head include_top=False",
    ),
    "predict with another model": (
        lambda files: keras_vit.predict(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]), IMAGE),
        ValueError,
        "model keras_vit Sequential",
    ),
    # Data, training, serving
    "classes that match nothing": (unmatched, ValueError, "match labels WordNet 'yak' 'zebra'"),
    "missing folder": (
        lambda files: keras_vit.evaluate(files.model, files.folder / "x"),
        FileNotFoundError,
        "path folder x",
    ),
    "folder without classes": (
        lambda files: keras_vit.data.from_directory(files.folder),
        ValueError,
        "path one folder class",
    ),
    "negative batch size": (
        lambda files: keras_vit.evaluate(files.model, files.folder, batch_size=-1),
        ValueError,
        "batch_size integer least 1 -1",
    ),
    "floats as images of a source": (
        lambda files: keras_vit.data.from_arrays(np.zeros((2, 8, 8, 3)), [0, 1]),
        ValueError,
        "images uint8 float64",
    ),
    "labels of another length": (
        lambda files: keras_vit.data.from_arrays(np.zeros((2, 8, 8, 3), "uint8"), [0, 1, 2]),
        ValueError,
        "labels 2 (3,)",
    ),
    "unknown recipe": (
        lambda files: keras_vit.train("quikstart", None, files.folder),
        ValueError,
        "recipe 'quickstart' 'quikstart'",
    ),
    "recipe with a negative batch size": (
        lambda files: recipe(batch_size=-1),
        ValueError,
        "batch_size integer least 1 -1",
    ),
    "recipe with two lengths": (lambda files: recipe(epochs=1, steps=10), ValueError, "one epochs steps steps=10"),
    "recipe with an unknown field": (lambda files: recipe(epoch=3), ValueError, "Recipe 'epoch' 'epochs'"),
    "version of zero": (
        lambda files: keras_vit.export(files.model, files.folder / "served", version=0),
        ValueError,
        "version integer least 1 0",
    ),
    "unknown format": (
        lambda files: keras_vit.export(files.model, files.folder, format="tflite2"),
        ValueError,
        "format 'saved_model' 'tflite2'",
    ),
    "export of classes without head": (
        lambda files: keras_vit.export(tiny(include_top=False), files.folder / "served", top=5),
        ValueError,
        "top None head top=5",
    ),
}
