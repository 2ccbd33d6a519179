"""Small models for the tests of this folder, random everywhere so that no two arrays are equal; files; a server."""

import threading

import keras
import numpy as np
import pytest
import safetensors.numpy
from download_server import Server
from filled import filled
from official_files import check_equal, npz, official_arrays

import keras_vit
from keras_vit import zoo
from keras_vit.checkpoints import locate
from keras_vit.models import build_model
from keras_vit.variants import Variant

TINY = {
    "name": "tiny",
    "image_size": 16,
    "patch_size": 4,
    "hidden_dim": 8,
    "num_layers": 2,
    "num_heads": 2,
    "mlp_dim": 12,
    "classes": 3,
}
SWIN = {"embed_dim": 8, "depths": (2, 1), "num_heads": (1, 2), "window_size": 4}

# kind -> class and arguments of its config
KINDS = {
    "vit": (keras_vit.ViTConfig, TINY),
    "hybrid": (
        keras_vit.ViTConfig,
        {
            **TINY,
            "image_size": 32,
            "patch_size": 2,
            "stem": keras_vit.ResNetConfig(stage_sizes=(2, 1), width_factor=0.5),
        },
    ),
    "root": (
        keras_vit.ViTConfig,
        {**TINY, "image_size": 32, "stem": keras_vit.ResNetConfig(stage_sizes=(), width_factor=0.5)},
    ),
    "distilled": (keras_vit.ViTConfig, {**TINY, "distilled": True}),
    "axial": (keras_vit.ViTConfig, {**TINY, "attention": "axial", "pooling": "gap"}),
    "swin": (keras_vit.SwinConfig, {"name": "tiny", "image_size": 32, "classes": 3, **SWIN}),
    "bit": (
        keras_vit.BiTConfig,
        {"name": "tiny", "image_size": 32, "stage_sizes": (2, 1), "width_factor": 0.5, "classes": 3},
    ),
    "axial_resnet": (
        keras_vit.AxialResNetConfig,
        {"name": "tiny", "image_size": 32, "stage_sizes": (1, 1), "width_factor": 0.25, "num_heads": 2, "classes": 3},
    ),
}


@pytest.fixture(scope="session")
def make_kind():
    """Function of a key of `KINDS` and changes to its config that builds a model of random weights."""

    def make(kind, seed=0, **changes):
        config_class, arguments = KINDS[kind]
        return filled(lambda: build_model(config_class(**{**arguments, **changes})), seed, 0.0, 0.5)

    return make


@pytest.fixture(scope="session")
def make_model(make_kind):
    """The same for a plain ViT."""
    return lambda seed=0, **changes: make_kind("vit", seed, **changes)


@pytest.fixture(scope="session")
def weights_of():
    """Function of a model that returns {path of the variable: array}."""
    return lambda model: {variable.path: variable.numpy().copy() for variable in model.weights}


@pytest.fixture(scope="session")
def logits_of():
    """Function of a model that returns its logits for two random images."""

    def logits(model):
        images = np.random.default_rng(0).normal(size=(2, *model.input.shape[1:])).astype("float32")
        return np.asarray(model(images))

    return logits


@pytest.fixture
def in_zoo(monkeypatch):
    """Function of a key of `KINDS` that puts it into the zoo as "tiny" and returns `create_model` for it."""

    def put(kind):
        config_class, arguments = KINDS[kind]
        free = ("name", "image_size", "classes", *_FREE)
        fixed = {name: value for name, value in arguments.items() if name not in free}
        defaults = {name: arguments[name] for name in _FREE if name in arguments}
        monkeypatch.setitem(zoo.VARIANTS, "tiny", Variant("tiny", config_class, "this test", fixed, defaults))
        _forget()
        sizes = {"image_size": arguments["image_size"], "classes": 3}
        return lambda weights, **changes: keras_vit.create_model("tiny", weights=weights, **{**sizes, **changes})

    yield put
    _forget()


def _forget():
    zoo._signature.cache_clear()


_FREE = ("distilled", "window_size", "pooling")


@pytest.fixture
def user_hybrid():
    """Function of a seed that builds a hybrid on a CNN of the user's, one of whose layers is called as ours are."""

    def make(seed):
        layers = [keras.Input((16, 16, 3)), keras.layers.Conv2D(4, 3, 4, "same", name="head")]
        stem = keras.Sequential([*layers, keras.layers.BatchNormalization(name="norm")], name="backbone")
        config = keras_vit.ViTConfig(**{**TINY, "patch_size": 1})
        return filled(lambda: keras_vit.VisionTransformer(config, stem=stem), seed, 0.0, 0.5)

    return make


@pytest.fixture
def arrays(make_model, tmp_path):
    """The arrays of an official file that fits the tiny model."""
    return official_arrays(make_model(seed=1), tmp_path / "source.npz")


@pytest.fixture
def refused(make_model, weights_of, tmp_path):
    """Function that loads arrays and expects a refusal which changes nothing; returns the lines of the message."""

    def check(arrays, model=None, **kwargs):
        model = model or make_model(seed=2)
        before = weights_of(model)
        with pytest.raises(ValueError) as error:
            keras_vit.load_weights(model, npz(tmp_path / "refused.npz", arrays), **kwargs)
        check_equal(weights_of(model), before)
        return str(error.value).splitlines()

    return check


@pytest.fixture
def tiny_zoo(in_zoo):
    """`create_model` of the tiny ViT."""
    return in_zoo("vit")


@pytest.fixture
def server(monkeypatch):
    """A `download_server.Server` that answers with a whole file; weights are downloaded from it."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv(locate.URL_VARIABLE, f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("no_proxy", "*")
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def save_foreign():
    """Function that writes a file as others do: ours state GELU, epsilons and windows in their metadata."""

    def save(model, path, layout):
        keras_vit.save_weights(model, path, layout)
        if layout == "official":
            with np.load(path) as file:
                arrays = dict(file)
            np.savez(path, **arrays)
        else:
            safetensors.numpy.save_file(safetensors.numpy.load_file(path), path)

    return save
