"""The attention blocks of a model: the positions of their tokens in the image, and their weights as tensors."""

import dataclasses
import numbers
from typing import Any

import keras
import numpy as np

from keras_vit import checks
from keras_vit.compat.graph import graph_calls, sublayers
from keras_vit.layers import (
    AttentionPooling,
    AxialTransformerBlock,
    ClassToken,
    GlobalAveragePooling,
    PatchEncoder,
    PatchMerging,
    SwinBlock,
    TokenPooling,
    TransformerBlock,
)
from keras_vit.layers.position_grid import square_grid
from keras_vit.models import MaskedPatchPrediction
from keras_vit.models.encoders import find_encoder

LAST_GRID: Any = object()  # a value of `layers`: the blocks that have the same grid as the last block


@dataclasses.dataclass(frozen=True)
class AttentionBlock:
    """The tokens of one block.

    Attributes:
        name: of the layer, such as `block_11`; an axial block is two, `block_11/row_block` and `block_11/column_block`.
        grid_size: (rows, columns) of the patch tokens.
        cell_size: (height, width) in pixels of the image part that a token represents.
        places: integers (groups, tokens). Tokens attend within their group (a window of Swin, a row or column of an
            axial model, otherwise all tokens). A place is the index of a grid cell by rows, and -1 for class,
            distillation and register tokens and for padding.
        is_grouped: whether weights have an axis of groups: (batch, groups, heads, query tokens, key tokens) instead of
            (batch, heads, query tokens, key tokens).
        read_token: position in the sequence of the token that the head reads, such as 0 for a class token; None if it
            reads the mean or another pooling of the patches.
    """

    name: str
    grid_size: tuple
    cell_size: tuple
    places: np.ndarray
    is_grouped: bool = False
    read_token: int | None = None


def global_block(name, grid_size, cell_size, num_prefix_tokens, read_token):
    """Return the `AttentionBlock` of a block with global attention; class and register tokens come first."""
    cells = np.arange(grid_size[0] * grid_size[1])
    places = np.concatenate([np.full(num_prefix_tokens, -1), cells])[None]
    return AttentionBlock(name, grid_size, cell_size, places, read_token=read_token)


