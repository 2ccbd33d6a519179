"""export: write a model to a versioned folder for TensorFlow Serving or another runtime, and verify it."""

import contextlib
import json
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Sequence

import keras
import numpy as np

from keras_vit import checks, files
from keras_vit.compat.graph import sublayers
from keras_vit.data import images as readers
from keras_vit.evaluation.outputs import check_classifier, check_preprocessing, has_zero_head, logit_names
from keras_vit.logs import LOGGER
from keras_vit.models import ImageModel, Model, TaskModel, clone, merge_lora
from keras_vit.models.encoders import check_model, find_encoder, is_encoder, labels_of, preprocessing_of, shared_graph
from keras_vit.models.layer_states import lora_layers
from keras_vit.serving.formats import FORMATS, check_packages, resolve_options
from keras_vit.serving.instructions import file_instructions
from keras_vit.serving.self_check import TOLERANCES, ExportError, run_python, sample_files, self_check, summary
from keras_vit.typing import PathLike

__all__ = ["ExportError", "export"]

_SAMPLES = 8
_PARTIAL = ".partial-"
_MODEL, _JOB, _ARRAYS = "model.keras", "job.json", "arrays.npz"


def export(
    model: ImageModel | TaskModel,
    path: PathLike,
    format: str = "saved_model",
    version: int | None = None,
    *,
    signatures: Sequence[str] | None = None,
    top: int | None = None,
    tokens: bool | None = None,
    on_error: str | None = None,
    max_pixels: int | None = None,
    native_pixels: int | None = None,
    jit_compile: bool | None = None,
    compute_dtype: str | None = None,
    quantization: str | None = None,
    calibration: readers.Images | None = None,
    runtime: PathLike | None = None,
    check: bool | Sequence[PathLike | bytes] = True,
    tolerance: float | None = None,
    force: bool = False,
) -> pathlib.Path:
    """Export a model to `path/<version>/`; the export runs without this package.

    The export is written under a hidden name, run in a fresh process, compared with the model in memory and then
    renamed. A version folder is therefore always complete, and an existing one never changes. The largest difference is
    logged to `keras_vit`.

    `saved_model` is for TensorFlow Serving and needs only TensorFlow. Its signatures have a dynamic batch size:

    - `serving_default`: `image_bytes`, string (batch,), complete files (JPEG, PNG, BMP, the first frame of a GIF, or
      WebP that is not animated), with their EXIF orientation applied -> `classes`, string (batch, k), and `scores`,
      float32 (batch, k), best first; for a model without a head, the same as `features`;
    - `images`: `images`, float32 (batch, height, width, channels) of any size, pixel values in [0, 255] -> `logits`,
      float32 (batch, classes); named `scores` if the model ends in an activation, and `features` without a head;
    - `images_uint8`: the same for uint8;
    - `features`: `image_bytes` -> `features`, float32 (batch, dim), the input of the head, and with `tokens=True` also
      `tokens`, the input of the pooling. An encoder without pooling has features (batch, tokens, dim);
    - `native`, only on request, for a model with `image_size="any"`: as `images`, but nothing is resized. The images of
      a request have one size, which the patch size must divide unless the model pads;
    - `attention`, only on request: `image_bytes` -> `attention`, float32 (batch, rows, columns), attention rollout.

    A task model has the signatures:

    - `serving_default`, of `DPT`, `DPTSegmentation`, `EoMT`, `LinearSegmentation` and `YOLOS`: `image_bytes`, files of
      images of one size -> the attributes of the answer of `keras_vit.predict`, in pixels of the images: `values` of a
      `DepthMap`, `labels` of a `LabelMap` (for `EoMT` with `segments="semantic"`), or `boxes`, `scores` and `labels` of
      all `Boxes`. A model whose preprocessing has the rule `windows` has no such signature. An unreadable image fails
      its request;
    - `arrays`: `images`, as `keras_vit.tasks.prepare` makes them, and prompts: `queries` (queries, width) of `OWL`,
      `condition` (batch, width) of `CLIPSeg`, `points` and `labels` of `SAM` -> the outputs of the model, which the
      functions of `keras_vit.tasks` turn into answers.

    For an unreadable image, the outputs are zeros, empty classes and the reason in `error`, string (batch,), which is
    empty for other images. The folder also contains `assets/labels.txt` with one class per line, if there are classes,
    warm-up requests in `assets.extra`, and `README.txt` with the commands to serve the model. Every weight is stored
    once.

    `onnx` (`model.onnx`), `litert` (`model.tflite`) and `openvino` (`model.xml`, `model.bin`) have the input and the
    output of the signature `images`, with the same names (LiteRT: in its signature): `images`, which are already
    resized, and `logits` or `scores`, or `features` of a model without a head. Task models, in ONNX and OpenVINO, have
    those of the signature `arrays`. The batch is open, and of models for images of any size height and width too.
    `labels.txt` and a `README.txt` with a program that calls the file are next to them. All formats contain a
    `model_card.json`.

    ONNX has opset 20; each layer norm and each GELU is one node, which runtimes compute safely in float16. Labels,
    preprocessing and licence are in its metadata. Above 2 GiB the weights are in `model.onnx.data`.

    `web` is a folder for any static web server: a page that runs `model.onnx` in the visitor's browser with
    onnxruntime-web. It shows the five best classes of photos, or, for a model without a head, the nearest of the
    visitor's photos. Photos stay in the browser. The model has float16, or, above 100 MB and with `calibration`, int8.

    With `compute_dtype="float16"`, weights and activations have 16 bits. Norms and softmax stay in float32, and so does
    every operation (SavedModel: every block) whose values reach 30,000 on the images of `check`. Pass typical images.

    Args:
        model: a model of this package with or without a head, or a task model, on any backend, or a functional Keras
            model with layers after a classifier, such as a new head. All layers are exported, with the preprocessing of
            the model inside, or with `model.preprocessing` if the user has set it.
        path: folder of the versions; created if absent. TensorFlow cannot load a SavedModel from a path with `[`.
        format: `"saved_model"`, `"onnx"`, `"litert"`, `"openvino"` or `"web"`; all but the first need the extra
            `[export]`.
        version: number of the version folder, 1 or above; None uses the next number.
        signatures: (saved_model) names of signatures; None for all but `native` and `attention`.
        top: (saved_model) classes per image, 5 by default; all classes if the model has fewer. None without a head.
        tokens: (saved_model) whether `features` also returns the tokens.
        on_error: (saved_model) `"row"`, the default, as above; with `"raise"` an unreadable image fails its whole
            request, and there is no output `error`.
        max_pixels: (saved_model) maximum height times width of an image, 64 million by default, checked in its
            header before memory is allocated. Task models have no other option of the format. An image of this size
            needs about 200 MB, 400 MB if EXIF rotates it, 750 MB as a BMP. The limit for a progressive JPEG is a
            third of it.
        native_pixels: (saved_model) maximum height times width of the images of `native`, 2048 * 2048 by default; a
            request with larger ones fails before the model runs.
        jit_compile: (saved_model) whether XLA compiles the model, once per size of a batch.
        compute_dtype: (saved_model, onnx, openvino, web) `"float16"`, as above, or `"float32"`; for saved_model also
            `"bfloat16"`, with weights in float32, and None uses the model's own. Not for a SavedModel of a task model.
        quantization: (onnx, litert, openvino, web) `"int8"`: weights only for litert (dynamic range); otherwise weights
            per channel and activations, after calibration; norms and softmax stay in float.
        calibration: (onnx, openvino, web) images for int8, as in `keras_vit.preprocess`: a few hundred typical ones.
        runtime: (web) folder with the files of onnxruntime-web, such as `dist` of its npm package; None downloads them
            once to Keras's cache.
        check: True compares on eight generated images; a list of paths or bytes of encoded images compares on these;
            False skips the comparison, and `inputs`, `outputs` and `check` in the model card are null.
        tolerance: maximum difference, relative to the larger of 1 and an output's maximum, or a tenth of the share of
            `labels` that differ; None uses 1e-4, with float16 0.02, with bfloat16 0.1 and with quantization 0.25.
        force: whether to export a model whose head is all zeros, or whose preprocessing is only assumed.

    Returns:
        `pathlib.Path` of the new version folder.

    Raises:
        TypeError: if the model neither is nor contains one of this package.
        ValueError: on an unknown or contradictory option, a model without class scores per image or with unknown
            preprocessing, or one that needs `force`.
        FileExistsError: if the version exists; versions are never overwritten.
        NotADirectoryError: if `path` is a file.
        ImportError: if a package of the format is missing.
        FileNotFoundError: if an image of `check` or `calibration` does not exist.
        OSError: if the disk is full or not writable.
        ExportError: if the model cannot be written in the format, does not run, or differs from the model in memory.
            The export is removed; the next export into `path` deletes the `.partial-...` folder of an interrupted one.
    """
    known = {name for row in FORMATS.values() for name in row.options}
    given = {name: value for name, value in locals().items() if name in known}
    checks.check_choice("format", format, FORMATS)
    is_task = isinstance(model, TaskModel)
    encoder, model = (model, model) if is_task else (find_encoder(model) or shared_graph(model), _whole(model))
    _check_model(model, encoder, checks.check_flag("force", force))
    options = FORMATS[format].choose(model, resolve_options(format, given))
    if format == "litert" and is_task:
        raise ValueError(f"format must not be 'litert' for task models, such as {model.name}; got {format!r}")
    if format != "saved_model" and model.preprocessing.max_tokens is not None:
        raise ValueError(f"format must be 'saved_model' for sequences of patches, as {model.name} has; got {format!r}")
    FORMATS[format].check(model, {name for name, value in given.items() if value is not None}, **options)
    samples = _samples(check, options.get("max_pixels"))
    if tolerance is not None and not samples:
        raise ValueError(f"tolerance requires a check; got tolerance={tolerance!r} with check=False")
    tolerance = _tolerance(model, options) if tolerance is None else checks.check_positive("tolerance", tolerance)
    check_packages(format, options, is_checked=bool(samples))
    pixels = _read(model, samples) if samples else []
    if calibration is not None:
        options["calibration"] = _read(model, calibration)
    card = _model_card(model, encoder, format, options)
    if options.get("compute_dtype") == "float16":
        options = {**options, "samples": pixels or _read(model, sample_files(_SAMPLES))}
    path = checks.check_path("path", path)
    if format == "saved_model" and set(str(path)) & ({"[", "\\"} - {os.sep}):
        raise ValueError(f"path must have no [ and no backslash, or TensorFlow cannot load it; got {str(path)!r}")
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"path must be a folder or not exist yet; {path} is a file")
    version = _next_version(path) if version is None else checks.check_integer("version", version)
    target = path / str(version)
    _check_new(target)
    is_new = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    files.remove_abandoned(path, _PARTIAL)
    partial = path / files.partial_name(_PARTIAL)  # TensorFlow Serving ignores names that are not numbers
    try:
        LOGGER.info("Writing %s as %s", target, format)
        has_float_lora = any(layer.quantization_mode is None for layer in lora_layers(model))
        merged = merge_lora(model) if has_float_lora and isinstance(model, ImageModel) else model
        _write(merged, partial, format, options)
        if samples:
            LOGGER.info("Comparing it with the model on %d images, in a fresh process", len(samples))
            card |= self_check(model, partial, format, samples, pixels, tolerance)
        text = json.dumps(card, indent=1, ensure_ascii=False)
        (partial / "model_card.json").write_text(text + "\n", encoding="utf-8")
        try:
            os.rename(partial, target)
        except OSError:
            _check_new(target)  # another process may have written it in the meantime
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if is_new and not target.exists():
            with contextlib.suppress(OSError):  # another export uses the folder
                path.rmdir()
    LOGGER.info("Exported %s: %s", target, summary(card["check"]) if samples else "not checked")
    return target


