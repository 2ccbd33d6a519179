"""Tables: our variable path <-> the names in official, timm and Hugging Face files. Read in both directions.

A layout has `rules`, one per kind of variable, and `aliases`, which fold its dialects into the names the rules use.
"""

import dataclasses
import re

import numpy as np


@dataclasses.dataclass(frozen=True)
class Rule:
    """One variable of ours and the arrays it is made of, joined along its last axis.

    Attributes:
        ours: path of the variable; `{i}` stands for the number of the block.
        theirs: names in the file, one or several.
        form: how each piece of ours lies in the file, a key of `FORMS`.
    """

    ours: str
    theirs: tuple
    form: str = "same"


def _rules(form_of, rows):
    """Expands `(ours, theirs)` rows with the names of kernel and bias in a layout to one rule per array."""
    rules = []
    for ours, theirs, kind in rows:
        theirs = (theirs,) if isinstance(theirs, str) else theirs
        rules += [Rule(f"{ours}{mine}", tuple(t + other for t in theirs), form) for mine, other, form in form_of[kind]]
    return tuple(rules)


_FLAX = {
    "array": [("", "", "same")],
    "dense": [("/kernel", "/kernel", "same"), ("/bias", "/bias", "same")],
    "heads_out": [("/kernel", "/kernel", "heads_last"), ("/bias", "/bias", "heads_last")],
    "heads_in": [("/kernel", "/kernel", "heads_first"), ("/bias", "/bias", "same")],
    "norm": [("/gamma", "/scale", "same"), ("/beta", "/bias", "same")],
}
_TORCH = {
    "array": [("", "", "same")],
    "gamma": [("/gamma", "", "same")],
    "conv": [("/kernel", ".weight", "convolution"), ("/bias", ".bias", "same")],
    "dense": [("/kernel", ".weight", "transposed"), ("/bias", ".bias", "same")],
    "norm": [("/gamma", ".weight", "same"), ("/beta", ".bias", "same")],
}

_FLAX_BLOCK = "Transformer/encoderblock_{i}/"
_FLAX_ATTENTION = _FLAX_BLOCK + "MultiHeadDotProductAttention_1/"
_FLAX_MAP = "MAPHead_0/MultiHeadDotProductAttention_0/"

# The names of the published .npz files (vit_jax before linen), and big_vision's for attention pooling.
OFFICIAL_RULES = _rules(
    _FLAX,
    [
        ("patch_encoder/projection", "embedding", "dense"),
        ("class_token/class_token", "cls", "array"),
        ("block_{i}/norm1", _FLAX_BLOCK + "LayerNorm_0", "norm"),
        (
            "block_{i}/attention/query_key_value",
            tuple(_FLAX_ATTENTION + part for part in ("query", "key", "value")),
            "heads_out",
        ),
        ("block_{i}/attention/output_projection", _FLAX_ATTENTION + "out", "heads_in"),
        ("block_{i}/norm2", _FLAX_BLOCK + "LayerNorm_2", "norm"),
        ("block_{i}/mlp/dense1", _FLAX_BLOCK + "MlpBlock_3/Dense_0", "dense"),
        ("block_{i}/mlp/dense2", _FLAX_BLOCK + "MlpBlock_3/Dense_1", "dense"),
        ("encoder_norm", "Transformer/encoder_norm", "norm"),
        ("pooling/probe", "MAPHead_0/probe", "array"),
        ("pooling/query", _FLAX_MAP + "query", "heads_out"),
        ("pooling/key_value", (_FLAX_MAP + "key", _FLAX_MAP + "value"), "heads_out"),
        ("pooling/output_projection", _FLAX_MAP + "out", "heads_in"),
        ("pooling/norm", "MAPHead_0/LayerNorm_0", "norm"),
        ("pooling/mlp/dense1", "MAPHead_0/MlpBlock_0/Dense_0", "dense"),
        ("pooling/mlp/dense2", "MAPHead_0/MlpBlock_0/Dense_1", "dense"),
        ("pre_logits", "pre_logits", "dense"),
        ("head", "head", "dense"),
    ],
)

