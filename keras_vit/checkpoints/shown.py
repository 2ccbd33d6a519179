"""What the names and shapes of a file's arrays show about its model, as fields of its config."""

import collections
import re

from keras_vit.checkpoints.names.rules import our_shape
from keras_vit.config import BiTConfig, SwinConfig, ViTConfig
from keras_vit.config.fields import fields_of
from keras_vit.layers.position_grid import square_grid

_CONFIGS = {config.network: config for config in (ViTConfig, SwinConfig, BiTConfig)}
_PLACEHOLDER = re.compile(r"\\{(\w+?)(:02d)?\\}")
_KERNEL = "patch_encoder/projection/kernel"
_ATTENTION_BIAS = "attention_bias(_0)?/(embedding|dense2/kernel)"
_NORMS = ("encoder_norm@after_pooling", "encoder_norm")
_DISTILLED, _REGISTERS = "class_token@distilled/class_token", "class_token/registers"


class Variables(dict):
    """The variables that a file has arrays for: {path: shape}.

    A path has the form of `Rule.ours`, with numbers filled in: `block_0/mlp/dense1/kernel`, or
    `block_0@gated/mlp/dense1/kernel` if the arrays have the names of that case (cases.toml).

    Args:
        layout: `Layout` of the file.
        entries: dict from folded name to `Entry`.
    """

    def __init__(self, layout, entries):
        super().__init__()
        alike = collections.defaultdict(list)  # by their names without numbers, which is fast
        for name in entries:
            alike[re.sub(r"\d+", "#", name)].append(name)
        for rule in layout.rules:
            first = rule.theirs[0]
            pattern = re.compile(_PLACEHOLDER.sub(r"(?P<\1>\\d+)", re.escape(first)))
            for name in alike.get(re.sub(r"\{[^}]+\}|\d+", "#", first), ()):
                if match := pattern.fullmatch(name):
                    self._add(rule, {key: int(value) for key, value in match.groupdict().items()}, entries)
        # A path of a case replaces the plain one: it is later in the order, as `@` is after `/`. Blocks are alike.
        self._first = {re.sub(r"@\w+", "", path): path for path in sorted(self) if not re.match(r"\w+?_[1-9]", path)}

    def _add(self, rule, numbers, entries):
        pieces = [entries.get(theirs.format(**numbers)) for theirs in rule.theirs]
        if None in pieces:
            return
        shape = list(our_shape(pieces[0].shape, rule.form))
        if shape and len(pieces) > 1:
            shape[rule.axis] = sum(our_shape(piece.shape, rule.form)[rule.axis] for piece in pieces)
        ours = {key.removesuffix("0"): number + key.endswith("0") for key, number in numbers.items()}
        self[rule.ours.format(**ours)] = tuple(shape)

    def path(self, pattern):
        """Return the path that a pattern matches without the name of a case, None without one."""
        paths = (path for plain, path in self._first.items() if path in self and re.fullmatch(pattern, plain))
        return next(paths, None)

    def shape(self, pattern):
        """Return the shape of the variable of `path`, None without one; `get` takes the exact path."""
        return self.get(self.path(pattern))

    def numbers(self, pattern):
        """Return the sorted tuples of the numbers that the groups of a pattern match at the start of a path."""
        found = (re.match(pattern, path) for path in self)
        return sorted({tuple(map(int, match.groups())) for match in found if match})


def shown_fields(network, layout, entries, grid=None, image_size=None):
    """Return what a file shows of its model.

    What names and shapes leave open is absent, such as the GELU, the epsilon and often the number of heads. A value of
    None is shown: the model has no such part.

    Args:
        network: `network` of the config, such as `vit`.
        layout: `Layout` of the file.
        entries: dict from folded name to `Entry`.
        grid: (rows, columns) of its position table, None if they are unknown.
        image_size: (height, width) of its images, None if they are unknown.

    Returns:
        Pair of dicts from fields of the config, with dots for nested ones, to values: those that the arrays show or the
        layout fixes (`Layout.fields`), and those that the arrays only suggest, as models with other values may have the
        same arrays.
    """
    found = Variables(layout, entries)
    _keep_one_meaning(found, layout)
    if len(found.get(_KERNEL, ())) != 4:  # patches of unknown sides
        found.pop(_KERNEL, None)
    shown = {}
    for name, declared in fields_of(_CONFIGS[network]).items():
        if declared.shown is not None:
            shape = found.shape(declared.shown)
            size = shape[declared.axis] if shape and declared.axis is not None else None
            if size is not None or not declared.required:
                shown[name] = size if declared.axis is not None else shape is not None
    kernel = found.get("head/kernel") or found.get("head@distilled/kernel")
    shown["include_top"] = any(re.match("head(_dist|@distilled)?/", path) for path in found)  # also a part of a head
    if kernel is not None:
        shown["classes"] = kernel[-1]
    size = image_size if network == "swin" else grid
    more, suggested = {"vit": _vit, "swin": _swin, "bit": _bit}[network](found, shown, layout, entries, size)
    return {**shown, **more, **layout.fields}, suggested


