"""Progress bars of the commands: in terminals, not in pipes, not with `--quiet`."""

import contextlib
import io
import os
import re
import shutil

import pytest
from command_line import SAVED, TI16, run
from slow_rows import slow_after

import keras_vit
from keras_vit.checkpoints import transfer
from keras_vit.cli import main
from keras_vit.logs import LOGGER
from keras_vit.progress import of_command, progress

pytestmark = pytest.mark.usefixtures("eagerly")


class Terminal(io.StringIO):
    """Standard error of a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """What a command writes to standard error in a terminal."""
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS", raising=False)

    def told(*words):
        with contextlib.redirect_stderr(Terminal()) as err, contextlib.redirect_stdout(io.StringIO()) as out:
            assert main([str(word) for word in words]) == 0, err.getvalue()
        assert "━" not in out.getvalue() and "\b" not in out.getvalue()
        return re.sub(r"\x1b\[\d*m", "", err.getvalue())

    return told


@pytest.fixture
def many(here):
    (here / "many").mkdir()
    for index in range(33):
        shutil.copy(here / "cat.jpg", here / "many" / f"{index}.jpg")
    return sorted((here / "many").iterdir())


def commands(images):
    """Command and the last number of steps that its bar shows."""
    return {
        "predict": (["predict", *images, *SAVED, "--top", "1"], "2/2"),
        "embed": (["embed", "many", *SAVED, "--batch-size", "11", "-o", "features.npz"], "3/3"),
        "probe": (["probe", "--arrays", "drawings.npz", *SAVED, "--shots", "2", "--batch-size", "2"], "4/4"),
        "convert": (["convert", *TI16, "--layout", "timm", "--output", "w.safetensors"], "152/152"),
    }


@pytest.mark.parametrize("verb", slow_after(2, ["predict", "convert", "embed", "probe"]))
def test_a_terminal_shows_the_last_step(terminal, many, verb):
    words, last = commands(many)[verb]
    assert re.search(rf"^.*\b{last} ━{{20}} .*\n", terminal(*words), re.MULTILINE)


def test_a_single_batch_and_quiet_show_nothing(terminal, many):
    words, _ = commands(many)["predict"]
    assert terminal(*words, "--quiet") == ""
    assert os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] == "1"
    assert "━" not in terminal("predict", "cat.jpg", *SAVED)


def test_a_pipe_shows_nothing(many, capsys):
    code, out, err = run(capsys, *commands(many)["predict"][0])
    assert (code, err, len(out.splitlines())) == (0, "", 66)


def test_quiet_hides_reports_and_shows_warnings(capsys, monkeypatch):
    def list_models(*pattern):
        LOGGER.info("a report")
        LOGGER.warning("a warning")
        return ["ViT-Ti_16"]

    monkeypatch.setattr(keras_vit, "list_models", list_models)
    assert "a report\na warning\n" in run(capsys, "list")[2]
    assert run(capsys, "list", "--quiet")[2] == "a warning\n"
    assert "a report" in run(capsys, "list")[2], "the level of the logger lasts for one command"


def test_quiet_training_has_no_bars(here, capsys, monkeypatch):
    found = []
    monkeypatch.setattr(keras_vit, "train", lambda *args, verbose, **kwargs: found.append(verbose) or RESULT)
    for words in ([], ["--quiet"]):
        assert run(capsys, "train", "--recipe", "quickstart", "--workdir", "out", *words)[0] == 0
    assert found == ["auto", 0]


RESULT = keras_vit.training.TrainResult(None, {}, None)


@contextlib.contextmanager
def shown():
    """The stream of bars that a command in a terminal shows."""
    stream = Terminal()
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream), of_command(quiet=False):
        yield stream


def test_a_bar_ends_its_line_after_an_error():
    with shown() as stream, contextlib.suppress(ZeroDivisionError):
        for item in progress((1 // n for n in (1, 1, 0)), 3, "image"):
            assert item == 1
    assert "2/3" in stream.getvalue() and stream.getvalue().endswith("\n")


def test_a_bar_of_unknown_length_ends():
    with shown() as stream:
        assert list(progress(iter("abc"), None, "image")) == list("abc")
    assert re.search(r"3/Unknown.*\n$", stream.getvalue())


def test_a_download_shows_its_size(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(bytes(5 * 2**20 + 1))
    pull = transfer._Pull._read

    def read(self, response):
        response.length = 5 * 2**20 + 1  # as a web server states it
        pull(self, response)

    monkeypatch.setattr(transfer._Pull, "_read", read)
    with shown() as stream, open(tmp_path / "copy", "wb") as file:
        transfer.transfer((tmp_path / "file").as_uri(), file, most=2**30)
    assert re.search(r"6/6.*\n$", re.sub(r"\x1b\[\d*m", "", stream.getvalue()))
    assert (tmp_path / "copy").stat().st_size == 5 * 2**20 + 1
