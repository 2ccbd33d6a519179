"""SIGTERM and Ctrl-C during training: save a checkpoint, then raise `Preempted` or `Interrupted`."""

import contextlib
import os
import signal
import sys
import threading

EXIT_CODE = os.EX_TEMPFAIL  # 75: "try again later" of sysexits.h


class Preempted(SystemExit):
    """Report that SIGTERM ended the run after its state was saved.

    The exit code is 75. The same command resumes the run.

    Args:
        step: number of completed steps in the checkpoint.
    """

    def __init__(self, step: int) -> None:
        super().__init__(EXIT_CODE)
        self.step = step

    def __str__(self):
        return f"ended by SIGTERM; saved at step {self.step}, the same command resumes from there"


class Interrupted(KeyboardInterrupt):
    """Report that Ctrl-C ended the run after its state was saved.

    The same call resumes it.

    Code that catches `KeyboardInterrupt` also catches this exception.

    Args:
        step: number of completed steps in the checkpoint.
    """

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step

    def __str__(self):
        return f"interrupted by Ctrl-C; saved at step {self.step}, the same call resumes from there"


# The higher number has priority: SIGTERM means that the machine is about to stop, and the exit code matters.
ENDS = {1: Interrupted, 2: Preempted}

_TOLD = (
    "Ctrl-C: the current step ends and a checkpoint is written, from which the same call resumes; "
    "a second Ctrl-C ends the run at once"
)


class Requests:
    """The signals that the process has received.

    Attributes:
        strongest: 0 if none, else a key of `ENDS`.
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
        # Not the logger: the signal may arrive while the logger is writing. If stderr is busy or closed, the message
        # is dropped.
        with contextlib.suppress(RuntimeError, ValueError, OSError, AttributeError):
            sys.stderr.write(("\n" if sys.stderr.isatty() else "") + _TOLD + "\n")
            sys.stderr.flush()


@contextlib.contextmanager
def watch():
    """Yield `Requests` that record SIGTERM and the first Ctrl-C (SIGINT), so that they do not end the process.

    The second Ctrl-C raises `KeyboardInterrupt` at once. A SIGINT that is ignored, as in background jobs of a script,
    stays ignored. Python handles signals only in the main thread; in other threads this changes nothing.
    """
    requests = Requests()
    handlers = {signal.SIGTERM: requests.terminate, signal.SIGINT: requests.interrupt}
    if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):  # None: installed outside Python
        del handlers[signal.SIGINT]
    if threading.current_thread() is not threading.main_thread():
        handlers = {}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
