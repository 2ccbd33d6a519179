"""The blocks and heads of a model, for layer decay and head biases."""

import keras

from keras_vit.compat.graph import graph_calls, inner_layers
from keras_vit.layers import AxialTransformerBlock, TransformerBlock
from keras_vit.layers.axial_bottleneck import AxialBottleneck
from keras_vit.layers.bottleneck import PreActivationUnit
from keras_vit.layers.swin_block import SwinBlock
from keras_vit.models import AxialResNet, BiTResNet, SwinTransformer, VisionTransformer
from keras_vit.models.encoders import find_encoder, find_encoders

# model -> the layers that count as its blocks; the ResNet of a hybrid counts as its embedding
_BLOCKS = {
    VisionTransformer: (TransformerBlock, AxialTransformerBlock),
    SwinTransformer: (SwinBlock,),
    BiTResNet: (PreActivationUnit,),
    AxialResNet: (AxialBottleneck,),
}


def layer_rates(model, decay):
    """Return learning rate factors that decrease by `decay` per block from the head to the embedding.

    Block l of L, counted from 1, has the factor decay^(L + 1 - l). Layers before the first block have decay^(L + 1).
    Layers after the last block, and layers around the model of this package, have 1. A layer between two blocks, such
    as the downsampling of Swin, has the factor of the block before it. The fine-tuning of BEiT (arXiv 2106.08254) and
    MAE (arXiv 2111.06377) uses the same factors.

    Args:
        model: a model of this package, or a model that contains one.
        decay: in (0, 1].

    Returns:
        One factor per trainable variable, in the order of `model.trainable_variables`.

    Raises:
        ValueError: if `model` contains no model of this package, or several.
    """
    encoder = find_encoder(model)
    if encoder is None:
        raise ValueError(
            "layer_decay requires a model of keras_vit, or a model that contains exactly one; "
            f"{model.name!r} contains {len(find_encoders(model))}"
        )
    depths, num_blocks = _depths(encoder)
    return [decay ** (num_blocks + 1 - depths.get(id(v), num_blocks + 1)) for v in model.trainable_variables]


def head_layers(model):
    """Return the last layers with weights before each output: one head, or the two of a distilled model.

    The list is empty if the model is not functional.
    """
    nodes = graph_calls(model) or []
    outputs = {id(tensor) for tensor in model.outputs} if nodes else set()
    waiting = [node for node in nodes if any(id(tensor) in outputs for tensor in node.outputs)]
    found = {}
    while waiting:
        node = waiting.pop()
        if isinstance(node.operation, keras.Model):
            found.update((id(head), head) for head in head_layers(node.operation))
        elif isinstance(node.operation, keras.Layer) and node.operation.weights:
            found[id(node.operation)] = node.operation
        else:
            waiting += node.parent_nodes
    return list(found.values())


def _depths(encoder):
    """Return the block of each variable by id (0 before the first block, then from 1), and the number of blocks."""
    kinds = next(blocks for family, blocks in _BLOCKS.items() if isinstance(encoder, family))
    blocks, depths = [], {}
    for inner in inner_layers(encoder):  # outer layers come before inner ones
        is_inside = blocks and inner.path.startswith(blocks[-1] + "/")  # an axial block contains two other blocks
        if isinstance(inner.layer, kinds) and not is_inside:
            blocks.append(inner.path)
        # Inner layers come later and overwrite the depth of their variables.
        depths |= dict.fromkeys(map(id, inner.layer.weights), len(blocks))
    names = [layer.name for layer in encoder.layers]
    after = encoder.layers[names.index(blocks[-1].split("/")[0]) + 1 :]
    for layer in after:
        depths |= dict.fromkeys(map(id, layer.weights), len(blocks) + 1)
    return depths, len(blocks)
