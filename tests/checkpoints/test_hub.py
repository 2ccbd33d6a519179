"""Repositories of the hub, from a server on the loopback interface that answers huggingface_hub as the hub does."""

import json
import pathlib
import shutil
import socket
import sys
import threading
import time

import keras
import numpy as np
import pytest
from checkpoint_files import split
from faults import for_each
from hub_server import Handler, Server
from slow_rows import slow_after

import keras_vit
from keras_vit import files, zeroshot
from keras_vit.checkpoints import hub
from keras_vit.checkpoints.readers import open_checkpoint
from keras_vit.checkpoints.releases import find_release
from keras_vit.checkpoints.releases.release import label_set

FILES = ["config.json", "model.safetensors", "preprocessor_config.json"]


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def forget():
    """Function that makes the next import of huggingface_hub a new one: it reads its environment only then."""

    def forget():
        for name in [name for name in sys.modules if name.split(".")[0] == "huggingface_hub"]:
            del sys.modules[name]

    return forget


@pytest.fixture(autouse=True)
def _environment(server, forget, tmp_path, monkeypatch):
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "*")
    forget()
    yield
    forget()


@pytest.fixture
def publish(server, tmp_path):
    """Function that writes a model as a repository of the server and returns its folder."""

    def publish(model, name="org/repo", revision="main"):
        folder = tmp_path / "served" / name / revision.replace("/", "_")
        keras_vit.save_weights(model, folder, layout="huggingface")
        server.repositories.setdefault(name, {})[revision] = folder
        return folder

    return publish


def logits(model):
    images = np.random.default_rng(1).normal(size=(2, *model.input.shape[1:])).astype("float32")
    return keras.ops.convert_to_numpy(model(images))


def cached(tmp_path):
    """Names of the files in the cache of huggingface_hub."""
    return sorted(path.name for path in (tmp_path / "home" / "hub").glob("models--*/snapshots/*/*"))


def test_a_repository_gives_the_model_that_was_published(server, publish, make_model, tmp_path):
    source = make_model(gelu="erf", epsilon=1e-5)
    (publish(source) / "pytorch_model.bin").write_bytes(b"never fetched")
    model = make_model(seed=1, gelu="erf", epsilon=1e-5)
    report = keras_vit.load_weights(model, "hf://org/repo/")
    assert tuple(report.unused) == report.missing == report.reinitialised == ()
    np.testing.assert_array_equal(logits(model), logits(source))
    assert cached(tmp_path) == FILES
    commit = server.commit("org/repo", "main")
    assert [revision for method, revision, _ in server.requests if method == "HEAD"] == ["main", *[commit] * 3]
    assert {file for _, _, file in server.requests} == {*FILES, "processor_config.json"}


def test_create_model_follows_the_two_json_files(publish, make_model, in_zoo):
    labels = [f"class {index}" for index in range(3)]
    preprocessing = keras_vit.Preprocessing(size=24, crop=16, interpolation="bicubic", mean=(0.4,) * 3)
    source = make_model(gelu="erf", epsilon=1e-7)
    source.labels, source.preprocessing = labels, preprocessing
    folder = pathlib.Path(publish(source))
    section = json.loads((folder / "preprocessor_config.json").read_text())  # transformers 5 writes it as a section
    (folder / "preprocessor_config.json").unlink()
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": section}))
    model = in_zoo("vit")("hf://org/repo")
    np.testing.assert_array_equal(logits(model), logits(source))
    assert (model.config.gelu, model.config.epsilon) == ("erf", 1e-7)
    assert model.labels == tuple(labels)
    assert model.preprocessing == preprocessing


def test_second_load_comes_from_the_cache(server, publish, make_model, forget):
    source, model = make_model(), make_model(seed=1)
    (publish(source) / "preprocessor_config.json").unlink()
    folder = hub.fetch_repository("hf://org/repo")
    assert sorted(path.name for path in folder.iterdir()) == FILES[:2]
    server.requests.clear()
    assert hub.fetch_repository("hf://org/repo") == folder
    assert server.requests == [("HEAD", "main", "config.json")]  # has the branch moved?
    server.shutdown()
    server.server_close()
    forget()  # and its open connections
    keras_vit.load_weights(model, "hf://org/repo")
    np.testing.assert_array_equal(logits(model), logits(source))


