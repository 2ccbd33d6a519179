"""What the name of a timm architecture states: its words, and what no array shows of the architecture itself."""

import re

from keras_vit import checks
from keras_vit.checkpoints.foreign_names import find_foreign
from keras_vit.config import ViTConfig
from keras_vit.config.fields import names_of
from keras_vit.files import read_table
from keras_vit.variants import VARIANTS

_WORDS = read_table("checkpoints/timm_names.tsv", ("arguments",))
# architectures without a row in foreign_names.tsv
_ARCHITECTURES = read_table("checkpoints/timm_architectures.tsv", ("fields",))
_KERNEL = re.compile(r"(patch_embed|embeds)\.proj\.weight$")


def of_words(architecture, network):
    """Return the `model_args` that the words in the name of a timm architecture state; no word states the heads.

    A name with other words must be one of foreign_names.tsv or timm_architectures.tsv; its variant states the rest.
    """
    arguments, is_known = {}, True
    for word in checks.check_string("architecture", architecture).split("_"):
        rows = ((row, re.fullmatch(row["word"], word)) for row in _WORDS if network in row["network"].split())
        row, match = next(((row, match) for row, match in rows if match), (None, None))
        if row is None:
            arguments, is_known = {}, False
            break
        arguments |= {key: int(match[1]) if value is None else value for key, value in row["arguments"].items()}
    if is_known or (network == "vit" and _hidden_fields(architecture)):
        return arguments
    raise ValueError(
        "architecture must be one that keras_vit builds, such as 'vit_base_patch16_224', "
        f"'deit3_small_patch16_224' or 'swin_tiny_patch4_window7_224'; got {architecture!r}"
    )


def check_parts(architecture):
    """Raise a `ValueError` if an architecture of timm, None for none, has a part that this package has not."""
    lacks = _hidden_fields(architecture).get("lacks") if isinstance(architecture, str) else None
    if lacks is not None:
        raise ValueError(f"architecture {architecture!r} has {lacks}, which keras_vit has not")


def of_architecture(architecture, fields, entries):
    """Return the fields that no array shows of a ViT's architecture, and notes: its heads are those of its width alone.

    Args:
        architecture: name of the architecture.
        fields: fields that the file states itself; those of the architecture are the defaults for them.
        entries: dict from array name to `Entry`.
    """
    found = _hidden_fields(architecture)
    width = found.pop("hidden_dim", None)
    widths = [entry.shape[0] for name, entry in entries.items() if _KERNEL.search(name) and entry.shape]
    if width in (None, *widths) or "hidden_dim" in fields:
        return found, ()
    note = f"{architecture} has hidden_dim={width}, which the file has not: its number of heads is not used"
    return {name: value for name, value in found.items() if not name.endswith("_heads")}, (note,)


def _hidden_fields(architecture):
    """Return the width of an architecture and what no array shows of it, {} if the tables do not have it."""
    foreign = find_foreign(architecture)
    if foreign is None:
        rows = (row["fields"] for row in _ARCHITECTURES if re.fullmatch(row["architecture"], architecture))
        return dict(next(rows, {}))
    config = VARIANTS[foreign.variant].reference
    hidden = {"hidden_dim", "epsilon", *names_of(ViTConfig, defines=True, unseen=True)}
    hidden -= {"position_placement"}  # arrays show it
    fields = {name: config.field(name) for name in hidden}
    fields |= {name: value for name, value in foreign.arguments.items() if name in fields}
    return {name: value for name, value in fields.items() if value is not None or name == "block.rotary.kind"}
