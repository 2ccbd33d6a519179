"""Run contenders alternately: each has a process of its own, and only one computes at a time.

All contenders are therefore measured under the same load of a shared machine, and do not share memory or threads. The
results are medians over the runs, and ratios of runs that followed each other.
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
    """A program to measure.

    Args:
        name: name in the tables.
        job: `module:function`; a module without a dot is in this folder, a dotted name starts at the root of the
            repository. The function is called with the options in a new process and returns the work of one
            repetition: a function without arguments.
        options: dict that can be written as JSON.
        environment: environment variables of its process.
    """

    name: str
    job: str
    options: dict
    environment: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Result:
    """Time and memory of a contender, in seconds and bytes.

    Attributes:
        name: name of the contender.
        prepared: time to make the work, such as building a model.
        first: time of the first repetition.
        turns: time of each run after the warm-up, as the mean over its repetitions.
        processor: CPU time of each of these runs, summed over all threads.
        prepared_peak, peak: peak memory of its process after the work was made, and at the end.
        figures: what the work itself reports, see worker.py.
    """

    name: str
    prepared: float = 0.0
    first: float = 0.0
    turns: list = dataclasses.field(default_factory=list)
    processor: list = dataclasses.field(default_factory=list)
    prepared_peak: int = 0
    peak: int = 0
    figures: dict = dataclasses.field(default_factory=dict)

    @property
    def median(self):
        return statistics.median(self.turns)

    @property
    def processor_median(self):
        return statistics.median(self.processor)

    def times_faster_than(self, other):
        """Return median, minimum and maximum of the ratios of runs that followed each other."""
        return _ratios(self.turns, other.turns)

    def times_less_processor_than(self, other):
        """Return the same for CPU time, which other programs affect less than wall-clock time."""
        return _ratios(self.processor, other.processor)


def contest(contenders, rounds=5, seconds=2.0, warm_up=2):
    """Run the contenders alternately.

    Args:
        contenders: sequence of `Contender`.
        rounds: number of measured runs of each.
        seconds: approximate length of a run; short work is repeated.
        warm_up: repetitions after the first that are not measured.

    Returns:
        A dict from name to `Result`.
    """
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(_Worker(contender, warm_up)) for contender in contenders]
        for turn in range(rounds):
            # alternate the direction, so that no contender always follows the same one
            for worker in workers if turn % 2 == 0 else reversed(workers):
                worker.take_turn(seconds)
        return {worker.result.name: worker.result for worker in workers}


def _ratios(ours, theirs):
    ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


class _Worker:
    """The process of a contender; worker.py describes the requests that it receives."""

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
        self.result.figures = answer["figures"]
        answer = self._answer("run", 1)
        self.result.first, self.result.peak = answer["seconds"], answer["peak"]
        self._mean = self.result.first
        if self._warm_up:
            answer = self._answer("run", self._warm_up)
            self._mean = answer["seconds"] / self._warm_up
        self._processor = answer["processor"]
        self._process.send_signal(signal.SIGSTOP)  # a data loader must not prefetch while others run
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
            raise RuntimeError(f"{self.result.name} must return a result; it exited with {self._process.wait()}")
        return json.loads(line)

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.stdout.close()
