"""YOLOS: object detection with detection tokens in the sequence of a Vision Transformer (arXiv 2106.00666)."""

import keras

from keras_vit.layers.detection import DetectionPositions, DetectionTokens
from keras_vit.layers.patches import PatchCoordinates
from keras_vit.layers.perceptron import Perceptron, TakeTokens
from keras_vit.models.task_model import TaskModel
from keras_vit.models.vit import VisionTransformer
from keras_vit.typing import Size


@keras.saving.register_keras_serializable(package="keras_vit")
class YOLOS(TaskModel):
    """Build a model that detects objects.

    The layers, and therefore the intermediates `model.get_layer(NAME).output`, are those of the encoder without its
    position layers, `detection_tokens` and `detection_positions` before the first block, `detection_positions_01` and
    so on after it, and the heads `class_head` and `box_head`.

    Args:
        encoder: a `VisionTransformer` with a class token, without position embeddings, for images of any size.
        classes: number of classes.
        table_grid: (rows, columns) of the position tables, which are resized to the grid of the images in every call.
        num_detection_tokens: number of detection tokens, and so of boxes.
        mid_positions: whether positions are added to the input of every block, each with a table of its own.
        name: name of the Keras model.

    Shapes:
        images (batch, height, width, channels), prepared as `preprocessing` describes -> a dict of `logits` (batch,
        num_detection_tokens, classes + 1), of which the last is that of no object, and `boxes` (batch,
        num_detection_tokens, 4): centre x, centre y, width and height as shares of the image

    Raises:
        TypeError: if the encoder is not a `VisionTransformer`.
        ValueError: if a value is out of range, or the encoder has positions or no class token.
    """

    def __init__(
        self,
        encoder: VisionTransformer,
        classes: int,
        table_grid: Size,
        num_detection_tokens: int = 100,
        mid_positions: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            encoder,
            name,
            classes=classes,
            table_grid=table_grid,
            num_detection_tokens=num_detection_tokens,
            mid_positions=mid_positions,
        )

    @staticmethod
    def _head(encoder, **arguments):
        config, own = encoder.config, {"dtype": encoder.config.dtype}
        if config.position_embedding != "none" or config.num_prefix_tokens != 1 or not config.num_class_tokens:
            raise ValueError(
                "encoder must have a class token, no registers and position_embedding='none', as YOLOS has positions "
                f"of its own; got position_embedding={config.position_embedding!r} and {config.num_class_tokens} class "
                f"tokens, {config.num_registers} registers"
            )
        count, grid = arguments["num_detection_tokens"], arguments["table_grid"]
        positions = {"resize": config.embedding.resize, **own}
        coordinates = PatchCoordinates(config.patch_size, config.embedding.pad, name="patch_places")(encoder.inputs[0])
        tokens = DetectionTokens(count, name="detection_tokens", **own)(encoder.get_layer("class_token").output)
        tokens = DetectionPositions(count, grid, name="detection_positions", **positions)(tokens, coordinates)
        for index in range(config.num_layers):
            if index and arguments["mid_positions"]:
                name = f"detection_positions_{index:02d}"
                tokens = DetectionPositions(count, grid, name=name, **positions)(tokens, coordinates)
            tokens = encoder.get_layer(f"block_{index:02d}")(tokens)
        found = TakeTokens(-count, name="detections", **own)(encoder.get_layer("encoder_norm")(tokens))
        widths = (config.hidden_dim, config.hidden_dim)
        return {
            "logits": Perceptron((*widths, arguments["classes"] + 1), name="class_head", **own)(found),
            "boxes": Perceptron((*widths, 4), "sigmoid", name="box_head", **own)(found),
        }