def _keep_one_meaning(found, layout):
    """Drop one of two variables that share an array: in transformers, a register is a second token without a head."""
    theirs = {rule.ours: {*rule.theirs} for rule in layout.rules if rule.ours in found}
    if theirs.get(_DISTILLED, set()) & theirs.get(_REGISTERS, set()):
        has_one_head = "head/kernel" in found or "pre_logits/kernel" in found
        del found[_DISTILLED if has_one_head and "head@distilled/kernel" not in found else _REGISTERS]


def _vit(found, shown, layout, entries, grid):
    kernel, dense1 = found.get(_KERNEL), found.shape("block_0/mlp/dense1/kernel")
    if kernel is None or dense1 is None or not shown.get("mlp_dim"):
        return {}, {}
    dim, blocks = shown["hidden_dim"], found.numbers(r"block_(\d+)")
    tokens = found.get(_DISTILLED) or found.get("class_token/class_token") or (1, 0, dim)
    fields = {
        "channels": kernel[2],
        "num_layers": len(blocks),
        "num_registers": shown["num_registers"] or 0,
        "distilled": tokens[1] == 2,
        "class_token": tokens[1] > 0,
        "block.norm": "layer" if found.shape("block_0/norm1/beta") else "rms",
        "block.gated": dense1[-1] == 2 * shown["mlp_dim"],
        "block.num_experts": max(len(found.numbers(r"block_0/mlp/expert_(\d+)/")), 1),
        "block.attention_bias": not shown["block.bias"] or found.shape("block_0/attention/proj/bias") is not None,
        "attention": "global",
    }
    if shown["qkv_bias"]:
        # where keys have biases, the names of those of queries and values are also those of two arrays
        biases = (found.shape(f"block_0/attention/{name}") for name in ("qkv/bias", "query_bias"))
        fields["block.key_bias"] = next(biases) is not None or next(biases) is None
    if "@parallel" in (found.path("block_0/norm1/(gamma|scale)") or ""):
        fields["block.order"] = "parallel"
    if found.shape("block_0/layer_scale1/gamma") is None:
        fields["layer_scale_init"] = None
    if (root := found.shape("root_conv/kernel")) is not None:
        fields |= {"channels": root[2], "stem.width_factor": root[-1] / 64, "stem.stage_sizes": _stage_sizes(found)}
    head, suggested = _head(found, shown, dim, layout)
    positions, of_positions = _positions(found, layout, entries, dim)
    windows, of_windows = _windows(found, dim, grid)
    fields |= {**positions, **head, **windows}
    if (frequencies := found.get("rotary/frequencies")) is not None and len(frequencies) == 4:
        fields |= {"block.rotary.kind": "mixed", "num_heads": frequencies[2]}
    elif (bias := found.shape(_ATTENTION_BIAS)) is not None:
        fields["num_heads"] = bias[-1]
    elif (norm := found.shape("block_0/attention/head_norm/scale")) is not None:
        fields |= {"attention": "differential", "num_heads": dim // norm[0]}
    elif (norm := found.shape("block_0/attention/query_norm/(gamma|scale)")) is not None:
        fields["num_heads"] = dim // norm[0]
    elif layout.suffix == ".npz":
        fields["num_heads"] = next(e.shape[1] for name, e in entries.items() if name.endswith("/query/kernel"))
    return fields, {**suggested, **of_positions, **of_windows}


def _positions(found, layout, entries, dim):
    """Return the fields about positions; a model without a table has none, or fixed ones."""
    if (bias := found.path(_ATTENTION_BIAS)) is not None:
        placement = "shared" if bias.startswith("attention_bias/") else "every"
        kind = "relative_2d" if bias.endswith("/embedding") else "relative_mlp"
        return {"position_embedding": kind, "position_placement": placement}, {}
    if "position_embs/rows" in found:
        return {"position_embedding": "factorized"}, {"embedding.resize": "bilinear"}  # as timm
    has_table = any(name in entries for name in layout.position_tables)
    return ({"position_embedding": "learned"}, {}) if has_table else ({}, {"position_embedding": "none"})


def _windows(found, dim, grid):
    """Return the fields about windows and the neck; blocks whose tables have the size of the grid are global."""
    fields, suggested, sizes = {}, {}, {}
    if "neck/conv2/kernel" in found:
        fields["pooling"] = "gap" if "head/kernel" in found else "unpooled"
    for (block,) in found.numbers(r"block_(\d+)/attention/relative_positions/rows"):
        path = f"block_{block}/attention/relative_positions"
        shapes = found[f"{path}/rows"], found.get(f"{path}/columns", (0,))
        sizes[block] = tuple((shape[0] + 1) // 2 for shape in shapes)
        fields["num_heads"] = dim // max(shapes[0][-1], 1)
    if sizes:
        suggested["window.relative_positions"] = True
        grid = grid or max(sizes.values())
        inside = [size[0] for size in sizes.values() if size != grid]
        if inside:  # otherwise windows of the size of the grid have equal tables
            indices = tuple(index for index in sizes if sizes[index] == grid)
            suggested |= {"window.size": inside[0], "window.global_blocks": indices}
    return fields, suggested


def _head(found, shown, dim, layout):
    """Return the fields about pooling, norm and head."""
    after, before = (any(path.startswith(f"{name}/") for path in found) for name in _NORMS)
    fields, suggested, names = {}, {}, {rule.ours: rule.theirs for rule in layout.rules}
    if names.get(f"{_NORMS[0]}/gamma") != names.get(f"{_NORMS[1]}/gamma"):  # otherwise both have one name
        fields["norm_position"] = "before_pooling" if before else "after_pooling" if after else "none"
    if "pooling/probe" in found:
        fields["pooling"] = "map" if "pooling/query/kernel" in found else "aim"
        fields["head.map_mlp_dim"] = (found.get("pooling/mlp/dense1/kernel") or (None,))[-1]
    elif after and not before:
        suggested["pooling"] = "gap"
    kernel = found.get("head/kernel") or found.get("head@distilled/kernel")
    if kernel is not None:
        fields["head.bias"] = "head/bias" in found or "head@distilled/bias" in found
        if shown["representation_size"] in (None, dim) and kernel[0] % dim == 0 and kernel[0] > dim:
            fields |= {"pooling": "token_gap", "head.num_blocks": kernel[0] // dim - 1}
    return fields, suggested


def _stage_sizes(found):
    """Return the number of units of each stage of a ResNet."""
    units = dict(found.numbers(r"stage_(\d+)/unit_(\d+)/conv1"))  # the last unit of each stage
    return tuple(units.get(stage + 1, 0) for stage in range(max(units, default=0)))


def _swin(found, shown, layout, entries, image_size):
    depths = collections.Counter(stage for stage, _ in found.numbers(r"stage_(\d+)_block_(\d+)/"))
    tables = [found.get(f"stage_{stage}_block_0/attention/relative_position_bias/embedding") for stage in depths]
    dense1, kernel = found.get("stage_1_block_0/mlp/dense1/kernel"), found.get(_KERNEL)
    if None in tables or dense1 is None or kernel is None:
        return {}, {}
    fields = {"depths": tuple(depths.values()), "num_heads": tuple(table[1] for table in tables)}
    fields |= {"mlp_ratio": dense1[-1] / dense1[0], "qkv_bias": "stage_1_block_0/attention/qkv/bias" in found}
    fields |= {"patch_size": kernel[:2], "channels": kernel[2]}
    sides = [(square_grid(table[0]) or (0,))[0] // 2 + 1 for table in tables]
    # One number gives smaller windows only in stages whose maps are smaller.
    if image_size is None:
        is_one = sides == sorted(sides, reverse=True)
    else:
        is_one = sides == [min(max(sides), -(-min(image_size) // (kernel[0] << stage))) for stage in range(len(sides))]
    return fields, {"window_size": max(sides) if is_one else tuple(sides)}


def _bit(found, shown, layout, entries, grid):
    root = found.get("root_conv/kernel")
    if root is None:
        return {}, {}
    return {"stage_sizes": _stage_sizes(found), "width_factor": root[-1] / 64, "channels": root[2]}, {}


def window_of(entries, num_others=0):
    """Return the side of the windows of the largest table of 2-D offsets, None without one.

    The tables of small maps have smaller windows.

    Args:
        entries: dict from folded name to `Entry`.
        num_others: number of rows of a table that are no offsets.
    """
    tables = [entry.shape for name, entry in entries.items() if name.endswith("_position_bias_table")]
    rows = max((shape[0] for shape in tables if len(shape) == 2), default=0) - num_others
    offsets = square_grid(rows) if rows > 0 else None
    return (offsets[0] + 1) // 2 if offsets else None
