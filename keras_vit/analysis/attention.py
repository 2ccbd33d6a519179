"""The attention weights of a model's blocks, as arrays and as a keras model, and the tokens that they belong to."""

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.compat.graph import graph_calls
from keras_vit.compat.inference import inference
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
from keras_vit.layers.swin_block import cut_into_windows
from keras_vit.models.base import ImageModel
from keras_vit.models.derived import for_images
from keras_vit.models.encoders import called_layers, find_encoder
from keras_vit.models.masked_images import MaskedImages

# names or numbers of blocks, one or several; None for all
Layers: TypeAlias = str | int | Sequence[str | int] | None
LAST_GRID: Any = object()  # a value of `layers`: the blocks that have the same grid as the last block


def attention_weights(
    model: keras.Model, images: npt.ArrayLike, layers: Layers = None, batch_size: int = 16
) -> list[np.ndarray]:
    """Compute the attention weights of a model's blocks.

    They are A of Eq. 6 in arXiv 2010.11929.

    Args:
        model: a ViT (plain, hybrid, distilled, axial) or Swin of this package; a functional or sequential keras model
            that contains the layers of one or calls one, such as a model with a new head; or any other keras model
            with one as a layer, of which only that layer is analysed.
        images: float array (images, height, width, channels), model input, see `keras_vit.preprocess`.
        layers: names of blocks (`"block_11"`; in an axial model `"block_11/row_block"` and `"block_11/column_block"`)
            or their numbers, -1 for the last; one or a sequence. None returns all. For a ViT-L/16, one block takes
            2.5 MB per image at 224 pixels and 21 MB at 384.
        batch_size: images per batch; the weights of all requested blocks for one batch are in memory at the same time.

    Returns:
        List of float32 arrays in the order of `layers`: weights after softmax and before dropout; the last axis sums to
        1. Global attention: (images, heads, query tokens, key tokens); class, distillation and register tokens come
        first, then patches by rows. With `token_merging`, the tokens are those before merging; tokens that were merged
        have equal rows and divide the attention to them evenly. Axial models have an axis of groups: (images, rows,
        heads, columns, columns) and (images, columns, heads, rows, rows). Swin: (images, windows, heads, tokens,
        tokens), see `SwinBlock.attention_scores`; likewise the blocks with windows of SAM, see `GridSelfAttention`.

    Raises:
        TypeError: if `model` is not a keras model.
        ValueError: if it has no such blocks (such as a ResNet), if `layers` contains unknown blocks, or if the images
            do not fit.
    """
    graph, _ = attention_graph(for_images(model, images), layers)
    return [np.concatenate(parts) for parts in zip(*_batches(graph, images, batch_size), strict=True)]


def attention_model(model: keras.Model, layers: Layers = None) -> keras.Model:
    """Build a model from images to attention weights.

    It shares the layers and weights of `model`.

    Args:
        model, layers: as in `attention_weights`.

    Returns:
        A keras model that returns the list of `attention_weights` as tensors of at least float32; for one block, a
        single tensor instead of a list. This model can be called and exported, but not saved.

    Raises:
        TypeError, ValueError: as in `attention_weights`.
    """
    return attention_graph(model, layers)[0]


def attention_batches(model, images=None, layers=None, batch_size=16, grid_size=None, num_prefix_tokens=None):
    """Yield (blocks, their weights) batch by batch, so that memory stays bounded.

    Args:
        model: as in `attention_weights`; or existing weights, a sequence of (images, heads, tokens, tokens) per block,
            which are yielded as one batch.
        images, layers, batch_size: for a model, as in `attention_weights`.
        grid_size: for weights: (rows, columns) of the patches; None for a square grid.
        num_prefix_tokens: for weights: number of tokens before the patches; None for 1, a class token.

    Raises:
        ValueError: if an argument is missing or does not apply to this kind of `model`.
    """
    if isinstance(model, keras.Model):
        if images is None or grid_size is not None or num_prefix_tokens is not None:
            raise ValueError("a model requires images, and must not be given grid_size or num_prefix_tokens")
        graph, blocks = attention_graph(for_images(model, images), layers)
        for weights in _batches(graph, images, batch_size):
            yield blocks, weights
        return
    if images is not None:
        raise TypeError(f"model must be a keras model if images are given; got {type(model).__name__}")
    if layers is not None:
        raise ValueError("layers are for a model; pass only the weights of the blocks that you need")
    prefix = 1 if num_prefix_tokens is None else checks.check_integer("num_prefix_tokens", num_prefix_tokens, 0)
    weights = [np.asarray(block) for block in model]
    if not weights:
        raise ValueError("weights must contain at least one block; got none")
    for block in weights:
        if block.ndim != 4 or block.shape[-1] != block.shape[-2] or block.dtype.kind != "f":
            raise ValueError(f"weights must be float (images, heads, tokens, tokens); got {block.dtype} {block.shape}")
        if not np.isfinite(block).all():
            raise ValueError("weights must be finite; a block contains NaN or infinity")
    sizes = {(len(block), block.shape[-1]) for block in weights}
    if len(sizes) > 1:
        raise ValueError(f"weights must have equal images and tokens in all blocks; got (images, tokens) {sizes}")
    grid_size = patch_grid(weights[0].shape[-1] - prefix, grid_size)
    about = grid_size, (1, 1), global_places(grid_size, prefix)
    read = 0 if prefix else None
    yield [AttentionBlock(f"block_{i:02d}", *about, read_token=read) for i in range(len(weights))], weights


