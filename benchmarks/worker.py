"""The process of one contender: `python -m benchmarks.worker MODULE:FUNCTION OPTIONS`, see contest.py.

Each line of standard input is a JSON list: `["prepare"]` makes the work, `["run", n]` runs it n times. The reply is a
line of JSON with the seconds that it took, the CPU time of the process since its start, summed over all threads, its
peak memory, or `work.peak` if it has one that is not None, and `work.figures`, a dict of further figures, if it has
one. Everything else that is printed goes to standard error.
"""

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1  # from Linux's prctl.h


def main():
    # The process is stopped between runs, and would stay stopped for ever if the parent process were killed.
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
        peak = getattr(work, "peak", None)
        answer = {
            "seconds": seconds,
            "processor": time.process_time(),
            "peak": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if peak is None else peak,
            "figures": getattr(work, "figures", {}),
        }
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
