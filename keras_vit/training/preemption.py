"""SIGTERM, with which machines are taken back, becomes a checkpoint and an exit code of its own."""

import contextlib
import os
import signal
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


@contextlib.contextmanager
def watch():
    """Yields an event that SIGTERM sets, instead of ending the process.

    Python lets only the main thread handle signals: elsewhere the event is never set.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