def test_offline_mode(server, publish, make_model, forget, monkeypatch, tmp_path):
    publish(make_model())
    folder = hub.fetch_repository("hf://org/repo")
    server.requests.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    forget()
    assert hub.fetch_repository("hf://org/repo") == folder
    with pytest.raises(ConnectionError, match=r"^hf://org/other is incomplete in the cache and cannot be downloaded: "):
        hub.fetch_repository("hf://org/other")
    (folder / "preprocessor_config.json").unlink()
    with pytest.warns(UserWarning, match=r"no preprocessor_config\.json of hf://org/repo, and .* the preprocessing of"):
        assert hub.fetch_repository("hf://org/repo") == folder
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConnectionError, match="hf://org/repo is incomplete in the cache"), pytest.warns(UserWarning):
        hub.fetch_repository("hf://org/repo")
    assert server.requests == []


def test_revisions(server, publish, make_model):
    first, second = make_model(seed=1), make_model(seed=2)
    publish(first)
    publish(second, revision="refs/pr/1")
    commit = server.commit("org/repo", "main")
    model = make_model(seed=3)
    for revision, source in (("refs/pr/1", second), ("main", first), ("refs/pr/1", second), (commit, first)):
        keras_vit.load_weights(model, f"hf://org/repo@{revision}")
        np.testing.assert_array_equal(logits(model), logits(source))
    with pytest.raises(FileNotFoundError, match="hf://org/repo@v9 must name a branch, a tag or a commit"):
        hub.fetch_repository("hf://org/repo@v9")


def test_a_branch_that_moves_is_followed(publish, make_model):
    first, second, model = make_model(seed=1), make_model(seed=2), make_model(seed=3)
    folder = publish(first)
    (folder / "config.json").rename(folder / "later.json")
    with pytest.raises(FileNotFoundError, match=r"hf://org/repo must hold config\.json; it does not"):
        hub.fetch_repository("hf://org/repo")
    publish(first)
    before = hub.fetch_repository("hf://org/repo")
    publish(second)
    keras_vit.load_weights(model, "hf://org/repo")
    np.testing.assert_array_equal(logits(model), logits(second))
    keras_vit.load_weights(model, before)
    np.testing.assert_array_equal(logits(model), logits(first))


def test_a_timm_repository(server, make_model, tmp_path):
    source, model = make_model(gelu="erf"), make_model(seed=1, gelu="erf")
    folder = tmp_path / "served"
    folder.mkdir()
    keras_vit.save_weights(source, folder / "model.safetensors", layout="timm")
    arguments = {"num_heads": 2, "patch_size": 4, "img_size": 16}
    config = {"architecture": "vit_tiny_patch16_224", "model_args": arguments, "pretrained_cfg": {"tag": "augreg"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "pytorch_model.bin").write_bytes(b"never fetched")
    server.repositories["timm/vit"] = {"main": folder}
    assert "(timm names)" in keras_vit.load_weights(model, "hf://timm/vit").source
    np.testing.assert_array_equal(logits(model), logits(source))
    assert cached(tmp_path) == FILES[:2]


def test_tokenizers_are_downloaded_for_text_towers_alone(server, tmp_path, forget, monkeypatch):
    pytest.importorskip("tokenizers", reason="needs the extra [text]")
    folder = tmp_path / "served"
    shutil.copytree(pathlib.Path(__file__).parents[1] / "golden" / "zeroshot_clip_hf", folder)
    (folder / "special_tokens_map.json").unlink()
    server.repositories["org/clip"] = {"main": folder}
    expected = keras_vit.TextEncoder(folder).embed(["a cat"])
    tower = keras_vit.load("hf://org/clip")
    assert cached(tmp_path) == FILES[:2]
    kernel = keras_vit.zero_shot(tower, ["cat"], templates=["a {}"]).get_layer("head").kernel
    np.testing.assert_allclose(kernel / np.linalg.norm(kernel), expected.T, atol=1e-6)
    np.testing.assert_array_equal(keras_vit.TextEncoder("hf://org/clip").embed(["a cat"]), expected)
    assert cached(tmp_path) == [*FILES[:2], "tokenizer.json", "tokenizer_config.json"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    forget()
    np.testing.assert_array_equal(keras_vit.TextEncoder("hf://org/clip").embed(["a cat"]), expected)
    monkeypatch.setitem(zeroshot._BESIDE, "tokenizer.json", 100)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "other"))
    forget()
    with pytest.raises(ValueError, match=r"tokenizer\.json must not exceed 100 bytes"):
        keras_vit.TextEncoder("hf://org/clip")


