"""What is shown of a run: where a bar can be drawn, digits that are no noise, and how long it still takes."""

import io
import math
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from faults import for_each

from keras_vit.training import progress
from keras_vit.training.progress import Progress, Tables, shortest, verbosity


def stream(module="io", is_terminal=False):
    """A stream of a class of that module."""
    return type("Stream", (io.StringIO,), {"__module__": module, "isatty": lambda self: is_terminal})()


class TestVerbosity:
    @pytest.fixture(autouse=True)
    def _plain(self, monkeypatch):
        monkeypatch.delenv("PYCHARM_HOSTED", raising=False)

    @pytest.mark.parametrize(
        ("output", "expected"),
        [
            (stream(), 2),
            (stream(is_terminal=True), 1),
            (stream("ipykernel.iostream"), 1),
            (SimpleNamespace(write=print), 2),  # all that print needs
            (None, 2),  # programs without a console
        ],
    )
    def test_a_bar_is_drawn_where_it_can_be_drawn_again(self, monkeypatch, output, expected):
        monkeypatch.setattr("sys.stdout", output)
        assert verbosity("auto") == expected

    def test_pycharm_draws_it(self, monkeypatch):
        monkeypatch.setenv("PYCHARM_HOSTED", "1")
        assert verbosity("auto") == 1

    def test_log_files_get_lines(self, monkeypatch):
        monkeypatch.setattr("sys.stdout", stream(is_terminal=True))
        keras.config.disable_interactive_logging()
        try:
            assert verbosity("auto") == 2
        finally:
            keras.config.enable_interactive_logging()

    @for_each("verbose", [0, 1, 2, False, True])
    def test_what_is_asked_for(self, verbose):
        assert verbosity(verbose) == verbose and type(verbosity(verbose)) is int

    @for_each("verbose", [3, -1, "loud", None])
    def test_what_is_refused(self, verbose):
        with pytest.raises(ValueError, match="verbose must be one of 'auto', 0, 1, 2; got verbose="):
            verbosity(verbose)


class TestShortest:
    @for_each(
        ("value", "text"),
        [
            (np.float32(0.98), "0.98"),
            (0.9800000190734863, "0.98"),
            (np.float32(1e-7), "1e-07"),
            (1, "1.0"),
            (31.123456789012, "31.123456789012"),  # no float32
            (1e300, "1e+300"),
            (math.inf, "inf"),
            (math.nan, "nan"),
        ],
    )
    def test_digits(self, value, text):
        assert repr(shortest(value)) == text

    def test_every_float32_is_kept(self):
        values = np.random.default_rng(0).integers(0, 2**32, 1000, "uint32").view("float32")
        values = values[np.isfinite(values)]
        assert all(np.float32(shortest(float(value))) == value for value in values)