def _whole(model):
    """Return the model itself, or for layers around a model of this package one with all of them and what is known."""
    if find_encoder(model) is None and preprocessing_of(model) is None:
        check_model(model)
    if not is_encoder(model):
        check_classifier(model)
    if isinstance(model, ImageModel):
        return model
    check_preprocessing(model, None)
    inputs = model.inputs[0] if len(model.inputs) == 1 else model.input  # a Sequential has no `input`
    whole = Model(inputs, model.outputs[0], name=model.name)
    whole.preprocessing, whole.labels = preprocessing_of(model), labels_of(model)
    return whole


def _check_model(model, encoder, force):
    for label in model.labels or ():
        if not label or len(label.splitlines()) != 1:
            raise ValueError(f"labels must be non-empty single lines to be exported; got {label!r}")
    if force:
        return
    if has_zero_head(model):
        raise ValueError(f"model must have a trained head; that of {model.name} is all zeros (force=True exports it)")
    if encoder is not None and encoder.preprocessing_source == "assumed":
        raise ValueError(
            f"model must have a known preprocessing: its weights, {encoder.weights_source}, do not define one, "
            f"and {model.preprocessing} is only assumed. Pass preprocessing= when you build it, or a folder with its "
            "config files, or export it with force=True"
        )


def _samples(check, max_pixels):
    """Return encoded images for the comparison; an empty list without a comparison."""
    if isinstance(check, bool):
        return sample_files(_SAMPLES, max_pixels) if check else []
    if not isinstance(check, (list, tuple)) or not check:
        raise ValueError(f"check must be True, False or a list of paths or bytes of images; got {check!r}")
    return [item if isinstance(item, bytes) else pathlib.Path(files.check_regular(item)).read_bytes() for item in check]