@pytest.mark.slow
def test_a_release_on_the_hub(publish):
    """Its arguments, preprocessing and labels come from the table, its epsilon from the repository."""
    source = keras_vit.DeiT_Ti16(distilled=True, epsilon=1e-12)
    for head in ("head", "head_dist"):
        kernel = source.get_layer(head).kernel
        kernel.assign(np.random.default_rng(0).normal(size=kernel.shape))
    publish(source, name="facebook/deit-tiny-distilled-patch16-224")
    for weights in ("imagenet2012-distilled", "hf://facebook/deit-tiny-distilled-patch16-224"):
        model = keras_vit.DeiT_Ti16(weights=weights)
        assert (model.config.distilled, model.config.epsilon) == (True, 1e-12)
        assert model.labels == label_set("imagenet2012")
        assert model.preprocessing == find_release("DeiT-Ti_16", "imagenet2012-distilled").preprocessing
        np.testing.assert_array_equal(logits(model), logits(source))
    report = keras_vit.load_weights(model, "imagenet2012-distilled")
    assert tuple(report.unused) == report.reinitialised == ()
    assert keras_vit.DeiT_Ti16(weights="imagenet2012-distilled", image_size=64).preprocessing.crop == (64, 64)
    with pytest.raises(ValueError, match=r"does not fit the model(?s:.)*extra embeddings\.distillation_token"):
        keras_vit.DeiT_Ti16(weights="imagenet2012-distilled", distilled=False)
    with pytest.raises(FileNotFoundError, match="hf://facebook/deit-tiny-patch16-224 must be an existing repository"):
        keras_vit.DeiT_Ti16(weights="imagenet2012")


# What is not there


def test_no_such_repository(server):
    with pytest.raises(FileNotFoundError, match=r"hf://org/repo must be an existing repository [\s\S]*Not Found"):
        hub.fetch_repository("hf://org/repo")
    with pytest.raises(FileNotFoundError, match=r"may read \(did you mean 'depth-anything/Depth-Anything-V2-Small-hf'"):
        hub.fetch_repository("hf://depth-anything/Depth-Anything-V2-Smal-hf")
    server.gated.add("org/repo")
    with pytest.raises(PermissionError, match="hf://org/repo is gated: accept its conditions on its page on the hub"):
        hub.fetch_repository("hf://org/repo")


def test_a_repository_of_pickles_alone(server, publish, make_model, tmp_path):
    folder = publish(make_model())
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    message = r"hf://org/repo must hold model\.safetensors or .*pytorch_model\.bin, are not read.*pickles.*save_file"
    for _ in range(2):  # from the server, then with what the cache knows
        with pytest.raises(FileNotFoundError, match=message):
            hub.fetch_repository("hf://org/repo")
    assert cached(tmp_path) == ["config.json", "preprocessor_config.json"]


@for_each("address", ["hf://", "hf://org", "hf://org/repo/file", "hf:///repo", "hf://org/repo@"])
def test_an_address_that_is_none(address):
    with pytest.raises(ValueError, match=f"must be hf://org/repo; got '{address}'"):
        hub.fetch_repository(address)


def test_a_name_that_the_hub_does_not_allow(server):
    with pytest.raises(ValueError, match="org/re po"):
        hub.fetch_repository("hf://org/re po")
    assert server.requests == []


def test_without_huggingface_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="weights='hf://org/repo' needs huggingface_hub: pip install"):
        keras_vit.create_model("ViT-Ti_16", weights="hf://org/repo")


