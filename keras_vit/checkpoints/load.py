"""Load weights with a report: into a built model (`load_weights`), or into a new one (`build_loaded`)."""

import collections
import concurrent.futures
import dataclasses
import functools
import itertools
import math
import warnings

import keras

from keras_vit import checks
from keras_vit.checkpoints.assignments import RESIZE_CHOICES
from keras_vit.checkpoints.config_json import named
from keras_vit.checkpoints.evidence import read_evidence
from keras_vit.checkpoints.locate import fetch, locate
from keras_vit.checkpoints.match import LoadReport, make_plan
from keras_vit.checkpoints.readers import open_checkpoint
from keras_vit.compat.initial_values import build_deferred, initialise
from keras_vit.config.preprocessing import suited
from keras_vit.logs import LOGGER
from keras_vit.models import build_model
from keras_vit.models.base import ImageModel
from keras_vit.models.encoders import check_model
from keras_vit.models.layer_states import keep_resize, lora_layers
from keras_vit.models.task_model import TaskModel
from keras_vit.progress import progress
from keras_vit.typing import PathLike

_THREADS = 2  # checksum and copy run without Python's lock; more threads would wait for memory
_SEVERAL_PROTOCOLS = ("timm", "huggingface")  # weights with these names were trained with various means and stds
HEAD_CHOICES = ("auto", "load", "reinitialise")


def load_weights(
    model: ImageModel, source: PathLike, *, layout: str = "auto", resize: str = "auto", head: str = "auto"
) -> LoadReport:
    """Load weights strictly: file and model must have the same variables.

    These may differ: the image size (position embeddings are resized), the number of channels (the first kernel is
    adapted), the head (see `head`), and `pre_logits`, which fine-tuning drops together with its head. All arrays are
    checked before the first is loaded, so the model does not change if an error is raised. Only a few arrays are in
    memory at a time.

    If the preprocessing of the model was not set explicitly and the head is loaded, the model uses the preprocessing
    that the file states, if any. Config fields that the arrays do not show, such as the number of heads, are compared
    with config.json and the metadata of the file. If these do not state a field, the report lists it as assumed.

    Args:
        model: a model of this package.
        source: path of an `.npz`, `.safetensors`, `.weights.h5`, `.weights.json` or `.keras` file or of a folder with
            `config.json` and `model.safetensors`; name of a release; or `hf://org/repo`. See `create_model`.
        layout: naming scheme of the arrays: `auto`, `official` (vit_jax, big_vision, BiT), `timm`, `huggingface`,
            `microsoft` (Swin), `original` (the authors of other families) or `keras`.
        resize: resize method of position embeddings, see `resize_position_embedding`; or `authors`, `timm` or
            `huggingface` for the method of that code. The model keeps such a method. `auto` uses the authors' for
            published families and for the tables of 2-D offsets, otherwise that of the file's layout.
        head: `auto` loads the head. It sets it to zero if the file has none, or one with another number of classes;
            any other difference is an error. `load` requires it to match; `reinitialise` sets it to zero.

    Returns:
        A `LoadReport`, which is also logged to `keras_vit` at level INFO.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if an array is missing, unexpected, damaged, of another shape or of integers, or the file states
            another architecture; the message lists all differences.

    Warns:
        UserWarning: if the file states a GELU or epsilon other than the model's, or its head is all zeros.
    """
    checks.check_choice("head", head, HEAD_CHOICES)
    checks.check_choice("resize", resize, RESIZE_CHOICES)
    if lora_layers(model):
        raise ValueError(f"model must have no LoRA for load_weights (load before add_lora); {model.name} has")
    checkpoint = open_checkpoint(fetch(locate(source, model.config.name, model.config.fixed_size)))
    plan = make_plan(model, read_evidence(checkpoint, model.config.network, layout), resize, head)
    # `build_loaded` need not: no model changes if an array turns out to be damaged.
    check_all(plan.evidence.checkpoint.entries[name] for name in plan.report.used)
    # TensorFlow keeps the memory of replaced values for others; in this order, it can use most of it again.
    variables = sorted(model.weights, key=lambda variable: math.prod(variable.shape))
    values = read_ahead(plan.values, [id(variable) for variable in variables])
    for variable in variables:
        variable.assign(values[id(variable)]())
    record_on(plan, model)
    for text in plan.warnings:
        warnings.warn(text, stacklevel=2)
    LOGGER.info(plan.report)
    return plan.report


