"""What no array of a weights file shows: written into every file, and compared with the model when it is loaded."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from keras_vit.config.base import Config, ImageConfig

KEY = "keras_vit"  # in the metadata of .safetensors, the comment of .npz and the attributes of .weights.h5

# Fields whose other value computes nearly the same, so that a user may want it.
CLOSE = ("gelu", "epsilon", "gn_epsilon", "std_epsilon", "max_pool_padding")
# Fields whose other value is met by resizing tables, which the report lists.
RESIZED = ("window_size",)
# Fields that a new head may have otherwise.
OF_THE_HEAD = ("pooling", "norm_position", "class_token")

_FIELDS = (
    "num_heads",
    "pooling",
    "norm_position",
    "position_embedding",
    "position_placement",
    "window_size",
    "gelu",
    "epsilon",
    "gn_epsilon",
    "std_epsilon",
    "max_pool_padding",
)
_STEM = ("style", "gn_epsilon", "std_epsilon")
_ONE_TOKEN = ("token", "first")  # a norm of each token commutes with taking one of them
_POOLED = {"token_unpooled": "token", "unpooled": "gap"}  # the same head, on every token


class Difference(NamedTuple):
    """A field that a file states and a model has otherwise; that of a stem is `stem.NAME`."""

    name: str
    theirs: Any
    ours: Any

    @property
    def is_close(self) -> bool:
        """Whether the model computes nearly the same."""
        return self.name in CLOSE or self.name.startswith("stem.")

    def __str__(self):
        return f"the file states {self.name}={self.theirs!r}; the model has {self.ours!r}"


def unseen(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config that no array shows, those of a stem as `stem.NAME`.

    Args:
        values: the config as a dict, see `Config.to_dict`.
    """
    stem = values.get("stem") or {}
    found = {name: values[name] for name in _FIELDS if values.get(name) is not None}
    return found | {f"stem.{name}": stem[name] for name in _STEM if stem.get(name) is not None}


def differences(stated: Mapping[str, Any], config: ImageConfig) -> list[Difference]:
    """Return what a file states and a config has otherwise.

    Args:
        stated: dict from the names of fields to values, see `unseen`; what the config does not have is passed over.
        config: of the model.
    """
    found = []
    for name, theirs in stated.items():
        holder: Any = config
        *owner, field = name.split(".")
        if owner:
            holder = getattr(config, owner[0], None)
        if hasattr(holder, field):
            ours = bool(holder.num_class_tokens) if field == "class_token" else getattr(holder, field)
            is_the_same = name == "norm_position" and holder.pooling in _ONE_TOKEN
            if _comparable(theirs) != _comparable(ours) and not is_the_same:
                found.append(Difference(name, theirs, ours))
    return found


def to_text(config: ImageConfig, preprocessing: Config | None) -> str:
    """Return the JSON that a file of weights carries: the fields of `unseen`, the patch grid and the preprocessing.

    Args:
        config: of the model.
        preprocessing: `Preprocessing` of the model, None where nobody knows it.
    """
    values: dict[str, Any] = {"config": unseen(config.to_dict())}
    if hasattr(config, "grid_size"):
        values["grid_size"] = config.grid_size
    if preprocessing is not None:
        values["preprocessing"] = preprocessing.to_dict()
    return json.dumps(values)


def from_text(text: Any, name: str) -> dict[str, Any]:
    """Return the values of `to_text`; without a text, those of a file that states nothing.

    Args:
        text: the JSON, or None.
        name: of the file, for messages.

    Raises:
        ValueError: if it is no such JSON.
    """
    try:
        values = json.loads("{}" if text is None else text)
        return {**values, "config": dict(values.get("config", {}))}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"the metadata {KEY!r} of {name!r} must be what save_weights writes; got {text!r}") from None


def _comparable(value):
    value = list(value) if isinstance(value, tuple) else value
    return _POOLED.get(value, value) if isinstance(value, str) else value
