"""The process of one contender: `python -m benchmarks.worker MODULE:FUNCTION OPTIONS`, see contest.py.

Each line of its input is a JSON list: `["prepare"]` makes the work, `["run", n]` does it n times. Each is answered by a
line of JSON with the seconds that it took, the processor time of the process from its beginning on, all threads
together, and the most memory that it has held. Whatever else is printed goes to the standard error.
"""

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1  # of Linux's prctl


def main():
    # It stands still between turns, and would do so for ever if the contest were killed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, function = sys.argv[1].split(":")
    options, work = json.loads(sys.argv[2]), None
    make = getattr(importlib.import_module(module if "." in module else f"benchmarks.{module}"), function)
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        start = time.perf_counter()
        if verb == "prepare":
            work = make(**options)
        else:
            for _ in range(arguments[0]):
                work()
        seconds = time.perf_counter() - start
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answers.write(json.dumps({"seconds": seconds, "processor": time.process_time(), "peak": peak}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
