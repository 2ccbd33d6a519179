"""What the rows of test_bad_inputs.py work with: a folder, a small model, its arrays, an image, a recipe."""

import functools
import io
import types

import numpy as np
import PIL.Image

import keras_vit

TINY = {
    "image_size": 16,
    "patch_size": 8,
    "hidden_dim": 8,
    "num_layers": 1,
    "num_heads": 2,
    "mlp_dim": 8,
    "classes": 3,
}
IMAGE = np.full((20, 20, 3), 128, "uint8")


def make_files(folder):
    """What a row of the table works with: the folder, a model, its arrays, and functions that write files."""
    model, weights = _kept()
    model.set_weights(weights)  # a file that is loaded with a warning changes them
    keras_vit.save_weights(model, folder / "good.npz")
    with np.load(folder / "good.npz") as file:
        arrays = dict(file)

    def write(name, content):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return path

    def npz(changes=(), without=()):
        np.savez(folder / "a.npz", **{k: v for k, v in {**arrays, **dict(changes)}.items() if k not in without})
        return folder / "a.npz"

    def load(path, **kwargs):
        return keras_vit.load_weights(model, path, **kwargs)

    return types.SimpleNamespace(folder=folder, model=model, write=write, npz=npz, load=load)


def config(**changes):
    return keras_vit.ViTConfig(**{"name": "tiny", **TINY, **changes})


def tiny(**changes):
    model = keras_vit.VisionTransformer(config(**changes))
    if model.config.include_top:
        model.get_layer("head").kernel.assign(np.ones(model.get_layer("head").kernel.shape))
    return model


@functools.cache
def _kept():
    model = tiny()
    return model, model.get_weights()


def jpeg():
    file = io.BytesIO()
    PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), "uint8")).save(file, "JPEG")
    return file.getvalue()


def recipe(**changes):
    from keras_vit.training import RECIPES

    return RECIPES["quickstart"].replace(**changes)
