"""The mapping between our variable paths and the array names of other libraries, for every family.

The tables are in `vit.py`, `bit.py` and `swin.py`; `rules.py` defines their rows. Loading and saving use the same
tables.
"""

import dataclasses
import re

from keras_vit.checkpoints.names.bit import BIT_LAYOUTS
from keras_vit.checkpoints.names.rules import Layout, Rule, theirs_shape, to_ours, to_theirs
from keras_vit.checkpoints.names.swin import SWIN_LAYOUTS
from keras_vit.checkpoints.names.vit import VIT_LAYOUTS

__all__ = [
    "LAYOUTS",
    "LAYOUT_NAMES",
    "Layout",
    "Rule",
    "detect",
    "find_rule",
    "fold",
    "theirs_shape",
    "to_ours",
    "to_theirs",
]

# family of a config -> name of a layout -> Layout
LAYOUTS = {"vit": VIT_LAYOUTS, "bit": BIT_LAYOUTS, "swin": SWIN_LAYOUTS, "axial_resnet": {}}
LAYOUT_NAMES = tuple(dict.fromkeys(name for layouts in LAYOUTS.values() for name in layouts))

_SCANNED = re.compile(r"^Transformer/encoderblock/")
_NUMBERED = re.compile(r"(block|stage|unit)_(\d+)")


def fold(layout, name):
    """Return the name that the rules of a `Layout` use for an array of its files, in any dialect."""
    for pattern, replacement in layout.aliases:
        name = re.sub(pattern, replacement, name)
    return name


def detect(names, family):
    """Return the name of the layout of this family that matches these array names, or None."""
    return next((key for key, layout in LAYOUTS[family].items() if _is_of(layout, names)), None)


def _is_of(layout, names):
    if layout.foreign is not None and any(re.search(layout.foreign, name) for name in names):
        return False
    return any(re.search(layout.marker, fold(layout, name)) for name in names)


def is_scanned(folded):
    """Return whether a folded official name holds all blocks, stacked along a leading axis."""
    return _SCANNED.search(folded) is not None


def of_block(folded, index):
    """Return the folded name of one block of a scanned array."""
    return _SCANNED.sub(f"Transformer/encoderblock_{index}/", folded)


def find_rule(layout, path, config):
    """Return the rule of a model's variable with its numbers filled in, or None if the `Layout` has none."""
    numbers = {match[1]: int(match[2]) for match in _NUMBERED.finditer(path)}
    numbers |= {f"{name}0": number - 1 for name, number in numbers.items()}
    template = _NUMBERED.sub(r"\1_{\1}", path)
    layer, slash, rest = template.partition("/")
    variants = variants_of(config)
    spellings = [f"{layer}@{variant}{slash}{rest}" for variant in variants]
    if layer != "encoder_norm" or "after_pooling" not in variants:  # that norm is another layer, not another name
        spellings.append(template)
    rules = {rule.ours: rule for rule in layout.rules}
    rule = next((rules[spelling] for spelling in spellings if spelling in rules), None)
    if rule is None:
        return None
    return dataclasses.replace(rule, ours=path, theirs=tuple(name.format(**numbers) for name in rule.theirs))


def rules_of(layout, layer):
    """Return all rules of a `Layout` for the variables of one top-level layer, for every variant."""
    return [rule for rule in layout.rules if rule.ours.partition("/")[0].partition("@")[0] == layer]


def variants_of(config):
    """Return the layer variants of a config that have other names in files."""
    return [name for name, applies in _VARIANTS.items() if applies(config)]


_VARIANTS = {
    "after_pooling": lambda config: getattr(config, "norm_position", None) == "after_pooling",
    "distilled": lambda config: getattr(config, "distilled", False),
    "root_only": lambda config: getattr(getattr(config, "stem", None), "stage_sizes", None) == (),
}
