"""Reports go to the logger `keras_vit`: they can be silenced, handled once by the application, and are not printed."""

import ast
import functools
import io
import logging
import pathlib
import subprocess
import sys

import pytest

import keras_vit
from keras_vit.logs import LOGGER

PACKAGE = pathlib.Path(keras_vit.__file__).parent
PROGRAMS = ("serving/fresh_process.py", "serving/fresh_timing.py")  # their own standard output is their answer

REPORT = """
import keras_vit
model = keras_vit.ViT_Ti16(image_size=32, classes=2)
keras_vit.save_weights(model, "a.npz")
keras_vit.load_weights(model, "a.npz")
"""


@pytest.mark.slow
def test_a_load_is_reported_on_standard_error(tmp_path):
    done = subprocess.run([sys.executable, "-c", REPORT], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert [line for line in done.stderr.splitlines() if "Loaded" in line] == [
        "Loaded 200 arrays of a.npz (official names)"
    ]


def unconfigured(monkeypatch):
    """Standard error of a process whose application has not configured logging; not a fixture, as pytest does."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    return sys.stderr


def test_a_report_is_shown_once(monkeypatch):
    stream = unconfigured(monkeypatch)
    LOGGER.info("as it is")
    keras_vit._logs.set_up()
    LOGGER.info("set up again\x1b")
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(stream)])
    LOGGER.info("the application's own handler")
    assert stream.getvalue() == "as it is\nset up again\\u001b\nthe application's own handler\n"


def test_a_report_can_be_silenced(monkeypatch, request):
    stream = unconfigured(monkeypatch)
    request.addfinalizer(functools.partial(LOGGER.setLevel, LOGGER.level))
    LOGGER.setLevel(logging.WARNING)
    LOGGER.info("silenced")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "none"])
def test_a_report_that_nobody_can_read_raises_nothing(monkeypatch, is_closed):
    stream = unconfigured(monkeypatch)
    monkeypatch.setattr(sys, "stderr", stream if is_closed else None)
    stream.close()
    LOGGER.info("unread")


def test_the_level_that_an_application_sets_stays(monkeypatch):
    logger = logging.getLogger("keras_vit")
    monkeypatch.setattr(logger, "level", logging.ERROR)
    keras_vit._logs.set_up()
    assert logger.level == logging.ERROR and len(logger.handlers) == 1


def test_nothing_but_programs_prints():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name.startswith("cli/") or name in PROGRAMS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                found.append(f"{name}:{node.lineno}")
    assert found == []
