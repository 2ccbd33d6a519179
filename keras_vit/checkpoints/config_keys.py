"""The keys of JSON files of other libraries: the field of our config that each stands for, and its check."""

import functools
import re
from collections.abc import Callable

from keras_vit import checks
from keras_vit.files import read_table

_integer = functools.partial(checks.check_integer, maximum=2**20)  # what is larger could not be allocated
_CHECKS: dict[str, Callable] = {
    **{name: getattr(checks, f"check_{name}") for name in ("epsilon", "flag", "indices", "pair", "positive", "rate")},
    "count": functools.partial(_integer, minimum=0),
    "ignored": lambda name, value: None,
    "integer": _integer,
    "integers": functools.partial(checks.check_sequence, kind="integers", check=_integer),
    "integers, or one": lambda name, value: _CHECKS["integers" if isinstance(value, list) else "integer"](name, value),
    "rope": lambda name, value: checked(value, KEYS["rope"], f" in {name}")[0]["theta"],
    "small": functools.partial(_integer, maximum=1000),
}
_WITHOUT_ANY = ("rope", "timm", "vision_cfg", "text_cfg", "decoder")


def _read_keys():
    """Return {dialect: {key: (our field or None, check)}} of config_keys.tsv."""
    rows = read_table("checkpoints/config_keys.tsv", ("check",))
    dialects = dict.fromkeys(dialect for row in rows for dialect in row["dialects"].split())
    keys = {}
    for dialect in dialects:
        wanted = {dialect} if dialect in _WITHOUT_ANY else {dialect, "any"}
        found = (row for row in rows if wanted & set(row["dialects"].split()))
        keys[dialect] = {row["key"]: (row.get("field"), row["check"]) for row in found}
    return keys


KEYS: dict[str, dict] = _read_keys()


def checked(values, keys, place=""):
    """Return ({our field: value}, sorted unknown keys) of a config; `keys` is one of `KEYS`.

    With a `place`, the words for the config in messages, an unknown key raises an error.
    """
    fields, unknown = {}, []
    for key, value in values.items():
        field, check = next((row for pattern, row in keys.items() if re.fullmatch(pattern, key)), (None, None))
        if check is None:
            unknown.append(key)
        else:
            fields[field] = checked_value(f"{key}{place}", value, check)
    fields.pop(None, None)
    if unknown and place:
        raise ValueError(f"{min(unknown)}{place} is not supported by keras_vit; got {values[min(unknown)]!r}")
    return fields, sorted(unknown)


def checked_value(name, value, check):
    """Check a value of config.json and convert it to ours; config_keys.tsv explains `check`."""
    if isinstance(check, str):
        return _CHECKS[check](name, value)
    if isinstance(check, dict):
        return one_of(name, value, check)
    if not any(value is one or (type(value) is type(one) and value == one) for one in check):
        raise ValueError(f"{name} must be {' or '.join(map(repr, check))} for a model of keras_vit; got {value!r}")
    return value


def flag(values, key):
    """Return a flag of a config; False if it is absent or null."""
    return False if values.get(key) is None else checks.check_flag(key, values[key])


def one_of(name, value, choices):
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value not in choices:
        raise ValueError(f"{name} must be one of {list(choices)}; got {value!r}")
    return choices[value]
