"""Asks an exported model from many threads at once: load.py FOLDER REQUESTS THREADS IMAGE...; prints JSON.

A process of its own, whose memory is measured. Without images, drawn ones of mixed sizes are sent.
"""

import json
import pathlib
import sys
import time
from concurrent import futures

import numpy as np
import tensorflow as tf
from drawn import draw, encode
from tensorflow.python.eager import context

_SETTLED = 200  # requests after which memory should not grow
_SIZES = ((40, 50), (300, 200), (97, 131), (480, 640), (30, 600))


def drawn():
    kinds = ("JPEG", "PNG", "BMP", "GIF")
    return [encode(draw(seed, _SIZES[seed % 5]), kinds[seed % 4]) for seed in range(20)]


def main(folder, requests, threads, files):
    """Returns wrong answers, functions traced, memory (MB) after 200 requests and at the end, requests per second."""
    call = tf.saved_model.load(folder).signatures["serving_default"]
    rng = np.random.default_rng(0)
    batches = [[int(n) for n in rng.integers(0, len(files), rng.integers(1, 5))] for _ in range(requests)]
    expected = np.concatenate([call(tf.constant([file]))["scores"].numpy() for file in files])

    def ask(batch):
        answer = call(tf.constant([files[n] for n in batch]))
        scores = answer["scores"].numpy()
        return np.abs(scores - expected[batch]).max() < 1e-4 and not any(answer["error"].numpy())

    def run(batches, pool):
        start = time.perf_counter()
        good = sum(pool.map(ask, batches)) if pool else sum(map(ask, batches))
        return good, len(batches) / (time.perf_counter() - start)

    with futures.ThreadPoolExecutor(threads) as pool:
        good, _ = run(batches[:_SETTLED], pool)
        settled, functions = _megabytes(), len(context.context().list_function_names())
        more, parallel = run(batches[_SETTLED:], pool)
    end = _megabytes()
    _, sequential = run(batches[-_SETTLED:], None)
    return {
        "requests": requests,
        "wrong": requests - int(good + more),
        "traced": len(context.context().list_function_names()) - functions,
        "megabytes_settled": settled,
        "megabytes_end": end,
        "requests_per_second": round(parallel, 1),
        "one_after_the_other": round(sequential, 1),
    }


def _megabytes():
    """Resident memory of this process."""
    fields = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


if __name__ == "__main__":
    model, count, workers, *paths = sys.argv[1:]
    contents = [pathlib.Path(path).read_bytes() for path in paths] or drawn()
    print(json.dumps(main(model, int(count), int(workers), contents)))
