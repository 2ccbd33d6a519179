"""examples/*.ipynb run in a Jupyter server, with short training; their committed outputs are those of a full run."""

import base64
import importlib.util
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import types

import numpy as np
import pytest
from built import setup_arguments
from PIL import Image

for package in ("nbformat", "nbclient", "websocket", "IPython", "ipykernel", "jupyter_server", "skimage"):
    pytest.importorskip(package, reason="needs the extra [test-docs]")

import nbformat  # noqa: E402
import notebook_server  # noqa: E402
from IPython.core.inputtransformer2 import TransformerManager  # noqa: E402
from notebooks import METADATA, NOTEBOOKS, OFFLINE, SHORT, execute, make_files, outputs, read, streams  # noqa: E402

pytestmark = pytest.mark.docs
REPOSITORY = pathlib.Path(__file__).parents[2]
COLUMNS = 88  # of code
TWO_DEVICES = """
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
"""
ONE_DEVICE = 'DEVICES = {"name": distribution}'
SHOWN = ("text/plain", "image/png")
MIRRORED = 'DEVICES = {"name": "mirrored", "devices": ["CPU:0", "CPU:1"]}'


def figures(notebook):
    """The images among the outputs, as arrays of grey."""
    found = [output.data["image/png"] for output in outputs(notebook) if "image/png" in output.get("data", {})]
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("L")) for data in found]


def accuracies(text):
    """The top-1 accuracies that `keras_vit.evaluate` told of, in percent, each checked against its counts."""
    found = re.findall(r"top-1 accuracy ([\d.]+) % \((\d+) of (\d+)\)", text)
    for share, right, count in found:
        assert float(share) == pytest.approx(100 * int(right) / int(count), abs=0.01)
    return [float(share) for share, _, _ in found]


def check_quickstart(text, folder):
    assert "1438 training images, 359 held out" in text and "4 x 4 patches" in text
    assert len(accuracies(text)) == 1 and "same predictions: True" in text
    assert folder is None or (folder / "runs/quickstart/model.keras").is_file()


def check_finetune(text, folder):
    assert re.search(r"^route (cpu|gpu|older-gpu|tpu-\w+): \w+, (float32|mixed_bfloat16)$", text, re.MULTILINE)
    assert "new head: head/kernel, head/bias start at zero" in text
    assert len(accuracies(text)) == 1 and "same accuracy from the file: True" in text
    assert folder is None or (folder / "runs/finetune/model.keras").is_file()


def check_look_inside(text, folder):
    assert "sum of a row: 1.000" in text and text.count(" pixels\n") >= 3
    explained, *_ = re.findall(r"the first two components explain (\d+) %", text)
    assert 50 < int(explained) <= 100


def check_export(text, folder):
    assert text.count("same classes as predict: True") == 2
    assert all(float(found) < 1e-5 for found in re.findall(r"scores differ by ([\d.e+-]+)", text))
    prediction = json.loads(re.search(r"^\{\n.*?^\}", text, re.MULTILINE | re.DOTALL)[0])
    assert len(prediction["classes"]) == len(prediction["scores"]) == 5 and prediction["error"] == ""
    assert "- | not an image in a supported format (JPEG" in text
    rows = re.findall(r"^(\w+(?:, int8)?) +(\d+) +(\d+) +(\d+) +359 +([\d.e+-]+)$", text, re.MULTILINE)
    rows = {name: [float(number) for number in numbers] for name, *numbers in rows}
    assert set(rows) == {"ONNX", "OpenVINO", "OpenVINO, int8", "LiteRT", "LiteRT, int8"}
    for name, (size, same, _, difference) in rows.items():
        if name.endswith("int8"):
            assert same > 0.9 * 359 and size < rows[name.removesuffix(", int8")][0]
        else:
            assert same == 359 and difference < 1e-4


def check_masked_patches(text, folder):
    found = re.search(r"held out: mean squared error ([\d.]+)\nheld out: mean absolute error (\d+) of 255", text)
    assert 0 < float(found[1]) < 0.5 and 0 < int(found[2]) < 160
    assert len(re.findall(r"^shots  mean %", text, re.MULTILINE)) == 2
    assert re.findall(r"^([\w ]+): top-1", text, re.MULTILINE) == ["random weights", "masked patches"]


def check_train_head(text, folder):
    assert "same predictions: True" in text and len(re.findall(r"^mIoU +([\d.]+) %", text, re.MULTILINE)) == 2
    assert folder is not None or "better than before: True" in text


def check_your_photos(text, folder):
    assert "60 photos of 5 classes: astronaut, cat, coffee, galaxies, rocket" in text
    assert "ViT-Ti_16, layer pooling: features (60, 192)" in text
    assert re.findall(r"top-1 accuracy .* of (\d+)\)", text) == ["35", "60"], "all but five of each class, then all"
    if folder is not None:
        tiles = [np.asarray(Image.open(file)) for file in sorted((folder / "example_photos" / "cat").iterdir())]
        assert len(tiles) == 12 and sum(tile.size for tile in tiles) == 300 * 451 * 3, (
            "no pixel twice, and none left out"
        )


