"""What `weights=` may be: a path, the name of a release, a repository of the hub."""

import http.server
import os
import pathlib
import threading
import types
import urllib.parse

import numpy as np
import pytest
from faults import for_each

import keras_vit
from keras_vit.checkpoints import locate, names, releases
from keras_vit.checkpoints.releases.release import label_set

TI16 = releases.find_release("ViT-Ti_16", "augreg")
TI16_384 = releases.find_release("ViT-Ti_16", "augreg+imagenet2012")


def find(weights, model="ViT-Ti_16", image_size=(224, 224)):
    found = locate.locate(weights, model, image_size)
    return locate.fetch(found), found.release


@pytest.fixture
def fetched(monkeypatch):
    """List of the releases that are asked for; none is downloaded."""
    asked = []
    monkeypatch.setattr(
        locate, "fetch_release", lambda release: asked.append(release) or pathlib.Path("cache") / release.path
    )
    return asked


# Paths


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors", "a.weights.h5", "a.keras", "folder", "augreg"])
def test_what_exists_is_a_path(tmp_path, monkeypatch, fetched, name):
    (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert find(name) == (pathlib.Path(name), None)  # also where a release has the same name
    assert find(str(tmp_path / name)) == (tmp_path / name, None)
    assert find(tmp_path / name) == (tmp_path / name, None)
    assert fetched == []


def test_home_is_expanded(tmp_path, monkeypatch):
    (tmp_path / "a.npz").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find("~/a.npz") == (tmp_path / "a.npz", None)


@for_each(
    "weights",
    ["a.safetensors", "a/b.keras", "a.weights.h5", "a.pth", pathlib.Path("augreg"), pathlib.Path("a.npz")],
)
def test_what_can_only_be_a_path_is_not_taken_for_a_release(weights, fetched):
    assert find(weights) == (pathlib.Path(weights), None)
    with pytest.raises(FileNotFoundError, match="weights must be an existing file or folder; got 'a"):
        keras_vit.ViT_Ti16(weights=weights if str(weights) != "augreg" else pathlib.Path("a"))
    assert fetched == []


@pytest.mark.parametrize("weights", ["mine.npz", "folder/mine.npz"])
def test_an_unknown_npz_may_have_been_either(weights):
    with pytest.raises(
        FileNotFoundError, match=rf"^there is no such file here, and weights='{weights}' is no file of .*'augreg/"
    ):
        find(weights)


@for_each("weights", [3, b"a.npz", True, ["a.npz"]])
def test_other_types(weights):
    with pytest.raises(TypeError, match="weights must be a path, the name of a release or hf://org/repo; got"):
        find(weights)


@for_each("weights", ["ViT-B_16-384.npz", "ViT-B_16_224", "imagenet21+imagenet2012"])
def test_a_near_name_is_told_instead_of_all(weights, fetched):
    with pytest.raises(
        (FileNotFoundError, ValueError), match="is no file of ViT-B_16 .did you mean '([^']*)'"
    ) as error:
        find(weights, "ViT-B_16")
    text = str(error.value)
    assert text.count(weights) == 1 and "published for" not in text
    assert find(text.split("did you mean '")[1].partition("'")[0], "ViT-B_16")[1] in fetched  # it is one


def test_a_file_of_another_model_is_called_so_where_a_name_is_near():
    with pytest.raises(FileNotFoundError, match="weights='ViT-B_32.npz' is a file of ViT-B_32, not of ViT-B_16"):
        find("ViT-B_32.npz", "ViT-B_16")


# Releases


@pytest.mark.parametrize("weights", ["augreg", TI16.file, f"{TI16.file}.npz", TI16.path])
def test_names_of_a_release(fetched, weights):
    assert find(weights) == (pathlib.Path("cache") / TI16.path, TI16)
    assert fetched == [TI16]


@for_each("model", ["ViT-Ti_16", "ViT-B_16", "ViT-L_32"])
def test_every_name_that_list_weights_gives(fetched, model):
    found = [find(weights, model)[1].path for weights in keras_vit.list_weights(model)]
    assert set(found) == {release.path for release in releases.list_releases(model)}


def test_the_nearest_size_is_taken(fetched):
    for image_size, expected in (((224, 224), 224), ((384, 384), 384), ((512, 256), 384), ((160, 96), 224)):
        _, release = find("imagenet21k+imagenet2012", "ViT-B_16", image_size)
        assert release.image_size == expected, image_size
    assert fetched[0].file == "ViT-B_16-224" and fetched[1].file == "ViT-B_16"


def test_an_empty_name_is_not_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="weights must not be empty"):
        find("")
    with pytest.raises(ValueError, match="path must be a path that is not empty"):
        keras_vit.save_weights(keras_vit.ViT_Ti16(image_size=32, classes=2), "", "huggingface")
    assert list(tmp_path.iterdir()) == []


def test_unknown_releases():
    with pytest.raises(ValueError, match=r"weights='jft300m' is no file of ViT-Ti_16; published for ViT-Ti_16: 'au"):
        find("jft300m")
    with pytest.raises(ValueError, match=r"weights='imagenet' is no file of ViT-H_14 .did you mean 'imagenet21k'"):
        find("imagenet", "ViT-H_14")
    with pytest.raises(ValueError, match="is a file of ViT-Ti_16, not of ViT-B_16"):
        find(TI16.file, "ViT-B_16")
    with pytest.raises(ValueError, match="nothing is published for 'ViT-G_14'"):
        find("augreg", "ViT-G_14")


