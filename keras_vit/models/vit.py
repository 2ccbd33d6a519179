"""VisionTransformer: the ViT of arXiv 2010.11929 as a functional Keras model: plain, hybrid, axial or distilled."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import keras

from keras_vit.config import UNPOOLED, FeatureMapConfig, Preprocessing, ResNetConfig, ViTConfig
from keras_vit.layers import (
    AddPositionEmbs,
    AxialTransformerBlock,
    ClassToken,
    Neck,
    PatchDropout,
    PatchEncoder,
    TransformerBlock,
)
from keras_vit.layers.base import NORM_LAYERS
from keras_vit.layers.forms import is_compiled_by_jax
from keras_vit.layers.patches import PatchCoordinates, PatchMap, PatchPlaces, RepeatedPrefix
from keras_vit.layers.pooling import POOLINGS
from keras_vit.layers.position_bias import AttentionBias, RelativePositionMlp, RelativePositions
from keras_vit.layers.rotary import MixedRotaryEmbedding, RotaryEmbedding
from keras_vit.layers.token_merging import MergingTransformerBlock, TokenUnmerging
from keras_vit.logs import LOGGER
from keras_vit.models.base import ImageModel, head_dtype, make_head
from keras_vit.models.copies import HEADS
from keras_vit.models.derived import with_config
from keras_vit.models.resnet import resnet_stem
from keras_vit.models.scanned import scanned_call
from keras_vit.typing import Size, Tensor

_MANY_SIZES = 8  # that JAX compiles without a remark
# fields of the config that are arguments of every block
_OF_EACH_BLOCK = (
    *("num_heads", "mlp_dim", "dropout_rate", "attention_dropout_rate", "layer_scale_init"),
    *("qkv_bias", "qk_norm", "gelu", "epsilon", "remat", "block", "dtype"),
)


@keras.saving.register_keras_serializable(package="keras_vit")
class VisionTransformer(ImageModel):
    """Build a Vision Transformer (arXiv 2010.11929).

    It consists of patches, transformer blocks, pooling and a head. The layers, and therefore the intermediates
    `model.get_layer(NAME).output`, are `patch_encoder`, `class_token` (class token, distillation token and registers),
    `position_embs`, `block_00` and so on, `encoder_norm`, `pooling`, `pre_logits`, `head`; layers that a config does
    not need are absent. A hybrid first has `root_conv`, `root_norm`, `root_relu`, `root_pool`, `stage_1` and so on.
    With `position_placement="every"`, the position layers of the later blocks are `position_embs_01` and so on.
    Relative position layers are named `relative_positions` (1-D) or `attention_bias` (2-D) instead of `position_embs`,
    rotary ones `rotary`. A distilled model also has `pooling_dist` and `head_dist`; other families may have
    `patch_norm` after the patch encoder, `pre_norm` before the first block, `neck` before the pooling, and
    `projection` and `normalization` before the head.

    With `token_merging`, each block (`block_00` and so on) returns three tensors: its tokens, fewer in every block; the
    number of original tokens in each; and the index of the token that holds each original one (see
    `MergingTransformerBlock`). After the last block, `unmerging` copies each token to the places of the original tokens
    that it represents, so the later layers work as without merging. Mean pooling and attention pooling therefore
    weight merged tokens by size. `keras_vit.feature_extractor` unmerges the outputs of blocks in the same way.

    A distilled model has one head on the class token and one on the distillation token. It returns the mean of their
    logits; `call_heads` returns both. Its `fit` trains both heads on the labels, each with half the loss. A `Distiller`
    trains the second head on a teacher. Inside another Keras model, the mean is trained.

    Args:
        config: a `ViTConfig`.
        stem: custom stem of a hybrid: any Keras model from images to one feature map (batch, rows, columns, channels).
            Patches of `config.patch_size` cells are cut from the map. None builds the stem of `config.stem`.
        preprocessing: `Preprocessing` of its images; None uses the official one at the config's image size.
        labels: sequence of class names, one per logit, or None.
        name: name of the Keras model; None uses the config's name as letters, digits and underscores.

    Shapes:
        (batch, height, width, channels), prepared as `preprocessing` describes -> logits (batch, classes); with an
        unpooled model (batch, tokens, classes); with `include_top=False` the features (batch, dim). Unpooled models
        with a neck return maps (batch, rows, columns, classes or channels of the neck).

    Raises:
        TypeError: if `config` is not a `ViTConfig` or `stem` is not a Keras model.
        ValueError: if `stem` does not take the config's images or does not end in a feature map, or if
            `config.scan_layers` and the backend is not JAX.
    """

    config_class = ViTConfig
    config: ViTConfig

    def __init__(
        self,
        config: ViTConfig,
        *,
        stem: keras.Model | None = None,
        preprocessing: Preprocessing | None = None,
        labels: Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        config, inputs, images = self._start(config)
        maps, config = (images, config) if isinstance(images, dict) else _apply_stem(images, config, stem)
        tokens, positions, adders = _embed(maps, config)
        outputs_of_blocks = _encode(tokens, positions, adders, config)
        pooled = _pool(outputs_of_blocks, positions, maps, config)
        heads = [_head(features, config, head) for features, head in zip(pooled, HEADS, strict=False)]
        dtype = head_dtype(config) if config.include_top else config.dtype
        outputs = keras.layers.Average(dtype=dtype, name="average")(heads) if config.distilled else heads[0]
        self._finish(config, inputs, outputs, preprocessing, labels, name)
        self._stem = stem
        # Store the method, not the model, which Keras would track as a sub-layer with every weight a second time.
        self._call_heads = keras.Model(inputs, heads).__call__ if config.distilled else None
        self._has_any_size = config.fixed_size is None
        self._compiled_sizes: set[tuple[int, int]] = set()
        self._scan = None
        if config.scan_layers:
            layers = [self.get_layer(f"block_{index:02d}") for index in range(config.num_layers)]
            self._scan = scanned_call(inputs, tokens, positions, layers, outputs_of_blocks[-1], outputs)

    @staticmethod
    def _make_inputs(config):
        if config.embedding.images_per_sequence is None:
            return ImageModel._make_inputs(config)
        width = math.prod(config.patch_size) * config.channels
        return {
            "patches": keras.Input((None, width), name="patches"),
            "coordinates": keras.Input((None, 5), dtype="int32", name="coordinates"),
        }

    def call(self, inputs: Tensor, training: bool | None = None, mask: Any = None) -> Tensor:
        images = keras.tree.flatten(inputs)[-1]  # or patches, which are after the coordinates in the order of names
        if self._has_any_size and is_compiled_by_jax(images):
            self._compiled_sizes.add(tuple(images.shape[1:3]))
            count = len(self._compiled_sizes)
            if count > _MANY_SIZES:
                LOGGER.info("%s: JAX compiles each size of images anew; this is number %s", self.name, count)
        if self._scan is not None and not keras.utils.is_keras_tensor(images):
            return self._scan(inputs, training)
        # `_in_train_step` is of `DistributedFit`: `fit` gets the logits of both heads
        if self._call_heads is None or not (training and self._in_train_step):
            return super().call(inputs, training=training, mask=mask)
        return tuple(self._call_heads(inputs, training=training, mask=mask))

    def call_heads(self, inputs: Tensor, training: bool | None = None) -> list[Tensor]:
        """Return the logits of the head, or of both heads of a distilled model.

        Args:
            inputs: (batch, height, width, channels), prepared as `preprocessing` describes.
            training: whether dropout and stochastic depth are active.

        Returns:
            List of one or two tensors, the class token's first.
        """
        if self._call_heads is None:
            return super().call_heads(inputs, training=training)
        return list(self._call_heads(inputs, training=training))

    def with_patch_size(self, patch_size: Size) -> "VisionTransformer":
        """Return a copy with other patches and the same weights (FlexiViT).

        The kernel of the patches and the position table are resized in every call (arXiv 2212.08013). Smaller patches
        cost more and are more accurate if the model was trained with several sizes; other models lose accuracy.

        Args:
            patch_size: (height, width) of a patch in pixels, or one integer for both.

        Raises:
            ValueError: if the model has a stem or other than global attention, if the image size does not allow it, or
                if one side of the patches is larger than that of the stored kernel and the other one smaller.
        """
        stored = {"embedding.kernel_size": self._config.embedding.kernel_size or self._config.patch_size}
        stored["embedding.position_grid"] = self._config.table_grid
        return with_config(self, patch_size=patch_size, **stored)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        heads = y_pred if isinstance(y_pred, tuple) else (y_pred,)
        loss_of = super().compute_loss
        return sum(loss_of(x, y, logits, sample_weight, training) for logits in heads) / len(heads)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        y_pred = sum(y_pred) / len(y_pred) if isinstance(y_pred, tuple) else y_pred
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def get_config(self):
        return {**super().get_config(), "stem": keras.saving.serialize_keras_object(self._stem)}

    @classmethod
    def _other_arguments(cls, config):
        return {"stem": keras.saving.deserialize_keras_object(config["stem"])}


def _apply_stem(images, config, stem):
    """Return the feature map that the patches are cut from (section 3.1), and the config with its size set."""
    if stem is None:
        if isinstance(config.stem, FeatureMapConfig):
            raise ValueError(f"stem must be the model that config.stem describes; got None and {config.stem}")
        return (images if config.stem is None else resnet_stem(images, config.stem, config.dtype)), config
    if not isinstance(stem, keras.Model):
        raise TypeError(f"stem must be a keras model that ends in a feature map, or None; got {type(stem).__name__}")
    if getattr(stem, "inputs", None) is None:
        raise ValueError(f"stem must be a functional keras model, or a Sequential that is built; got {stem.name!r}")
    if isinstance(config.stem, ResNetConfig):
        raise ValueError(f"config.stem must be None if stem is given; got {config.stem}")
    wanted, shape = tuple(stem.input_shape), tuple(images.shape)
    if len(wanted) != len(shape) or any(side not in (None, got) for side, got in zip(wanted, shape, strict=True)):
        raise ValueError(f"stem must take images of shape {shape}, the config's; it takes {wanted}")
    features = stem(images)
    shape = getattr(features, "shape", ())
    if len(shape) != 4 or None in shape[1:]:
        raise ValueError(f"stem must end in one feature map (batch, rows, columns, channels); got {features}")
    return features, config.replace(stem=FeatureMapConfig(size=tuple(shape[1:3])))


def _embed(maps, config):
    """z_0 = [x_class; x_1 E; ...; x_N E] + E_pos, Eq. 1.

    Args:
        maps: images; the feature map of a stem; or the dict of `_make_inputs`.
        config: the `ViTConfig`.

    Returns:
        z_0; the dict `positions` that the attention of every block gets, {} for a plain ViT; and for each block an
        adder, a function from tokens and positions to both with the positions that are added at its input.
    """
    parts, images, prefix = config.embedding, config.embedding.images_per_sequence, config.num_prefix_tokens
    own = {"dtype": config.dtype}
    arguments = config.patch_size, config.hidden_dim, parts.patch_bias, parts.pad, parts.kernel_size
    encoder = PatchEncoder(*arguments, parts.whole_patches, parts.patch_padding, name="patch_encoder", **own)
    tokens = encoder(maps["patches"] if isinstance(maps, dict) else maps)
    if parts.patch_norm:
        tokens = _norm(config, "patch_norm")(tokens)
    if prefix:
        tokens = ClassToken(config.num_class_tokens, config.num_registers, name="class_token", **own)(tokens)
    coordinates, positions = _coordinates(tokens, maps, config)
    add_first, *later = [partial(_add_positions, layer, coordinates) for layer in _position_layers(config)]
    tokens, positions = add_first(tokens, positions)
    if prefix and (images or 1) > 1:
        tokens = RepeatedPrefix(images, prefix, name="repeated_prefix", **own)(tokens)
    if config.dropout_rate:
        tokens = keras.layers.Dropout(config.dropout_rate, name="dropout", **own)(tokens)
    if parts.patch_drop_rate:
        tokens = PatchDropout(parts.patch_drop_rate, prefix, name="patch_dropout", **own)(tokens)
    if parts.pre_norm:
        tokens = _norm(config, "pre_norm")(tokens)
    return tokens, positions, [partial(_add_positions, None, ()), *later]  # those of the first block are added


def _norm(config, name):
    return NORM_LAYERS[config.block.norm](epsilon=config.epsilon, dtype=config.dtype, name=name)


def _coordinates(tokens, maps, config):
    """Return the inputs of position layers besides tokens, as a tuple, and the positions that need no such layer."""
    coordinates, positions, pad = (), {}, config.embedding.pad
    images, prefix = config.embedding.images_per_sequence, config.num_prefix_tokens
    if images is not None:
        *coordinates, positions["sequence_ids"] = PatchPlaces(images, prefix, name="patch_places")(maps["coordinates"])
    elif config.embedding.position_grid is not None:
        coordinates = (PatchCoordinates(config.patch_size, pad, name="patch_coordinates")(maps),)
    if config.block.rotary is not None:
        # Registers are not rotated, and neither are the class tokens of further images.
        registers = config.num_registers + ((images or 1) - 1) * prefix
        arguments = [config.block.rotary, config.num_heads, config.grid_size, config.num_class_tokens, registers]
        if config.block.has_mixed_rotary:
            rotary = MixedRotaryEmbedding(*arguments, config.num_layers, dtype=config.dtype, name="rotary")
        else:
            rotary = RotaryEmbedding(*arguments, dtype=config.dtype, name="rotary")
        positions["rotary"] = rotary(tokens, *coordinates)
    if coordinates and config.window is not None:
        positions["grid"] = PatchMap(config.patch_size, pad, dtype=config.dtype, name="patch_grid")(tokens, maps)
    return coordinates, positions


def _add_positions(layer, coordinates, tokens, positions):
    """Return tokens and positions after a position layer, which adds to one of them; None changes neither."""
    if layer is None:
        return tokens, positions
    if isinstance(layer, AddPositionEmbs):
        return layer(tokens, *coordinates), positions
    return tokens, {**positions, _IN_POSITIONS[type(layer)]: layer(tokens)}


# position layer -> name of its output in the positions of the attention
_IN_POSITIONS = {
    RelativePositions: "relative_keys",
    AttentionBias: "attention_bias",
    RelativePositionMlp: "attention_bias",
}


def _position_layers(config):
    """Return the position layer before each block, None before a block that adds none (appendix D.4, Table 8)."""
    if config.position_placement == "every":
        first = "_00" if config.position_embedding in ("relative_2d", "relative_mlp") else ""
        return [_position_layer(config, f"_{index:02d}" if index else first) for index in range(config.num_layers)]
    layer, others = _position_layer(config, ""), config.num_layers - 1
    # all blocks share the output of a relative layer
    if config.position_placement == "stem" or config.position_embedding.startswith("relative"):
        return [layer] + [None] * others
    return [layer] * (1 + others)


def _position_layer(config, suffix):
    common = {"dtype": config.dtype}
    if config.position_embedding == "relative":
        name = f"relative_positions{suffix}"
        return RelativePositions(config.num_heads, config.num_prefix_tokens, name=name, **common)
    resize = config.embedding.resize
    if config.position_embedding == "relative_2d":
        return AttentionBias(config.grid_size, config.num_heads, resize, name=f"attention_bias{suffix}", **common)
    if config.position_embedding == "relative_mlp":
        arguments = config.grid_size, config.num_heads, config.embedding.position_mlp_dim or 128
        name = f"attention_bias{suffix}"
        return RelativePositionMlp(*arguments, config.num_prefix_tokens, name=name, **common)
    placed = config.num_position_rows  # class tokens with a position; the other prefix tokens count as registers
    sequence = (config.table_grid, placed, config.num_prefix_tokens - placed)
    common |= {name: getattr(config.embedding, name) for name in ("square_positions", "position_init")}
    return AddPositionEmbs(config.position_embedding, *sequence, resize, name=f"position_embs{suffix}", **common)


def _encode(tokens, positions, adders, config):
    """z_l = block(z_{l-1}), Eqs. 2 and 3. Return z_1, ..., z_L."""
    outputs, merged = [], ()  # merged: sizes and groups of merged tokens
    for index, add in enumerate(adders):
        tokens, positions = add(tokens, positions)
        given = {"positions": _of_block(positions, config, index)} if positions else {}
        tokens, *merged = keras.tree.flatten(_block(config, index)(tokens, *merged, **given))
        outputs.append(tokens)
    if merged:
        outputs[-1] = TokenUnmerging(dtype=config.dtype, name="unmerging")(tokens, merged[-1])
    return outputs


def _of_block(positions, config, index):
    """Return the positions of one block, of which only mixed rotary ones differ from those of the others."""
    return {**positions, "rotary": positions["rotary"][:, index]} if config.block.has_mixed_rotary else positions


def _block(config, index):
    arguments = {name: getattr(config, name) for name in _OF_EACH_BLOCK}
    # grows linearly from 0 to the rate of the last block
    arguments["drop_path_rate"] = config.drop_path_rate * index / max(config.num_layers - 1, 1)
    arguments["name"] = f"block_{index:02d}"
    if config.attention == "axial":
        return AxialTransformerBlock(config.grid_size, **arguments)
    if config.attention == "differential":
        arguments["lambda_init"] = 0.8 - 0.6 * math.exp(-0.3 * index)  # arXiv 2410.05258, section 2.1
    if config.window is not None:
        is_global = index in config.window.global_blocks
        window = config.window.replace(global_blocks=(), **({"size": None} if is_global else {}))
        return TransformerBlock(window=window, grid_size=config.table_grid, **arguments)
    if config.token_merging:
        return MergingTransformerBlock(config.token_merging, config.num_prefix_tokens, **arguments)
    return TransformerBlock(**arguments)


def _pool(outputs, positions, maps, config):
    """y = LN(z_L^0), Eq. 4, or another pooling. Return a list with the features of each head."""
    norm = None if config.norm_position == "none" else _norm(config, "encoder_norm")
    if config.head.neck is not None:
        patches = PatchMap(config.patch_size, config.embedding.pad, dtype=config.dtype, name="neck_map")
        outputs = [Neck(config.head.neck, dtype=config.dtype, name="neck")(patches(outputs[-1], maps))]
    tokens = outputs[-config.head.num_blocks :]
    if config.norm_position == "before_pooling":
        tokens = [norm(z) for z in tokens]
    tokens = tokens if len(tokens) > 1 else tokens[0]  # only a head on several blocks reads a list
    if config.pooling in UNPOOLED:
        return [tokens]
    ids = [positions["sequence_ids"]] if "sequence_ids" in positions else []
    pooled = [pooling(tokens, *ids) for pooling in _poolings(config)]
    return [norm(features) for features in pooled] if config.norm_position == "after_pooling" else pooled


def _poolings(config):
    """Return the pooling of each head; a distilled model has one for each of its two tokens."""
    own = {"images_per_sequence": config.embedding.images_per_sequence, "dtype": config.dtype}
    names = ("pooling", "pooling_dist") if config.distilled else ("pooling",)
    return [POOLINGS[config.pooling].of(config, index, name=name, **own) for index, name in enumerate(names)]


def _head(features, config, name):
    """Return the logits of pooled features: after the tanh layer of pre-training, if any, a dense layer."""
    if config.representation_size is not None:
        pre_logits = {"kernel_initializer": "lecun_normal", "dtype": config.dtype, "name": "pre_logits"}
        features = keras.layers.Dense(config.representation_size, "tanh", **pre_logits)(features)
    own = {"dtype": head_dtype(config)}
    if config.head.projection is not None:
        features = keras.layers.Dense(config.head.projection, use_bias=False, name="projection", **own)(features)
    if config.head.normalize:  # x / max(|x|, 1e-12); in float32, as squares overflow float16
        features = keras.layers.UnitNormalization(name="normalization", **own)(features)
    return make_head(config, name)(features) if config.include_top else features