TIMM_RULES = _rules(
    _TORCH,
    [
        ("patch_encoder/projection", "patch_embed.proj", "conv"),
        ("class_token/class_token", "cls_token", "array"),
        ("class_token/registers", "reg_token", "array"),
        ("block_{i}/norm1", "blocks.{i}.norm1", "norm"),
        ("block_{i}/attention/query_key_value", "blocks.{i}.attn.qkv", "dense"),
        ("block_{i}/attention/query_norm", "blocks.{i}.attn.q_norm", "norm"),
        ("block_{i}/attention/key_norm", "blocks.{i}.attn.k_norm", "norm"),
        ("block_{i}/attention/output_projection", "blocks.{i}.attn.proj", "dense"),
        ("block_{i}/layer_scale1", "blocks.{i}.ls1.gamma", "gamma"),
        ("block_{i}/norm2", "blocks.{i}.norm2", "norm"),
        ("block_{i}/mlp/dense1", "blocks.{i}.mlp.fc1", "dense"),
        ("block_{i}/mlp/dense2", "blocks.{i}.mlp.fc2", "dense"),
        ("block_{i}/layer_scale2", "blocks.{i}.ls2.gamma", "gamma"),
        ("encoder_norm", "norm", "norm"),
        ("encoder_norm@after_pooling", "fc_norm", "norm"),
        ("pooling/probe", "attn_pool.latent", "array"),
        ("pooling/query", "attn_pool.q", "dense"),
        ("pooling/key_value", "attn_pool.kv", "dense"),
        ("pooling/output_projection", "attn_pool.proj", "dense"),
        ("pooling/norm", "attn_pool.norm", "norm"),
        ("pooling/mlp/dense1", "attn_pool.mlp.fc1", "dense"),
        ("pooling/mlp/dense2", "attn_pool.mlp.fc2", "dense"),
        ("pre_logits", "pre_logits.fc", "dense"),
        ("head", "head", "dense"),
    ],
)

_HF_ATTENTION = "encoder.layer.{i}.attention.attention."

# The names that transformers 4.x writes, without the prefix `vit.` of its classifiers.
HUGGINGFACE_RULES = _rules(
    _TORCH,
    [
        ("patch_encoder/projection", "embeddings.patch_embeddings.projection", "conv"),
        ("class_token/class_token", "embeddings.cls_token", "array"),
        ("block_{i}/norm1", "encoder.layer.{i}.layernorm_before", "norm"),
        (
            "block_{i}/attention/query_key_value",
            tuple(_HF_ATTENTION + part for part in ("query", "key", "value")),
            "dense",
        ),
        ("block_{i}/attention/output_projection", "encoder.layer.{i}.attention.output.dense", "dense"),
        ("block_{i}/norm2", "encoder.layer.{i}.layernorm_after", "norm"),
        ("block_{i}/mlp/dense1", "encoder.layer.{i}.intermediate.dense", "dense"),
        ("block_{i}/mlp/dense2", "encoder.layer.{i}.output.dense", "dense"),
        ("encoder_norm", "layernorm", "norm"),
        ("pre_logits", "pooler.dense", "dense"),
        ("head", "classifier", "dense"),
    ],
)

_LINEN_BLOCK = r"^(Transformer/encoderblock(?:_\d+)?/)"
_HF_5 = r"^layers\.(\d+)\."


@dataclasses.dataclass(frozen=True)
class Layout:
    """How one family of files names its arrays.

    Attributes:
        rules: see `Rule`.
        marker: regular expression; a folded name that matches shows that a file is of this layout.
        aliases: pairs (regular expression, replacement), applied in order to every name.
        ignored: regular expression of arrays that are no weights: buffers and optimizer state.
        position_tables: dict from the folded name of a position table to how many prefix rows it may have, as names
            of token counts, tried in order.
        gelu, epsilon: what the family was trained with.
        resize: how the family resizes position tables.
    """

    rules: tuple
    marker: str
    aliases: tuple
    ignored: str
    position_tables: dict
    gelu: str
    epsilon: float
    resize: str


