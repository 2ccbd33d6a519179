"""EoMT: mask segmentation by queries in the sequence of a Vision Transformer (arXiv 2503.19108)."""

from typing import Any

import keras
from keras import ops

from keras_vit import checks
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

    own_checks = {"num_queries": checks.check_integer}

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

    Shapes:
        mask logits (batch, rows, columns, queries); the patches as a map, of which only the size is read; and the
        tokens (batch, tokens, dim), of which only the number is read -> (batch, 1, tokens, tokens), float32
    """

    def call(self, masks: Tensor, patches: Tensor, tokens: Tensor) -> Tensor:
        rows, columns = ops.shape(patches)[1:3]
        count, queries = ops.shape(tokens)[1], masks.shape[-1]
        logits = resize_maps(ops.cast(masks, "float32"), (rows, columns), align_corners=False)
        logits = ops.transpose(ops.reshape(logits, (-1, rows * columns, queries)), (0, 2, 1))
        bias = ops.where(logits > 0, 0.0, EXCLUDED)
        others = count - rows * columns
        return ops.pad(bias, ((0, 0), (0, count - queries), (others, 0)))[:, None]

    def compute_output_spec(self, masks, patches, tokens):
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
            classes=checks.check_integer("classes", classes),
            num_queries=checks.check_integer("num_queries", num_queries),
            num_blocks=checks.check_integer("num_blocks", num_blocks),
            num_upscales=checks.check_integer("num_upscales", num_upscales),
            masked=checks.check_flag("masked", masked),
            activation=checks.check_choice("activation", activation, ("gelu", "silu")),
        )

    @staticmethod
    def _head(encoder, classes, num_queries, num_blocks, num_upscales, masked, activation):
        config, own, images = encoder.config, {"dtype": encoder.config.dtype}, encoder.inputs[0]
        config._refuse(dict.fromkeys(conflicts(config, _USE), True))
        if num_blocks > config.num_layers or config.block.has_mixed_rotary:
            got = f"num_blocks={num_blocks}, num_layers={config.num_layers}, block.rotary={config.block.rotary}"
            raise ValueError(f"encoder must have num_blocks blocks or more, and no 'mixed' rotary positions; got {got}")
        first, width = config.num_layers - num_blocks, config.hidden_dim
        norm, block_0 = encoder.get_layer("encoder_norm"), encoder.get_layer(f"block_{first:02d}")
        to_map = PatchMap(config.patch_size, config.embedding.pad, name="patch_map", **own)
        class_head = keras.layers.Dense(classes + 1, name="class_head", **own)
        mask_head = Perceptron((width, width, width), hidden=activation, name="mask_head", **own)
        upscales = [Upscale(activation, name=f"upscale_{number}", **own) for number in range(num_upscales)]
        take = TakeTokens(0, num_queries, name="query_tokens", **own)
        product, attention = MaskLogits(name="mask_logits", **own), MaskedAttention(name="masked_attention")

        def predict(tokens):
            normed = norm(tokens)
            maps = patches = to_map(normed, images)
            for upscale in upscales:
                maps = upscale(maps)
            queries = take(normed)
            return class_head(queries), product(mask_head(queries), maps), patches

        tokens = Queries(num_queries, name="queries", **own)(_input_of(block_0))
        positions = {}
        if config.block.rotary is not None:
            sizes = config.num_heads, config.grid_size, config.num_class_tokens, config.num_registers + num_queries
            rotary = RotaryEmbedding(config.block.rotary, *sizes, name="query_rotary", **own)
            # an encoder for any size computes the angles from the coordinates
            others = [encoder.get_layer("patch_coordinates").output] if config.embedding.position_grid else []
            positions["rotary"] = rotary(tokens, *others)
        for index in range(first, config.num_layers):
            if masked:
                _, masks, patches = predict(tokens)
                positions = {**positions, "attention_bias": attention(masks, patches, tokens)}
            tokens = encoder.get_layer(f"block_{index:02d}")(tokens, **({"positions": positions} if positions else {}))
        class_logits, mask_logits, _ = predict(tokens)
        return {"class_logits": class_logits, "mask_logits": mask_logits}


def _input_of(block):
    """Return the tokens that a block of an encoder gets."""
    inputs = block.input
    return inputs if not isinstance(inputs, (list, tuple, dict)) else keras.tree.flatten(inputs)[0]
