"""Runs commands for the tests of the command line and takes apart what they print."""

import logging
import os
import pathlib
import re
import subprocess
import sys

import keras_vit_command
from keras_vit.cli import main

SAVED = ["--model", "model.keras"]
TI16 = ["--model", "ViT-Ti_16", "--weights", "ViT-Ti_16.npz"]


def run(capsys, *words):
    """Exit code, standard output and standard error of a command."""
    root = logging.getLogger()
    kept, root.handlers = root.handlers, []  # those of pytest, which no command has
    try:
        code = main([str(word) for word in words])
    finally:
        root.handlers = kept
    output = capsys.readouterr()
    return code, output.out, output.err


def help_of(verb, capsys):
    code, out, err = run(capsys, *([verb] if verb else []), "--help")
    assert code == 0, err
    return out


def examples_of(text):
    """The commands below `example:` or `examples:`."""
    text = re.split(r"^examples?:\n", text, flags=re.MULTILINE)[1].replace("\\\n", " ")
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def documented_keys():
    """Dict from a command to the keys that docs/guides/command_line.md states for its JSON, without those of rows."""
    page = pathlib.Path(__file__).parents[1] / "docs" / "guides" / "command_line.md"
    rows = re.findall(r"^\| `([\w -]+)` \| (`.*) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = ((command, re.sub(r" \([^)]*\)|`--[\w-]+`", "", text)) for command, text in rows)
    return {command: re.findall(r"`(\w+)`", text) for command, text in plain}


def script(*words, **environment):
    """Runs the console script in a process of its own."""
    command = [sys.executable, keras_vit_command.__file__, *words]
    environment = {**os.environ, "PYTHONPATH": launcher_folder(), **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def error_of(result):
    """The one line that a failed command writes."""
    code, out, err = result
    assert (code, out) == (2, ""), (code, out, err)
    lines = [line for line in err.splitlines() if not line.startswith(("Loaded ", "  "))]  # the load report
    assert len(lines) == 1 and lines[0].startswith("keras-vit: error: "), err
    return lines[0].removeprefix("keras-vit: error: ")


def launcher_folder():
    return str(pathlib.Path(keras_vit_command.__file__).parent)
