"""Work for the tests of benchmarks/contest.py: one that computes, one that sleeps, one that reports figures."""

import time

from benchmarks.gpu import Work


def busy(seconds):
    def work():
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    return work


def idle(seconds):
    return lambda: time.sleep(seconds)


def reporting(peak, **figures):
    return Work(lambda: None, lambda: peak, **figures)