@dataclasses.dataclass(frozen=True)
class AttentionBlock:
    """The tokens of one block.

    Attributes:
        name: name of the layer, such as `block_11`; an axial block counts as two, `block_11/row_block` and
            `block_11/column_block`.
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

    def grouped(self, weights):
        """Return weights with an axis of groups; global attention has one group."""
        return weights if self.is_grouped else weights[:, None]


def global_places(grid_size, num_prefix_tokens):
    """Return the `places` of a block with global attention; class and register tokens come first."""
    return np.concatenate([np.full(num_prefix_tokens, -1), np.arange(math.prod(grid_size))])[None]


def patch_grid(patches, grid_size):
    """Return `grid_size`, the (rows, columns) of this number of patches; None means a square.

    Raises:
        ValueError: if the grid has another number of patches.
    """
    grid = square_grid(max(patches, 0)) if grid_size is None else checks.check_pair("grid_size", grid_size)
    if grid is None or math.prod(grid) != patches:
        raise ValueError(f"grid_size must be (rows, columns) of {patches} patches; got grid_size={grid_size}")
    return grid


def attention_graph(model, layers=None):
    """Build the graph from images to the attention weights of a model.

    Args:
        model: as in `attention_weights`.
        layers: blocks, as in `attention_weights`; or `LAST_GRID`, the blocks with the same grid as the last one.

    Returns:
        `(keras model from the images to the weights, list of `AttentionBlock`)`.

    Raises:
        TypeError: if `model` is not a keras model.
        ValueError: if it has no such blocks, several models with such blocks, or `layers` contains unknown blocks.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a keras model; got {type(model).__name__}")
    if isinstance(model, ImageModel) and model.config.fixed_size is None:
        raise ValueError("model must take images of one size; this one takes any (keras_vit.resize(model, image_size))")
    inputs, found = _find(model, layers)
    return keras.Model(inputs, [tensor for _, tensor in found]), [block for block, _ in found]


def _batches(graph, images, batch_size):
    images, wanted = np.asarray(images), tuple(graph.input_shape[1:])
    checks.check_integer("batch_size", batch_size)
    is_of_size = images.ndim == 4 and all(w in (None, s) for w, s in zip(wanted, images.shape[1:], strict=True))
    if not is_of_size or not len(images) or images.dtype.kind != "f":
        raise ValueError(
            f"images must be a float array (images, {', '.join(map(str, wanted))}), the model input, see "
            f"keras_vit.preprocess; got {images.dtype} of shape {images.shape}"
        )
    run = inference(graph, compiled=len(images) > batch_size)
    for start in range(0, len(images), batch_size):
        weights = keras.tree.flatten(run(images[start : start + batch_size]))
        if not all(np.isfinite(block).all() for block in weights):
            raise ValueError("model must return finite attention; that of some images is NaN or infinite")
        yield weights


def _find(model, layers):
    """Return the symbolic input of a model and the list of (AttentionBlock, weights) for `layers`."""
    if isinstance(model, MaskedImages) or graph_calls(model) is None:
        model = find_encoder(model) or model  # its graph corrupts or removes patches
    nodes = graph_calls(model) or []
    if nodes and len(model.inputs) != 1:
        raise ValueError(f"model must have images as its one input; {model.name} has {len(model.inputs)} inputs")
    if any(isinstance(node.operation, tuple(_KINDS)) for node in nodes):
        return model.inputs[0], _choose(list(_blocks(nodes)), layers)
    inside = [node for node in nodes if isinstance(node.operation, keras.Model) and _attends(node.operation)]
    if len(inside) != 1:
        raise ValueError(
            "model must have transformer blocks with attention weights, as plain, hybrid, distilled and axial ViTs and "
            f"Swins do, or call exactly one functional model with them; {model.name} has {len(inside) or 'none'}"
        )
    inputs, found = _find(inside[0].operation, layers)
    weights = keras.tree.flatten(keras.Model(inputs, [tensor for _, tensor in found])(inside[0].input_tensors[0]))
    return model.inputs[0], [(block, tensor) for (block, _), tensor in zip(found, weights, strict=True)]


def _attends(model):
    return graph_calls(model) is not None and any(isinstance(layer, tuple(_KINDS)) for layer in called_layers(model))


