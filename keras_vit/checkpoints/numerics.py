"""Numerics: the fields of a config that no array of a file shows and that change what the arrays compute."""

import json

from keras_vit.config import ResNetConfig

_FIELDS = ("gelu", "epsilon", "gn_epsilon", "std_epsilon", "max_pool_padding", "window_size")
_STEM_FIELDS = ("style", "gn_epsilon", "std_epsilon")
_KEY = "numerics"


def numerics_of(values):
    """Returns the numerics among the values of a config, `config.to_dict()`, and those of its stem: two dicts."""
    return _known(values, _FIELDS), _known(values.get("stem") or {}, _STEM_FIELDS)


def to_metadata(config):
    """What a file of weights has in its metadata, so that it is read back as what it was."""
    numerics, stem = numerics_of(config.to_dict())
    if isinstance(getattr(config, "stem", None), ResNetConfig):
        numerics["stem"] = stem
    return {_KEY: json.dumps(numerics)}


def from_metadata(checkpoint):
    """Returns the numerics that a file states, and those of its stem: two dicts, empty where it states none.

    Raises:
        ValueError: if the metadata is no JSON object of such fields.
    """
    text = checkpoint.metadata.get(_KEY)
    if text is None:
        return {}, {}
    try:
        values = json.loads(text)
        return numerics_of(values)
    except (ValueError, TypeError, AttributeError):
        raise ValueError(
            f"the metadata numerics of {str(checkpoint.path)!r} must be a JSON object; got {text!r}"
        ) from None


def _known(values, names):
    return {name: values[name] for name in names if values.get(name) is not None}