class TestTimeLeft:
    """Eight steps of ten images an epoch, at four images per second or a rate of its own."""

    @pytest.fixture
    def run(self, monkeypatch, caplog, capsys):
        def run(epochs=3, validates=False, verbose=2, speed=4.0, start=(0, 0)):
            clock = [0.0]
            monkeypatch.setattr(progress.time, "perf_counter", lambda: clock[0])
            told = Progress(10, 8, epochs, validates)
            told.set_params({"verbose": verbose})
            told.set_model(SimpleNamespace(steps_per_execution=1, optimizer=keras.optimizers.SGD(0.5)))
            lines, seconds = {}, 1000.0  # the first call compiles
            for epoch in range(start[0], epochs):
                told.on_epoch_begin(epoch)
                for batch in range(start[1] if epoch == start[0] else 0, 8):
                    clock[0] += seconds
                    logs, seconds = {}, 10 / speed
                    told.on_train_batch_end(batch, logs)
                    assert logs["learning_rate"] == 0.5
                    drawn = capsys.readouterr()
                    assert drawn.err == ""
                    if caplog.records or drawn.out:
                        lines[epoch, batch] = drawn.out + "\n".join(caplog.messages)
                    caplog.clear()
            return lines

        return run

    def test_once_after_half_a_minute(self, run):
        # twelve steps of 2.5 seconds lie behind the first one then; the other 67 take 168 seconds
        assert run(epochs=10) == {(1, 4): "about 3 minutes left at 4.0 images per second"}

    def test_validation_is_not_counted(self, run):
        line = "about 2.2 hours left at 4.0 images per second, not counting validation"
        assert run(epochs=400, validates=True) == {(1, 4): line}

    def test_below_a_bar(self, run):
        assert run(epochs=10, verbose=1) == {(1, 4): "\nabout 3 minutes left at 4.0 images per second"}

    def test_a_short_rest_is_not_worth_it(self, run):
        assert run(epochs=3) == {}

    def test_a_run_that_goes_on(self, run):
        assert list(run(epochs=10, start=(2, 3))) == [(3, 7)]

    def test_a_step_that_is_shown_again_has_no_speed(self):
        told = Progress(10, 8, steps_done=16)
        told.set_model(SimpleNamespace(steps_per_execution=1, optimizer=keras.optimizers.SGD(0.5)))
        told.on_epoch_begin(1)
        for batch in (7, 8):
            logs = {}
            told.on_train_batch_end(batch, logs)
            assert logs["learning_rate"] == 0.5 and (logs["images_per_second"] == 0.0) == (batch == 7)

    @for_each(
        ("seconds", "text"),
        [
            (90, "2 minutes"),
            (5_900, "98 minutes"),
            (6_000, "1.7 hours"),
            (172_000, "47.8 hours"),
            (864_000, "10.0 days"),
        ],
    )
    def test_units(self, seconds, text):
        assert progress._duration(seconds) == text


class TestTables:
    """What is left of `steps.csv` where a run resumes at step 2, and the row of step 3 behind it."""

    @pytest.fixture
    def resumed(self, tmp_path):
        def resumed(content, step=2):
            path = tmp_path / "steps.csv"
            path.write_bytes(content)
            table = Tables(tmp_path, SimpleNamespace(step=step), steps_per_epoch=8)
            table.on_train_begin()
            table.on_epoch_begin(0)
            table.on_train_batch_end(step, {"loss": 0.5})
            return path.read_text()

        return resumed

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (b"step,epoch,loss\n1,1,2.0\n2,1,1.0\n", "step,epoch,loss\n1,1,2.0\n2,1,1.0\n3,1,0.5\n"),
            (b"step,epoch,loss\n1,1,2.0\n2,1,1.0\n3,1,0.7\n", "step,epoch,loss\n1,1,2.0\n2,1,1.0\n3,1,0.5\n"),
            (b"step,epoch,loss\n1,1,2.0\n2,1,1.", "step,epoch,loss\n1,1,2.0\n3,1,0.5\n"),
            (b"step,epoch,loss", "step,epoch,loss\n3,1,0.5\n"),
            (b"step,epo", "step,epoch,loss\n3,1,0.5\n"),
            (b"", "step,epoch,loss\n3,1,0.5\n"),
        ],
    )
    def test_what_was_cut_short_is_left_out(self, resumed, content, expected):
        assert resumed(content) == expected

    @pytest.mark.parametrize(
        ("content", "line", "shown"),
        [
            (b"garbage\n", 1, r"'garbage\\n'"),
            (b"\xff\x00\x01\n1,1,2.0\n", 1, ""),
            (b"step,epoch,loss\n1,1,2.0\ngarbage\n", 3, r"'garbage\\n'"),
            (b"step,epoch,loss\n1,1,2.01,1,2.0\n", 2, r"'1,1,2.01,1,2.0\\n'"),
            (b"step,epoch,loss\n\x00\x00\n", 2, ""),
            (b"step,epoch,loss\n" + 5000 * b"1" + b",1,2.0\n", 2, "'1111"),
        ],
    )
    def test_garbage_is_named_with_its_file_and_line(self, resumed, tmp_path, content, line, shown):
        with pytest.raises(
            ValueError, match=f"{tmp_path / 'steps.csv'} must be the table .*; line {line} is .*{shown}"
        ):
            resumed(content)
        assert (tmp_path / "steps.csv").read_bytes() == content
        assert resumed(b"") == "step,epoch,loss\n3,1,0.5\n"  # as after deleting it