def _blocks(nodes):
    """Yield (AttentionBlock, weights) for each attention of a graph; patch merging makes the cells larger."""
    image_size, grid_size, merged, prefix, shares = None, None, 1, 0, (1, 1)
    read_token = _read_token([node.operation for node in nodes])
    for node in nodes:
        operation = node.operation
        if isinstance(operation, keras.layers.InputLayer) and len(node.outputs[0].shape) == 4:
            image_size = tuple(node.outputs[0].shape[1:3])
        elif isinstance(operation, PatchEncoder):
            shape = node.input_tensors[0].shape
            grid_size, sides = operation.grid_size(shape), zip(operation.patch_size, shape[1:3], strict=True)
            shares = [n * step / cells if cells else 1 for n, (step, cells) in zip(grid_size, sides, strict=True)]
        elif isinstance(operation, ClassToken):
            prefix = operation.num_class_tokens + operation.num_registers
        elif isinstance(operation, PatchMerging):
            merged *= 2
        kind = next((kind for kind in _KINDS if isinstance(operation, kind)), None)
        if kind is None:
            continue
        if image_size is None or None in image_size:
            raise ValueError(f"model must have images of a known size as input; that of {operation.name} has not")
        shape = node.input_tensors[0].shape
        grid_size = grid_size or (patch_grid(shape[1] - prefix, None) if len(shape) == 3 else tuple(shape[1:3]))
        sides = zip(image_size, shares, grid_size, strict=True)
        cell = tuple(merged * side * share / count for side, share, count in sides)
        # the grid of Swin blocks shrinks from stage to stage
        grid = grid_size if len(shape) == 3 else tuple(shape[1:3])
        num_heads, groups = _KINDS[kind](operation, grid, prefix)
        is_grouped = kind is not TransformerBlock or _has_windows(operation)
        shapes = [(*p.shape[:is_grouped], num_heads, p.shape[1], p.shape[1]) for p in groups.values()]
        scores = _AttentionScores(operation, shapes)(*node.arguments.args, **node.arguments.kwargs)
        read = None if is_grouped else read_token
        for (part, places), weights in zip(groups.items(), scores, strict=True):
            yield AttentionBlock(operation.name + part, grid, cell, places, is_grouped, read), weights


def _read_token(operations):
    """Return the position of the token that the head reads; None for a pooling of the patches."""
    picked = [operation.index for operation in operations if isinstance(operation, TokenPooling)]
    if picked:
        return min(picked)  # in a distilled model, the class token
    is_pooled = any(isinstance(operation, (GlobalAveragePooling, AttentionPooling)) for operation in operations)
    has_class_token = any(isinstance(op, ClassToken) and op.num_class_tokens for op in operations)
    return 0 if has_class_token and not is_pooled else None


def _of_transformer(block, grid_size, num_prefix_tokens):
    if not _has_windows(block):
        return block.attention.num_heads, {"": global_places(grid_size, num_prefix_tokens)}
    padding = [(0, -count % block.window.size) for count in grid_size]
    places = np.pad(np.arange(math.prod(grid_size)).reshape(grid_size), padding, constant_values=-1)
    return block.attention.num_heads, {"": cut_into_windows(places, block.window.size)}


def _has_windows(block):
    return block.window is not None and block.window.size is not None


def _of_axial(block, grid_size, num_prefix_tokens):
    places = np.arange(math.prod(grid_size)).reshape(grid_size)
    return block.row_block.attention.num_heads, {"/row_block": places, "/column_block": places.T}


def _of_swin(block, grid_size, num_prefix_tokens):
    # the map is rolled up and left before it is divided into windows
    rows, columns = ((np.arange(side) + block.built_shift) % side for side in block.padded_size)
    is_padding = (rows[:, None] >= grid_size[0]) | (columns >= grid_size[1])
    places = np.where(is_padding, -1, rows[:, None] * grid_size[1] + columns)
    return block.num_heads, {"": cut_into_windows(places, block.built_window)}


# layer -> function of the layer, its grid of patches and its number of prefix tokens; it returns the number of heads
# and, for each attention in the layer, {suffix of the layer's name: `places` of the `AttentionBlock`}
_KINDS = {TransformerBlock: _of_transformer, AxialTransformerBlock: _of_axial, SwinBlock: _of_swin}


class _AttentionScores(keras.layers.Layer):
    """The attention weights of a block for its input.

    It is a layer because the norms of all blocks would otherwise be operations with the same name, which Keras does not
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
    by_name = {block.name: (block, tensor) for block, tensor in found}
    layers = [layers] if isinstance(layers, (str, numbers.Integral)) else list(layers)
    if not layers:
        raise ValueError("layers must contain at least one block; got an empty list")
    chosen = []
    for layer in layers:
        if isinstance(layer, str):
            chosen.append(by_name[checks.check_choice("layers", layer, by_name)])
        elif isinstance(layer, numbers.Integral) and not isinstance(layer, bool) and -len(found) <= layer < len(found):
            chosen.append(found[layer])
        else:
            raise ValueError(f"layers must be names or numbers of the {len(found)} blocks {[*by_name]}; got {layer!r}")
    return chosen