LAYOUTS = {
    "official": Layout(
        rules=OFFICIAL_RULES,
        marker=r"^embedding/kernel$",
        aliases=(
            (r"^opt/target/", ""),
            (r"^params/", ""),
            (r"^img/", ""),
            (_LINEN_BLOCK + "LayerNorm_1/", r"\1LayerNorm_2/"),
            (_LINEN_BLOCK + "MultiHeadDotProductAttention_0/", r"\1MultiHeadDotProductAttention_1/"),
            (_LINEN_BLOCK + "MlpBlock_0/", r"\1MlpBlock_3/"),
            (r"^(probe$|MultiHeadDotProductAttention_0/|LayerNorm_0/|MlpBlock_0/)", r"MAPHead_0/\1"),
        ),
        ignored=r"^(opt/state/|opt/step$|step$|txt/|t$|b$)",
        position_tables={
            "Transformer/posembed_input/pos_embedding": ("class",),
            "Transformer/pos_embedding": ("class", "none"),
            "pos_embedding": ("none",),
        },
        gelu="tanh",
        epsilon=1e-6,
        resize="align_corners",
    ),
    "timm": Layout(
        rules=TIMM_RULES,
        marker=r"^patch_embed\.proj\.weight$",
        aliases=((r"^(blocks\.\d+)\.gamma_(\d)$", r"\1.ls\2.gamma"),),  # the names of the DeiT-III authors
        ignored=r"(\.attn_mask|\.relative_position_index)$",
        position_tables={"pos_embed": ("class and registers", "class", "none")},
        gelu="erf",
        epsilon=1e-6,
        resize="bicubic_antialias",
    ),
    "huggingface": Layout(
        rules=HUGGINGFACE_RULES,
        marker=r"^embeddings\.patch_embeddings\.projection\.weight$",
        aliases=(
            (r"^vit\.", ""),
            # transformers 5.x
            (_HF_5 + r"attention\.q_proj\.", r"encoder.layer.\1.attention.attention.query."),
            (_HF_5 + r"attention\.k_proj\.", r"encoder.layer.\1.attention.attention.key."),
            (_HF_5 + r"attention\.v_proj\.", r"encoder.layer.\1.attention.attention.value."),
            (_HF_5 + r"attention\.o_proj\.", r"encoder.layer.\1.attention.output.dense."),
            (_HF_5 + r"mlp\.fc1\.", r"encoder.layer.\1.intermediate.dense."),
            (_HF_5 + r"mlp\.fc2\.", r"encoder.layer.\1.output.dense."),
            (_HF_5, r"encoder.layer.\1."),
        ),
        ignored=r"^(embeddings\.mask_token|embeddings\.position_ids)$",
        position_tables={"embeddings.position_embeddings": ("class",)},
        gelu="erf",
        epsilon=1e-12,
        resize="bicubic",
    ),
}

_SCANNED = re.compile(r"^Transformer/encoderblock/")
_BLOCK = re.compile(r"^block_(\d+)/")


def fold(layout, name):
    """Returns the name that the rules of a layout use for an array of its files, whatever its dialect."""
    for pattern, replacement in LAYOUTS[layout].aliases:
        name = re.sub(pattern, replacement, name)
    return name


def detect(names):
    """Returns the layout of a file with these array names, or None."""
    for key, layout in LAYOUTS.items():
        if any(re.search(layout.marker, fold(key, name)) for name in names):
            return key
    return None


def is_scanned(folded):
    """Whether a folded official name holds all blocks, stacked along a leading axis."""
    return _SCANNED.search(folded) is not None


def of_block(folded, index):
    """The folded name of one block of a scanned array."""
    return _SCANNED.sub(f"Transformer/encoderblock_{index}/", folded)


def find_rule(layout, path, norm_position):
    """Returns the rule of a variable of ours with its block number filled in, or None if the layout has no such."""
    block = _BLOCK.match(path)
    template = _BLOCK.sub("block_{i}/", path)
    if norm_position == "after_pooling":
        template = template.replace("encoder_norm/", "encoder_norm@after_pooling/")
    rule = _BY_PATH[layout].get(template)
    if rule is None or block is None:
        return rule
    index = str(int(block[1]))
    return dataclasses.replace(rule, ours=path, theirs=tuple(name.replace("{i}", index) for name in rule.theirs))


_BY_PATH = {key: {rule.ours: rule for rule in layout.rules} for key, layout in LAYOUTS.items()}


def to_theirs(array, form, num_heads):
    """Lays one piece of a variable of ours out as the file has it."""
    return FORMS[form](array, num_heads)


def to_ours(array, form, shape):
    """Lays an array of a file out as the piece of ours, which has this shape."""
    return array.transpose(_INVERSE[form]) if form in _INVERSE else array.reshape(shape)


def theirs_shape(shape, form, num_heads):
    """The shape in the file of a piece of ours that has this shape."""
    return to_theirs(np.broadcast_to(0.0, shape), form, num_heads).shape


FORMS = {
    "same": lambda array, heads: array,
    "heads_last": lambda array, heads: array.reshape(*array.shape[:-1], heads, -1),  # (dim, heads, head_dim)
    "heads_first": lambda array, heads: array.reshape(heads, -1, array.shape[-1]),  # (heads, head_dim, dim)
    "transposed": lambda array, heads: array.transpose(1, 0),  # (out, in)
    "convolution": lambda array, heads: array.transpose(3, 2, 0, 1),  # (out, in, height, width)
}
_INVERSE = {"transposed": (1, 0), "convolution": (2, 3, 1, 0)}
