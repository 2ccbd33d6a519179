"""Config fields that weight arrays do not show; they are saved in every weights file and compared on loading."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from keras_vit import checks
from keras_vit.config.base import Config, ImageConfig, one_config_of
from keras_vit.config.fields import About, fields_of
from keras_vit.config.resnet import AxialResNetConfig, BiTConfig
from keras_vit.config.swin import SwinConfig
from keras_vit.config.vit import ViTConfig

KEY = "keras_vit"  # in the metadata of .safetensors, the comment of .npz and the attributes of .weights.h5

_CONFIGS = (ViTConfig, SwinConfig, BiTConfig, AxialResNetConfig)
_whole_config = one_config_of(*_CONFIGS)
DECLARED: dict[str, About] = {name: declared for one in _CONFIGS for name, declared in fields_of(one).items()}
_UNSEEN = tuple(name for name, declared in DECLARED.items() if declared.unseen)
# Fields that a file states only if they differ from these values, which most models have.
_USUAL = {name: DECLARED[name].default for name in _UNSEEN if DECLARED[name].usual}
_SIZES = ("grid_size", "image_size")
_ONE_TOKEN = ("token", "first")  # with one token, normalising before or after the pooling gives the same result
_POOLED = {"token_unpooled": "token", "unpooled": "gap"}  # the same head, applied to every token


class Difference(NamedTuple):
    """A field whose value in a file differs from the model's; that of a nested config has a dot in its name."""

    name: str
    theirs: Any
    ours: Any

    @property
    def about(self) -> About:
        """Return the declaration of the field."""
        return DECLARED[self.name]

    @property
    def is_close(self) -> bool:
        """Return whether both values give nearly the same outputs."""
        # QuickGELU is not close to the others.
        return self.about.close and not (self.name == "gelu" and "quick" in (self.theirs, self.ours))

    def __str__(self):
        return f"the file states {self.name}={checks.quoted(self.theirs)}; the model has {self.ours!r}"


def unseen(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config fields that no array shows; those of a nested config have a dot in their names.

    Args:
        values: the config as a dict, see `Config.to_dict`.
    """
    found = {}
    for name in _UNSEEN:
        value: Any = values
        for part in name.split("."):
            value = None if value is None else value.get(part)
        if value is not None and value != _USUAL.get(name):
            found[name] = value
    return found


def with_usual(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `unseen`, with usual values for those left out; a config without such fields ignores them.

    Args:
        fields: see `unseen`.
    """
    return {**_USUAL, **fields}


def differences(stated: Mapping[str, Any], config: ImageConfig) -> list[Difference]:
    """Return the fields whose value in a file differs from the config's.

    Args:
        stated: dict from field names to values, see `unseen`; fields that the config does not have are ignored.
        config: config of the model.
    """
    found = []
    for name, theirs in stated.items():
        owner = name.partition(".")[0]
        if hasattr(config, owner) and (owner != "stem" or config.field("stem") is not None):
            ours = bool(config.field("num_class_tokens")) if name == "class_token" else config.field(name)
            is_the_same = name == "norm_position" and config.field("pooling") in _ONE_TOKEN
            if name == "head.map_heads":  # None stands for those of the blocks
                theirs, ours = theirs or config.field("num_heads"), ours or config.field("num_heads")
            if _comparable(theirs) != _comparable(ours) and not is_the_same:
                found.append(Difference(name, theirs, ours))
    return found


def to_text(config: ImageConfig, preprocessing: Config | None, **more: Any) -> str:
    """Return the metadata of a weights file as JSON.

    It holds the fields of `unseen`, the patch grid, the image size if the grid does not show it, and the preprocessing.

    Args:
        config: config of the model.
        preprocessing: `Preprocessing` of the model, None if it is unknown.
        **more: further values: `model` of `whole`, `labels` by index, and `processor`, the values of a
            preprocessor_config.json; None leaves one out.
    """
    values: dict[str, Any] = {"config": unseen(config.to_dict())}
    if hasattr(config, "grid_size"):
        values["grid_size"] = getattr(config, "table_grid", config.grid_size)
    if config.field("covered_size") not in (None, config.image_size):  # the grid does not show the size
        values["image_size"] = config.image_size
    if preprocessing is not None:
        values["preprocessing"] = preprocessing.to_dict()
    return json.dumps(values | {name: value for name, value in more.items() if value is not None})


def whole(config: ImageConfig) -> dict[str, Any]:
    """Return a config as a dict, without the fields about how a model runs.

    Args:
        config: config of the model.
    """
    values = {"class_name": type(config).__name__, **config.to_dict()}
    return {name: value for name, value in values.items() if name not in DECLARED or not DECLARED[name].runtime}


def from_text(text: Any, name: str) -> dict[str, Any]:
    """Parse the JSON that `to_text` returns; None stands for a file without metadata.

    The result has `model`, an `ImageConfig` or None, and `config`, a dict of fields. If the text has them, it also has
    `grid_size` and `image_size` as pairs, and `labels`, `preprocessing` and `processor` as they are.

    Args:
        text: the JSON, or None.
        name: name of the file, for error messages.

    Raises:
        ValueError: if the text is not JSON from `to_text`, or states other fields.
    """
    try:
        values = json.loads("{}" if text is None else text)
        config = dict(values.get("config", {}))
        model = _whole_config("model", values["model"]) if "model" in values else None
        sizes = {name: values[name] for name in _SIZES if values.get(name) is not None}
        sizes = {name: checks.check_pair(name, size) for name, size in sizes.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        got = f"{text!r:.200} ({error})"
        raise ValueError(f"the metadata {KEY!r} of {name!r} must be what save_weights writes; got {got}") from None
    unknown = [field for field in config if field not in _UNSEEN]
    if unknown:  # a file must not change other fields, such as the image size
        known = ", ".join(_UNSEEN)
        raise ValueError(f"the metadata {KEY!r} of {name!r} must state fields among {known}; got {unknown}")
    return {**values, **sizes, "config": config if text is None else with_usual(config), "model": model}


def _comparable(value):
    value = list(value) if isinstance(value, tuple) else value
    return _POOLED.get(value, value) if isinstance(value, str) else value