@pytest.mark.parametrize("accepts", slow_after(1, [False, True]))
def test_without_a_connection_the_error_comes_soon(accepts, publish, make_model, monkeypatch, forget):
    """huggingface_hub alone takes 23 s if the address refuses connections, and minutes if nothing answers."""
    publish(make_model())
    folder = hub.fetch_repository("hf://org/repo")
    monkeypatch.setattr(hub, "_PATIENCE", 0.02)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if accepts:
            silent.listen()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        forget()
        start = time.monotonic()
        with pytest.raises(ConnectionError, match="org/other is incomplete in the cache and .* does not answer"):
            hub.fetch_repository("hf://org/other")
        assert hub.fetch_repository("hf://org/repo") == folder
        (folder / "model.safetensors").unlink()
        with pytest.raises(ConnectionError, match="org/repo is incomplete in the cache and .* does not answer"):
            hub.fetch_repository("hf://org/repo")
        assert time.monotonic() - start < 8


def test_an_endpoint_that_is_no_hub(monkeypatch):
    monkeypatch.setattr(Handler, "do_HEAD", lambda handler: handler.reply(200, {}))
    with pytest.raises(ConnectionError, match="hf://org/repo is incomplete in the cache and cannot be downloaded"):
        hub.fetch_repository("hf://org/repo")


# Bounds


@pytest.mark.parametrize("name", FILES)
def test_a_file_above_its_bound_is_not_fetched(name, publish, make_model, tmp_path):
    folder = publish(make_model())
    if name.endswith(".json"):
        (folder / name).write_bytes(b" " * (files.MAX_JSON + 1))
    with pytest.raises(ValueError, match=rf"hf://org/repo: {name} must not exceed \d+ bytes; the hub sends \d+"):
        hub.fetch_repository("hf://org/repo", most=4000)
    assert name not in cached(tmp_path)


def test_split_weights_share_the_bound(publish, make_model):
    folder = publish(make_model())
    split(folder)
    total = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    with pytest.raises(ValueError, match="model-00003-of-00003.safetensors must not exceed"):
        hub.fetch_repository("hf://org/repo", most=total - 1)
    hub.fetch_repository("hf://org/repo", most=total)
    monitors = [thread for thread in threading.enumerate() if type(thread).__name__ == "TMonitor"]
    assert monitors == []  # no progress bar leaves its thread behind


def test_an_old_huggingface_hub_is_told_apart(publish, make_model, monkeypatch):
    publish(make_model())
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda repo_id, filename, revision: None)
    with pytest.raises(ImportError, match=r"hf://org/repo' needs huggingface_hub>=1\.2; got .*install --upgrade"):
        hub.fetch_repository("hf://org/repo")


# Weights in several files


def test_weights_in_several_files(server, publish, make_model, tmp_path):
    source, model = make_model(gelu="erf", epsilon=1e-5), make_model(seed=1, gelu="erf", epsilon=1e-5)
    folder = publish(source)
    split(folder)
    report = keras_vit.load_weights(model, "hf://org/repo")
    assert report.notes == tuple(report.unused) == ()  # and config.json was read
    np.testing.assert_array_equal(logits(model), logits(source))
    assert len(cached(tmp_path)) == 6
    server.requests.clear()
    hub.fetch_repository("hf://org/repo")
    assert server.requests == [("HEAD", "main", "config.json")]
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="model-00002-of-00003"):
        open_checkpoint(tmp_path / "copy")
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="hf://org/repo must hold model-00002-of-00003.safetensors, which its"):
        hub.fetch_repository("hf://org/repo")


@for_each(
    ("index", "message"),
    [
        ({}, "must have a weight_map from arrays to files; got None"),
        ({"weight_map": {}}, "must have a weight_map from arrays to files; got {}"),
        ({"weight_map": {"a": "pytorch_model.bin"}}, r"must name \.safetensors files in its folder; got 'pytorch"),
        ({"weight_map": {"a": "../b.safetensors"}}, r"must name \.safetensors files in its folder; got '\.\./b"),
        ({"weight_map": {"a": 3}}, r"must name \.safetensors files in its folder; got 3"),
    ],
)
def test_an_index_that_is_none(index, message, publish, make_model, tmp_path):
    folder = publish(make_model())
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for load in (lambda: hub.fetch_repository("hf://org/repo"), lambda: open_checkpoint(pathlib.Path(folder))):
        with pytest.raises(ValueError, match=message):
            load()
    assert "pytorch_model.bin" not in cached(tmp_path)
