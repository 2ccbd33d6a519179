"""`keras-vit completion`: scripts that shells accept, and what bash completes with it."""

import shutil
import subprocess
import sys

import pytest
from command_line import error_of, run, script

import keras_vit
from keras_vit.cli import VERBS

pytest.importorskip("shtab")
COMPLETE = """
source completion.bash
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_shtab_keras_vit 2> /dev/null  # compopt works only in an interactive shell
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """What bash offers for the last word of a command."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "completion.bash").write_text(script("completion", "bash").stdout)
    (folder / "model.keras").touch()
    (folder / "images").mkdir()

    def offered(*words):
        command = ["bash", "--norc", "-c", COMPLETE, "bash", "keras-vit", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0 and done.stderr == ""
        return done.stdout.split()

    return offered


@pytest.mark.parametrize(("shell", "check"), [("bash", ["-n"]), ("zsh", ["-n"]), ("tcsh", ["-f"])])
def test_shells_accept_the_script(capsys, tmp_path, shell, check):
    code, out, err = run(capsys, "completion", shell)
    assert (code, err) == (0, "") and "keras-vit" in out
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    (tmp_path / "script").write_text(out)
    done = subprocess.run([shell, *check, tmp_path / "script"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_commands(complete):
    assert set(complete("")) == set(VERBS)
    assert complete("ex") == ["explain", "export"]


def test_options_and_choices(complete):
    assert {"--model", "--weights", "--json", "--top"} <= set(complete("predict", "--"))
    assert complete("predict", "--we") == ["--weights"]
    assert complete("export", "--format", "o") == ["onnx", "openvino"]
    assert complete("completion", "") == ["bash", "zsh", "tcsh"]


def test_files_folders_and_names(complete):
    assert complete("predict", "mod") == ["model.keras"]
    assert complete("evaluate", "--folder", "") == ["images"]
    assert complete("predict", "cat.jpg", "--model", "ViT-B") == [
        name for name in keras_vit.list_models() if name.startswith("ViT-B")
    ]
    assert complete("info", "mod") == ["model.keras"]
    assert complete("train", "--recipe", "swin/") == keras_vit.training.list_recipes("swin/*")


def test_without_shtab(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert error_of(run(capsys, "completion", "bash")) == "keras-vit completion needs shtab: pip install shtab"
