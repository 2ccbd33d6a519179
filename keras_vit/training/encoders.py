"""Parts of a model that training speaks of: its blocks and its heads."""

import keras

from keras_vit.compat.graph import graph_calls
from keras_vit.compat.sublayers import inner_layers
from keras_vit.layers import AxialTransformerBlock, TransformerBlock
from keras_vit.layers.axial_bottleneck import AxialBottleneck
from keras_vit.layers.bottleneck import PreActivationUnit
from keras_vit.layers.swin_block import SwinBlock
from keras_vit.models import AxialResNet, BiTResNet, SwinTransformer, VisionTransformer
from keras_vit.models.encoders import find_encoder, find_encoders

# model -> the layers that count as its blocks; the ResNet below a hybrid counts as its embedding
_BLOCKS = {
    VisionTransformer: (TransformerBlock, AxialTransformerBlock),
    SwinTransformer: (SwinBlock,),
    BiTResNet: (PreActivationUnit,),
    AxialResNet: (AxialBottleneck,),
}


def layer_rates(model, decay):
    """Factors of the learning rate that fall by `decay` from block to block, from the head down to the embedding.

    Block l of L, counted from 1, has decay^(L + 1 - l), what comes before the first block decay^(L + 1), what comes
    after the last one, and every layer around the model of this package, 1. What stands between two blocks, such as
    the downsampling of Swin, goes with the block before it. So it is done in the fine-tuning of BEiT (arXiv 2106.08254)
    and MAE (arXiv 2111.06377).

    Args:
        model: a model of this package or one that contains it.
        decay: in (0, 1].

    Returns:
        One factor per trainable variable, in their order.

    Raises:
        ValueError: if `model` contains no model of this package, or several.
    """
    encoder = find_encoder(model)
    if encoder is None:
        raise ValueError(
            "layer_decay needs a model of keras_vit, or one with exactly one of them inside; "
            f"{model.name!r} contains {len(find_encoders(model))}"
        )
    depths, num_blocks = _depths(encoder)
    return [decay ** (num_blocks + 1 - depths.get(id(v), num_blocks + 1)) for v in model.trainable_variables]


def head_layers(model):
    """Returns the last layers with weights on the way to each output: one head, or the two of a distilled model.

    The list is empty for a model that is not functional.
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
    """The block of each variable (0 before the first, then counted from 1), by id; and the number of blocks."""
    kinds = next(blocks for family, blocks in _BLOCKS.items() if isinstance(encoder, family))
    blocks, depths = [], {}
    for inner in inner_layers(encoder):  # a layer before those inside it
        is_inside = blocks and inner.path.startswith(blocks[-1] + "/")  # an axial block has two others inside
        if isinstance(inner.layer, kinds) and not is_inside:
            blocks.append(inner.path)
        # Those inside it have the last word on their variables.
        depths |= dict.fromkeys(map(id, inner.layer.weights), len(blocks))
    names = [layer.name for layer in encoder.layers]
    after = encoder.layers[names.index(blocks[-1].split("/")[0]) + 1 :]
    for layer in after:
        depths |= dict.fromkeys(map(id, layer.weights), len(blocks) + 1)
    return depths, len(blocks)
