"""EoMT: mask segmentation by queries in the sequence of a Vision Transformer (arXiv 2503.19108)."""

from functools import partial
from typing import Any

import keras
from keras import ops

from keras_vit import checks
from keras_vit.config.base import one_of, optional
from keras_vit.config.needs import Choice, conflicts
from keras_vit.layers.attend import EXCLUDED
from keras_vit.layers.base import Layer
from keras_vit.layers.patches import PatchMap
from keras_vit.layers.perceptron import Perceptron, TakeTokens
from keras_vit.layers.resizing import resize_maps
from keras_vit.layers.rotary import RotaryEmbedding
from keras_vit.layers.upscaling import Upscale
from keras_vit.models.task_model import TaskModel
from keras_vit.models.vit import VisionTransformer
from keras_vit.typing import Tensor

_NEEDS = ("pixels", "images", "stem_positions", "whole_sequence", "all_patches", "same_tokens")
_USE = Choice("", "an EoMT", needs=_NEEDS)
_POWER = 0.9  # of the probability that a query is masked


def _check_window(name, value):
    first, last = checks.check_sequence(name, value, "two steps", partial(checks.check_integer, minimum=0))
    if first >= last:
        raise ValueError(f"{name} must be two ascending steps; got {value}")
    return first, last


@keras.saving.register_keras_serializable(package="keras_vit")
class Queries(Layer):
    """Put learned queries in front of a sequence.

    Args:
        num_queries: number of queries.

    Shapes:
        (batch, tokens, dim) -> (batch, num_queries + tokens, dim)

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, num_queries: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(num_queries=num_queries)

    def build(self, input_shape):
        self.embedding = self.normal_weight("embedding", (self.num_queries, input_shape[-1]))

    def call(self, tokens: Tensor) -> Tensor:
        queries = ops.cast(self.embedding, tokens.dtype)[None]
        return ops.concatenate([ops.zeros_like(tokens[:, :1]) + queries, tokens], axis=1)

    def compute_output_shape(self, input_shape):
        batch, tokens, dim = input_shape
        return (batch, tokens and tokens + self.num_queries, dim)


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskedAttention(Layer):
    """Return the bias that lets each query attend only to the patches of its mask (section 3.2).

    Queries, class tokens and registers attend, and are attended to, as before.

    Args:
        window: None masks every query in every call. A pair (first, last) of training steps masks queries only in
            training: all of them before `first`, none from `last` on, and in between, with t the share of the steps
            that are done, each query with the probability (1 - t) ** 0.9.

    Shapes:
        mask logits (batch, rows, columns, queries); the patches as a map, of which only the size is read; and the
        tokens (batch, tokens, dim), of which only the number is read -> (batch, 1, tokens, tokens), float32

    Raises:
        ValueError: if `window` is not a pair of ascending integers.
    """

    own_checks = {"window": optional(_check_window)}

    def __init__(self, window: tuple[int, int] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(window=window)

    def build(self, *shapes):
        if self.window:
            self.seeds = keras.random.SeedGenerator()
            self.step = self.add_weight(name="step", initializer="zeros", dtype="int32", trainable=False)

    def call(self, masks: Tensor, patches: Tensor, tokens: Tensor, training: bool | None = None) -> Tensor:
        rows, columns = ops.shape(patches)[1:3]
        count, queries = ops.shape(tokens)[1], masks.shape[-1]
        logits = resize_maps(ops.cast(masks, "float32"), (rows, columns), align_corners=False)
        logits = ops.transpose(ops.reshape(logits, (-1, rows * columns, queries)), (0, 2, 1))
        bias = ops.where(logits > 0, 0.0, EXCLUDED)
        if self.window:
            bias = bias * ops.cast(self._drawn(ops.shape(bias)[:2], training), "float32")[..., None]
        others = count - rows * columns
        return ops.pad(bias, ((0, 0), (0, count - queries), (others, 0)))[:, None]

    def _drawn(self, shape, training):
        """Return whether each query is masked, and count the step."""
        if not training:
            return ops.zeros(shape, "bool")
        first, last = self.window
        done = ops.clip((ops.cast(self.step, "float32") - first) / (last - first), 0.0, 1.0)
        self.step.assign(self.step + 1)
        return keras.random.uniform(shape, seed=self.seeds) < (1 - done) ** _POWER

    def compute_output_spec(self, masks, patches, tokens, training=None):
        length = tokens.shape[1]
        return keras.KerasTensor((masks.shape[0], 1, length, length), "float32")


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskLogits(Layer):
    """Return the product of each query with each place of a map.

    Shapes:
        queries (batch, queries, dim) and a map (batch, rows, columns, dim) -> (batch, rows, columns, queries)
    """

    def call(self, queries: Tensor, maps: Tensor) -> Tensor:
        return ops.einsum("bqd,brcd->brcq", queries, maps)

    def compute_output_shape(self, queries_shape, maps_shape):
        return (*maps_shape[:-1], queries_shape[1])


@keras.saving.register_keras_serializable(package="keras_vit")
class EoMT(TaskModel):
    """Build a model that segments an image into masks with classes.

    Queries join the sequence before the last blocks. From the tokens after the final norm, a dense layer classifies
    each query, and the product of each query, after an MLP, with the enlarged map of the patches is its mask.

    The layers, and therefore the intermediates `model.get_layer(NAME).output`, are those of the encoder, `queries`,
    `class_head`, `mask_head`, `upscale_0` and so on, and `mask_logits`. With rotary positions, which leave queries as
    they are, the blocks that see the queries have a layer `query_rotary` of their own.

    Args:
        encoder: a `VisionTransformer` without a stem.
        classes: number of classes.
        num_queries: number of queries, and so of masks.
        num_blocks: number of last blocks that see the queries.
        num_upscales: number of times that the map of the patches is doubled.
        masked: whether, in each of these blocks, a query attends only to the patches of its mask before this block.
            Published models are trained with it, and used without.
        activation: activation in the MLP and in the enlargement of the map: `gelu` (exact) or `silu`.
        name: name of the Keras model.

    Shapes:
        images (batch, height, width, channels), prepared as `preprocessing` describes -> a dict of `class_logits`
        (batch, num_queries, classes + 1), of which the last is that of no object, and `mask_logits` (batch, rows,
        columns, num_queries), of 2 ** `num_upscales` times the size of the patch grid

    Raises:
        TypeError: if the encoder is not a `VisionTransformer`.
        ValueError: if a value is out of range, the encoder has fewer blocks, or parts that do not allow queries.
    """

    own_checks = {**TaskModel.own_checks, "activation": one_of(("gelu", "silu"))}

    def __init__(
        self,
        encoder: VisionTransformer,
        classes: int,
        num_queries: int = 200,
        num_blocks: int = 4,
        num_upscales: int = 2,
        masked: bool = False,
        activation: str = "gelu",
        name: str | None = None,
    ) -> None:
        super().__init__(
            encoder,
            name,
            classes=classes,
            num_queries=num_queries,
            num_blocks=num_blocks,
            num_upscales=num_upscales,
            masked=masked,
            activation=activation,
        )

    @staticmethod
    def _head(encoder, classes, num_queries, num_blocks, num_upscales, masked, activation):
        config, own = encoder.config, {"dtype": encoder.config.dtype}
        config._refuse(dict.fromkeys(conflicts(config, _USE), True))
        if num_blocks > config.num_layers or config.block.has_mixed_rotary:
            got = f"num_blocks={num_blocks}, num_layers={config.num_layers}, block.rotary={config.block.rotary}"
            raise ValueError(f"encoder must have num_blocks blocks or more, and no 'mixed' rotary positions; got {got}")
        width = config.hidden_dim
        layers = [
            Queries(num_queries, name="queries", **own),
            TakeTokens(0, num_queries, name="query_tokens", **own),
            PatchMap(config.patch_size, config.embedding.pad, name="patch_map", **own),
            keras.layers.Dense(classes + 1, name="class_head", **own),
            Perceptron((width, width, width), hidden=activation, name="mask_head", **own),
            *(Upscale(activation, name=f"upscale_{number}", **own) for number in range(num_upscales)),
            MaskLogits(name="mask_logits", **own),
        ]
        if config.block.rotary is not None:
            sizes = config.num_heads, config.grid_size, config.num_class_tokens, config.num_registers + num_queries
            layers.append(RotaryEmbedding(config.block.rotary, *sizes, name="query_rotary", **own))
        attention = MaskedAttention(name="masked_attention") if masked else None
        *_, last = predictions(encoder, layers, [attention] * num_blocks)
        return last


def predictions(encoder, layers, attentions):
    """Yield a dict of class logits and mask logits before each block that masks the attention, and after the last one.

    Args:
        encoder: the encoder of an EoMT.
        layers: the layers of its head, and maybe others.
        attentions: for each of the last blocks, the layer of its masked attention, or None.
    """
    config, images, of = encoder.config, encoder.inputs[0], {layer.name: layer for layer in layers}
    upscales = [layer for layer in layers if isinstance(layer, Upscale)]

    def predict(tokens):
        normed = encoder.get_layer("encoder_norm")(tokens)
        maps = patches = of["patch_map"](normed, images)
        for upscale in upscales:
            maps = upscale(maps)
        queries = of["query_tokens"](normed)
        mask_logits = of["mask_logits"](of["mask_head"](queries), maps)
        return {"class_logits": of["class_head"](queries), "mask_logits": mask_logits}, patches

    first = config.num_layers - len(attentions)
    tokens = of["queries"](_input_of(encoder.get_layer(f"block_{first:02d}")))
    positions = {}
    if config.block.rotary is not None:
        # an encoder for any size computes the angles from the coordinates
        others = [encoder.get_layer("patch_coordinates").output] if config.embedding.position_grid else []
        positions["rotary"] = of["query_rotary"](tokens, *others)
    for index, attention in enumerate(attentions, start=first):
        if attention is not None:
            found, patches = predict(tokens)
            yield found
            positions = {**positions, "attention_bias": attention(found["mask_logits"], patches, tokens)}
        tokens = encoder.get_layer(f"block_{index:02d}")(tokens, **({"positions": positions} if positions else {}))
    yield predict(tokens)[0]


def _input_of(block):
    """Return the tokens that a block of an encoder gets."""
    inputs = block.input
    return inputs if not isinstance(inputs, (list, tuple, dict)) else keras.tree.flatten(inputs)[0]
