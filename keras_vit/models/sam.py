"""SAM: masks for points and boxes in an image (arXiv 2304.02643)."""

import keras
from keras import ops

from keras_vit import checks
from keras_vit.layers.mask_decoder import MaskDecoder
from keras_vit.layers.prompts import (
    FourierPositions,
    GridPlaces,
    MaskEmbedding,
    PointEmbedding,
    PromptPlaces,
)
from keras_vit.models.task_model import TaskModel
from keras_vit.models.vit import VisionTransformer
from keras_vit.typing import Tensor

_PROMPTS = ("points", "labels", "boxes", "masks")
_LAYERS = (
    "prompt_places",
    "grid_places",
    "fourier_positions",
    "point_embedding",
    "mask_embedding",
    "mask_decoder",
)


@keras.saving.register_keras_serializable(package="keras_vit")
class SAM(TaskModel):
    """Build a model that segments what points, boxes and masks prompt.

    `encode` encodes images once, and `decode` returns the masks of prompts for the embeddings. A call does both: it
    takes a dict of `images` and the prompts `points`, `labels`, `boxes` and `masks`, of which those that are not used
    are None, and returns the masks for ambiguous prompts (`multimask=True`).

    The layers, and therefore the intermediates `model.get_layer(NAME).output`, are those of the encoder,
    `prompt_places`, `grid_places`, `fourier_positions`, `point_embedding`, `mask_embedding` and `mask_decoder`.

    Epsilon is 1e-6 in the norms of the mask embedding and of the upscaling, and 1e-5 in the norm after the last
    attention.

    Args:
        encoder: a `VisionTransformer` for one image size with SAM's neck: `head.neck`, `pooling='unpooled'` and
            `include_top=False`.
        mask_channels: number of channels inside the embedding of masks.
        num_masks: number of masks of an ambiguous prompt.
        num_blocks: number of two-way blocks of the decoder.
        num_heads: number of heads of the decoder.
        mlp_dim: hidden width of the MLPs in the blocks of the decoder.
        reduction: the attentions between tokens and image have the width of the embedding divided by it.
        iou_dim: hidden width of the MLP that predicts the IoU.
        epsilon: epsilon of the norms in the two-way blocks; 1e-6 in transformers, 1e-5 in the authors' code.
        name: name of the Keras model.

    Shapes:
        a dict of `images` (batch, height, width, channels), prepared as `preprocessing` describes, and of the prompts,
        see `decode` -> a dict of `masks` (batch, prompts, num_masks, rows, columns), logits of 4 times the size of the
        patch grid, and `iou` (batch, prompts, num_masks), the predicted IoU of each

    Raises:
        TypeError: if the encoder is not a `VisionTransformer`.
        ValueError: if a value is out of range, or the encoder has no neck or takes images of any size.
    """

    def __init__(
        self,
        encoder: VisionTransformer,
        mask_channels: int = 16,
        num_masks: int = 3,
        num_blocks: int = 2,
        num_heads: int = 8,
        mlp_dim: int = 2048,
        reduction: int = 2,
        iou_dim: int = 256,
        epsilon: float = 1e-6,
        name: str | None = None,
    ) -> None:
        checks.check_instance("encoder", encoder, VisionTransformer, "a keras_vit.VisionTransformer")
        of_decoder = {
            "num_masks": num_masks,
            "num_blocks": num_blocks,
            "num_heads": num_heads,
            "mlp_dim": mlp_dim,
            "reduction": reduction,
            "iou_dim": iou_dim,
            "epsilon": epsilon,
        }
        layers = self._make_layers(encoder.config, mask_channels, of_decoder)
        images = encoder.inputs[0]
        inputs = {"images": images, **_prompt_inputs()}
        masks, iou = _decode(layers, encoder.outputs[0], **{key: inputs[key] for key in _PROMPTS})
        outputs = _chosen(masks, iou, True)
        self._finish(encoder, inputs, outputs, name, {"mask_channels": mask_channels, **of_decoder})

    @staticmethod
    def _make_layers(config, mask_channels, of_decoder):
        """Return the layers after the encoder by name."""
        own, neck = {"dtype": config.dtype}, config.head.neck
        if neck is None or config.include_top or config.fixed_size is None or config.stem is not None:
            got = f"head.neck={neck}, include_top={config.include_top}, image_size={config.image_size!r}"
            raise ValueError(
                "encoder must have head.neck, include_top=False, no stem and one image_size, as the encoders of SAM "
                f"have; got {got}, stem={config.stem}"
            )
        layers = (
            PromptPlaces(config.fixed_size, name="prompt_places", **own),
            GridPlaces(name="grid_places", **own),
            FourierPositions(neck, name="fourier_positions", **own),
            PointEmbedding(name="point_embedding", **own),
            MaskEmbedding(mask_channels, name="mask_embedding", **own),
            MaskDecoder(**of_decoder, name="mask_decoder", **own),
        )
        return {layer.name: layer for layer in layers}

    def encode(self, images: Tensor) -> Tensor:
        """Return the embeddings of images, for `decode`.

        Args:
            images: (batch, height, width, channels), prepared as `preprocessing` describes.

        Returns:
            (batch, rows, columns, channels of the neck): 64 x 64 x 256 for the published models.

        Raises:
            ValueError: on another shape.
        """
        shape = self.encoder.inputs[0].shape
        _check_shape("images", images, ("batch", *shape[1:]))
        return self.encoder(images, training=False)

    def decode(
        self,
        embeddings: Tensor,
        points: Tensor = None,
        labels: Tensor = None,
        boxes: Tensor = None,
        masks: Tensor = None,
        multimask: bool = True,
    ) -> dict[str, Tensor]:
        """Return the masks of prompts.

        Coordinates are (x, y) in pixels of the images that the encoder gets.

        Each prompt has points, one box, or both, and at most one earlier mask.

        Args:
            embeddings: (batch, rows, columns, channels of the neck), from `encode`.
            points: (batch, prompts, points, 2).
            labels: (batch, prompts, points): 1 is on the object, 0 on the background, -1 only fills a place, and the
                token of -10 is zero.
            boxes: (batch, prompts, 4) as x0, y0, x1, y1.
            masks: logits of earlier masks (batch, prompts, 4 * rows, 4 * columns), or (batch, 4 * rows, 4 * columns)
                for one mask that all prompts of an image share.
            multimask: True returns the masks for ambiguous prompts, False the one for others.

        Returns:
            Dict of `masks` (batch, prompts, masks, 4 * rows, 4 * columns), logits, and `iou` (batch, prompts, masks),
            their predicted IoU.

        Raises:
            ValueError: if there is no prompt, a shape is wrong, a coordinate is outside the image, the corners of a box
                are swapped or a label is unknown.
        """
        checks.check_flag("multimask", multimask)
        *_, rows, columns, dim = self.encoder.outputs[0].shape
        batch, *_ = _check_shape("embeddings", embeddings, ("batch", rows, columns, dim))
        given = {"points": points, "labels": labels, "boxes": boxes, "masks": masks}
        prompts, count = "prompts", "points"
        if points is None and boxes is None and masks is None and labels is None:
            raise ValueError("points, boxes or masks must be given; got None for each")
        if (points is None) != (labels is None):
            missing = "labels" if labels is None else "points"
            raise ValueError(f"points and labels must be given together, one label for each point; got {missing}=None")
        if points is not None:
            _, prompts, count, _ = _check_shape("points", points, (batch, prompts, count, 2))
            _check_shape("labels", labels, (batch, prompts, count))
        if boxes is not None:
            _, prompts, _ = _check_shape("boxes", boxes, (batch, prompts, 4))
        if masks is not None:
            sides, is_shared = (4 * rows, 4 * columns), len(getattr(masks, "shape", ())) == 3
            _check_shape("masks", masks, (batch, *sides) if is_shared else (batch, prompts, *sides))
            masks = ops.convert_to_tensor(masks)
            given["masks"] = masks[:, None] if is_shared else masks
        if masks is not None and points is None and boxes is None and given["masks"].shape[1] != 1:
            raise ValueError(f"masks without points and boxes must be of one prompt; got shape {tuple(masks.shape)}")
        layers = {name: self.get_layer(name) for name in _LAYERS}
        embeddings = ops.convert_to_tensor(embeddings)
        tensors = {key: None if x is None else ops.convert_to_tensor(x) for key, x in given.items()}
        found, iou = _decode(layers, embeddings, **tensors)
        return _chosen(found, iou, multimask)


