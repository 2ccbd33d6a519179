"""DPT: depth from four blocks of a Vision Transformer (arXiv 2103.13413), as in Depth Anything (arXiv 2401.10891)."""

from collections.abc import Sequence

import keras

from keras_vit import checks
from keras_vit.layers.dpt import SCALES, DepthHead, Fusion, Readout, Reassemble
from keras_vit.layers.patches import PatchMap
from keras_vit.models.task_model import TaskModel
from keras_vit.models.vit import VisionTransformer


@keras.saving.register_keras_serializable(package="keras_vit")
class DPT(TaskModel):
    """Build a model that estimates the depth of each pixel.

    The layers, and therefore the intermediates `model.get_layer(NAME).output`, are those of the encoder up to the last
    block used, `level_0_reassemble` to `level_3_conv` for the four blocks, the first block first, `fusion_0` to
    `fusion_3`, the deepest level first, and `depth_head`.

    Args:
        encoder: a `VisionTransformer` without a stem, for one image size or any.
        blocks: indices, from 0, of the four blocks, in ascending order.
        neck_widths: number of channels of the four reassembled maps.
        fusion_width: number of channels of the fused maps.
        head_width: number of channels of the last but one convolution of the head.
        max_depth: largest depth in metres, of a metric model; None returns a disparity (large is near) without unit.
        readout: what the class token adds to the patches, see `Readout`.
        normalised: whether the tokens of the blocks pass the final norm of the encoder (Depth Anything).
        same_size: whether each fused map gets the size of the next level, and the output that of the patches of the
            image (Depth Anything); otherwise each is twice as large as the one before (DPT).
        name: name of the Keras model.

    Shapes:
        images (batch, height, width, channels), prepared as `preprocessing` describes -> (batch, rows, columns): the
        pixels that the patches cover with `same_size`, else 32 times the smallest map of the neck

    Raises:
        TypeError: if the encoder is not a `VisionTransformer`.
        ValueError: if a value is out of range, or the encoder has no such blocks or no norm.
    """

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
        name: str | None = None,
    ) -> None:
        blocks, neck_widths = checks.check_indices("blocks", blocks), checks.check_integers("neck_widths", neck_widths)
        if len(blocks) != len(SCALES) or sorted(set(blocks)) != list(blocks) or len(neck_widths) != len(SCALES):
            raise ValueError(
                f"blocks must be four indices in ascending order, and neck_widths four integers; got blocks={blocks}, "
                f"neck_widths={neck_widths}"
            )
        super().__init__(
            encoder,
            name,
            blocks=blocks,
            neck_widths=neck_widths,
            fusion_width=checks.check_integer("fusion_width", fusion_width),
            head_width=head_width,
            max_depth=max_depth,
            readout=readout,
            normalised=checks.check_flag("normalised", normalised),
            same_size=checks.check_flag("same_size", same_size),
        )

    @staticmethod
    def _head(encoder, **arguments):
        config, images, own = encoder.config, encoder.inputs[0], {"dtype": encoder.config.dtype}
        if arguments["blocks"][-1] >= config.num_layers or config.stem is not None:
            raise ValueError(
                f"blocks must be below {config.num_layers}, the number of blocks of an encoder without a stem; got "
                f"blocks={arguments['blocks']}, stem={config.stem}"
            )
        if arguments["normalised"] and config.norm_position != "before_pooling":
            got = f"normalised=True and norm_position={config.norm_position!r}"
            raise ValueError(f"normalised needs an encoder with norm_position='before_pooling'; got {got}")
        norm = encoder.get_layer("encoder_norm") if arguments["normalised"] else lambda tokens: tokens
        to_map = PatchMap(config.patch_size, config.embedding.pad, name="patch_map", **own)
        levels, same_size = [], arguments["same_size"]
        for level, (block, width) in enumerate(zip(arguments["blocks"], arguments["neck_widths"], strict=True)):
            tokens = norm(encoder.get_layer(f"block_{block:02d}").output)
            readout = Readout(arguments["readout"], config.num_prefix_tokens, name=f"level_{level}_readout", **own)
            patches = to_map(readout(tokens), images)
            maps = Reassemble(width, SCALES[level], name=f"level_{level}_reassemble", **own)(patches)
            conv = {"use_bias": False, "padding": "same", "data_format": "channels_last", **own}
            levels.append(keras.layers.Conv2D(arguments["fusion_width"], 3, name=f"level_{level}_conv", **conv)(maps))
        x, added = levels.pop(), None  # the deepest level has nothing to add
        for number in range(len(SCALES)):
            like = levels[-1] if same_size and levels else None
            x = Fusion(name=f"fusion_{number}", **own)(x, added, like)
            added = levels.pop() if levels else None
        head = DepthHead(arguments["head_width"], arguments["max_depth"], config.patch_size, name="depth_head", **own)
        return head(x, patches) if same_size else head(x)
