"""The layers of DPT (arXiv 2103.13413): read-out, reassembly, fusion and the heads for depth and for segmentation.

Maps of four blocks of a Vision Transformer become maps of four sizes, which are fused, the deepest first.
"""

from typing import Any

import keras
from keras import ops

from keras_vit import checks
from keras_vit.config.base import one_of
from keras_vit.layers.axial_resnet import batch_norm
from keras_vit.layers.base import Layer, build_in_sequence, known_map
from keras_vit.layers.forms import gelu
from keras_vit.layers.resizing import resize_maps
from keras_vit.typing import Size, Tensor

READOUTS = ("ignore", "add", "project")
SCALES = (4, 2, 1, 0.5)  # of the maps of the four blocks, the first block first


@keras.saving.register_keras_serializable(package="keras_vit")
class Readout(Layer):
    """Return the patch tokens with what the class token says (section 3.1, Read_ignore, Read_add and Read_proj).

    Args:
        kind: `ignore`: the patch tokens alone; `add`: plus the class token; `project`: GELU (exact) of a dense layer of
            both, concatenated.
        num_prefix_tokens: number of tokens before the patches, of which the first is the class token.

    Shapes:
        (batch, num_prefix_tokens + patches, dim) -> (batch, patches, dim)

    Raises:
        ValueError: if a value is out of range or a choice is unknown.
    """

    own_checks = {"kind": one_of(READOUTS)}

    def __init__(self, kind: str, num_prefix_tokens: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(kind=kind, num_prefix_tokens=num_prefix_tokens)

    def build(self, input_shape):
        dim = input_shape[-1]
        if self.kind == "project":
            self.projection = self.dense(dim, "projection", shape=(*input_shape[:-1], 2 * dim))

    def call(self, tokens: Tensor) -> Tensor:
        patches, class_token = tokens[:, self.num_prefix_tokens :], tokens[:, :1]
        if self.kind == "ignore":
            return patches
        if self.kind == "add":
            return patches + class_token
        both = ops.concatenate([patches, ops.zeros_like(patches) + class_token], axis=-1)
        return gelu(self.projection(both), False)

    def compute_output_shape(self, input_shape):
        batch, tokens, dim = input_shape
        return (batch, tokens and tokens - self.num_prefix_tokens, dim)


@keras.saving.register_keras_serializable(package="keras_vit")
class Reassemble(Layer):
    """Project a map and resize it by a learned convolution (section 3.1).

    Args:
        filters: number of output channels.
        scale: 4 or 2: a transposed convolution with this stride enlarges the map; 1: no convolution follows the
            projection; 0.5: a 3 x 3 convolution with stride 2 halves it, rounded up.

    Shapes:
        (batch, rows, columns, dim) -> (batch, scale * rows, scale * columns, filters)

    Raises:
        ValueError: if a value is out of range or a choice is unknown.
    """

    own_checks = {"scale": one_of(SCALES)}

    def __init__(self, filters: int, scale: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(filters=filters, scale=scale)

    def build(self, input_shape):
        known_map(self, input_shape, sides=False)
        self.projection = self.conv(self.filters, 1, "projection", "glorot_uniform")
        steps = [self.projection]
        if self.scale > 1:
            arguments = {"data_format": "channels_last", "name": "enlarge"}
            self.enlarge = self.sublayer(
                keras.layers.Conv2DTranspose, self.filters, self.scale, self.scale, **arguments
            )
            steps.append(self.enlarge)
        if self.scale < 1:  # Keras's own padding would be at one side only
            self.pad = self.sublayer(keras.layers.ZeroPadding2D, 1, data_format="channels_last", name="pad")
            self.reduce = self.conv(self.filters, 3, "reduce", "glorot_uniform", strides=2)
            steps += [self.pad, self.reduce]
        self.steps = steps
        build_in_sequence(input_shape, *steps)

    def call(self, maps: Tensor) -> Tensor:
        for step in self.steps:
            maps = step(maps)
        return maps

    def compute_output_shape(self, input_shape):
        batch, *sides, _ = input_shape
        return (batch, *(side and -int(-side * self.scale // 1) for side in sides), self.filters)


@keras.saving.register_keras_serializable(package="keras_vit")
class ResidualUnit(Layer):
    """Return x + conv(relu(conv(relu(x)))), with 3 x 3 convolutions (RefineNet, arXiv 1611.06612).

    Args:
        batch_norm: whether a batch norm (epsilon 1e-5) follows each convolution.
        use_bias: whether the convolutions have biases.

    Shapes:
        (batch, rows, columns, dim) -> the same
    """

    def __init__(self, batch_norm: bool = False, use_bias: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(batch_norm=batch_norm, use_bias=use_bias)

    def build(self, input_shape):
        own = {"padding": "same", "use_bias": self.use_bias}
        self.conv1, self.conv2 = (
            self.conv(input_shape[-1], 3, name, "glorot_uniform", **own) for name in ("conv1", "conv2")
        )
        build_in_sequence(input_shape, self.conv1, self.conv2)
        if self.batch_norm:
            self.norm1, self.norm2 = (
                self.sublayer(batch_norm, name, 1e-5, shape=input_shape) for name in ("norm1", "norm2")
            )

    def call(self, maps: Tensor, training: bool | None = None) -> Tensor:
        x = self.conv1(ops.relu(maps))
        x = self.norm1(x, training=training) if self.batch_norm else x
        x = self.conv2(ops.relu(x))
        return maps + (self.norm2(x, training=training) if self.batch_norm else x)


@keras.saving.register_keras_serializable(package="keras_vit")
class Fusion(Layer):
    """Add the map of a level to what was fused before, and enlarge the sum (section 3.1, Fusion).

    unit2(x + unit1(map)) is resized bilinearly, with aligned corners, and projected. If the map has another size than
    x, it is resized before (half-pixel centres). The deepest level has nothing to add, so `unit1` is not used.

    Args:
        batch_norm, use_bias: as in `ResidualUnit`.

    Shapes:
        x (batch, rows, columns, dim); the map of this level, or None; and the map of the next level, of which only the
        size is read, or None -> (batch, rows, columns, dim) of the size of the next level, or twice that of x
    """

    def __init__(self, batch_norm: bool = False, use_bias: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(batch_norm=batch_norm, use_bias=use_bias)

    def build(self, input_shape, *others):
        self.unit1, self.unit2 = (
            self.sublayer(ResidualUnit, self.batch_norm, self.use_bias, name=name, shape=input_shape)
            for name in ("unit1", "unit2")
        )
        self.projection = self.conv(input_shape[-1], 1, "projection", "glorot_uniform")
        self.projection.build(input_shape)

    def call(self, x: Tensor, maps: Tensor = None, like: Tensor = None, training: bool | None = None) -> Tensor:
        rows, columns = ops.shape(x)[1:3]
        if maps is not None:
            x = x + self.unit1(resize_maps(maps, (rows, columns), align_corners=False), training=training)
        size = (2 * rows, 2 * columns) if like is None else ops.shape(like)[1:3]
        return self.projection(resize_maps(self.unit2(x, training=training), size, align_corners=True))

    def compute_output_spec(self, x, maps=None, like=None, training=None):
        batch, *sides, dim = x.shape
        sides = [side and 2 * side for side in sides] if like is None else like.shape[1:3]
        return keras.KerasTensor((batch, *sides, dim), dtype=self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class DepthHead(Layer):
    """Return the depth of each pixel of a fused map.

    A 3 x 3 convolution halves the channels, the map is resized bilinearly with aligned corners, and a 3 x 3
    convolution, ReLU and a 1 x 1 convolution follow. The result is its ReLU, a disparity without unit (large is near)
    or a depth, or `max_depth` times its sigmoid, a depth.

    Args:
        filters: number of channels of the second convolution.
        max_depth: largest depth, in metres; None returns the ReLU.
        patch_size: height and width of a patch in pixels, or one integer for both.

    Shapes:
        (batch, rows, columns, dim) and, optionally, the patches as a map, of which only the size is read -> (batch,
        rows, columns): the pixels of the patches, or twice the size of the input

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, filters: int = 32, max_depth: float | None = None, patch_size: Size = 14, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(filters=filters, max_depth=max_depth, patch_size=patch_size)

    def build(self, input_shape, *others):
        halved = (*input_shape[:-1], input_shape[-1] // 2)
        self.conv1 = self.conv(halved[-1], 3, "conv1", "glorot_uniform", padding="same")
        self.conv2 = self.conv(self.filters, 3, "conv2", "glorot_uniform", padding="same")
        self.conv3 = self.conv(1, 1, "conv3", "glorot_uniform")
        self.conv1.build(input_shape)
        build_in_sequence(halved, self.conv2, self.conv3)

    def call(self, maps: Tensor, patches: Tensor = None) -> Tensor:
        (rows, columns), (height, width) = self._scaled(ops.shape(maps), patches)
        x = resize_maps(self.conv1(maps), (height * rows, width * columns), align_corners=True)
        x = ops.squeeze(self.conv3(ops.relu(self.conv2(x))), axis=-1)
        return ops.relu(x) if self.max_depth is None else self.max_depth * ops.sigmoid(x)

    def _scaled(self, shape, patches):
        """Return a size, and the factors by which it is multiplied."""
        return (shape[1:3], (2, 2)) if patches is None else (ops.shape(patches)[1:3], self.patch_size)

    def compute_output_spec(self, maps, patches=None):
        sides = zip(*self._scaled(maps.shape, patches), strict=True)
        return keras.KerasTensor((maps.shape[0], *(side and side * n for side, n in sides)), dtype=self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class SegmentationHead(Layer):
    """Return the logits of the classes at each pixel of a fused map.

    A 3 x 3 convolution without bias, a batch norm (epsilon 1e-5), ReLU, dropout and a 1 x 1 convolution; the result is
    resized bilinearly with aligned corners.

    Args:
        classes: number of classes.
        dropout_rate: rate of the dropout.
        scale: factor by which the result is enlarged; 1 leaves its size, as in the auxiliary head.

    Shapes:
        (batch, rows, columns, dim) -> (batch, scale * rows, scale * columns, classes)

    Raises:
        ValueError: if a value is out of range.
    """

    own_checks = {"scale": checks.check_integer}

    def __init__(self, classes: int, dropout_rate: float = 0.1, scale: int = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(classes=classes, dropout_rate=dropout_rate, scale=scale)

    def build(self, input_shape):
        self.conv1 = self.conv(input_shape[-1], 3, "conv1", "glorot_uniform", padding="same", use_bias=False)
        self.norm = self.sublayer(batch_norm, "norm", 1e-5)
        self.dropout = self.sublayer(keras.layers.Dropout, self.dropout_rate, name="dropout")
        self.conv2 = self.conv(self.classes, 1, "conv2", "glorot_uniform")
        build_in_sequence(input_shape, self.conv1, self.norm, self.dropout, self.conv2)

    def call(self, maps: Tensor, training: bool | None = None) -> Tensor:
        x = ops.relu(self.norm(self.conv1(maps), training=training))
        x = self.conv2(self.dropout(x, training=training))
        rows, columns = ops.shape(x)[1:3]
        return resize_maps(x, (self.scale * rows, self.scale * columns), align_corners=True)

    def compute_output_shape(self, input_shape):
        batch, *sides, _ = input_shape
        return (batch, *(side and self.scale * side for side in sides), self.classes)