def _tolerance(model, options):
    """Return the tolerance of the least precise dtype in use."""
    dtypes = [layer.compute_dtype for layer in sublayers(model)]
    dtypes += [options.get("compute_dtype"), options.get("quantization")]
    return max(limit for name, limit in TOLERANCES.items() if any(name in (dtype or "float32") for dtype in dtypes))


def _read(model, images):
    """Return images, as in `keras_vit.preprocess`, as a list of pixel arrays."""
    return [np.asarray(read(model.preprocessing.channels)) for read in readers.as_images(images)]


def _model_card(model, encoder, format, options):
    """Return the content of model_card.json, as far as it is known before the check."""
    if isinstance(model, TaskModel) and format == "saved_model":
        options = {"max_pixels": options["max_pixels"]}
    if options.get("calibration") is not None:
        options = {**options, "calibration": f"{len(options['calibration'])} images"}
    order = ", red first" if model.preprocessing.channels == 3 else ""
    by_caller = "by the caller, to the input's height and width, as described in `preprocessing` (size and so on)"
    return {
        "model": model.name,
        "format": format,
        "options": options,
        "inputs": None,
        "outputs": None,
        "range": f"pixels have values from 0 to 255, channels last{order}; they are standardised in the model",
        "resizing": "in the model, except for `native` and `arrays`" if format == "saved_model" else by_caller,
        "preprocessing": model.preprocessing.to_dict(),
        "preprocessing_source": "stated" if encoder is None else encoder.preprocessing_source,
        "labels": logit_names(model) or None,
        "weights": encoder and encoder.weights_source or "none were loaded: trained from scratch, or random",
        "config": encoder and encoder.config.to_dict(),
        "check": None,
    }


