"""DPT: depth or classes of pixels from four maps of a Vision Transformer (arXiv 2103.13413), as in Depth Anything."""

from collections.abc import Sequence

import keras

from keras_vit.compat.graph import keep_beside_graph
from keras_vit.config import ResNetConfig
from keras_vit.config.base import one_of
from keras_vit.config.resnet import stride_of
from keras_vit.layers.dpt import READOUTS, SCALES, DepthHead, Fusion, Readout, Reassemble, SegmentationHead
from keras_vit.layers.patches import PatchMap
from keras_vit.models.task_model import TaskModel
from keras_vit.models.vit import VisionTransformer

_STAGES = 3  # of the stem of a hybrid; the maps of the first two are levels of the neck


@keras.saving.register_keras_serializable(package="keras_vit")
class DPT(TaskModel):
    """Build a model that estimates the depth of each pixel.

    The layers, and therefore the intermediates `model.get_layer(NAME).output`, are those of the encoder up to the last
    block used, `level_0_reassemble` to `level_3_conv` for the four levels, the largest first, `fusion_0` to `fusion_3`,
    the deepest level first, and `depth_head`. A model with `normalised=False` keeps the final norm of the encoder,
    which it does not use, as files have it.

    Args:
        encoder: a `VisionTransformer` without a stem, for one image size or any; or a hybrid with a ResNet of three
            stages, whose first two are the first two levels, without a readout (DPT-Hybrid).
        blocks: indices, from 0, of the four blocks, in ascending order; of two blocks for a hybrid.
        neck_widths: number of channels of the map of each of these blocks.
        fusion_width: number of channels of the fused maps.
        head_width: number of channels of the last but one convolution of the head.
        max_depth: largest depth in metres, of a metric model of Depth Anything; None returns what the weights were
            trained to return: a disparity (large is near) without unit, or a depth (DPT on DINOv2).
        readout: what the class token adds to the patches, see `Readout`.
        normalised: whether the tokens of the blocks pass the final norm of the encoder (Depth Anything).
        same_size: whether each fused map gets the size of the next level, and the output that of the patches of the
            image (Depth Anything); otherwise each is twice as large as the one before (DPT).
        batch_norm: whether the residual units of the fusion have batch norms.
        use_bias: whether the convolutions of these units have biases.
        projected: whether a 3 x 3 convolution and ReLU, `head_projection`, come before the head (DPT on DINOv2).
        name: name of the Keras model.

    Shapes:
        images (batch, height, width, channels), prepared as `preprocessing` describes -> (batch, rows, columns): the
        pixels that the patches cover with `same_size`, else 32 times the smallest map of the neck

    Raises:
        TypeError: if the encoder is not a `VisionTransformer`.
        ValueError: if a value is out of range, or the encoder has no such blocks or no norm.
    """

    own_checks = {**TaskModel.own_checks, "readout": one_of(READOUTS)}

    def __init__(
        self,
        encoder: VisionTransformer,
        blocks: Sequence[int],
        neck_widths: Sequence[int] = (96, 192, 384, 768),
        fusion_width: int = 128,
        head_width: int = 32,
        max_depth: float | None = None,
        readout: str = "ignore",
        normalised: bool = True,
        same_size: bool = True,
        batch_norm: bool = False,
        use_bias: bool = True,
        projected: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            encoder,
            name,
            blocks=blocks,
            neck_widths=neck_widths,
            fusion_width=fusion_width,
            head_width=head_width,
            max_depth=max_depth,
            readout=readout,
            normalised=normalised,
            same_size=same_size,
            batch_norm=batch_norm,
            use_bias=use_bias,
            projected=projected,
        )
        _keep_norm(self)

    @staticmethod
    def _head(encoder, head_width, max_depth, projected, same_size, **neck):
        config = encoder.config
        maps, patches = _neck(encoder, same_size=same_size, **neck)
        pixels = [side * stride_of(config.stem and config.stem.stage_sizes) for side in config.patch_size]
        if projected:
            conv = {"padding": "same", "data_format": "channels_last", "name": "head_projection"}
            maps = keras.layers.Conv2D(maps.shape[-1], 3, activation="relu", dtype=config.dtype, **conv)(maps)
        head = DepthHead(head_width, max_depth, pixels, name="depth_head", dtype=config.dtype)
        return head(maps, patches) if same_size else head(maps)


