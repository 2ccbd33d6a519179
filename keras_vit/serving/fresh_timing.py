"""Time an exported model with only its runtime: python -P fresh_timing.py FORMAT FOLDER JOB.

JOB is JSON with the other arguments of `time_calls`. The last line of standard output is JSON with what it returns. The
file runs on its own, so that this package is not imported.
"""

import functools
import json
import pathlib
import runpy
import sys
import timeit

import numpy as np

_FRESH = runpy.run_path(str(pathlib.Path(__file__).with_name("fresh_process.py")))
_SIGNATURES = ("arrays", "images_uint8", "images", "native")  # of a SavedModel; the first that it has is called
_WARM_UP = 3  # calls: the first ones allocate memory, and XLA compiles


def time_calls(format, folder, batch_sizes, image_size, seconds):
    """Return a list of the seconds of each call, for each batch size.

    Args:
        format: name of the format, see `keras_vit.export`.
        folder: `pathlib.Path` of the export.
        batch_sizes: numbers of images per call.
        image_size: (height, width) of images whose sides are open.
        seconds: time of the calls of a batch size, without the first ones; the last call ends later.
    """
    call, inputs = _open(format, folder)
    timings = []
    for batch in batch_sizes:
        once = functools.partial(call, {tensor[0]: _random(batch, image_size, *tensor) for tensor in inputs})
        timeit.timeit(once, number=_WARM_UP)
        times, left = [], seconds
        while left > 0:
            times.append(timeit.timeit(once, number=1))
            left -= times[-1]
        timings.append(times)
    return timings


def _open(format, folder):
    """Return a function of arrays by name, and (name, dtype, shape) of its inputs."""
    if format != "saved_model":
        return _FRESH["RUNTIMES"][format](folder)[:2]
    import tensorflow as tf

    signatures = tf.saved_model.load(str(folder)).signatures
    signature = next((signatures[name] for name in _SIGNATURES if name in signatures), None)
    if signature is None:
        sys.exit(f"the SavedModel must have one of the signatures {', '.join(_SIGNATURES)}; it has {[*signatures]}")
    specs = signature.structured_input_signature[1].items()

    def call(arrays):
        outputs = signature(**{name: tf.constant(array) for name, array in arrays.items()})
        return [output.numpy() for output in outputs.values()]

    return call, [(name, spec.dtype.name, spec.shape) for name, spec in specs]


def _random(batch, image_size, name, dtype, shape):
    """Return pixels; of other inputs, such as prompts, a row of ones and zeros for each image."""
    most, sides = (255, image_size) if name == "images" else (1, (1, 1))
    known = _FRESH["_described"](name, dtype, shape)["shape"]
    shape = [side or free for side, free in zip(known, (batch, *sides, 1), strict=False)]
    return np.random.default_rng(0).integers(0, most, shape, endpoint=True).astype(dtype)


if __name__ == "__main__":
    sys.modules.update(dict.fromkeys(("keras", "jax")))  # type: ignore[arg-type] # as in fresh_process.py
    export_format, model_folder, job = sys.argv[1:]
    print(json.dumps(time_calls(export_format, pathlib.Path(model_folder), **json.loads(job))))
