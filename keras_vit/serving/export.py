"""export: a model -> a versioned folder that TensorFlow Serving or another runtime loads, checked before it is there"""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Sequence

import keras
import numpy as np

from keras_vit import checks, files
from keras_vit.data import images as readers
from keras_vit.evaluation.outputs import has_zero_head
from keras_vit.logs import LOGGER
from keras_vit.models.base import ImageModel, check_model
from keras_vit.serving.formats import FORMATS, check_packages, resolve_options
from keras_vit.serving.in_tensorflow import write_in_tensorflow
from keras_vit.serving.model_card import write_model_card
from keras_vit.serving.samples import sample_files
from keras_vit.serving.self_check import TOLERANCES, ExportError, resized, self_check
from keras_vit.serving.signatures import class_labels
from keras_vit.typing import PathLike

__all__ = ["ExportError", "export"]

_SAMPLES = 8
_PARTIAL = ".partial-"


def export(
    model: ImageModel,
    path: PathLike,
    format: str = "saved_model",
    version: int | None = None,
    *,
    signatures: Sequence[str] | None = None,
    top: int | None = None,
    tokens: bool | None = None,
    on_error: str | None = None,
    max_pixels: int | None = None,
    jit_compile: bool | None = None,
    compute_dtype: str | None = None,
    quantization: str | None = None,
    calibration: readers.Images | None = None,
    check: bool | Sequence[PathLike | bytes] = True,
    tolerance: float | None = None,
    force: bool = False,
) -> pathlib.Path:
    """Write `path/<version>/`: a model that answers without this package.

    It is written under a hidden name, run in a fresh process and compared with the model in memory, and then renamed: a
    version folder is whole or not there, and none is ever changed. The largest difference is reported to the logger
    `keras_vit`.

    `saved_model` is for TensorFlow Serving and needs TensorFlow alone. Signatures, the batch size open in all:

    - `serving_default`: `image_bytes`, string (batch,), whole files (JPEG, PNG, BMP, GIF, of which the first frame
      counts, or WebP that is not animated), turned as their EXIF says -> `classes`, string (batch, k), and `scores`,
      float32 (batch, k), likeliest first;
    - `images`: `images`, float32 (batch, height, width, channels) of any size, levels in [0, 255] -> `logits`, float32
      (batch, classes); called `scores` if the model ends in an activation;
    - `images_uint8`: the same of uint8;
    - `features`: `image_bytes` -> `features`, float32 (batch, dim), what the head reads, with `tokens` those, too;
    - `attention`, if asked for: `image_bytes` -> `attention`, float32 (batch, rows, columns), attention rollout.

    An image that cannot be read is answered with zeros, empty classes and the reason in `error`, string (batch,),
    which is empty for the others. In the folder are `assets/labels.txt`, one class per line, warm-up requests in
    `assets.extra` and `README.txt`, with the commands that serve the model. Every weight is stored once.

    `onnx` (`model.onnx`), `litert` (`model.tflite`) and `openvino` (`model.xml`, `model.bin`) take float32 pixels
    (batch, height, width, channels) on [0, 255], already resized, and answer with logits; `labels.txt` is beside them.
    All formats have a `model_card.json`.

    Args:
        model: a classifier of this package, on any backend.
        path: folder of the versions; it is made if absent.
        format: `"saved_model"`, `"onnx"`, `"litert"` or `"openvino"`; all but the first need the extra `[export]`.
        version: number of the version folder, from 1; None counts on from the highest there is.
        signatures: (saved_model) names of signatures; None is all but `attention`.
        top: (saved_model) classes in each answer, 5 by default; a model with fewer answers with all of them.
        tokens: (saved_model) whether `features` answers with the tokens.
        on_error: (saved_model) `"row"`, the default, as above; with `"raise"` an unreadable image fails its whole
            request, and there is no output `error`.
        max_pixels: (saved_model) height times width that an image may claim, 64 million by default; its header is read
            before memory is taken. One of so many takes about 200 MB, 400 MB if EXIF turns it, 750 MB as a BMP. A
            progressive JPEG may have a third as many.
        jit_compile: (saved_model) whether XLA compiles the model, for each batch size anew.
        compute_dtype: (saved_model) `"bfloat16"` or `"float32"`; None is the model's own. Weights stay float32.
        quantization: (litert, openvino) `"int8"`: of the weights for litert (dynamic range); of weights and
            activations, after calibration, for openvino.
        calibration: (openvino) images for that, as `keras_vit.preprocess` takes them: some hundred such as the model
            will see.
        check: True compares on eight drawn images; a list of paths or bytes of encoded images, on these; False
            leaves the comparison out, and with it inputs, outputs and check of the card (null).
        tolerance: largest difference, as a share of an output's largest number or of 1; None is 1e-4, with float16
            0.02, with bfloat16 0.1 and with quantization 0.25.
        force: whether to export a model whose head is all zeros, or whose preprocessing is only assumed.

    Returns:
        `pathlib.Path` of the new version folder.

    Raises:
        TypeError: if the model is none of this package.
        ValueError: on an unknown or contradictory option, a model that gives no class scores per image, or one that
            needs `force`.
        FileExistsError: if the version is there already; versions are never overwritten.
        NotADirectoryError: if `path` is a file.
        ImportError: if a package of the format is missing.
        FileNotFoundError: if an image of `check` or `calibration` is not there.
        OSError: if there is no room, or no right to write.
        ExportError: if the model cannot be written in the format, does not run or answers otherwise than in memory.
            Nothing is left of it; what a killed process leaves, `.partial-...`, the next export into `path` deletes.
    """
    checks.check_choice("format", format, FORMATS)
    _check_model(model, checks.check_flag("force", force))
    given = {
        "signatures": signatures,
        "top": top,
        "tokens": tokens,
        "on_error": on_error,
        "max_pixels": max_pixels,
        "jit_compile": jit_compile,
        "compute_dtype": compute_dtype,
        "quantization": quantization,
        "calibration": calibration,
    }
    options = resolve_options(format, given)
    FORMATS[format].check(model, {name for name, value in given.items() if value is not None}, **options)
    samples = _files(check, options.get("max_pixels"))
    if tolerance is not None and not samples:
        raise ValueError(f"tolerance belongs to a check; got tolerance={tolerance!r} with check=False")
    tolerance = _tolerance(model, options) if tolerance is None else checks.check_positive("tolerance", tolerance)
    check_packages(format, options, is_checked=bool(samples))
    pixels = _read(model, samples)
    described = _described(options)
    if options.get("calibration") is not None:
        options["calibration"] = resized(model, _read(model, calibration))
    path = checks.check_path("path", path)
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"path must be a folder or not exist yet; {path} is a file")
    version = _next_version(path) if version is None else checks.check_integer("version", version)
    target = path / str(version)
    if target.exists():
        raise _exists(target)
    is_new = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    files.remove_abandoned(path, _PARTIAL)
    partial = path / files.partial_name(_PARTIAL)  # TensorFlow Serving looks at numbers alone
    try:
        _write(model, partial, format, options)
        found = self_check(model, partial, format, samples, pixels, tolerance) if samples else None
        write_model_card(model, partial / "model_card.json", format, described, found)
        _publish(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if is_new and not target.exists():
            with contextlib.suppress(OSError):  # another export has begun in it
                path.rmdir()
    LOGGER.info("Exported %s: %s", target, found or "not checked")
    return target


def _write(model, folder, format, options):
    try:
        if keras.backend.backend() == "tensorflow":
            FORMATS[format].write(model, folder, **options)
        else:
            write_in_tensorflow(model, folder, format, options)
    except (OSError, ImportError, MemoryError):
        raise
    except Exception as error:  # of TensorFlow or of a converter
        raise ExportError(f"the model cannot be written as {format!r}: {error}") from error
    if format != "saved_model":  # which has them in assets/
        (folder / "labels.txt").write_text("\n".join(class_labels(model)) + "\n", encoding="utf-8")


def _publish(partial, target):
    try:
        os.rename(partial, target)
    except OSError:
        if target.exists():  # written by another process in the meantime
            raise _exists(target) from None
        raise


def _next_version(path):
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    return 1 + max((int(name) for name in names if name.isascii() and name.isdigit()), default=0)


def _exists(target):
    return FileExistsError(
        f"version must be new, an exported version is never overwritten; {target} exists "
        "(version=None takes the next number)"
    )


def _tolerance(model, options):
    """That of the fewest bits that anything is computed in."""
    dtypes = model.config.dtype, options.get("compute_dtype"), options.get("quantization")
    return max(limit for name, limit in TOLERANCES.items() if any(name in (dtype or "float32") for dtype in dtypes))


def _files(check, max_pixels):
    """Encoded images to compare on; none if there is to be no comparison."""
    if check is True:
        return sample_files(_SAMPLES, max_pixels)
    if check is False:
        return []
    if not isinstance(check, (list, tuple)) or not check:
        raise ValueError(f"check must be True, False or a list of paths or bytes of images; got {check!r}")
    return [item if isinstance(item, bytes) else pathlib.Path(item).read_bytes() for item in check]


def _read(model, images):
    """Images, as `keras_vit.preprocess` takes them, as a list of arrays of pixels."""
    if isinstance(images, (list, tuple)) and not images:
        return []
    return [np.asarray(image.read(model.preprocessing.channels)) for image in readers.as_images(images)]


def _described(options):
    """The options as the card has them."""
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    if values.get("calibration") is not None:
        values["calibration"] = f"{len(values['calibration'])} images"
    return values


def _check_model(model, force):
    check_model(model)
    if not model.config.include_top:
        raise ValueError("model must have a head to answer with classes; got one built with include_top=False")
    if len(model.output.shape) != 2:
        raise ValueError(
            "model must give one row of logits per image (batch, classes); got outputs of shape "
            f"{tuple(model.output.shape)}"
        )
    for label in model.labels or ():
        if not label or len(label.splitlines()) != 1:
            raise ValueError(f"labels must be names of one line each to be exported; got {label!r}")
    if force:
        return
    if has_zero_head(model):
        raise ValueError(
            f"model must have a trained head: that of {model.name} is all zeros and answers the same for every image "
            "(force=True exports it nevertheless)"
        )
    if model.preprocessing_source == "assumed":
        raise ValueError(
            f"model must know how its images are prepared: its weights, {model.weights_source}, came without that, "
            f"and {model.preprocessing} is only assumed. Give preprocessing= when you build it, or a folder with its "
            "config files, or export it with force=True"
        )