def _prompt_inputs():
    """Return the inputs of the prompts by name; each may be None in a call."""
    return {
        "points": keras.Input((None, None, 2), dtype="float32", name="points", optional=True),
        "labels": keras.Input((None, None), dtype="int32", name="labels", optional=True),
        "boxes": keras.Input((None, 4), dtype="float32", name="boxes", optional=True),
        "masks": keras.Input((None, None, None), dtype="float32", name="masks", optional=True),
    }


def _decode(layers, embeddings, points, labels, boxes, masks):
    """Return all masks and their IoU, see `MaskDecoder`."""
    places, kinds = layers["prompt_places"](embeddings, points, labels, boxes)
    positions = layers["fourier_positions"](layers["grid_places"](embeddings))
    tokens = layers["point_embedding"](layers["fourier_positions"](places), kinds)
    maps = layers["mask_embedding"](embeddings, masks)
    return layers["mask_decoder"](embeddings, positions, tokens, maps)


def _chosen(masks, iou, multimask):
    """Return the masks for ambiguous prompts, or the first mask."""
    part = slice(1, None) if multimask else slice(0, 1)
    return {"masks": masks[:, :, part], "iou": iou[:, :, part]}


def _check_shape(name, x, wanted):
    """Return the shape of a tensor or array, or raise `ValueError`; words in `wanted` stand for any size."""
    shape = tuple(getattr(x, "shape", ()))
    sizes = zip(shape, wanted, strict=False)
    if len(shape) != len(wanted) or any(size not in (None, side) for size, side in sizes if isinstance(side, int)):
        text = ", ".join(map(str, wanted))
        got = f"shape {shape}" if hasattr(x, "shape") else checks.quoted(x)
        raise ValueError(f"{name} must be a tensor or array of shape ({text}); got {name} of {got}")
    return shape
