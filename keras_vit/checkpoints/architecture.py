"""What the names and shapes of a file's arrays show about its model, as fields of `ViTConfig`."""

import math
import re

from keras_vit import checks
from keras_vit.checkpoints.names.rules import our_shape
from keras_vit.config.base import count_patches
from keras_vit.layers.position_grid import square_grid

_PLACEHOLDER = re.compile(r"\\{(\w+?)\\}")


def shown_variables(layout, entries):
    """Return {path of our variable: its shape} for the arrays of a file.

    A path has the form of `Rule.ours`, with numbers filled in: `block_0/mlp/dense1/kernel`, or
    `block_0@gated/mlp/dense1/kernel` if the arrays have the names of a variant.

    Args:
        layout: `Layout` of the file.
        entries: dict from folded name to `Entry`.
    """
    variables = {}
    for rule in layout.rules:
        pattern = re.compile(_PLACEHOLDER.sub(r"(?P<\1>\\d+)", re.escape(rule.theirs[0])))
        for name in entries:
            match = pattern.fullmatch(name)
            if match is None:
                continue
            numbers = {key: int(value) for key, value in match.groupdict().items()}
            pieces = [entries.get(theirs.format(**numbers)) for theirs in rule.theirs]
            if None in pieces:
                continue
            shape = list(our_shape(pieces[0].shape, rule.form))
            if shape and len(pieces) > 1:
                shape[rule.axis] = sum(our_shape(piece.shape, rule.form)[rule.axis] for piece in pieces)
            ours = {key.removesuffix("0"): number + key.endswith("0") for key, number in numbers.items()}
            variables[rule.ours.format(**ours)] = tuple(shape)
    return variables


def shown_fields(layout, entries, grid=None):
    """Return what a file shows of its ViT: {field of `ViTConfig`, with dots for nested ones: value}.

    Fields that names and shapes leave open are absent: `gelu`, `epsilon`, the kind of rotary positions, whether blocks
    normalise before or after, and often `num_heads`. Hybrids have a `stem` with its stages. `usual_pooling` is the
    pooling of most models with these arrays, where others have the same ones.

    Args:
        layout: `Layout` of the file.
        entries: dict from folded name to `Entry`.
        grid: (rows, columns) of its position table, None if they are unknown.

    Raises:
        ValueError: if the file has no patch projection or no blocks.
    """
    found = shown_variables(layout, entries)

    def has(path):
        return any(name in found for name in (path, *(f"{path}/{end}" for end in ("kernel", "gamma", "scale"))))

    def in_block(part):
        names = (name for name in found if re.fullmatch(rf"block_0(@\w+)?/{part}", name))
        return max(names, key=lambda name: "@" in name, default=None)  # a variant has more arrays

    kernel = "patch_encoder/projection/kernel"
    dense1, dense2 = in_block("mlp/dense1/kernel"), in_block("mlp/dense2/kernel")
    if kernel not in found or dense1 is None or dense2 is None:
        raise ValueError("a patch projection and the MLP of the first block were expected")
    if len(found[kernel]) != 4:
        raise ValueError(f"its patch projection must be a convolution of images; its kernel has shape {found[kernel]}")
    *patch_size, channels, dim = found[kernel]
    if (root := _root(found)) is not None:
        channels = root[2]  # those of the patches are the stem's
    mlp_dim = found[dense2][0]
    blocks = {int(match[1]) for name in found if (match := re.match(r"block_(\d+)", name))}
    tokens, registers = "class_token@distilled/class_token", "class_token/registers"
    theirs = {rule.ours: {*rule.theirs} for rule in layout.rules if rule.ours in found}
    if theirs.get(tokens, set()) & theirs.get(registers, set()):  # as in transformers: a register has no second head
        has_one_head = "head/kernel" in found or "pre_logits/kernel" in found
        del found[tokens if has_one_head and "head@distilled/kernel" not in found else registers]
    class_tokens = found.get(tokens) or found.get("class_token/class_token") or (1, 0, dim)
    fields = {
        "patch_size": tuple(patch_size),
        "channels": channels,
        "hidden_dim": dim,
        "num_layers": len(blocks),
        "mlp_dim": mlp_dim,
        "num_registers": found["class_token/registers"][1] if "class_token/registers" in found else 0,
        "distilled": class_tokens[1] == 2,
        "class_token": class_tokens[1] > 0,
        "qk_norm": in_block(r"attention/query_norm/(gamma|scale)") is not None,
        "embedding.patch_bias": "patch_encoder/projection/bias" in found,
        "embedding.patch_norm": has("patch_norm"),
        "embedding.pre_norm": has("pre_norm"),
        "block.norm": "layer" if in_block("norm1/beta") else "rms",
        "block.gated": found[dense1][-1] == 2 * mlp_dim,
        "block.bias": in_block("attention/proj/bias") is not None,
        "block.key_bias": in_block("attention/qkv/bias") is not None or in_block("attention/query_bias") is None,
        "block.attention_norm": in_block("attention/output_norm/(gamma|scale)") is not None,
        "block.mlp_norm": in_block("mlp/hidden_norm/(gamma|scale)") is not None,
        "qkv_bias": in_block("attention/(qkv/bias|query_bias)") is not None,
        "has_layer_scale": in_block("layer_scale1/gamma") is not None,
    }
    if "@parallel" in (in_block("norm1/(gamma|scale)") or ""):
        fields["block.order"] = "parallel"
    fields |= _stages(found)
    fields |= _positions(layout, entries, found, dim)
    fields |= _head(found, dim, has)
    fields |= _windows(found, dim, grid)
    fields |= layout.fields
    heads = found.get("attention_bias_0/embedding") or found.get("attention_bias/embedding")
    query_norm = in_block("attention/query_norm/(gamma|scale)")
    if heads:
        fields["num_heads"] = heads[1]
    elif query_norm:
        fields["num_heads"] = dim // found[query_norm][0]
    elif layout.suffix == ".npz":
        fields["num_heads"] = next(e.shape[1] for name, e in entries.items() if name.endswith("/query/kernel"))
    return fields


