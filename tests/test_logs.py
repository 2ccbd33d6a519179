"""Reports go to the logger `keras_vit`: they can be silenced, handled once by the application, and are not printed."""

import ast
import logging
import pathlib
import subprocess
import sys

import pytest

import keras_vit

PACKAGE = pathlib.Path(keras_vit.__file__).parent
PROGRAMS = ("serving/beam.py", "serving/fresh_process.py")  # their own standard output is their answer

REPORT = """
import logging, sys
import numpy as np
import keras_vit
model = keras_vit.ViT_Ti16(image_size=32, classes=2)
model.get_layer("head").kernel.assign(np.ones((192, 2)))  # Python's own warning of a head of zeros needs a stream
keras_vit.save_weights(model, "a.npz")
{configure}
keras_vit.load_weights(model, "a.npz")
"""


def told(configure, folder):
    """The reports of loading that a process of its own writes to standard error, and nothing to standard output."""
    command = [sys.executable, "-c", REPORT.format(configure=configure)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return [line for line in done.stderr.splitlines() if "Loaded" in line]


@pytest.mark.parametrize(
    ("configure", "expected"),
    [
        ("", ["Loaded 200 arrays of a.npz (official names)"]),
        ("logging.getLogger('keras_vit').setLevel(logging.WARNING)", []),
        ("logging.basicConfig(level='INFO')", ["INFO:keras_vit:Loaded 200 arrays of a.npz (official names)"]),
        ("keras_vit._logs.set_up()", ["Loaded 200 arrays of a.npz (official names)"]),
    ],
    ids=["as it is", "silenced", "the application's own handler", "set up again"],
)
def test_a_report_is_shown_once_or_silenced(configure, expected, tmp_path):
    lines = told(configure, tmp_path)
    assert len(lines) == len(expected)
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True)), lines


@pytest.mark.parametrize("stream", ["None", "open('closed.txt', 'w')"])
def test_a_report_that_nobody_can_read_breaks_nothing(stream, tmp_path):
    close = f"sys.stderr = {stream}; sys.stderr and sys.stderr.close()"
    assert told(close, tmp_path) == []


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
