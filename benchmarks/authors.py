"""Give models of transformers and timm the positions that the authors' code computes, for any image size.

Tables are resized with the functions of torch and scipy that the authors call. Everything is in float64.
"""

import functools
import math

import numpy as np


def set_positions(model, side, resize, angles, epsilon=None):
    """Change a model of transformers in place.

    Args:
        model: the model, in float64.
        side: number of rows and columns of patches.
        resize: method of resizing tables: an array (side, side, dim) and the new side -> (side, side, dim).
        angles: rotary angles (patches, head_dim / 2), or None.
        epsilon: epsilon of every norm; None leaves that of config.json.
    """
    import torch

    for layer in model.modules():
        if isinstance(layer, torch.nn.LayerNorm) and epsilon:
            layer.eps = epsilon
        elif hasattr(layer, "inv_freq"):  # rotary positions
            turns = torch.from_numpy(angles).tile(2)
            layer.forward = functools.partial(_constant, (turns.cos(), turns.sin()))
        elif hasattr(layer, "relative_position_bias_table"):
            bias = _attention_bias(layer.relative_position_bias_table, side, resize)
            layer.forward = functools.partial(_constant, bias)
        elif hasattr(layer, "interpolate_pos_encoding"):
            table = getattr(layer, "position_embeddings", getattr(layer, "position_embedding", None))
            table = table.weight[None] if isinstance(table, torch.nn.Embedding) else table
            if table is not None:
                layer.interpolate_pos_encoding = functools.partial(_constant, resized(table, side, resize))


def set_rotary(model, angles):
    """Give a model of timm these angles (patches, head_dim / 2); each belongs to two neighbouring channels."""
    import torch

    turns = torch.from_numpy(angles).repeat_interleave(2, dim=1)
    model.rope.get_embed = functools.partial(_constant, torch.cat([turns.sin(), turns.cos()], dim=-1))


def resized(table, side, resize):
    """Return a table (1, prefix + patches, dim) for another square grid, in float64."""
    import torch

    table = table.detach().double()
    old = math.isqrt(table.shape[1])
    prefix, patches = table[:, : table.shape[1] - old**2], table[:, table.shape[1] - old**2 :]
    if old != side:
        patches = torch.from_numpy(resize(patches.reshape(old, old, -1).numpy(), side)).reshape(1, side**2, -1)
    return torch.cat([prefix, patches], dim=1)


def interpolate(table, side, offset=None, **arguments):
    """Call torch.nn.functional.interpolate with the new size; with an offset, as DINOv2, with the factor."""
    import torch

    target = {"size": (side, side)} if offset is None else {"scale_factor": ((side + offset) / len(table),) * 2}
    image = torch.from_numpy(table).permute(2, 0, 1)[None]
    return torch.nn.functional.interpolate(image, **target, **arguments)[0].permute(1, 2, 0).numpy()


def spline(table, side):
    """Resize as BEiT: a cubic spline through the old offsets, whose distances grow geometrically."""
    import scipy.interpolate

    half, low, high = len(table) // 2, 1.01, 1.5
    while high - low > 1e-6:
        ratio = (low + high) / 2
        low, high = (low, ratio) if (1 - ratio**half) / (1 - ratio) > side // 2 else (ratio, high)
    places = np.cumsum(ratio ** np.arange(half))
    places, wanted = np.concatenate([-places[::-1], [0], places]), np.arange(side) - side // 2
    heads = np.moveaxis(table, -1, 0)
    return np.stack([scipy.interpolate.RectBivariateSpline(places, places, h)(wanted, wanted) for h in heads], axis=-1)


def rotary_angles(coordinates, theta, head_dim, is_columns_first=False):
    """Return the angles of each patch for the coordinates of the rows, which are also those of the columns."""
    frequencies = theta ** -(np.arange(head_dim // 4) * 4 / head_dim)
    y, x = np.meshgrid(coordinates, coordinates, indexing="ij")
    axes = (x, y) if is_columns_first else (y, x)
    return np.concatenate([axis.reshape(-1, 1) * frequencies for axis in axes], axis=1)


def _attention_bias(table, side, resize):
    """Return BEiT's bias of each pair of tokens, (1, heads, tokens, tokens), the class token first."""
    import torch

    offsets, of_class = resized(table[None, :-3], 2 * side - 1, resize)[0], table[-3:].detach().double()
    y, x = np.divmod(np.arange(side**2), side)
    index = (y[:, None] - y + side - 1) * (2 * side - 1) + x[:, None] - x + side - 1
    index = np.pad(index, ((1, 0), (1, 0)), constant_values=((len(offsets), 0), (len(offsets) + 1, 0)))
    index[0, 1:], index[0, 0] = len(offsets), len(offsets) + 2
    return torch.cat([offsets, of_class])[index].permute(2, 0, 1)[None]


def _constant(value, *arguments, **named):
    return value
