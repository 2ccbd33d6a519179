"""SIGTERM, with which machines are taken back, and Ctrl-C become a checkpoint and an exception of their own."""

import contextlib
import os
import signal
import sys
import threading

EXIT_CODE = os.EX_TEMPFAIL  # 75: "try again later" of sysexits.h


class Preempted(SystemExit):
    """The process was asked to end and has saved its state; it exits with code 75. The same command goes on.

    Args:
        step: number of steps done, at which it was saved.
    """

    def __init__(self, step: int) -> None:
        super().__init__(EXIT_CODE)
        self.step = step

    def __str__(self):
        return f"asked to end by SIGTERM; saved at step {self.step}, the same command goes on from there"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended the run, which has saved its state. The same call goes on.

    What catches `KeyboardInterrupt` catches it.

    Args:
        step: number of steps done, at which it was saved.
    """

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step

    def __str__(self):
        return f"interrupted by Ctrl-C; saved at step {self.step}, the same call goes on from there"


# By number, the stronger the higher: who takes a machine back does not wait, and asks for an exit code.
ENDS = {1: Interrupted, 2: Preempted}

_TOLD = (
    "Ctrl-C: the step in flight ends and a checkpoint is written, from which the same call goes on; "
    "a second Ctrl-C ends at once"
)


class Requests:
    """What the process has been asked for.

    Attributes:
        strongest: 0 if nothing, else a number of `ENDS`.
    """

    def __init__(self):
        self.strongest = 0
        self._is_interrupted = False

    def terminate(self, number, frame):
        self.strongest = 2

    def interrupt(self, number, frame):
        if self._is_interrupted:
            raise KeyboardInterrupt
        self._is_interrupted, self.strongest = True, max(self.strongest, 1)
        # Not to the logger: a handler of signals may stand in the midst of a message to it. In the midst of another
        # output, or where nobody listens, it is not told.
        with contextlib.suppress(RuntimeError, ValueError, OSError, AttributeError):
            sys.stderr.write(("\n" if sys.stderr.isatty() else "") + _TOLD + "\n")
            sys.stderr.flush()


@contextlib.contextmanager
def watch():
    """Yields `Requests`, to which SIGTERM and the first Ctrl-C (SIGINT) go, instead of ending the process.

    The second Ctrl-C is a `KeyboardInterrupt` at once. Where SIGINT is ignored, as in background jobs of a script, it
    stays so. Python lets only the main thread handle signals: elsewhere nothing is asked, and no handler is changed.
    """
    requests = Requests()
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return
    with contextlib.ExitStack() as handlers:
        handlers.enter_context(_handled(signal.SIGTERM, requests.terminate))
        if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):  # None: not Python's, so not ours to change
            handlers.enter_context(_handled(signal.SIGINT, requests.interrupt))
        yield requests


@contextlib.contextmanager
def _handled(number, handle):
    """Within, `handle` gets the signal; behind, who got it before."""
    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, signal.SIG_DFL if before is None else before)