def record_on(plan, model):
    """Record the source of the weights on a model, and what the user chose, or the file states, if the model has none.

    The preprocessing of a model of `build_loaded` is known already, unless nothing states it.

    Args:
        plan: the `Plan` that was carried out.
        model: its model.
    """
    evidence = plan.evidence
    model.weights_source = f"{evidence.checkpoint.path.name} ({evidence.library} names)"
    model.weights_path = evidence.checkpoint.path
    model.names_prefix, model.table_method = evidence.names_start, plan.table_method
    if plan.new_config is not None:
        keep_resize(model, plan.new_config)
    of_file = evidence.preprocessing
    model.max_tokens = of_file and of_file.max_tokens
    if not plan.head_loaded or model.preprocessing_source != "default":
        return
    if (preprocessing := suited(model.config, of_file)) is not None:
        is_native = model.config.field("embedding.images_per_sequence")
        patches = model.config.field("patch_size"), of_file.max_tokens or 256
        model.preprocessing = preprocessing.native(*patches) if is_native else preprocessing
    elif evidence.library in _SEVERAL_PROTOCOLS:
        model.assume_preprocessing()


def build_loaded(resolved, evidence, resize="auto", preprocessing=None, labels=None, name=None):
    """Build the model that a file holds, with its weights, and log the report.

    Args:
        resolved: what the file holds, see `resolve`.
        evidence: its `Evidence`.
        resize: see `load_weights`.
        preprocessing, labels, name: as in `ImageModel`; None uses those of the file, or of its variant or
            family.
    """
    about = {"preprocessing": preprocessing or resolved.preprocessing, "labels": labels, "name": name}
    model, pending = build_deferred(lambda: build_model(resolved.config, **about))
    plan = make_plan(model, evidence, resize)
    initialise(pending, read_ahead(plan.values, [id(variable) for variable in pending if id(variable) in plan.values]))
    record_on(plan, model)
    notes = [*plan.report.notes, *resolved.notes]
    if labels is None and plan.head_loaded:
        model.labels = resolved.labels
        notes += [resolved.assumption] if resolved.assumption else []
    LOGGER.info(dataclasses.replace(plan.report, notes=tuple(notes), sources=resolved.sources))
    return model


def load_whole(path, given, compile=True):
    """Return the model of a `.keras` file.

    Args:
        path: path of the file.
        given: dict of the arguments that the user gave; None stands for no value.
        compile: whether to compile it as the saved model was.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged, or if the user gave a value, because the file states the whole model.
    """
    for argument, value in given.items():
        if value is not None:
            file, changed = repr(str(path)), {argument: value}
            raise ValueError(
                f"{file} states its whole model, so {argument} must be None; got {value!r} (load it without arguments; "
                "set model.labels or model.preprocessing, use keras_vit.resize(model, image_size, method), or make new "
                f"= type(model)(model.config.replace(**{changed}), preprocessing=model.preprocessing), "
                f"then keras_vit.load_weights(new, {file}))"
            )
    checkpoint = open_checkpoint(path)
    class_name = (checkpoint.config_json or {}).get("registered_name")
    known = keras.saving.get_registered_object(str(class_name))
    if isinstance(known, type) and issubclass(known, TaskModel):
        with named(repr(str(path))):
            return keras.saving.load_model(path, compile=compile)
    read_evidence(checkpoint)  # raises a clear error on a damaged file
    return check_model(keras.saving.load_model(path, compile=compile))


def read_ahead(reads, order):
    """Return callables with the same results, and read their arrays in advance, in threads.

    Args:
        reads: dict of callables without arguments.
        order: its keys, in the order in which they will be called.

    Returns:
        Dict from each key of `order` to a callable, which raises the error of reading its array, if any. Each callable
        returns the next array of `order`, so they must be called in this order. At most two arrays wait in memory.
    """
    arrays = progress(_stream([reads[key] for key in order]), len(order), "array")
    return {key: functools.partial(next, arrays) for key in order}


def check_all(entries):
    """Check each `Entry` in threads and raise its error; an entry without `check` is read and dropped."""
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda entry: (entry.check or entry.read)(), entries))


def _stream(reads):
    reads = iter(reads)
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        running = collections.deque(pool.submit(read) for read in itertools.islice(reads, _THREADS))
        while running:
            array = running.popleft().result()
            running.extend(pool.submit(read) for read in itertools.islice(reads, 1))
            yield array
