"""`keras-vit doctor`: what it finds, and that it works without a backend, Keras or the metadata of the package."""

import importlib.metadata
import json
import os
import pathlib
import platform
import re
import subprocess

import keras
import pytest
from built import setup_arguments
from command_line import documented_keys, launcher_folder, run, script
from faults import for_each

import keras_vit
from keras_vit.cli import doctor
from keras_vit.versions import DISTRIBUTION, install_command

OF_DEVELOPERS = {"beam", "bench", "docs", "quickstart", "test", "test-docs", "tpu", "tpu-tf"}


@pytest.fixture
def started(monkeypatch):
    """The process that imports the package is not run; it ends as the test says."""
    ends = {"code": 0, "out": '{"backend": "jax", "devices": ["gpu:0", "gpu:1"]}\n', "err": ""}

    def run(command, **options):
        return subprocess.CompletedProcess(command, ends["code"], ends["out"], ends["err"])

    monkeypatch.setattr(doctor.subprocess, "run", run)
    return ends


@pytest.fixture
def metadata(monkeypatch):
    """The packages that are installed, and what the package requires."""
    found = {"requires": ["keras<3.17,>=3.12", 'gradio>=6.31; extra == "demo"', "jax[tpu]>=1; extra == 'tpu'"]}
    found["requires"] += [f'matplotlib>=3.9; extra == "{extra}"' for extra in ("analysis", "train", "tpu")]
    versions = {"keras": "3.15.1"}
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: found["requires"])
    monkeypatch.setattr(doctor, "_installed", versions.get)
    return versions


@pytest.mark.slow  # the tests of docs/guides/command_line.md run it, too
def test_a_process_of_its_own(tmp_path):
    """The real thing, which finds what this process finds."""
    environment = {"KERAS_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub")}
    (tmp_path / "models" / "keras_vit").mkdir(parents=True)
    (tmp_path / "models" / "keras_vit" / "w.npz").write_bytes(bytes(1000))
    done = script("doctor", "--json", **environment)
    value = json.loads(done.stdout)
    assert (done.returncode, value["works"], value["problems"]) == (0, True, []), value
    assert list(value) == documented_keys()["doctor"]
    assert (value["keras_vit"], value["python"]) == (keras_vit.__version__, platform.python_version())
    assert value["backend"] == keras.backend.backend()
    assert value["devices"] == keras.distribution.list_devices()
    for row in value["packages"]:
        if row["version"] is not None and row["package"] not in ("keras", "tensorflow"):
            assert row["version"] == importlib.metadata.version(row["package"])
    assert [row["bytes"] for row in value["caches"]] == [1000, 0]
    assert value["caches"][0]["path"] == str(tmp_path / "models" / "keras_vit")


@pytest.mark.parametrize(
    ("name", "source", "reason"),
    [
        ("tensorflow", "raise ImportError('libcudart.so.12: cannot open shared object file')", "libcudart.so.12"),
        ("tensorflow", "import os; os.abort()", "exit code -6"),
        ("keras", "raise ModuleNotFoundError('No module named keras')", "No module named keras"),
    ],
    ids=["broken", "aborts", "no keras"],
)
def test_a_broken_backend_is_reported(tmp_path, name, source, reason):
    (tmp_path / f"{name}.py").write_text(source)
    path = f"{tmp_path}{os.pathsep}{launcher_folder()}"
    done = script("doctor", PYTHONPATH=path, KERAS_BACKEND="tensorflow")
    assert (done.returncode, done.stderr) == (1, "")
    last = done.stdout.splitlines()[-1]
    assert last.startswith("importing keras_vit and running a model fails with exit code ") and reason in last


def test_text(capsys, started, metadata):
    code, out, err = run(capsys, "doctor")
    lines = [line.split() for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert ["devices", "gpu:0,", "gpu:1"] in lines and ["backend", "jax"] in lines
    assert ["keras", "3.15.1", ">=3.12,<3.17", "-"] in lines
    assert ["gradio", "-", ">=6.31", "demo"] in lines
    assert ["matplotlib", "-", ">=3.9", "analysis,", "train"] in lines and out.count("matplotlib") == 1
    assert [*install_command("demo").split(), "for", "demo"] in lines
    assert [*install_command("train").split(), "for"] == next(line for line in lines if "TensorBoard" in line)[:5]
    assert out.endswith("\nkeras_vit works.\n") and "tpu" not in out


def test_versions_outside_the_range(capsys, started, metadata):
    metadata |= {"keras": "3.17.0", "gradio": "6.4"}
    code, out, _ = run(capsys, "doctor", "--json")
    assert code == 0
    assert json.loads(out)["remarks"] == [
        "keras 3.17.0 is outside the supported range: pip install 'keras>=3.12,<3.17'",
        "gradio 6.4 is outside the supported range: pip install 'gradio>=6.31'",
    ]


def test_a_missing_requirement(capsys, started, metadata):
    del metadata["keras"]
    code, out, _ = run(capsys, "doctor", "--json")
    value = json.loads(out)
    assert (code, value["works"]) == (1, False)
    assert value["problems"] == ["keras is required and is not installed: pip install 'keras>=3.12,<3.17'"]


def test_a_package_that_does_not_start(capsys, started, metadata):
    started |= {"code": 1, "err": "Traceback\nImportError: keras_vit needs keras>=3.12; got 3.11\n"}
    code, out, _ = run(capsys, "doctor")
    assert code == 1 and out.splitlines()[-1].endswith(" 1: ImportError: keras_vit needs keras>=3.12; got 3.11")
    started |= {"out": "", "err": ""}
    assert json.loads(run(capsys, "doctor", "--json")[1])["backend"] is None


def test_without_metadata(capsys, started, monkeypatch):
    def requires(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", requires)
    code, out, _ = run(capsys, "doctor", "--json")
    value = json.loads(out)
    assert (code, value["packages"]) == (0, []) and "what it requires is unknown" in value["remarks"][0]
    assert value["remarks"][0].endswith(f": {install_command('')}")


@for_each(
    ("version", "supported", "expected"),
    [
        ("3.12.0", ">=3.12,<3.17", True),
        ("3.16.0.dev2026102704", ">=3.12,<3.17", True),
        ("3.17.0", ">=3.12,<3.17", False),
        ("3.9.4", ">=3.12", False),
        ("0.0.31", "<=0.0.31", True),
        ("2.21.0+cpu", ">=2.20,<2.22", True),
    ],
)
def test_ranges(version, supported, expected):
    assert doctor._is_supported(version, supported) is expected


def test_every_extra_is_described():
    arguments = setup_arguments()
    assert set(arguments["extras_require"]) == set(doctor.ENABLES) | OF_DEVELOPERS
    bounds = [bound for extra in doctor.ENABLES for bound in arguments["extras_require"][extra]]
    signs = {sign for bound in (*bounds, *arguments["install_requires"]) for sign in re.findall(r"[<>=!~]+", bound)}
    assert signs <= set(doctor._SIGNS)
    assert arguments["name"] == DISTRIBUTION


def test_the_cache_of_the_hub_counts_links_once(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "a").write_bytes(bytes(10))
    pathlib.Path(tmp_path, "link").symlink_to(tmp_path / "blobs" / "a")
    assert doctor._size(tmp_path) == 10