def _positions(layout, entries, found, dim):
    """Return the fields about positions, and `table_rows`, the rows of the position table if there is one."""
    if any(name.startswith("attention_bias") for name in found):
        placement = "shared" if "attention_bias/embedding" in found else "every"
        return {"position_embedding": "relative_2d", "position_placement": placement}
    if "position_embs/rows" in found:
        return {"position_embedding": "factorized", "embedding.resize": "bilinear"}  # as timm
    table = next((name for name in layout.position_tables if name in entries), None)
    if table is None:
        return {"position_embedding": "none"}
    shape = entries[table].shape
    rows = math.prod(shape) // dim if dim and len(shape) >= 2 and shape[-1] == dim else 0
    return {"position_embedding": "learned", "table_rows": rows}


def _windows(found, dim, grid):
    """Return the fields about windows and the neck; blocks whose tables have the size of the grid are global."""
    fields = {}
    if "neck/conv2/kernel" in found:
        is_pooled = "head/kernel" in found
        fields |= {"head.neck": found["neck/conv2/kernel"][-1], "pooling": "gap" if is_pooled else "unpooled"}
    end, sizes = "attention/relative_positions", {}
    for path in found:
        if match := re.fullmatch(rf"block_(\d+)/{end}/rows", path):
            shapes = found[path], found.get(f"block_{match[1]}/{end}/columns", (0,))
            sizes[int(match[1])] = tuple((shape[0] + 1) // 2 for shape in shapes)
            fields["num_heads"] = dim // max(found[path][-1], 1)
    if sizes:
        fields["window.relative_positions"] = True
        grid = grid or max(sizes.values())
        inside = [size[0] for size in sizes.values() if size != grid]
        if inside:  # otherwise windows of the size of the grid have equal tables
            indices = tuple(index for index in sorted(sizes) if sizes[index] == grid)
            fields |= {"window.size": inside[0], "window.global_blocks": indices}
    return fields


def _head(found, dim, has):
    """Return the fields about pooling, norm and head."""
    after, before = has("encoder_norm@after_pooling"), has("encoder_norm")
    fields = {"norm_position": "before_pooling" if before else "after_pooling" if after else "none"}
    width = dim
    if "pooling/probe" in found:
        fields["pooling"] = "map" if "pooling/query/kernel" in found else "aim"
        if "pooling/mlp/dense1/kernel" in found:
            fields["head.map_mlp_dim"] = found["pooling/mlp/dense1/kernel"][-1]
    elif after and not before:
        fields["usual_pooling"] = "gap"
    if "pre_logits/kernel" in found:
        width = fields["representation_size"] = found["pre_logits/kernel"][-1]
    kernel = found.get("head/kernel") or found.get("head@distilled/kernel")
    fields["include_top"] = any(re.match("head(_dist|@distilled)?/", path) for path in found)  # also a part of a head
    if kernel is not None:
        fields |= {"classes": kernel[-1], "head.bias": "head/bias" in found or "head@distilled/bias" in found}
        if width == dim and kernel[0] % dim == 0 and kernel[0] > dim:
            fields |= {"pooling": "token_gap", "head.num_blocks": kernel[0] // dim - 1}
    return fields


def _root(found):
    """Return the shape of the first kernel of a hybrid's ResNet, or None."""
    return found.get("root_conv/kernel") or found.get("root_conv@root_only/kernel")


def _stages(found):
    """Return the `stem` of a hybrid as a dict of `ResNetConfig`, or nothing."""
    if (root := _root(found)) is None:
        return {}
    units = [match for name in found if (match := re.match(r"stage_(\d+)/unit_(\d+)/conv1", name))]
    sizes = [0] * max((int(match[1]) for match in units), default=0)
    for match in units:
        sizes[int(match[1]) - 1] = max(sizes[int(match[1]) - 1], int(match[2]))
    return {"stem": {"stage_sizes": tuple(sizes), "width_factor": root[-1] / 64}}


def stride_of(fields):
    """Return the pixels of an image per cell of the map that is cut into patches; 1 without a stem.

    Args:
        fields: see `shown_fields`.
    """
    return 4 * 2 ** max(len(fields["stem"]["stage_sizes"]) - 1, 0) if fields.get("stem") else 1


def grid_of(fields):
    """Return the square (rows, columns) of a position table, and whether class tokens have rows in it.

    Args:
        fields: see `shown_fields`.

    Returns:
        Pair of the grid, None if the table is not square or there is none, and a boolean.
    """
    rows, prefix = fields.get("table_rows", 0), int(fields["class_token"]) + int(fields["distilled"])
    for count in dict.fromkeys((prefix, prefix + fields["num_registers"], 0)):
        if rows > count and square_grid(rows - count):
            return square_grid(rows - count), count >= prefix
    return None, True


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


def has_class_rows(fields, image_size):
    """Return whether class tokens have rows in a position table; a table for this image size need not be square.

    Args:
        fields: see `shown_fields`.
        image_size: (height, width) in pixels, or one integer.
    """
    cells = [-(-side // stride_of(fields)) for side in checks.check_pair("image_size", image_size)]
    patches = math.prod(count_patches(cells, fields["patch_size"]))
    prefix = int(fields["class_token"]) + int(fields["distilled"])
    if fields.get("table_rows") in (patches, patches + prefix):
        return fields["table_rows"] == patches + prefix
    return grid_of(fields)[1]


def note_on_size(config):
    """Return a note, in a tuple, if the patches of a model do not cover its images."""
    covered = config.field("covered_size")
    if not covered or (covered[0] >= config.image_size[0] and covered[1] >= config.image_size[1]):
        return ()
    read, size = (f"{height} x {width}" for height, width in (covered, config.image_size))
    return (f"the patches cover the top left {read} pixels of an image of {size}; the others are not used",)


def split_table(num_rows, prefixes, new_grid, stored_grid):
    """Find how many rows of a table are prefix rows, and which grid the others form.

    Args:
        num_rows: number of rows of the table.
        prefixes: numbers of prefix rows that the file may have, most likely first. A table that has the first number
            and the model's grid is not taken for another square grid.
        new_grid: (rows, columns) of the model.
        stored_grid: (rows, columns) that the file states, or None.

    Returns:
        Pair (number of prefix rows, grid of the table).

    Raises:
        ValueError: if the rows form no such grid, or contradict the stated one. Published files have square grids; any
            other grid must be stated or equal the model's.
    """
    grids = [(prefix, stored_grid or new_grid) for prefix in prefixes]
    grids = [(prefix, tuple(grid)) for prefix, grid in grids if num_rows - prefix == math.prod(grid)]
    if stored_grid is None and (not grids or grids[0][0] != next(iter(prefixes))):
        squares = [(prefix, square_grid(num_rows - prefix)) for prefix in prefixes if num_rows > prefix]
        squares = [(prefix, grid) for prefix, grid in squares if grid]
        grids = sorted(squares, key=lambda pair: pair[1] != tuple(new_grid)) or grids  # stable sort: the model's first
    if grids:
        return grids[0]
    if stored_grid is not None:
        stated = f"{stored_grid[0]} x {stored_grid[1]}"
        raise ValueError(f"the file states a grid of {stated} patches; its table has {num_rows} rows")
    raise ValueError(
        f"the position table must have a square grid of rows, or the model's {new_grid[0]} x {new_grid[1]}, after "
        f"{' or '.join(str(prefix) for prefix in prefixes)} prefix rows; got {num_rows} rows"
    )