def test_a_release_may_not_be_larger_than_it_is_stated(monkeypatch):
    asked = []
    monkeypatch.setattr(locate.hub, "fetch_repository", lambda address, **kwargs: asked.append((address, kwargs)))
    release = releases.find_release("DeiT-Ti_16", "imagenet2012-distilled")
    most = {"most": round(1.05 * release.bytes) + 2**20}
    for weights in ("imagenet2012-distilled", release.address, "hf://org/repo"):
        find(weights, "DeiT-Ti_16")
    assert asked == [(release.address, most), (release.address, most), ("hf://org/repo", {})]


# From a server to a model


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serves `tmp_path/server` on the loopback interface in the place of the official address."""
    root = tmp_path / "server"
    root.mkdir()
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(root))

        def do_GET(self):
            asked.append(urllib.parse.unquote(self.path))
            super().do_GET()

        def log_message(self, *args):
            """Stays silent."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv(locate.URL_VARIABLE, f"http://127.0.0.1:{httpd.server_port}")
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.setenv("KERAS_HOME", str(tmp_path / "cache"))
        yield types.SimpleNamespace(root=root, asked=asked)
        httpd.shutdown()
        thread.join()


def publish(root, release, grid):
    """Writes random arrays as a published file of ViT-Ti/16, and returns them."""
    rng = np.random.default_rng(0)
    shapes = {"cls": (1, 1, 192), "Transformer/posembed_input/pos_embedding": (1, 1 + grid**2, 192)}
    model = {"embedding": ((16, 16, 3, 192), (192,)), "head": ((192, release.classes), (release.classes,))}
    for block in range(12):
        prefix = f"Transformer/encoderblock_{block}/"
        attention = prefix + "MultiHeadDotProductAttention_1/"
        model |= {attention + part: ((192, 3, 64), (3, 64)) for part in ("query", "key", "value")}
        model[attention + "out"] = (3, 64, 192), (192,)
        model[prefix + "MlpBlock_3/Dense_0"] = (192, 768), (768,)
        model[prefix + "MlpBlock_3/Dense_1"] = (768, 192), (192,)
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            shapes |= {f"{prefix}{norm}/{name}": (192,) for name in ("scale", "bias")}
    shapes |= {f"Transformer/encoder_norm/{name}": (192,) for name in ("scale", "bias")}
    for name, pair in model.items():
        shapes |= dict(zip((f"{name}/kernel", f"{name}/bias"), pair, strict=True))
    arrays = {name: rng.standard_normal(shape, dtype="float32") for name, shape in shapes.items()}
    path = root / release.path
    path.parent.mkdir(exist_ok=True)
    np.savez(path, **arrays)
    return arrays


def check_weights(model, arrays):
    for variable in model.weights:
        rule = names.find_rule(names.LAYOUTS["vit"]["official"], variable.path, model.config)
        if rule:
            shape = (*variable.shape[:-1], variable.shape[-1] // len(rule.theirs))
            expected = np.concatenate([arrays[name].reshape(shape) for name in rule.theirs], axis=-1)
            np.testing.assert_array_equal(variable.numpy(), expected, err_msg=variable.path)


def test_a_release_comes_from_the_server_once(server, tmp_path, caplog):
    arrays = publish(server.root, TI16_384, grid=24)
    size = (server.root / TI16_384.path).stat().st_size
    assert abs(size - TI16_384.bytes) < 0.01 * size  # the shapes are those of the published file
    model = keras_vit.create_model("ViT_Ti16", weights="imagenet", image_size=320)
    assert server.asked == [f"/{TI16_384.path}"]
    check_weights(model, arrays)
    assert model.labels == label_set("imagenet2012")
    assert model.preprocessing == keras_vit.Preprocessing(size=320)
    assert "24 x 24 -> 20 x 20 (align_corners)" in caplog.text
    again = keras_vit.ViT_Ti16(weights=TI16_384.file, image_size=384, classes=5)
    assert server.asked == [f"/{TI16_384.path}"]
    check_weights(again, {**arrays, "head/kernel": np.zeros((192, 5)), "head/bias": np.zeros(5)})
    table = again.get_layer("position_embs").embedding.numpy()
    np.testing.assert_array_equal(table, arrays["Transformer/posembed_input/pos_embedding"])
    assert (again.labels, again.preprocessing) == (None, keras_vit.Preprocessing(size=384))
    cached = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert [path.parts[-2:] for path in cached] == [tuple(TI16_384.path.split("/"))]


def test_a_release_that_is_not_there(server, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"expected a file at http://127.*augreg/Ti_16.*answered 404"):
        keras_vit.create_model("ViT-Ti_16", weights="augreg")
    path = server.root / TI16.path
    path.parent.mkdir()
    path.write_bytes(b"<html>Please log in</html>" + os.urandom(100))
    with pytest.raises(ValueError, match=r"expected augreg/Ti_16.*of about 37\.\d MiB.*first bytes are b'<html>"):
        keras_vit.create_model("ViT-Ti_16", weights="augreg")
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []
