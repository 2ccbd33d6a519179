"""The speed of an exported model on the processor of this machine, in a fresh process with only its runtime."""

import json
import pathlib

import numpy as np

from keras_vit import checks, files
from keras_vit.config import Preprocessing
from keras_vit.serving.formats import FORMATS
from keras_vit.serving.self_check import run_python
from keras_vit.versions import import_optional

_SCRIPT = pathlib.Path(__file__).with_name("fresh_timing.py")
_CARD = "model_card.json"


def measure(folder, batch_sizes, seconds):
    """Measure the speed of an export on random pixels.

    Args:
        folder: folder of the version, or folder of the versions, whose newest is measured.
        batch_sizes: list of numbers of images per call.
        seconds: time of the measured calls, of all batch sizes together.

    Returns:
        A dict of `folder`, `format` and `speeds`, a list with a dict for each batch size: `batch_size`, `calls`,
        `images_per_second`, and percentiles of the time of a call in milliseconds: `p50_ms`, `p90_ms` and `p99_ms`.

    Raises:
        FileNotFoundError: if there is no such folder, or no export in it.
        ValueError: if `seconds` is not positive, or on a model card that `export` has not written.
        ImportError: if the runtime of the format is missing.
        ExportError: if the export does not run.
    """
    checks.check_positive("seconds", seconds)
    folder = _version(pathlib.Path(folder))
    file = folder / _CARD
    card = files.parse_json(str(file), file.stat().st_size, file.read_bytes)
    format = checks.check_choice(f"format in {file}", card.get("format"), FORMATS)
    runtime = FORMATS[format].runtime
    import_optional(runtime, f"the measurement of format={format!r} needs {runtime}: pip install {runtime}")
    image_size = Preprocessing.from_dict(card["preprocessing"]).image_size
    job = {"batch_sizes": batch_sizes, "image_size": image_size, "seconds": seconds / len(batch_sizes)}
    words = ["-P", str(_SCRIPT), format, str(folder), json.dumps(job)]
    said = run_python(words, "the exported model must run in a fresh process")
    speeds = []
    for batch, times in zip(batch_sizes, json.loads(said.splitlines()[-1]), strict=True):
        percentiles = {f"p{share}_ms": 1000 * np.percentile(times, share) for share in (50, 90, 99)}
        rate = batch * len(times) / sum(times)
        speeds.append({"batch_size": batch, "calls": len(times), "images_per_second": rate, **percentiles})
    return {"folder": str(folder), "format": format, "speeds": speeds}


def _version(path):
    """Return the folder of an export: `path`, or the newest version in it."""
    versions = [card.parent for card in path.glob(f"*/{_CARD}") if card.parent.name.isdecimal()]
    newest = max(versions, key=lambda version: int(version.name), default=path)
    if not (newest / _CARD).is_file():
        found = "it has no model_card.json" if path.is_dir() else "there is no such folder"
        raise FileNotFoundError(f"folder must be one that export has written; got {str(path)!r}: {found}")
    return newest
