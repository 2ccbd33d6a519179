"""Contenders that take turns: each lives in a process of its own, only one computes at a time.

So all of them see the same hours of a noisy machine, keep their own memory and meet no other's threads. What counts
are medians over the turns, and ratios of turns that followed each other.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).parents[1]
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}


@dataclasses.dataclass(frozen=True)
class Contender:
    """One who takes part.

    Args:
        name: as the tables call it.
        job: `module:function` of this folder, or of another with a dotted name from the repository; the function is
            called with the options in a process of its own and returns the work of one turn: a function without
            arguments.
        options: dict that JSON can hold.
        environment: variables of its process.
    """

    name: str
    job: str
    options: dict
    environment: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Result:
    """What a contender took, in seconds and bytes.

    Attributes:
        name: of the contender.
        prepared: for making the work, such as building a model.
        first: for its first turn.
        turns: for each turn after those that warm up; each the mean of its repetitions.
        processor: processor time of each of these, of all threads together.
        prepared_peak, peak: most memory that its process held once the work was made, and in the end.
    """

    name: str
    prepared: float = 0.0
    first: float = 0.0
    turns: list = dataclasses.field(default_factory=list)
    processor: list = dataclasses.field(default_factory=list)
    prepared_peak: int = 0
    peak: int = 0

    @property
    def median(self):
        return statistics.median(self.turns)

    @property
    def processor_median(self):
        return statistics.median(self.processor)

    def times_faster_than(self, other):
        """Median, least and largest of the ratios of turns that followed each other."""
        return _ratios(self.turns, other.turns)

    def times_less_processor_than(self, other):
        """The same of processor time, which other programs disturb less than the clock."""
        return _ratios(self.processor, other.processor)


def contest(contenders, rounds=5, seconds=2.0, warm_up=2):
    """Lets the contenders take turns.

    Args:
        contenders: sequence of `Contender`.
        rounds: turns of each that count.
        seconds: least length of a turn; short work is repeated.
        warm_up: runs after the first that do not count.

    Returns:
        {name: `Result`}
    """
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(_Worker(contender, warm_up)) for contender in contenders]
        for turn in range(rounds):
            # there and back, so that nobody always follows the same
            for worker in workers if turn % 2 == 0 else reversed(workers):
                worker.take_turn(seconds)
        return {worker.result.name: worker.result for worker in workers}


def _ratios(ours, theirs):
    ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


class _Worker:
    """The process of a contender; see worker.py for what is said to it."""

    def __init__(self, contender, warm_up):
        command = [sys.executable, "-m", "benchmarks.worker", contender.job, json.dumps(contender.options)]
        self._process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**os.environ, **_QUIET, **contender.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._warm_up = warm_up
        self.result = Result(contender.name)

    def __enter__(self):
        answer = self._answer("prepare")
        self.result.prepared, self.result.prepared_peak = answer["seconds"], answer["peak"]
        answer = self._answer("run", 1)
        self.result.first, self.result.peak = answer["seconds"], answer["peak"]
        self._mean = self.result.first
        if self._warm_up:
            answer = self._answer("run", self._warm_up)
            self._mean = answer["seconds"] / self._warm_up
        self._processor = answer["processor"]
        self._process.send_signal(signal.SIGSTOP)  # who reads ahead must not do so in another's turn
        return self

    def take_turn(self, seconds):
        repetitions = max(1, round(seconds / self._mean))
        self._process.send_signal(signal.SIGCONT)
        answer = self._answer("run", repetitions)
        self._process.send_signal(signal.SIGSTOP)
        self.result.turns.append(answer["seconds"] / repetitions)
        self.result.processor.append((answer["processor"] - self._processor) / repetitions)
        self._processor = answer["processor"]
        self.result.peak = answer["peak"]

    def _answer(self, *request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.result.name} ended with {self._process.wait()} instead of an answer")
        return json.loads(line)

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.stdout.close()