@keras.saving.register_keras_serializable(package="keras_vit")
class DPTSegmentation(TaskModel):
    """Build a model that returns the logits of the classes at each pixel.

    The layers are those of `DPT` with `segmentation_head`, and `auxiliary_head` on the same map, in place of
    `depth_head`. The authors add the loss of the auxiliary logits in training, with weight 0.4.

    Args:
        encoder: as in `DPT`; its final norm is not used.
        classes: number of classes.
        blocks, neck_widths, fusion_width, readout, batch_norm, use_bias: as in `DPT`; each fused map is twice as large
            as the one before.
        auxiliary: whether the model has the auxiliary head.
        dropout_rate: rate of the dropout in the heads.
        name: name of the Keras model.

    Shapes:
        images (batch, height, width, channels), prepared as `preprocessing` describes -> a dict of `logits` (batch,
        rows, columns, classes), of 32 times the smallest map of the neck, and with `auxiliary` also `auxiliary_logits`
        of half that size

    Raises:
        TypeError: if the encoder is not a `VisionTransformer`.
        ValueError: if a value is out of range, or the encoder has no such blocks.
    """

    own_checks = DPT.own_checks

    def __init__(
        self,
        encoder: VisionTransformer,
        classes: int,
        blocks: Sequence[int],
        neck_widths: Sequence[int] = (96, 192, 384, 768),
        fusion_width: int = 256,
        readout: str = "project",
        batch_norm: bool = True,
        use_bias: bool = False,
        auxiliary: bool = True,
        dropout_rate: float = 0.1,
        name: str | None = None,
    ) -> None:
        super().__init__(
            encoder,
            name,
            classes=classes,
            blocks=blocks,
            neck_widths=neck_widths,
            fusion_width=fusion_width,
            readout=readout,
            batch_norm=batch_norm,
            use_bias=use_bias,
            auxiliary=auxiliary,
            dropout_rate=dropout_rate,
        )
        _keep_norm(self)

    @staticmethod
    def _head(encoder, classes, auxiliary, dropout_rate, **neck):
        own = {"dtype": encoder.config.dtype}
        maps, _ = _neck(encoder, normalised=False, same_size=False, **neck)
        outputs = {"logits": SegmentationHead(classes, dropout_rate, name="segmentation_head", **own)(maps)}
        if auxiliary:
            head = SegmentationHead(classes, dropout_rate, scale=1, name="auxiliary_head", **own)
            outputs["auxiliary_logits"] = head(maps)
        return outputs


def _neck(encoder, blocks, neck_widths, fusion_width, readout, normalised, same_size, batch_norm, use_bias):
    """Return the fused map of the first level, and the patches of the last block as a map; see `DPT`."""
    config, own = encoder.config, {"dtype": encoder.config.dtype}
    levels = _maps_of_stem(encoder)
    count = len(SCALES) - len(levels)
    is_ascending = sorted(set(blocks)) == list(blocks)
    if {len(blocks), len(neck_widths)} != {count} or not is_ascending or blocks[-1] >= config.num_layers:
        raise ValueError(
            f"blocks must be {count} indices in ascending order, below {config.num_layers}, the number of blocks of "
            f"the encoder, and neck_widths {count} integers; got blocks={blocks}, neck_widths={neck_widths}"
        )
    if normalised and config.norm_position != "before_pooling":
        got = f"normalised=True and norm_position={config.norm_position!r}"
        raise ValueError(f"normalised needs an encoder with norm_position='before_pooling'; got {got}")
    norm = encoder.get_layer("encoder_norm") if normalised else lambda tokens: tokens
    to_map = PatchMap(config.patch_size, config.embedding.pad, name="patch_map", **own)
    for block, width in zip(blocks, neck_widths, strict=True):
        level, tokens = len(levels), norm(encoder.get_layer(f"block_{block:02d}").output)
        read = Readout(readout, config.num_prefix_tokens, name=f"level_{level}_readout", **own)(tokens)
        patches = to_map(read, encoder.get_layer("patch_encoder").input)
        levels.append(Reassemble(width, SCALES[level], name=f"level_{level}_reassemble", **own)(patches))
    conv = {"use_bias": False, "padding": "same", "data_format": "channels_last", **own}
    levels = [
        keras.layers.Conv2D(fusion_width, 3, name=f"level_{level}_conv", **conv)(maps)
        for level, maps in enumerate(levels)
    ]
    x, added = levels.pop(), None  # the deepest level has nothing to add
    for number in range(len(SCALES)):
        like = levels[-1] if same_size and levels else None
        fusion = Fusion(batch_norm, use_bias, name=f"fusion_{number}", **own)
        x = fusion(x, added, like)
        fusion.unit1.trainable = added is not None
        added = levels.pop() if levels else None
    return x, patches


def _maps_of_stem(encoder):
    """Return the maps of a hybrid that are levels of the neck themselves, [] without a stem."""
    stem = encoder.config.stem
    if stem is None:
        return []
    if not isinstance(stem, ResNetConfig) or len(stem.stage_sizes) != _STAGES:
        raise ValueError(f"encoder must have no stem, or a ResNet of {_STAGES} stages; got stem={stem}")
    return [encoder.get_layer(f"stage_{stage}").output for stage in range(1, _STAGES)]


def _keep_norm(model):
    """Track the final norm of the encoder, whose arrays files have even if the model does not use them."""
    for layer in model.encoder.layers:
        if layer.name == "encoder_norm":
            keep_beside_graph(model, layer)
