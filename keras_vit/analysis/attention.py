"""The attention weights of a model's blocks, as arrays and as a keras model."""

from collections.abc import Sequence
from typing import TypeAlias

import keras
import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.analysis.blocks import AttentionBlock, attention_graph, global_places, patch_grid
from keras_vit.compat.inference import inference

# names or numbers of blocks, one or several; None for all
Layers: TypeAlias = str | int | Sequence[str | int] | None


def attention_weights(
    model: keras.Model, images: npt.ArrayLike, layers: Layers = None, batch_size: int = 16
) -> list[np.ndarray]:
    """Compute the attention weights of a model's blocks.

    They are A of Eq. 6 in arXiv 2010.11929.

    Args:
        model: a ViT (plain, hybrid, distilled, axial) or Swin of this package; a functional or sequential keras model
            built from its layers, such as one with a new head, or that calls such a model; or another keras model that
            has one as a layer, which is then analysed on its own.
        images: float array (images, height, width, channels), model input, see `keras_vit.preprocess`.
        layers: names of blocks (`"block_11"`; in an axial model `"block_11/row_block"` and `"block_11/column_block"`)
            or their numbers, -1 for the last; one or a sequence. None returns all. For a ViT-L/16, one block takes
            2.5 MB per image at 224 pixels and 21 MB at 384.
        batch_size: images per batch; the weights of all requested blocks for one batch are in memory at the same time.

    Returns:
        List of float32 arrays in the order of `layers`: weights after softmax and before dropout; the last axis sums
        to 1. Global attention: (images, heads, query tokens, key tokens); class, distillation and register tokens come
        first, then patches by rows. Merged tokens (`token_merging`) are in the places of the first tokens; they have
        equal rows and share what they receive evenly. Axial models have an axis of groups: (images, rows, heads,
        columns, columns) and (images, columns, heads, rows, rows). Swin: (images, windows, heads, tokens, tokens), see
        `SwinBlock.attention_scores`.

    Raises:
        TypeError: if `model` is not a keras model.
        ValueError: if it has no such blocks, as ResNets, if `layers` contains unknown blocks, or if the images do not
            fit.
    """
    graph, _ = attention_graph(model, layers)
    batches = list(_batches(graph, images, batch_size))
    return [np.concatenate(parts) for parts in zip(*batches, strict=True)]


def attention_model(model: keras.Model, layers: Layers = None) -> keras.Model:
    """Build a model from images to attention weights.

    It shares the layers and weights of `model`.

    Args:
        model, layers: as in `attention_weights`.

    Returns:
        A keras model that returns the list of `attention_weights` as tensors of at least float32; for one block a
        single tensor instead of a list. Call or export it; it cannot be saved.

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
        graph, blocks = attention_graph(model, layers)
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
            raise ValueError(
                "weights must be float arrays (images, heads, tokens, tokens), one per block; "
                f"got {block.dtype} of shape {block.shape}"
            )
        if not np.isfinite(block).all():
            raise ValueError("weights must be finite; those of a block are not")
    sizes = {(len(block), block.shape[-1]) for block in weights}
    if len(sizes) > 1:
        raise ValueError(f"weights must have equal images and tokens in all blocks; got (images, tokens) {sizes}")
    grid_size = patch_grid(weights[0].shape[-1] - prefix, grid_size)
    about = grid_size, (1, 1), global_places(grid_size, prefix)
    read = 0 if prefix else None
    yield [AttentionBlock(f"block_{i:02d}", *about, read_token=read) for i in range(len(weights))], weights


def _batches(graph, images, batch_size):
    images, wanted = np.asarray(images), tuple(graph.input_shape[1:])
    checks.check_integer("batch_size", batch_size)
    is_of_size = images.ndim == 4 and all(
        want in (None, got) for want, got in zip(wanted, images.shape[1:], strict=True)
    )
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
