"""SIGTERM and Ctrl-C within a `fit`: saved, told, and gone on from to the same bits."""

import signal
import threading

import keras
import pytest
from short_runs import EPOCHS, STEPS, KillAt, Killed, end_state, fit
from slow_rows import slow_after

from keras_vit.training import Interrupted, Preempted, Resume

SIGNALS = signal.SIGTERM, signal.SIGINT
# When a signal comes, and the step at which the run is saved then.
MOMENTS = [
    ("on_train_batch_end", 1, 2),
    ("on_test_batch_end", 1, STEPS),
    ("on_epoch_end", 0, STEPS + 1),  # saved by the next step
    ("on_epoch_end", EPOCHS - 1, EPOCHS * STEPS),  # nothing is left but the end of fit
]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return end_state(*fit(tmp_path_factory.mktemp("unbroken")))


@pytest.fixture
def hears_control_c():
    """As on a terminal: what runs in the background of a script is born deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def send(kind, number, *signals):
    """A callback that sends this process signals in one of its calls."""
    sender = keras.callbacks.Callback()
    setattr(sender, kind, lambda index, logs: index == number and [signal.raise_signal(sent) for sent in signals])
    return sender


@pytest.mark.parametrize(("kind", "number", "step"), slow_after(1, MOMENTS))
def test_sigterm_saves_and_tells(tmp_path, unbroken, kind, number, step):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Preempted) as raised:
        fit(tmp_path, send(kind, number, signal.SIGTERM), every_steps=1000)
    assert raised.value.code == 75 and raised.value.step == step == Resume(tmp_path).step
    assert isinstance(raised.value, SystemExit)
    assert signal.getsignal(signal.SIGTERM) is before
    assert end_state(*fit(tmp_path)) == unbroken


@pytest.mark.parametrize(("kind", "number", "step"), slow_after(1, [MOMENTS[-1], MOMENTS[0]]))
@pytest.mark.usefixtures("hears_control_c")
def test_control_c_saves_and_tells(tmp_path, unbroken, capsys, kind, number, step):
    with pytest.raises(KeyboardInterrupt) as raised:
        fit(tmp_path, send(kind, number, signal.SIGINT), every_steps=1000)
    assert type(raised.value) is Interrupted and raised.value.step == step == Resume(tmp_path).step
    assert str(raised.value) == f"interrupted by Ctrl-C; saved at step {step}, the same call resumes from there"
    [told] = capsys.readouterr().err.splitlines()
    assert "the same call resumes" in told and told.endswith("a second Ctrl-C ends the run at once")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert end_state(*fit(tmp_path)) == unbroken


@pytest.mark.slow
@pytest.mark.usefixtures("hears_control_c")
def test_a_second_control_c_ends_at_once(tmp_path, unbroken):
    with pytest.raises(KeyboardInterrupt) as raised:
        fit(tmp_path, send("on_train_batch_begin", 3, signal.SIGINT, signal.SIGINT), every_steps=2)
    assert type(raised.value) is KeyboardInterrupt and Resume(tmp_path).step == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert end_state(*fit(tmp_path)) == unbroken


@pytest.mark.usefixtures("hears_control_c")
@pytest.mark.parametrize("order", [(signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)])
def test_sigterm_is_stronger_than_control_c(tmp_path, order):
    with pytest.raises(Preempted):
        fit(tmp_path, send("on_train_batch_begin", 3, *order))
    assert Resume(tmp_path).step == 4


@pytest.mark.usefixtures("hears_control_c")
def test_handlers_come_back_after_an_error(tmp_path):
    before = list(map(signal.getsignal, SIGNALS))
    with pytest.raises(Killed):
        fit(tmp_path, KillAt(2))
    assert list(map(signal.getsignal, SIGNALS)) == before


@pytest.mark.usefixtures("hears_control_c")
def test_an_ignored_control_c_stays_ignored(tmp_path):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as nohup does
    fit(tmp_path, send("on_train_batch_end", 1, signal.SIGINT), epochs=1)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN and Resume(tmp_path).step == STEPS


def test_in_another_thread_signals_are_left_alone(tmp_path):
    before, within = list(map(signal.getsignal, SIGNALS)), []
    note = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: within.extend(map(signal.getsignal, SIGNALS)))
    thread = threading.Thread(target=fit, args=(tmp_path, note), kwargs={"epochs": 1})
    thread.start()
    thread.join()
    assert within == before and Resume(tmp_path).step == STEPS
