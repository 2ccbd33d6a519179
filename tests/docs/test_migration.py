"""Every row of docs/migration is run: our column always, both where the other library is installed, and compared.

Both columns run where the modules of `PEERS` are installed next to the extra [test]: `pip install keras-hub timm
transformers vit-keras opencv-python-headless zeromodels`, and for tfimm as its page says. tests/migration_rows.py
compares the columns.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest
from hub_server import Server
from migration_rows import SUBSTITUTES, Row, compared, read

import keras_vit
from keras_vit.checkpoints.releases import find_release

pytestmark = pytest.mark.docs
TESTS = pathlib.Path(__file__).parents[1]
PAGES = TESTS.parent / "docs" / "migration"
# Page -> the modules that its other column imports.
PEERS = {
    "keras-hub": ("keras_hub",),
    "tfimm": ("tfimm", "tf_keras", "timm"),
    "timm": ("timm",),
    "transformers": ("transformers", "torchvision"),
    "vit-keras": ("vit_keras", "cv2"),
    "zeromodels": ("zeromodels",),
}
# Repository on the hub -> the layout of its files.
REPOSITORIES = {
    "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k": "timm",
    "facebook/deit-tiny-patch16-224": "huggingface",
    "facebook/dinov2-small": "huggingface",
}
TIMM_CONFIG = {
    "architecture": "vit_tiny_patch16_224",
    "num_classes": 1000,
    "pretrained_cfg": {
        "input_size": [3, 224, 224],
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
        "num_classes": 1000,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    },
}
WORDS = ("num_classes", "drop_path", "from_pretrained", "img_size", "timm.create_model")


def test_every_page_is_run_and_has_rows():
    assert {page.stem for page in PAGES.glob("*.md")} == set(PEERS)
    for page in PEERS:
        rows = list(read(PAGES / f"{page}.md"))
        assert len(rows) >= 15 and rows[0].task == "import", page
        assert all(row.ours for row in rows) and sum(bool(row.theirs) for row in rows) >= 14, page


def test_the_words_of_other_libraries_are_found():
    text = "".join((PAGES / f"{page}.md").read_text(encoding="utf-8") for page in PEERS)
    assert [word for word in WORDS if word not in text] == []


def test_a_difference_fails():
    row, values = Row("task", "", ""), np.arange(6.0).reshape(1, 2, 3)
    assert compared(row, values, list(values)) == "run" and compared(row, values, values + 1e-4) == "values"
    for other in (values + 0.01, values[:, :1]):
        with pytest.raises(AssertionError):
            compared(row, values, other)
    with pytest.raises(AssertionError):
        compared(row, 3, 4)


@pytest.fixture(scope="module")
def hub(tmp_path_factory, workplace):
    """Address of a server with the repositories, whose weights are random."""
    folder = tmp_path_factory.mktemp("hub")
    workplace.make_hub(folder)
    with Server() as server:
        for name, layout in REPOSITORIES.items():
            files = folder / name
            files.mkdir(parents=True)
            model = _without_zeros(keras_vit.create_model(name.removeprefix("timm/")))
            keras_vit.save_weights(model, files / "model.safetensors" if layout == "timm" else files, layout=layout)
            if layout == "timm":
                (files / "config.json").write_text(json.dumps(TIMM_CONFIG))
            server.repositories[name] = {"main": files}
        server.repositories |= {SUBSTITUTES.get(name, name): {"main": folder / name} for name in workplace.HUB}
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache of Keras with the official file of a ViT-B/32, where vit-keras and keras_vit look for it."""
    folder = tmp_path_factory.mktemp("keras")
    file = folder / "weights" / "ViT-B_32_imagenet21k+imagenet2012.npz"
    file.parent.mkdir()
    keras_vit.save_weights(_without_zeros(keras_vit.ViT_B32(image_size=384)), file)
    release = find_release("ViT-B_32", "imagenet21k+imagenet2012", 224)
    ours = folder / "models" / "keras_vit" / release.directory / f"{release.file}.npz"
    ours.parent.mkdir(parents=True)
    ours.symlink_to(file)
    return folder


def _without_zeros(model):
    """A new head is zero, and would hide the rest of the model."""
    rng = np.random.default_rng(0)
    for weight in model.trainable_weights:
        if not np.any(keras.ops.convert_to_numpy(weight)):
            weight.assign(rng.normal(0, 0.05, weight.shape))
    return model


def _run(page, columns, hub, cache, folder):
    """Run a page in a process of its own and return how each row was compared."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub,
        "HF_HOME": str(folder / "huggingface"),
        "KERAS_BACKEND": "tensorflow",
        "KERAS_HOME": str(cache),
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), os.environ.get("PYTHONPATH", "")]),
        "TF_USE_LEGACY_KERAS": str(int(page == "tfimm" and columns == "both")),
        "no_proxy": "*",
    }
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN", "TRANSFORMERS_OFFLINE"):
        environment.pop(name, None)
    command = [sys.executable, TESTS / "migration_rows.py", PAGES / f"{page}.md", columns]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return [line.rsplit(": ", 1)[1] for line in done.stdout.splitlines() if line.startswith("row: ")]


@pytest.mark.parametrize("page", PEERS)
def test_our_column(page, hub, cache, here):
    assert len(_run(page, "ours", hub, cache, here)) == len(list(read(PAGES / f"{page}.md")))


@pytest.mark.parametrize("page", PEERS)
def test_both_columns(page, hub, cache, here):
    missing = [name for name in PEERS[page] if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"only our column of {page} is run; not installed: {', '.join(missing)}")
    compared = _run(page, "both", hub, cache, here)
    assert compared.count("equal") >= 5 and compared.count("values") >= 5, compared