def attention_graph(model, layers=None):
    """Build the graph from images to the attention weights of a model.

    Args:
        model: a model of this package with transformer blocks; a functional or sequential model built from its layers,
            or that calls such a model; or any other keras model that has one as a layer, which is then analysed on its
            own.
        layers: blocks, as in `attention_weights`; or `LAST_GRID`, those with the same grid as the last block.

    Returns:
        `(keras model from the images to the weights, list of `AttentionBlock`)`.

    Raises:
        TypeError: if `model` is not a keras model.
        ValueError: if it has no such blocks, several models with such blocks, or `layers` contains unknown blocks.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a keras model; got {type(model).__name__}")
    inputs, found = _find(model, layers)
    return keras.Model(inputs, [tensor for _, tensor in found]), [block for block, _ in found]


def as_list(outputs):
    """Return the outputs of a keras model as a list; a single output is not a list in Keras."""
    return outputs if isinstance(outputs, list) else [outputs]


def _find(model, layers):
    """Return the symbolic input of a model and the list of (AttentionBlock, weights) for `layers`."""
    if isinstance(model, MaskedPatchPrediction):  # its own graph corrupts the patches
        model = model.encoder
    nodes = graph_calls(model)
    if nodes is None:
        encoder = find_encoder(model)
        if encoder is None:
            raise _no_blocks(model)
        return _find(encoder, layers)
    if len(model.inputs) != 1:
        raise ValueError(f"model must have images as its one input; {model.name} has {len(model.inputs)} inputs")
    if any(isinstance(node.operation, tuple(_KINDS)) for node in nodes):
        return model.inputs[0], _choose(list(_blocks(nodes)), layers)
    inside = [node for node in nodes if isinstance(node.operation, keras.Model) and _attends(node.operation)]
    if len(inside) != 1 or graph_calls(inside[0].operation) is None:
        raise _no_blocks(model, len(inside))
    inputs, found = _find(inside[0].operation, layers)
    weights = as_list(keras.Model(inputs, [tensor for _, tensor in found])(inside[0].input_tensors[0]))
    return model.inputs[0], [(block, tensor) for (block, _), tensor in zip(found, weights, strict=True)]


def _attends(model):
    return any(isinstance(layer, tuple(_KINDS)) for layer in sublayers(model))


def _no_blocks(model, inside=0):
    name = getattr(getattr(model, "config", None), "name", model.name)
    several = {0: f"{name} has none", 1: f"the one in {name} has no graph, pass it directly"}
    return ValueError(
        "model must have transformer blocks with readable weights, as plain, hybrid, distilled and axial ViTs and "
        f"Swins do, or call one such model; {several.get(inside, f'{name} calls {inside} such models')}"
    )


def _blocks(nodes):
    """Yield (AttentionBlock, weights) for each block of a graph; patch merging makes the cells larger."""
    image_size, grid_size, merged, prefix = None, None, 1, (0, 0)
    read_token = _read_token([node.operation for node in nodes])
    for node in nodes:
        operation = node.operation
        if isinstance(operation, keras.layers.InputLayer) and len(node.outputs[0].shape) == 4:
            image_size = tuple(node.outputs[0].shape[1:3])
        elif isinstance(operation, PatchEncoder):
            grid_size = operation.grid_size(node.input_tensors[0].shape)
        elif isinstance(operation, ClassToken):
            prefix = (operation.num_class_tokens, operation.num_registers)
        elif isinstance(operation, PatchMerging):
            merged *= 2
        for kind, places_of in _KINDS.items():
            if isinstance(operation, kind):
                if image_size is None or None in image_size:
                    raise ValueError(
                        f"model must have images of a known size as input; {operation.name} is in a model without one"
                    )
                grid_size = grid_size or _square(node.input_tensors[0].shape, prefix)
                cell = tuple(merged * side / count for side, count in zip(image_size, grid_size, strict=True))
                yield from places_of(node, grid_size, cell, prefix, read_token)


def _read_token(operations):
    """Return the position of the token that the head reads; None for a pooling of the patches."""
    picked = [operation.index for operation in operations if isinstance(operation, TokenPooling)]
    if picked:
        return min(picked)  # in a distilled model, the class token
    if any(isinstance(operation, (GlobalAveragePooling, AttentionPooling)) for operation in operations):
        return None
    has_class_token = any(isinstance(op, ClassToken) and op.num_class_tokens for op in operations)
    return 0 if has_class_token else None


def _square(shape, prefix):
    grid = square_grid(shape[1] - sum(prefix)) if len(shape) == 3 else shape[1:3]
    if grid is None:
        raise ValueError(f"model must embed patches with a PatchEncoder; {shape[1]} tokens do not form a square grid")
    return tuple(grid)


def _of_transformer(node, grid_size, cell, prefix, read_token):
    block = global_block(node.operation.name, grid_size, cell, sum(prefix), read_token)
    tokens = block.places.shape[1]
    (weights,) = _scores(node, [(node.operation.attention.num_heads, tokens, tokens)])
    yield block, weights


def _of_axial(node, grid_size, cell, prefix, read_token):
    rows, columns = grid_size
    heads = node.operation.row_block.attention.num_heads
    weights = _scores(node, [(rows, heads, columns, columns), (columns, heads, rows, rows)])
    places = np.arange(rows * columns).reshape(grid_size)
    for part, groups, tensor in zip(("row", "column"), (places, places.T), weights, strict=True):
        yield AttentionBlock(f"{node.operation.name}/{part}_block", grid_size, cell, groups, is_grouped=True), tensor


def _of_swin(node, grid_size, cell, prefix, read_token):
    block = node.operation
    size = tuple(node.input_tensors[0].shape[1:3])
    # the map is rolled up and left before it is divided into windows
    rows, columns = ((np.arange(side) + block.built_shift) % side for side in block.padded_size)
    is_padding = (rows[:, None] >= size[0]) | (columns >= size[1])
    places = np.where(is_padding, -1, rows[:, None] * size[1] + columns)
    window = block.built_window
    cut = places.reshape(places.shape[0] // window, window, places.shape[1] // window, window)
    groups = cut.transpose(0, 2, 1, 3).reshape(-1, window * window)
    (weights,) = _scores(node, [(len(groups), block.num_heads, window**2, window**2)])
    yield AttentionBlock(block.name, size, cell, groups, is_grouped=True), weights


# layer -> function of its call, the grid of patches, the cell, (class tokens, registers) and the token that the head
# reads; it yields (AttentionBlock, weights) for each attention in the layer
_KINDS = {TransformerBlock: _of_transformer, AxialTransformerBlock: _of_axial, SwinBlock: _of_swin}


def _scores(node, shapes):
    """Return the attention weights of a call, one tensor per shape."""
    return _AttentionScores(node.operation, shapes)(*node.arguments.args, **node.arguments.kwargs)


class _AttentionScores(keras.layers.Layer):
    """The attention weights of a block for its input.

    It is a layer because otherwise the norms of all blocks would be operations of the same name, which Keras does not
    allow.
    """

    def __init__(self, block, shapes):
        super().__init__(dtype=block.dtype_policy, name=f"{block.name}_attention")
        self.block = block
        self.shapes = shapes
        self.built = True

    def call(self, *args, **kwargs):
        scores = self.block.attention_scores(*args, **kwargs)
        return scores if isinstance(scores, tuple) else (scores,)

    def compute_output_spec(self, *args, **kwargs):
        """Return the known shapes, so that Keras does not trace every block."""
        dtype = keras.backend.result_type(self.compute_dtype, "float32")
        return tuple(keras.KerasTensor((None, *shape), dtype) for shape in self.shapes)


def _choose(found, layers):
    """Return the pairs that `layers` selects, in its order."""
    if layers is None:
        return found
    if layers is LAST_GRID:
        last, _ = found[-1]
        return [(block, tensor) for block, tensor in found if block.grid_size == last.grid_size]
    names = [block.name for block, _ in found]
    layers = [layers] if isinstance(layers, (str, numbers.Integral)) else list(layers)
    if not layers:
            raise ValueError("layers must contain at least one block; got an empty list")
    chosen = []
    for layer in layers:
        if isinstance(layer, str):
            checks.check_choice("layers", layer, names)
            chosen.append(found[names.index(layer)])
        elif isinstance(layer, numbers.Integral) and not isinstance(layer, bool) and -len(found) <= layer < len(found):
            chosen.append(found[layer])
        else:
            raise ValueError(f"layers must be names or numbers of the {len(found)} blocks {names}; got {layer!r}")
    return chosen
