"""Statements about a model in JSON: our metadata, Keras's config, and the JSON files of other libraries."""

import contextlib
import dataclasses
from typing import Any

from keras_vit import checks
from keras_vit.checkpoints.config_keys import KEYS, checked, checked_value, flag, one_of
from keras_vit.checkpoints.foreign_names import find_foreign
from keras_vit.checkpoints.image_processors import (
    huggingface_preprocessing,
    timm_preprocessing,
    torchvision_preprocessing,
)
from keras_vit.checkpoints.readers import IMAGE_PROCESSOR, PROCESSOR
from keras_vit.checkpoints.timm_names import of_architecture, of_words
from keras_vit.checks import check_string
from keras_vit.config import ImageConfig, Preprocessing
from keras_vit.config.base import count_patches
from keras_vit.config.unseen import KEY, from_text, unseen, with_usual
from keras_vit.files import read_toml
from keras_vit.layers.position_grid import square_grid
from keras_vit.models import MODELS

_TYPES = read_toml("checkpoints/huggingface.toml")
HF_TYPES = {name: _TYPES[row.get("tower", name)] for name, row in _TYPES.items()}  # the model types of transformers
# problem_type -> `classifier_activation`, for the scores that transformers' `ImageClassificationPipeline` returns
PROBLEMS = {"single_label_classification": None, "multi_label_classification": "sigmoid", "regression": "linear"}
_TIMM_KEYS = ("architecture", "model_args", "global_pool", "pretrained_cfg", "input_size")  # the last: timm < 0.9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stated:
    """What a file states.

    Attributes:
        stated: dict from any fields of our configs to values, with dots for nested ones. Our own metadata states those
            with `About.unseen`.
        stored_grid: (rows, columns) of its position table, None if the file states no image size.
        labels: tuple of class names, or None.
        preprocessing: `Preprocessing`, or None.
        notes: tuple of strings about the file.
        published: families of families.toml that the file belongs to, the likeliest first; empty if it states none.
        timm_name: name of timm's architecture, or None.
        timm_file: name of the file in timm, `architecture.tag`, or None.
        image_size: (height, width) in pixels, or None.
        saved_config: the whole config that our metadata states, or None.
        task: model type of a task model in transformers, or None.
    """

    stated: dict[str, Any] = dataclasses.field(default_factory=dict)
    stored_grid: tuple | None = None
    labels: tuple | None = None
    preprocessing: Preprocessing | None = None
    notes: tuple = ()
    published: tuple = ()
    timm_name: str | None = None
    timm_file: str | None = None
    image_size: tuple | None = None
    saved_config: ImageConfig | None = None
    task: str | None = None


def read_stated(checkpoint, network, library):
    """Return the `Stated` of a file: config.json wins over our metadata.

    Args:
        checkpoint: see `readers.open_checkpoint`.
        network: `network` of the config of its model.
        library: whose names the arrays have, such as `timm`; None for a file from Keras.

    Raises:
        ValueError: if a value has the wrong type or the package does not support the architecture; the message names
            the file.
    """
    path, values = checkpoint.path, checkpoint.config_json
    if library is None and values is not None:
        return _read_keras(path, values)
    theirs, classifier_activation, of_timm_name, notes = Stated(), None, {}, ()
    if values is not None:
        with named(repr(str(path.parent / ("open_clip_config.json" if "model_cfg" in values else "config.json")))):
            if "model_cfg" in values:
                theirs = _read_openclip(values)
            elif any(key in values for key in _TIMM_KEYS):
                theirs = _read_timm(values, network, library, checkpoint.entries)
            else:
                theirs = _read_huggingface(values, network)
            if (problem := values.get("problem_type")) is not None:
                classifier_activation = one_of("problem_type", problem, PROBLEMS)
            if theirs.timm_name is not None and network == "vit":
                of_timm_name, notes = of_architecture(theirs.timm_name, theirs.stated, checkpoint.entries)
    preprocessing, processor = theirs.preprocessing, checkpoint.processor
    if processor is not None:
        with named(repr(str(path.parent / (PROCESSOR if "image_processor" in processor else IMAGE_PROCESSOR)))):
            processor_class = HF_TYPES.get((values or {}).get("model_type"), {}).get("processor")
            values_of_images = processor.get("image_processor", processor)
            preprocessing = preprocessing or huggingface_preprocessing(values_of_images, processor_class)
    with named(f"the metadata of {str(path)!r}"):
        ours = from_text(checkpoint.metadata.get(KEY), str(path))
        if "preprocessing" in ours:
            is_of_save = bool(processor) and processor == ours.get("processor")
            preprocessing = _exact(preprocessing, ours["preprocessing"], is_of_save)
        labels = theirs.labels or _labels("labels", ours.get("labels"))
    saved = ours["model"]
    classifier_activation = classifier_activation or (saved and saved.classifier_activation)
    of_head = {"classifier_activation": classifier_activation} if classifier_activation else {}
    stated = ours["config"] | of_head | of_timm_name | theirs.stated
    return dataclasses.replace(
        theirs,
        stated=stated,
        stored_grid=theirs.stored_grid or ours.get("grid_size"),
        labels=labels,
        preprocessing=preprocessing,
        notes=theirs.notes + notes,
        image_size=theirs.image_size or ours.get("image_size"),
        saved_config=saved,
    )