# notebook -> what must be in its text, of short training or not, and in its folder; the number of its figures; lower
# bounds of the accuracies of a full run
CHECKS = {
    "quickstart": (check_quickstart, 4, [95]),
    "finetune_colab": (check_finetune, 1, [90]),
    "look_inside": (check_look_inside, 6, [93]),
    "export_and_serve": (check_export, 2, [93]),
    "masked_patches": (check_masked_patches, 3, [40, 75]),
    "train_head": (check_train_head, 2, []),
    "your_photos": (check_your_photos, 2, [90, 0]),  # the weights of the CLIP are random
}


def test_every_notebook_is_checked():
    assert set(CHECKS) == set(NOTEBOOKS)


def shortened(name, *changes):
    return read(name, SHORT.get(name, {}), OFFLINE.get(name, {}), *changes)


def run(name, folder, changes=None, **environment):
    """A notebook that has run with short training; `changes` are as those of SHORT."""
    notebook = execute(shortened(name, changes or {}), folder, **environment)
    assert noise(notebook) == []
    return notebook


# a line that the logger of the package writes, with and without the form of an application's own handler
REPORT = re.compile(r"(INFO:keras_vit:)?(Loaded|Writing|Comparing|Exported|Saved|  [a-z]+)")


def noise(notebook):
    """What does not belong into outputs: warnings, errors, terminal codes, widgets and the folders of a machine."""
    assert {output.output_type for output in outputs(notebook)} <= {"stream", "display_data", "execute_result"}
    found = [line for line in streams(notebook, "stderr").splitlines() if not REPORT.match(line)]
    found += [kind for output in outputs(notebook) for kind in output.get("data", {}) if kind not in SHOWN]
    told = [output.get("text") or output.data.get("text/plain", "") for output in outputs(notebook)]
    return found + re.findall(
        r"/(?:root|home|tmp|usr|work|Users)/|site-packages|0x[0-9a-f]{6}|\x1b|Warning", "\n".join(told)
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with notebook_server.start(folder) as server:
        yield server, folder


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_runs_in_a_server(name, server):
    server, root = server
    check, count, _ = CHECKS[name]
    folder = root / name
    folder.mkdir()
    if name in OFFLINE:
        make_files(folder)
    nbformat.write(shortened(name), folder / "notebook.ipynb")
    notebook = server.run(f"{name}/notebook.ipynb")
    assert noise(notebook) == []
    check(streams(notebook) + streams(notebook, "stderr"), folder)
    found = figures(notebook)
    assert len(found) == count and all(figure.std() > 5 for figure in found)


def test_a_cell_that_fails_is_found(server):
    server, root = server
    cells = [nbformat.v4.new_code_cell(source) for source in ("print(6 * 7)", "1 / 0", "print('not run')")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), root / "fails.ipynb")
    notebook = server.run("fails.ipynb")
    assert streams(notebook) == "42\n"
    assert [output.ename for output in outputs(notebook) if output.output_type == "error"] == ["ZeroDivisionError"]
    assert [cell.execution_count for cell in notebook.cells] == [1, 2, None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "environment", "backend"),
    [
        ({ONE_DEVICE: TWO_DEVICES + MIRRORED}, {"KERAS_BACKEND": "tensorflow"}, "tensorflow"),
        ({}, {"KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}, "jax"),
    ],
    ids=["mirrored", "data_parallel"],
)
def test_fine_tuning_on_two_devices(changes, environment, backend, tmp_path, request):
    notebook = run("finetune_colab", tmp_path, changes, **environment)
    text = streams(notebook) + streams(notebook, "stderr")
    check_finetune(text, tmp_path)
    assert f"on {backend}\n" in text
    assert f"distribution {request.node.callspec.id}, replicas: 2" in text


@pytest.mark.slow
def test_a_real_model_and_image_are_looked_into(real_data, tmp_path):
    weights = real_data / "weights" / "ViT-Ti_16-imagenet2012-224.npz"
    image = sorted((real_data / "pictures").iterdir())[0]
    for file, link in ((weights, "ViT-Ti_16.npz"), (image, "cat.jpg")):
        (tmp_path / link).symlink_to(file)
    changes = {"WEIGHTS = None": 'WEIGHTS = "ViT-Ti_16.npz"', "IMAGE = None": 'IMAGE = "cat.jpg"'}
    notebook = run("look_inside", tmp_path, changes)
    assert "last block: 3 heads, 197 tokens" in streams(notebook) and len(figures(notebook)) == 6


def code_of(name, number):
    """The source of a code cell as Python, without IPython's own syntax."""
    cells = [cell.source for cell in read(name).cells if cell.cell_type == "code"]
    return TransformerManager().transform_cell(cells[number])


@pytest.fixture
def find_route(tmp_path, monkeypatch):
    """Function that runs the cell of routes on a faked machine and returns its names; the environment is changed."""

    def find(variables, chip=None, capability=None):
        monkeypatch.setattr(os, "environ", {"PATH": str(tmp_path), **variables})
        if capability is not None:
            (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho {capability}\n", encoding="utf-8")
            (tmp_path / "nvidia-smi").chmod(0o755)
        device = tmp_path / "devices" / "0000:00:04.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x1ae0\n", encoding="utf-8")  # of Google, as its network cards
        (device / "device").write_text(f"{chip or '0x0042'}\n", encoding="utf-8")
        names = {}
        for number in range(2):
            source = code_of("finetune_colab", number)
            exec(source.replace("/sys/bus/pci/devices", str(tmp_path / "devices")), names)
        return names

    return find


@pytest.mark.parametrize(
    ("machine", "route", "backend"),
    [
        ({"variables": {}}, "cpu", "tensorflow"),
        ({"variables": {"KERAS_BACKEND": "jax"}}, "cpu", "jax"),
        ({"variables": {"TPU_ACCELERATOR_TYPE": "v5e-1"}}, "tpu-jax", "jax"),
        ({"variables": {"TPU_NAME": "local", "KERAS_BACKEND": "tensorflow"}}, "tpu-tf", "tensorflow"),
        ({"variables": {"TPU_NAME": "local", "KERAS_BACKEND": "jax"}}, "tpu-jax", "jax"),
        ({"variables": {}, "chip": "0x0063"}, "tpu-jax", "jax"),
        ({"variables": {}, "chip": "0x0063", "capability": "9.0"}, "tpu-jax", "jax"),
        ({"variables": {}, "capability": "7.5"}, "older-gpu", "tensorflow"),
        ({"variables": {}, "capability": "8.0"}, "gpu", "tensorflow"),
        ({"variables": {"KERAS_BACKEND": "jax"}, "capability": "9.0\n9.0"}, "gpu", "jax"),
        ({"variables": {}, "capability": ""}, "cpu", "tensorflow"),
    ],
)
def test_route(find_route, capsys, machine, route, backend):
    names = find_route(**machine)
    assert (names["ROUTE"], os.environ["KERAS_BACKEND"]) == (route, backend)
    assert names["dtype"] == ("float32" if route in ("cpu", "older-gpu") else "mixed_bfloat16")
    assert not names["ON_COLAB"]
    assert f"route {route}: {backend}, " in capsys.readouterr().out


def test_distributions_of_the_routes_exist(find_route):
    from keras_vit.training.distribution import DISTRIBUTIONS

    for backend, distribution, _, batch_size in find_route({})["ROUTES"].values():
        assert distribution in DISTRIBUTIONS and backend in ("jax", "tensorflow")
        assert batch_size % 8 == 0, "eight devices share it"


@pytest.mark.parametrize(
    ("name", "variables"),
    [*((name, {}) for name in NOTEBOOKS), ("finetune_colab", {"TPU_ACCELERATOR_TYPE": "v5e-1"})],
)
def test_first_cell_installs(name, variables, monkeypatch):
    calls, names = [], {}

    def collect(magic, line):
        calls.append((magic, line.format_map(names)))

    names["get_ipython"] = lambda: types.SimpleNamespace(run_line_magic=collect)
    monkeypatch.setattr(os, "environ", {**variables})
    source = code_of(name, 0)
    exec(source, names)
    assert not calls, "keras_vit is installed here"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="SOURCE must be the address of keras_vit"):
        exec(source, names)
    assert not calls
    exec(source.replace("YOUR-HOST/YOUR-NAME", "example.org/me"), names)
    [(magic, line)] = calls
    pattern = r'install -q "keras-vit-models\[([\w,-]+)\] @ git\+https://example.org/me/keras_vit"'
    extras = re.match(pattern, line)[1].split(",")
    assert magic == "pip" and set(extras) <= set(setup_arguments()["extras_require"])
    assert extras[0] == ("tpu" if variables else "tensorflow")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_committed_outputs_are_those_of_a_full_run(name):
    notebook, (check, count, bounds) = read(name), CHECKS[name]
    check(streams(notebook) + streams(notebook, "stderr"), None)
    assert len(figures(notebook)) == count
    found = accuracies(streams(notebook))
    assert all(share > bound for share, bound in zip(found, bounds, strict=True)), found


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_committed_file_is_clean(name):
    notebook = read(name)
    nbformat.validate(notebook)
    assert NOTEBOOKS[name].stat().st_size < 800_000
    assert notebook.metadata == METADATA and not any(cell.metadata for cell in notebook.cells)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert noise(notebook) == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_source_is_clean(name):
    for command in (["check", "--extend-select", "E501"], ["format", "--check"]):
        words = [*command, "--line-length", COLUMNS, "--no-cache", NOTEBOOKS[name]]
        done = subprocess.run([sys.executable, "-m", "ruff", *map(str, words)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    notebook = read(name)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert text.startswith("# ") and max(map(len, text.splitlines())) <= 120
    named = re.findall(r"`((?:\w+/)*\w+\.(?:ipynb|md))`", text)
    folders = (REPOSITORY, REPOSITORY / "examples")
    assert [file for file in named if not any((folder / file).is_file() for folder in folders)] == []
