"""Threads that check arrays, and read the next arrays while one is assigned to a variable."""

import collections
import concurrent.futures
import functools
import itertools

_THREADS = 2  # checksum and copy run without Python's lock; memory limits more threads


def read_ahead(reads, order):
    """Return callables that give the same results, but read their arrays in advance.

    Args:
        reads: dict of callables without arguments.
        order: its keys, in the order in which they will be called.

    Returns:
        Dict from each key of `order` to a callable, which raises the error of reading its array, if any. At most three
        arrays wait in memory.
    """
    arrays = _stream([reads[key] for key in order])
    return {key: functools.partial(next, arrays) for key in order}


def check_all(entries):
    """Check each `Entry` and raise its error; an entry without `check` is read and dropped."""
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        for check in [pool.submit(_check, entry) for entry in entries]:
            check.result()


def _check(entry):
    (entry.check or entry.read)()


def _stream(reads):
    reads = iter(reads)
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        running = collections.deque(pool.submit(read) for read in itertools.islice(reads, _THREADS + 1))
        while running:
            array = running.popleft().result()
            running.extend(pool.submit(read) for read in itertools.islice(reads, 1))
            yield array
