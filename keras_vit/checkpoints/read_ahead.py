"""Threads that check arrays, and read the next ones while one becomes a variable."""

import collections
import concurrent.futures
import functools
import itertools

_THREADS = 2  # checksum and copy run beside Python; with more of them memory is the limit


def read_ahead(reads, order):
    """Returns the callables of a dict in another form: called in the given order, they find their array read.

    Args:
        reads: dict of callables without arguments.
        order: keys of it, in the order in which they will be called.

    Returns:
        Dict from each key of `order` to a callable. It raises what reading its array raised. At most three arrays
        wait in memory.
    """
    arrays = _stream([reads[key] for key in order])
    return {key: functools.partial(next, arrays) for key in order}


def check_all(entries):
    """Raises what checking each `Entry` raises; where only reading tells, its array is read and dropped."""
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