def _next_version(path):
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    return 1 + max((int(name) for name in names if name.isascii() and name.isdigit()), default=0)


def _check_new(target):
    if target.exists():
        raise FileExistsError(f"version must be new, and {target} exists (version=None uses the next number)") from None


def _write(model, folder, format, options):
    try:
        if keras.backend.backend() == "tensorflow":
            FORMATS[format].write(model, folder, **options)
        else:
            _write_in_tensorflow(model, folder, format, options)
    except (OSError, ImportError, MemoryError):
        raise
    except Exception as error:  # from TensorFlow or a converter
        raise ExportError(f"the model cannot be written as {format!r}: {error}") from error
    if format != "saved_model":  # a SavedModel has its labels in assets/
        if labels := logit_names(model):
            (folder / "labels.txt").write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
        (folder / "README.txt").write_text(file_instructions(format, model), encoding="utf-8")


def _write_in_tensorflow(model, folder, format, options):
    """Write a model of another backend in a process that runs TensorFlow.

    A TensorFlow graph converted from JAX only runs on the platform for which it was lowered. The same layers on the
    TensorFlow backend give a portable graph.
    """
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        (clone(model) if isinstance(model, ImageModel) else model).save(place / _MODEL)  # without optimizer
        arrays = {name: value for name, value in options.items() if name in ("calibration", "samples") and value}
        np.savez(place / _ARRAYS, **{f"{name}/{n}": x for name, images in arrays.items() for n, x in enumerate(images)})
        values = {name: value for name, value in options.items() if name not in arrays}
        (place / _JOB).write_text(json.dumps({"format": format, "folder": str(folder), "options": values}))
        package = str(pathlib.Path(__file__).parents[2])
        search_path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        expectation = "the model must load on the TensorFlow backend to be exported"
        run_python(["-m", __name__, str(place)], expectation, KERAS_BACKEND="tensorflow", PYTHONPATH=search_path)


def _main(place):
    """Write the model that `_write_in_tensorflow` saved in a folder."""
    job = json.loads((place / _JOB).read_text())
    options = job["options"]
    with np.load(place / _ARRAYS, allow_pickle=False) as arrays:
        for name, image in arrays.items():  # in the order of the images
            options.setdefault(name.partition("/")[0], []).append(image)
    FORMATS[job["format"]].write(keras.models.load_model(place / _MODEL), pathlib.Path(job["folder"]), **options)


if __name__ == "__main__":
    _main(pathlib.Path(sys.argv[1]))