@contextlib.contextmanager
def named(file):
    """Add the file to an error; the errors from Python, such as a missing key, mean an invalid structure."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        reason = str(error) if type(error) is ValueError else f"its structure is invalid: {error!r}"
        raise ValueError(f"{file}: {checks.shortened(reason)}") from error


def _exact(preprocessing, ours, is_of_save):
    """Return the preprocessing of our metadata if that of the JSON files is the same, as far as they can say it.

    A preprocessor_config.json has no rounding and a single bilinear interpolation.

    Args:
        preprocessing: `Preprocessing` of the JSON files, None without one.
        ours: dict of a `Preprocessing`, from the metadata.
        is_of_save: whether the JSON file is the one that `save_weights` wrote.
    """
    # The same weights fit a model with `include_preprocessing` and one without.
    exact = Preprocessing.from_dict({**ours, "in_model": False})
    kind = "bilinear_antialias" if exact.interpolation == "bilinear" else exact.interpolation
    alike = exact.replace(rounding="transformers", interpolation=kind)
    if preprocessing is None or is_of_save or alike in (preprocessing, preprocessing.at(preprocessing.image_size)):
        return exact  # `at` leaves out what is about sequences of patches
    return preprocessing


def _read_keras(path, values):
    """Return the contents of the config.json in a `.keras` file, which has the whole config of its model."""
    with named(f"config.json in {str(path)!r}"):
        held = values.get("config", {})
        if not isinstance(held.get("config"), dict):
            hint = " (keras.models.load_model(path).encoder is one)" if "encoder" in held else ""
            got = values.get("class_name")
            raise ValueError(f"the file must hold a model of keras_vit with a config; got {got!r}{hint}")
        labels = held["labels"] and checks.check_sequence("labels", held["labels"], "names", _class_name)
        preprocessing = Preprocessing.from_dict(held["preprocessing"])
        about = {"labels": labels, "preprocessing": preprocessing}
        config = next((config for config, model in MODELS.items() if model.__name__ == values.get("class_name")), None)
        saved = config and config.from_dict(held["config"])
        return Stated(stated=with_usual(unseen(held["config"])), saved_config=saved, **about)


# --- Hugging Face


def _read_huggingface(values, network):
    known = [name for name, row in HF_TYPES.items() if row["network"] == network]
    model_type = values.get("model_type", known[0] if known else None)
    if model_type not in known:
        raise ValueError(f"model_type must be one of {', '.join(map(repr, known)) or None}; got {model_type!r}")
    row, labels = HF_TYPES[model_type], read_labels(values)
    if "task" in row or "encoder" in row:
        encoder, is_hybrid = values.get(row.get("encoder")), flag(values, "is_hybrid")  # that of a hybrid is its ResNet
        if encoder is None or is_hybrid:
            encoder = {**row.get("defaults", {}), **values, "model_type": row["task"]}
        elif "encoders" in row:
            checked_value("model_type in backbone_config", encoder.get("model_type"), row["encoders"])
        of_task = ("apply_layernorm",)  # whether the head reads the final norm of the encoder
        of_encoder = _read_huggingface({key: encoder[key] for key in encoder if key not in of_task}, network)
        if is_hybrid:
            of_encoder.stated["patch_size"] = (1, 1)  # cells of the map of the ResNet, of 16 pixels each
        return dataclasses.replace(of_encoder, task=model_type, labels=labels, notes=())
    values = values["vision_config"] if isinstance(values.get("vision_config"), dict) else values
    values = {**row.get("defaults", {}), **values}
    fields, unread = checked(values, KEYS[row["dialect"]])
    if flag(values, "is_native"):
        fields["position_embedding"] = "sincos2d_mae"
    if row["dialect"] == "dinov3":
        if (fields["gelu"] == "silu") != fields["block.gated"]:
            raise ValueError(f"hidden_act must be 'silu' with use_gated_mlp, else a GELU; got {values['hidden_act']!r}")
        if fields["block.gated"]:
            del fields["gelu"]
    sizes = _sizes(values.get("image_size"), fields.get("patch_size"), "image_size")
    sizes = {"stored_grid": square_grid(values["num_patches"])} if row["dialect"] == "siglip2" else sizes
    listed = checks.shortened(", ".join(unread))
    notes = (f"config.json also has {listed}, which keras_vit does not read",) if unread else ()
    fields, published = {**fields, **row.get("config", {})}, tuple(row.get("published", ()))
    return Stated(stated=fields, labels=labels, notes=notes, published=published, **sizes)


def read_labels(values):
    """Return the tuple of class names of a config.json of transformers, or None."""
    return _labels("id2label", values.get("id2label"))


def count_labels(values):
    """Return the number of classes of a config.json of transformers."""
    labels = values.get("id2label")
    return checks.check_integer("num_labels", values.get("num_labels", 2)) if labels is None else len(labels)


# --- OpenCLIP


def _read_openclip(values):
    """Read an open_clip_config.json; `vision_cfg` describes the image tower, or names a model of timm."""
    model = values["model_cfg"]
    vision, images = dict(model["vision_cfg"]), values.get("preprocess_cfg") or {}
    size = checks.check_pair("image_size in vision_cfg", vision.get("image_size", 224))
    preprocessing = torchvision_preprocessing("openclip", images, size, size)
    if "timm_model_name" in vision:
        architecture = check_string("timm_model_name", vision["timm_model_name"])
        if find_foreign(architecture) is None:
            raise ValueError(f"timm_model_name must be a model that keras_vit builds; got {architecture!r}")
        return Stated(preprocessing=preprocessing, timm_name=architecture)
    fields = openclip_fields(model, vision, "vision_cfg")
    fields["num_heads"] = fields["hidden_dim"] // checks.check_integer("head_width", vision.get("head_width", 64))
    if flag(vision, "final_ln_after_pool"):
        fields["norm_position"] = "after_pooling"
    published = ("clip",) if fields["gelu"] == "quick" else ("openclip",)
    sizes = _sizes(size, fields["patch_size"], "image_size in vision_cfg")
    return Stated(stated=fields, preprocessing=preprocessing, published=published, **sizes)


def openclip_fields(model, values, part):
    """Return the fields of our config that an open_clip_config.json states of a tower.

    Args:
        model: its `model_cfg`.
        values: dict of the values of the tower.
        part: `vision_cfg` or `text_cfg`.
    """
    act, norm = values.pop("act_kwargs", None) or {}, values.pop("norm_kwargs", None) or {}
    fields, _ = checked(values, KEYS[part], f" in {part}")
    approximate = one_of("approximate in act_kwargs", act.get("approximate", "none"), {"none": "erf", "tanh": "tanh"})
    fields["gelu"] = "quick" if flag(model, "quick_gelu") else approximate
    fields["epsilon"] = checks.check_epsilon("eps in norm_kwargs", norm.get("eps", 1e-5))
    return fields


# --- timm


def _read_timm(values, network, library, entries):
    arguments = of_words(values["architecture"], network) if values.get("architecture") is not None else {}
    if values.get("global_pool") is not None:
        arguments["global_pool"] = values["global_pool"]
    arguments = {**arguments, **(values.get("model_args") or {})}
    fields, _ = checked(arguments, KEYS["timm"], " in model_args")
    if library == "timm" and "pooling" in fields:  # a class token may exist without being pooled
        fields.setdefault("class_token", any(name.endswith("cls_token") for name in entries))
        if fields["pooling"] == "unpooled" and fields["class_token"]:  # timm returns all tokens
            fields["pooling"] = "token_unpooled"
        after, neck = "fc_norm.weight" in entries, "neck.0.weight" in entries  # the neck of SAM has norms of its own
        fields["norm_position"] = "after_pooling" if after else "none" if neck else "before_pooling"
    if library == "timm" and fields.get("pooling") == "map":
        fields.pop("class_token")  # attention pooling may read it
    sizes = _sizes(arguments.get("img_size"), fields.get("patch_size"), "img_size in model_args")
    labels = values.get("label_names")
    labels = _labels("label_names", dict(enumerate(labels)) if isinstance(labels, list) else labels)
    preprocessing = timm_preprocessing(values.get("pretrained_cfg") or values)
    architecture = values.get("architecture")
    tagged = f"{architecture}.{(values.get('pretrained_cfg') or {}).get('tag')}"
    about = {"labels": labels, "preprocessing": preprocessing, "timm_file": tagged}
    about["timm_name"] = tagged if find_foreign(tagged) is not None else architecture
    return Stated(stated=fields, **sizes, **about)


# --- all of them


def _sizes(image_size, patch_size, name):
    """Return the image size and its grid of patches as fields of `Stated`, {} if they are unknown."""
    if image_size is None or patch_size is None:
        return {}
    size = checks.check_pair(name, image_size)
    return {"image_size": size, "stored_grid": count_patches(size, patch_size)}


def _labels(key, names):
    """Return the class names in a dict from their indices; None for None and the placeholders LABEL_0, LABEL_1, ..."""
    if names is None:
        return None
    try:
        by_index = {int(index): name for index, name in names.items()}
    except (ValueError, AttributeError):
        raise ValueError(f"{key} must be an object with integer keys; got {names!r}") from None
    indices = range(len(names))
    if set(by_index) != set(indices):
        raise ValueError(f"{key} must have the keys 0 to {len(names) - 1}; got {list(names)}")
    labels = tuple(_class_name(f"{key}[{index}]", by_index[index]) for index in indices)
    return None if labels == tuple(f"LABEL_{index}" for index in indices) else labels


def _class_name(name, value):
    """Return a class name as a string; it may be a number."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(f"{name} must be a string; got {value!r}")
    return str(value)
