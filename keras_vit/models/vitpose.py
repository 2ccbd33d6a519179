"""ViTPose: heatmaps of keypoints from a plain Vision Transformer (arXiv 2204.12484)."""

from typing import Any

import keras
from keras import ops

from keras_vit.config.base import one_of
from keras_vit.layers.base import Layer, build_in_sequence
from keras_vit.layers.embedding import AddPositionEmbs
from keras_vit.layers.patches import PatchMap
from keras_vit.layers.resizing import resize_maps
from keras_vit.models.task_model import TaskModel
from keras_vit.models.vit import VisionTransformer
from keras_vit.typing import Tensor

_SCALE = 4  # of the heatmaps, relative to the patch grid
_FILTERS = 256  # of the classic decoder
_STDDEV = 0.001  # of the initial weights of the heatmaps, as in the authors' code


@keras.saving.register_keras_serializable(package="keras_vit")
class PosePositions(AddPositionEmbs):
    """Add learned positions to patches, and the first row of the table to every patch.

    The first row is that of the class token of the masked autoencoder, which these models do not have.

    Shapes:
        (batch, rows * columns, dim) -> the same
    """

    def call(self, tokens: Tensor, coordinates: Tensor = None) -> Tensor:
        table = ops.cast(self.embedding, tokens.dtype)
        return tokens + table[:, 1:] + table[:, :1]

    def _grid(self, input_shape):
        batch, tokens, dim = input_shape
        return super()._grid((batch, tokens and tokens + 1, dim))  # the table has one more row


@keras.saving.register_keras_serializable(package="keras_vit")
class SimpleDecoder(Layer):
    """Return heatmaps: ReLU, four times the size bilinearly (half-pixel centres), and a 3 x 3 convolution.

    Args:
        num_keypoints: number of heatmaps.

    Shapes:
        (batch, rows, columns, dim) -> (batch, 4 * rows, 4 * columns, num_keypoints)

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, num_keypoints: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(num_keypoints=num_keypoints)

    def build(self, input_shape):
        initial = keras.initializers.RandomNormal(stddev=_STDDEV)
        self.conv1 = self.conv(self.num_keypoints, 3, "conv1", initial, padding="same")
        self.conv1.build(input_shape)

    def call(self, maps: Tensor) -> Tensor:
        size = tuple(_SCALE * side for side in ops.shape(maps)[1:3])
        return self.conv1(resize_maps(ops.relu(maps), size, align_corners=False))

    def compute_output_shape(self, input_shape):
        batch, *sides, _ = input_shape
        return (batch, *(side and _SCALE * side for side in sides), self.num_keypoints)


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassicDecoder(SimpleDecoder):
    """Return heatmaps: twice a transposed convolution with stride 2, a batch norm and ReLU, and a 1 x 1 convolution.

    The transposed convolutions have 4 x 4 kernels, 256 channels and no biases; the epsilon of the batch norms is 1e-5.
    """

    def build(self, input_shape):
        own = {"padding": "same", "use_bias": False, "data_format": "channels_last"}
        self.steps = []  # without lists in it: Keras 3.12 does not save their layers
        for number in (1, 2):
            enlarge = self.sublayer(keras.layers.Conv2DTranspose, _FILTERS, 4, 2, name=f"enlarge{number}", **own)
            self.steps += [enlarge, self.sublayer(keras.layers.BatchNormalization, epsilon=1e-5, name=f"norm{number}")]
        self.conv1 = self.conv(self.num_keypoints, 1, "conv1", keras.initializers.RandomNormal(stddev=_STDDEV))
        build_in_sequence(input_shape, *self.steps, self.conv1)

    def call(self, maps: Tensor, training: bool | None = None) -> Tensor:
        for enlarge, norm in zip(self.steps[::2], self.steps[1::2], strict=True):
            maps = ops.relu(norm(enlarge(maps), training=training))
        return self.conv1(maps)


_DECODERS = {"simple": SimpleDecoder, "classic": ClassicDecoder}


@keras.saving.register_keras_serializable(package="keras_vit")
class ViTPose(TaskModel):
    """Build a model that returns a heatmap for each keypoint in an image.

    The layers, and therefore the intermediates `model.get_layer(NAME).output`, are those of the encoder without its
    position layers, `pose_positions` before the first block, and `decoder`.

    The encoder of ViTPose++ (arXiv 2212.04246) has an expert for each data set (`BlockConfig.num_experts`). A file
    holds all of them, and the model uses one: `keras_vit.load(folder, block={"expert": 1})` uses the second instead of
    the first.

    Args:
        encoder: a `VisionTransformer` for one image size, with patch tokens alone and without position embeddings.
            Those of the authors pad images by 2 pixels (`EmbeddingConfig.patch_padding`).
        num_keypoints: number of keypoints, 17 for COCO.
        decoder: `simple` or `classic`, see `SimpleDecoder` and `ClassicDecoder`.
        name: name of the Keras model.

    Shapes:
        images (batch, height, width, channels), prepared as `preprocessing` describes -> heatmaps (batch, 4 * rows, 4 *
        columns, num_keypoints), of four times the size of the patch grid

    Raises:
        TypeError: if the encoder is not a `VisionTransformer`.
        ValueError: if a value is out of range, or the encoder has positions or other tokens.
    """

    own_checks = {"decoder": one_of(_DECODERS)}
    sizing = "box"

    def __init__(
        self, encoder: VisionTransformer, num_keypoints: int = 17, decoder: str = "simple", name: str | None = None
    ) -> None:
        super().__init__(encoder, name, num_keypoints=num_keypoints, decoder=decoder)

    @staticmethod
    def _head(encoder, num_keypoints, decoder):
        config, own = encoder.config, {"dtype": encoder.config.dtype}
        if config.position_embedding != "none" or config.num_prefix_tokens or config.fixed_size is None:
            got = f"{config.position_embedding!r}, {config.num_prefix_tokens} other tokens, {config.image_size}"
            raise ValueError(
                "encoder must have one image size, patch tokens alone and position_embedding='none', as ViTPose has "
                f"positions of its own; got {got}"
            )
        positions = PosePositions("learned", config.grid_size, name="pose_positions", **own)
        tokens = positions(encoder.get_layer("patch_encoder").output)
        for index in range(config.num_layers):
            tokens = encoder.get_layer(f"block_{index:02d}")(tokens)
        tokens = encoder.get_layer("encoder_norm")(tokens)
        maps = PatchMap(config.patch_size, config.embedding.pad, name="patch_map", **own)(tokens, encoder.inputs[0])
        return _DECODERS[decoder](num_keypoints, name="decoder", **own)(maps)
