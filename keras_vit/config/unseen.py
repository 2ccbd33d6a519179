"""Config fields that weight arrays do not show; they are saved in every weights file and compared on loading."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from keras_vit.config.base import Config, ImageConfig

KEY = "keras_vit"  # in the metadata of .safetensors, the comment of .npz and the attributes of .weights.h5

# Another value of these fields gives nearly the same outputs, so it is accepted with a warning.
CLOSE = ("gelu", "epsilon", "gn_epsilon", "std_epsilon", "max_pool_padding")
# Another value of these fields is handled by resizing tables, which the report lists.
RESIZED = ("window_size",)
# Fields that may differ if the head is new.
OF_THE_HEAD = ("pooling", "norm_position", "class_token")

_FIELDS = ("num_heads", "pooling", "norm_position", "position_embedding", "position_placement", *RESIZED, *CLOSE)
_STEM = ("style", "gn_epsilon", "std_epsilon")
_ONE_TOKEN = ("token", "first")  # with one token, normalising before or after the pooling gives the same result
_POOLED = {"token_unpooled": "token", "unpooled": "gap"}  # the same head, applied to every token


class Difference(NamedTuple):
    """A field whose value in a file differs from the model's; a field of the stem is named `stem.NAME`."""

    name: str
    theirs: Any
    ours: Any

    @property
    def is_close(self) -> bool:
        """Return whether both values give nearly the same outputs."""
        return self.name in CLOSE or self.name.startswith("stem.")

    def __str__(self):
        return f"the file states {self.name}={self.theirs!r}; the model has {self.ours!r}"


def unseen(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config fields that no array shows; a stem's are named `stem.NAME`.

    Args:
        values: the config as a dict, see `Config.to_dict`.
    """
    stem = values.get("stem") or {}
    found = {name: values[name] for name in _FIELDS if values.get(name) is not None}
    return found | {f"stem.{name}": stem[name] for name in _STEM if stem.get(name) is not None}


def differences(stated: Mapping[str, Any], config: ImageConfig) -> list[Difference]:
    """Return the fields whose value in a file differs from the config's.

    Args:
        stated: dict from field names to values, see `unseen`; fields that the config does not have are ignored.
        config: config of the model.
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
    """Return the metadata of a weights file as JSON.

    It holds the fields of `unseen`, the patch grid and the preprocessing.

    Args:
        config: config of the model.
        preprocessing: `Preprocessing` of the model, None if it is unknown.
    """
    values: dict[str, Any] = {"config": unseen(config.to_dict())}
    if hasattr(config, "grid_size"):
        values["grid_size"] = config.grid_size
    if preprocessing is not None:
        values["preprocessing"] = preprocessing.to_dict()
    return json.dumps(values)


def from_text(text: Any, name: str) -> dict[str, Any]:
    """Parse the JSON that `to_text` returns; None stands for a file without metadata.

    Args:
        text: the JSON, or None.
        name: name of the file, for error messages.

    Raises:
        ValueError: if the text is not JSON from `to_text`, or states other fields.
    """
    try:
        values = json.loads("{}" if text is None else text)
        config = dict(values.get("config", {}))
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"the metadata {KEY!r} of {name!r} must be what save_weights writes; got {text!r}") from None
    known = [*_FIELDS, *(f"stem.{field}" for field in _STEM)]
    unknown = [field for field in config if field not in known]
    if unknown:  # a file must not change other fields, such as the image size
        raise ValueError(f"the metadata {KEY!r} of {name!r} must state fields among {', '.join(known)}; got {unknown}")
    return {**values, "config": config}


def _comparable(value):
    value = list(value) if isinstance(value, tuple) else value
    return _POOLED.get(value, value) if isinstance(value, str) else value
