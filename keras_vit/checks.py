"""Argument checks shared by every floor: each error names the argument, the expectation and the value received."""

import difflib
import math
import numbers
import os
import pathlib
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

# names of timm, transformers and Keras -> ours, of arguments and of an argument's values
FOREIGN_NAMES = {
    "num_classes": "classes",
    "num_labels": "classes",
    "input_shape": "image_size",
    "img_size": "image_size",
    "input_size": "image_size",
    "embed_dim": "hidden_dim",
    "hidden_size": "hidden_dim",
    "depth": "num_layers",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "mlp_ratio": "mlp_dim",
    "intermediate_size": "mlp_dim",
    "global_pool": "pooling",
    "classifier": "pooling",
    "pretrained": "weights",
    "in_chans": "channels",
    "num_channels": "channels",
    "layer_norm_eps": "epsilon",
    "drop_rate": "dropout_rate",
    "attn_drop_rate": "attention_dropout_rate",
    "drop_path": "drop_path_rate",
    "reg_tokens": "num_registers",
    "init_values": "layer_scale_init",
    "act_layer": "gelu",
    "hidden_act": "gelu",
}
FOREIGN_VALUES = {"pooling": {"avg": "gap", "cls": "token"}}


def check_choice(name: str, value: T, choices: Collection[Any]) -> T:
    """Returns `value` if it is one of `choices`, else raises a `ValueError` that lists them."""
    if value not in choices:
        hint = suggestion(value, choices, foreign=FOREIGN_VALUES.get(name))
        raise ValueError(f"{name} must be one of {listed(choices, bool(hint))}; got {name}={value!r}{hint}")
    return value


def listed(choices: Collection[Any], has_hint: bool) -> str:
    """Returns the choices as a message lists them: the first three of more than a dozen, where one is suggested."""
    texts = [repr(choice) for choice in choices]
    if has_hint and len(texts) > 12:
        texts = [*texts[:3], f"... ({len(texts)} in all)"]
    return ", ".join(texts)


def suggestion(
    value: Any,
    choices: Collection[Any],
    most: int = 1,
    cutoff: float = 0.75,
    foreign: Mapping[str, str] | None = None,
) -> str:
    """Returns ` (did you mean 'ViT-Ti_16'?)` of the choices that are near, or have these initials; "" without any.

    Args:
        value: what was given in place of one of the choices.
        choices: all that there are.
        most: how many of them are suggested.
        cutoff: how near they must be, in [0, 1].
        foreign: dict from names of other libraries to ours: ` (keras_vit calls it 'classes')` of a choice among them.
    """
    ours = (foreign or {}).get(value) if isinstance(value, str) else None
    if ours in choices:
        return f" (keras_vit calls it {ours!r})"
    texts = {choice.lower(): choice for choice in choices if isinstance(choice, str)}
    word = value.lower() if isinstance(value, str) else ""
    near = difflib.get_close_matches(word, texts, most, cutoff) or [t for t in texts if _initials(t) == word][:most]
    return f" (did you mean {' or '.join(repr(texts[text]) for text in near)}?)" if near else ""


def _initials(text):
    """`"learning_rate"` -> `"lr"`; of one word nothing."""
    words = text.split("_")
    return "".join(word[:1] for word in words) if len(words) > 1 else None


def check_integer(name: str, value: Any, minimum: int = 1) -> int:
    """Returns `value` as an int of at least `minimum`; booleans and fractions are refused."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < minimum:
        raise ValueError(f"{name} must be an integer of at least {minimum}; got {name}={value!r}")
    return int(value)


def check_rate(name: str, value: Any) -> float:
    """Returns `value` as a float in [0, 1): a dropout or stochastic depth rate."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0.0 <= value < 1.0:
        raise ValueError(f"{name} must be a number in [0, 1); got {name}={value!r}")
    return float(value)


def check_positive(name: str, value: Any) -> float:
    """Returns `value` as a finite float above zero."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be a finite number above 0; got {name}={value!r}")
    return float(value)


def check_flag(name: str, value: Any) -> bool:
    """Returns `value` if it is a bool."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False; got {name}={value!r}")
    return value


def check_path(name: str, value: Any) -> pathlib.Path:
    """Returns `value` as a path; an empty string is refused, which would be the current folder."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be a path; got {type(value).__name__}")
    if not os.fspath(value):
        raise ValueError(f"{name} must be a path that is not empty ('.' is the current folder); got {name}={value!r}")
    return pathlib.Path(value)


def check_workdir(value: Any) -> pathlib.Path:
    """Returns the folder of a run as a path; a file is refused."""
    path = check_path("workdir", value)
    if path.exists() and not path.is_dir():
        raise ValueError(f"workdir must be a folder, or not exist yet; {path} is a file")
    return path


def check_pair(name: str, value: Any) -> tuple[int, int]:
    """Returns `value`, one integer or two, as a pair (height, width) of positive integers."""
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2:
        raise ValueError(f"{name} must be one integer or a pair (height, width); got {name}={value!r}")
    try:
        return check_integer(name, pair[0]), check_integer(name, pair[1])
    except ValueError:
        raise ValueError(
            f"{name} must be one positive integer or a pair (height, width) of them; got {name}={value!r}"
        ) from None


def check_divisible(name: str, value: tuple[int, ...], divisor_name: str, divisor: tuple[int, ...]) -> None:
    """Raises unless each side of the pair `value` is a multiple of the same side of the pair `divisor`."""
    if any(side % step for side, step in zip(value, divisor, strict=True)):
        nearest = tuple(max(1, round(side / step)) * step for side, step in zip(value, divisor, strict=True))
        raise ValueError(
            f"{name} must be divisible by {divisor_name}; got {name}={value}, {divisor_name}={divisor} "
            f"(did you mean {nearest}?)"
        )
