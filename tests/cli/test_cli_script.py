"""The console script in a process of its own: its start, its streams, its end."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from command_line import SAVED, launcher_folder, script

import keras_vit
import keras_vit_command

# Prints the names of the packages that a command imported, after what the command prints.
IMPORTS_OF_THE_LAUNCHER = """
import sys
there = set(sys.modules)
import keras_vit_command
code = keras_vit_command.main(sys.argv[1:])
print(*{name.split(".")[0] for name in set(sys.modules) - there})
sys.exit(code)
"""

HEAR = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def hearing(*words, **environment):
    """A process of the console script that hears Ctrl-C; the background of a shell script is born deaf to it."""
    return subprocess.Popen(
        [sys.executable, "-c", HEAR, keras_vit_command.__file__, *words],
        env={**os.environ, "PYTHONPATH": launcher_folder(), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


class TestConsoleScript:
    def test_help_does_not_wait_for_keras(self, tmp_path):
        (tmp_path / "keras.py").write_text("raise AssertionError('imported')")
        done = script("predict", "--help", PYTHONPATH=f"{tmp_path}{os.pathsep}{launcher_folder()}")
        assert done.returncode == 0 and "examples:" in done.stdout and done.stderr == ""

    @pytest.mark.parametrize("words", [("--help",), ("predict", "--help"), ("--version",)], ids=" ".join)
    def test_answers_at_once_from_the_standard_library(self, words):
        done = subprocess.run(
            [sys.executable, "-c", IMPORTS_OF_THE_LAUNCHER, *words],
            env={**os.environ, "PYTHONPATH": launcher_folder()},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        imported = set(done.stdout.splitlines()[-1].split())
        assert {"argparse", "keras_vit_command", "_keras_vit"} <= imported
        assert imported - sys.stdlib_module_names == {"keras_vit_command", "_keras_vit"}

    def test_version(self):
        assert script("--version").stdout == f"keras-vit {keras_vit.__version__}\n"

    @pytest.mark.slow
    def test_only_results_are_written(self):
        done = script("list", "ViT-Ti_16")
        assert done.returncode == 0 and done.stderr == "" and len(done.stdout.splitlines()) == 2

    @pytest.mark.slow
    def test_mistake_in_a_process_of_its_own(self, here):
        done = script("predict", "dog.jpg", *SAVED)
        expected = "keras-vit: error: there is no image file dog.jpg\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)

    def test_without_tensorflow(self, tmp_path):
        message = "No module named 'tensorflow'"
        (tmp_path / "tensorflow.py").write_text(f'raise ModuleNotFoundError("{message}", name="tensorflow")')
        path = f"{tmp_path}{os.pathsep}{launcher_folder()}"
        done = script("list", PYTHONPATH=path, KERAS_BACKEND="tensorflow")
        expected = "keras-vit: error: tensorflow is not installed: pip install tensorflow\n"
        assert (done.returncode, done.stderr) == (2, expected)

    def test_control_c(self, tmp_path):
        (tmp_path / "keras.py").write_text("print('waiting', flush=True)\nimport time\ntime.sleep(60)")
        with hearing("list", PYTHONPATH=f"{tmp_path}{os.pathsep}{launcher_folder()}") as process:
            assert process.stdout.readline() == b"waiting\n"
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130 and process.stderr.read() == b""

    @pytest.mark.slow
    def test_control_c_in_a_run(self, tmp_path):
        words = ["train", "--recipe", "quickstart", "--epochs", "500", "--workdir", str(tmp_path)]
        with hearing(*words) as process:
            lines = []
            while not lines or not lines[-1].startswith("22/22"):
                lines.append(process.stderr.readline().decode())
            process.send_signal(signal.SIGINT)
            lines += process.stderr.read().decode().splitlines(keepends=True)
            assert process.wait(30) == 130 and process.stdout.read() == b""
        said = "".join(lines)
        assert said.startswith("11,000 steps of 64 images, 500 x 1,438 images of 8 x 8 pixels\nEpoch 1/500\n22/22")
        assert "\nCtrl-C: the current step ends" in said and "\nkeras-vit: interrupted by Ctrl-C; saved at" in said
        assert not set("\b\r\x1b") & set(said) and "Traceback" not in said
        [step] = re.findall(r"saved at step (\d+), the same call resumes from there\n$", said)
        assert (tmp_path / "checkpoints" / f"step-{int(step):09d}.safetensors").exists()

    @pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
    @pytest.mark.parametrize(
        ("words", "code"),
        [("--help", 0), ("list --nonsense", 2), pytest.param("list ViT-Ti*", 0, marks=pytest.mark.slow)],
    )
    def test_closed_streams(self, closed, words, code):
        command = [sys.executable, keras_vit_command.__file__, *words.split()]
        environment = {**os.environ, "PYTHONPATH": launcher_folder()}
        shell = ["bash", "-c", f'exec "$@" {closed}', "bash", *command]
        done = subprocess.run(shell, env=environment, capture_output=True, text=True)
        assert done.returncode == code and "Traceback" not in done.stderr
        assert (done.stdout == "") == (code == 2 or ">&-" in closed.split())
        assert (done.stderr == "") == (code == 0 or "2>&-" in closed.split())

    def test_reader_that_leaves(self):
        command = [sys.executable, keras_vit_command.__file__, "--help"]
        buffered = {**os.environ, "PYTHONUNBUFFERED": ""}  # argparse itself swallows the error of a write
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, env=buffered, **pipes) as process:
            process.stdout.close()
            assert process.stderr.read() == b"" and process.wait(30) == 141
