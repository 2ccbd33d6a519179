"""ViTConfig: the architecture of a Vision Transformer: plain, hybrid, axial or distilled."""

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Self

from keras_vit import checks
from keras_vit.config.base import ImageConfig, count_patches, one_config_of
from keras_vit.config.fields import about
from keras_vit.config.needs import conflicts, values_of
from keras_vit.config.parts import BlockConfig, EmbeddingConfig, HeadConfig, WindowConfig
from keras_vit.config.resnet import FeatureMapConfig, ResNetConfig
from keras_vit.typing import Pair

CLASS_TOKEN_POOLINGS = values_of("pooling", gives="class_token")
UNPOOLED = values_of("pooling", breaks="one_vector")

PAPER_GELU = "tanh"  # vit_jax uses flax.linen.gelu, whose default is the tanh approximation
_PATCHES = "patch_encoder/projection"
PAPER_EPSILON = 1e-6  # vit_jax uses the default of flax.linen.LayerNorm; the default of Keras is 1e-3


def _size_or_any(name, value):
    if value is None:
        raise ValueError(f"{name} must not be None: {name}='any' takes images of any size")
    return value if value == "any" else checks.check_pair(name, value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig(ImageConfig):
    """Describe a Vision Transformer (arXiv 2010.11929, section 3.1 and Table 1).

    With `image_size="any"`, a model takes images of any size, the same for all images of a batch, or, with
    `embedding.images_per_sequence`, sequences of patches of images in their own aspect ratios.

    Args:
        patch_size: height and width of a patch in pixels; with a stem, in cells of its feature map. If it does not
            divide the image or the feature map, see `pad` and `whole_patches` of `EmbeddingConfig`.
        hidden_dim: width D of every token.
        num_layers: number of transformer blocks L.
        num_heads: attention heads per block; they must divide `hidden_dim`.
        mlp_dim: width of the hidden layer of each block's MLP.
        pooling: input of the head: `token`, the class token; `gap`, the mean of the patch tokens; `token_gap`, both,
            concatenated (DINOv2); `map`, multi-head attention pooling; `aim`, attention pooling whose learned query is
            not projected (AIMv2); `first`, the first patch token, without a class token; `unpooled`, every patch token;
            `token_unpooled`, every token, the class token first.
        class_token: None adds a class token if `pooling` needs one; True also keeps one with `gap` or `map`, which
            ignore it.
        norm_position: `before_pooling` (the paper), `after_pooling` (timm's fc_norm) or `none`.
        representation_size: width of the tanh layer `pre_logits` before the head; None for no such layer.
        position_embedding: `learned` (1-D table), `learned_2d` (one table for rows and one for columns, each of half
            the width), `factorized` (the same with the whole width, added), `sincos2d` (fixed, MoCo-v3 form),
            `sincos2d_mae` (fixed, MAE form), `relative` (learned keys for 1-D offsets, added to the attention logits),
            `relative_2d` (a learned bias of the logits per head and 2-D offset, as in BEiT), `relative_mlp` (such a
            bias, which an MLP computes from the offset; arXiv 2111.09883) or `none` (appendix D.4).
        position_placement: where positions are added: `stem`, once before the first block; `every`, at the input of
            every block, each with its own embedding; `shared`, at the input of every block, all with the same
            embedding. The three relative ones require `every` or `shared`.
        dropout_rate: dropout rate in [0, 1) after positions, attention output and both MLP layers.
        attention_dropout_rate: dropout rate in [0, 1) on the attention weights.
        drop_path_rate: stochastic depth rate in [0, 1) of the last block; it grows linearly from 0 with depth.
        layer_scale_init: initial value of LayerScale (arXiv 2103.17239); None for no LayerScale.
        qkv_bias: whether query, key and value projections have biases.
        qk_norm: whether queries and keys are layer-normalised per head.
        num_registers: number of learned register tokens (arXiv 2309.16588) after the class token.
        gelu: `tanh`, `erf` or `quick`, x sigmoid(1.702 x) (CLIP); None uses what the weights were trained with, or the
            paper's `tanh` without weights.
        epsilon: epsilon of every norm; None uses what the weights were trained with, or the paper's 1e-6 without
            weights.
        remat: what the backward pass computes again to save memory, beyond norms, GELU and attention weights, which are
            always computed again: `attention` with its norm and projections; or the whole `block`, of which only the
            input is stored. None computes neither again. From the second step on, dropout and stochastic depth draw
            other masks than with None, with the same rates.
        scan_layers: run the blocks as one loop, which the compiler translates once, so that deep models compile faster;
            JAX only. The weights, their names and the files stay the same. It acts where the model itself is called,
            not in a `feature_extractor`.
        token_merging: number of patch tokens that each block merges into similar ones (ToMe, arXiv 2210.09461), in
            training and inference, to save time; at most half of the remaining ones. 0 merges none. It does not change
            the weights of the model.
        distilled: add a distillation token after the class token, with its own head (DeiT, arXiv 2012.12877). In
            training the model returns the logits of both heads, otherwise their mean.
        attention: `global`, all tokens to all tokens; `axial`, where each block has a row block and a column block
            (appendix D.6); or `differential`, the difference of two attention maps per head (arXiv 2410.05258).
        window: `WindowConfig` of attention inside windows; None lets every block attend to all tokens.
        stem: `ResNetConfig` of a hybrid's ResNet; None cuts the patches from the image.
        embedding, block, head: `EmbeddingConfig`, `BlockConfig` and `HeadConfig`: what published families vary.

    Raises:
        ValueError: if a value is out of range, a choice is unknown or arguments contradict each other.
    """

    network: ClassVar[str] = "vit"
    own_checks = {"image_size": _size_or_any, "stem": one_config_of(ResNetConfig, FeatureMapConfig)}

    patch_size: Pair = field(metadata=about(defines=True, shown=f"{_PATCHES}/kernel", axis=slice(2)))
    hidden_dim: int = field(metadata=about(defines=True, shown=f"{_PATCHES}/kernel", axis=-1))
    num_layers: int = field(metadata=about(defines=True))
    num_heads: int = field(metadata=about(defines=True, unseen=True))
    mlp_dim: int = field(metadata=about(defines=True, shown="block_0/mlp/dense2/kernel", axis=0))
    pooling: str = field(default="token", metadata=about(unseen=True, of_head=True, changeable=True))
    class_token: bool | None = field(default=None, metadata=about(of_head=True, changeable=True))
    norm_position: str = field(default="before_pooling", metadata=about(unseen=True, of_head=True, changeable=True))
    representation_size: int | None = field(default=None, metadata=about(shown="pre_logits/kernel", axis=-1))
    position_embedding: str = field(default="learned", metadata=about(unseen=True, changeable=True))
    position_placement: str = field(default="stem", metadata=about(unseen=True, defines=True))
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    drop_path_rate: float = 0.0
    layer_scale_init: float | None = field(default=None, metadata=about(defines=True))
    qkv_bias: bool = field(
        default=True,
        metadata=about(defines=True, changeable=True, shown="block_0/attention/(qkv/bias|query_bias)"),
    )
    qk_norm: bool = field(default=False, metadata=about(defines=True, shown="block_0/attention/query_norm/.*"))
    num_registers: int = field(default=0, metadata=about(defines=True, shown="class_token/registers", axis=1))
    gelu: str | None = field(default=None, metadata=about(defines=True, unseen=True, close=True, changeable=True))
    epsilon: float | None = field(default=None, metadata=about(unseen=True, close=True, changeable=True))
    remat: str | None = field(default=None, metadata=about(runtime=True))
    scan_layers: bool = field(default=False, metadata=about(runtime=True))
    token_merging: int = 0
    distilled: bool = field(default=False, metadata=about(defines=True))
    attention: str = field(default="global", metadata=about(defines=True))
    window: WindowConfig | None = None
    stem: ResNetConfig | FeatureMapConfig | None = None
    embedding: EmbeddingConfig = EmbeddingConfig()
    block: BlockConfig = BlockConfig()
    head: HeadConfig = HeadConfig()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the config that a dict from `to_dict` describes.

        Older files state None for images of any size.

        Args:
            values: dict from field names to values; fields with a default may be absent.

        Raises:
            ValueError: if a key is not a field or a value is invalid.
        """
        is_older = values.get("image_size", "") is None
        return super().from_dict({**values, "image_size": "any"} if is_older else values)

    def __post_init__(self):
        super().__post_init__()
        if self.fixed_size is not None and not self.embedding.pad:
            divided = "image_size" if self.stem is None else f"the feature map of image_size {self.image_size}"
            whole = self.embedding.whole_patches
            checks.check_divisible(divided, self.feature_size, "patch_size", self.patch_size, whole)
        has_sines = self.position_embedding.startswith("sincos2d") or self.embedding.position_init == "sincos2d_mae"
        (height, width), (rows, columns) = self.patch_size, self.embedding.kernel_size or self.patch_size
        self._refuse(
            {
                **dict.fromkeys(conflicts(self), True),
                "{hidden_dim} must be divisible by {num_heads}": self.hidden_dim % self.num_heads,
                "sines and cosines of {position_embedding} or {embedding.position_init} need {hidden_dim} of 8 or "
                "more, divisible by 4": has_sines and (self.hidden_dim % 4 or self.hidden_dim < 8),
                "{position_embedding}='learned_2d' needs an even {hidden_dim}, half of it for rows and half for "
                "columns": self.position_embedding == "learned_2d" and self.hidden_dim % 2,
                "{block.expert_dim} must be below {hidden_dim}": (self.block.expert_dim or 0) >= self.hidden_dim,
                "{block.rotary} needs {hidden_dim} / {num_heads} divisible by 4": (
                    self.block.rotary and self.hidden_dim // self.num_heads % 4
                ),
                "{block.rotary} of kind 'mixed' has other positions in each block, for one image size, so "
                "{scan_layers}, {embedding.position_grid} and {embedding.images_per_sequence} must not be set": (
                    self.block.has_mixed_rotary
                    and (self.scan_layers or self.embedding.position_grid or self.embedding.images_per_sequence)
                ),
                "{head.num_blocks} must be at most {num_layers}": self.head.num_blocks > self.num_layers,
                "{window.global_blocks} must be below {num_layers}": (
                    self.window and max(self.window.global_blocks, default=0) >= self.num_layers
                ),
                "{embedding.images_per_sequence} above 1 repeats the class tokens after the positions, so "
                "{position_placement} must be 'stem'": (
                    (self.embedding.images_per_sequence or 1) > 1 and self.position_placement != "stem"
                ),
                "{embedding.kernel_size} can only be resized in one direction, so both sides of {patch_size} must be "
                "at least as large, or both at most": (height - rows) * (width - columns) < 0,
            }
        )

    @property
    def feature_size(self) -> Pair:
        """Return the (rows, columns) to cut into patches; None for images of any size."""
        return self.fixed_size if self.stem is None else self.stem.feature_size(self.image_size)

    @property
    def grid_size(self) -> Pair:
        """Return the (rows, columns) of the patch grid; None for images of any size."""
        if self.fixed_size is None:
            return None
        return count_patches(self.feature_size, self.patch_size, self.embedding.pad)

    @property
    def covered_size(self) -> Pair:
        """Return the height and width in pixels of all patches.

        They are at most those of the image, or, with `embedding.pad`, at least; None for images of any size.
        """
        if self.fixed_size is None:
            return None
        sides = zip(self.image_size, self.grid_size, self.patch_size, self.feature_size, strict=True)
        return tuple(side * count * step // cells for side, count, step, cells in sides)

    @property
    def table_grid(self) -> Pair:
        """Return the (rows, columns) of the table of learned positions."""
        return self.embedding.position_grid or self.grid_size

    @property
    def usual_size(self) -> tuple[int, int]:
        """Return the image size, or that of the position table's grid."""
        if self.fixed_size is not None:
            return self.fixed_size
        return tuple(side * step for side, step in zip(self.table_grid, self.patch_size, strict=True))

    @property
    def is_flexible(self) -> bool:
        """Return whether the stored kernel or position table is resized in calls.

        It then has another size than the patches or the grid."""
        has_other_table = self.fixed_size is not None and self.table_grid != self.grid_size
        return has_other_table or self.embedding.kernel_size not in (None, self.patch_size)

    @property
    def num_class_tokens(self) -> int:
        """Return the number of class and distillation tokens: 0, 1 or 2."""
        follows = self.pooling in CLASS_TOKEN_POOLINGS
        return int(follows if self.class_token is None else self.class_token) + int(self.distilled)

    @property
    def num_position_rows(self) -> int:
        """Return the number of class and distillation tokens that have positions."""
        return self.num_class_tokens if self.embedding.class_position else 0

    @property
    def num_prefix_tokens(self) -> int:
        """Return the number of class, distillation and register tokens."""
        return self.num_class_tokens + self.num_registers

    def resolve(self, **changes: Any) -> Self:
        """Return a copy in which the paper's values replace a `gelu` or epsilon of None.

        Args:
            **changes: new values of other fields, as in `replace`.
        """
        filled = {"gelu": self.gelu or PAPER_GELU, "epsilon": self.epsilon or PAPER_EPSILON}
        return self.replace(**filled, stem=self.stem and self.stem.resolve(), **changes)
