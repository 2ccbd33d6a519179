"""The parts of a ViT that published families vary: its embedding, its blocks with rotary positions, and its head."""

import dataclasses
from collections.abc import Sequence
from dataclasses import field
from typing import ClassVar

from keras_vit import checks
from keras_vit.config.base import ARGUMENTS, Config, one_config_of, one_config_or_default, one_of, optional
from keras_vit.config.fields import about
from keras_vit.typing import Pair

NORMS = ("layer", "rms")
# kind -> base of the frequencies
ROTARY_KINDS = {"dinov3": 100.0, "eva02": 10000.0, "pe": 10000.0, "rope_vit": 100.0, "mixed": 10.0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotaryConfig(Config):
    """Describe rotary position embeddings (arXiv 2104.09864).

    They rotate the queries and keys of patches, which depends on the positions of the patches in the grid.
    The first half of the h / 2 angles of a head of width h belongs to one axis, the second half to the other. Angle i
    of an axis is the coordinate times `theta ** (-4 i / h)`.

    Args:
        kind: `dinov3`: coordinates 2 (r + 0.5) / rows - 1, times 2 pi, rows first; channel i is rotated with channel
            i + h / 2. `eva02`: coordinates r, rows first; channel 2 i is rotated with channel 2 i + 1. `pe`
            (Perception Encoder): as `eva02`, but columns first, and coordinates start at 1 if the model has a class
            token. `rope_vit` (RoPE-Axial, arXiv 2403.13298): as `pe`, but coordinates start at 0. `mixed` (RoPE-Mixed,
            same paper): as `rope_vit`, but each block and head learns two frequencies per angle, for columns and rows.
        theta: base of the frequencies, for `mixed` of their initial values; None uses the one of the kind, 10
            (`mixed`), 100 (`dinov3`, `rope_vit`) or 10000.
        reference_grid: (rows, columns) that coordinates of other grids are scaled to, as r * reference rows / rows;
            None does not scale them. Not for `dinov3`.

    Raises:
        ValueError: if a value is out of range or a choice is unknown.
    """

    own_checks = {"kind": one_of(ROTARY_KINDS), "theta": checks.check_positive}

    kind: str = field(metadata=about(defines=True, unseen=True, usual=True))
    theta: float | None = field(default=None, metadata=about(defines=True, unseen=True))
    reference_grid: Pair | None = field(default=None, metadata=about(defines=True, unseen=True, usual=True))

    def __post_init__(self):
        super().__post_init__()
        rule = "{kind}='dinov3' scales every grid to [-1, 1], so {reference_grid} must be None"
        self._refuse({rule: self.kind == "dinov3" and self.reference_grid})
        if self.theta is None:
            self._set(theta=ROTARY_KINDS[self.kind])


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingConfig(Config):
    """Describe what happens to the patches before the first block.

    Args:
        patch_bias: whether the projection of the patches has a bias; CLIP has none.
        patch_norm: whether the patch tokens are normalised before positions are added, as in AIMv2.
        pre_norm: whether all tokens are normalised before the first block, as in CLIP.
        class_position: whether class tokens have positions, too; DeiT-III has none.
        resize: the authors' method of resizing learned positions to another grid, see `resize_position_embedding`; None
            uses that of the file's layout, or `align_corners`.
        position_grid: (rows, columns) of the table of learned positions, which the model resizes to the grid of its
            images in every call; None has a table for the image size.
        square_positions: whether the table is resized to the square of the longer side of the grid, and cut at the
            bottom and at the right, so that positions keep their aspect ratio (NaFlexViT of timm); it needs
            `position_grid`.
        kernel_size: (height, width) of the stored kernel of the patches, which the model resizes to `patch_size` in
            every call, so that one set of weights serves all patch sizes (FlexiViT, arXiv 2212.08013); None stores one
            of `patch_size`.
        pad: whether images that the patch size does not divide are padded with zeros at the bottom and at the right to
            a multiple of it. No patch consists only of padding. With False, their last rows and columns of pixels,
            which fill no patch, are not used, as in the code of ViT, big_vision, CLIP, timm and transformers.
        patch_padding: pixels of zeros at each side of the image before the projection of the patches, fewer than a
            patch; the grid stays the same (ViTPose: 2).
        whole_patches: whether such images raise an error, unless `pad`, as in the code of the authors of DINOv2 and
            TIPS. Files of other libraries that state such a size load without this check.
        position_mlp_dim: width of the hidden layer of the MLP of `position_embedding="relative_mlp"`; None is 128.
        position_init: initial values of a table of learned positions: `normal`, N(0, 0.02), or `sincos2d_mae`, the
            sines and cosines of MAE (arXiv 2111.06377), which a `MaskedAutoencoder` keeps; fine-tuning trains both.
        patch_drop_rate: share of the patches that the blocks do not see in training, in [0, 1): patch dropout of FLIP
            (arXiv 2212.00794). Class tokens and registers are kept, and inference uses all patches.
        images_per_sequence: None takes images of one size per batch. An integer takes sequences with the
            patches of at most this number of images, each in its own aspect ratio, see `keras_vit.resize`.

    Raises:
        ValueError: if a value is out of range or the method is unknown.
    """

    patch_bias: bool = field(default=True, metadata=about(defines=True, shown="patch_encoder/projection/bias"))
    patch_norm: bool = field(default=False, metadata=about(defines=True, shown="patch_norm/.*"))
    pre_norm: bool = field(default=False, metadata=about(defines=True, shown="pre_norm/.*"))
    class_position: bool = True
    resize: str | None = field(default=None, metadata=about(unseen=True, resized=True))
    position_grid: Pair | None = None
    square_positions: bool = field(default=False, metadata=about(defines=True, unseen=True, usual=True))
    kernel_size: Pair | None = None
    pad: bool = field(default=False, metadata=about(unseen=True, usual=True, resized=True))
    patch_padding: int = field(default=0, metadata=about(defines=True, unseen=True, usual=True))
    whole_patches: bool = False
    position_mlp_dim: int | None = field(
        default=None, metadata=about(defines=True, shown="attention_bias(_0)?/dense1/kernel", axis=-1)
    )
    position_init: str = "normal"
    patch_drop_rate: float = 0.0
    images_per_sequence: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockConfig(Config):
    """Describe the parts of a transformer block.

    Args:
        order: `pre_norm`: x + f(norm(x)) for attention and MLP; `post_norm`: x + norm(f(x)); `parallel`: one norm, and
            x + attention(norm(x)) + mlp(norm(x)), as in arXiv 2302.05442, with one LayerScale for the sum of both.
        norm: `layer` (LayerNorm) or `rms` (RMSNorm, arXiv 1910.07467) for every norm of the model.
        gated: SwiGLU instead of the MLP (arXiv 2002.05202): silu(x W_gate) * (x W_up), then the last projection.
        bias: whether the output projections of attention and MLP, and the hidden layer of the MLP, have biases.
        attention_bias: whether the output projection of attention has one, if the MLP has (`bias`).
        key_bias: whether keys have a bias, if queries and values have one (`qkv_bias`).
        attention_norm: whether the joined outputs of the heads are normalised before their projection.
        mlp_norm: whether the hidden layer of the MLP is normalised (sub-LN).
        num_experts: number of experts, one for each data set, that compute the last channels of the output of the MLP
            from its hidden layer (arXiv 2212.04246, section 3.3).
        expert_dim: number of these channels, below the width of the tokens; None without experts.
        expert: index, from 0, of the expert that the model uses. It trains only this one.
        rotary: `RotaryConfig` of the rotary position embeddings, or None.

    Raises:
        ValueError: if a value is out of range or a choice is unknown.
    """

    own_checks = {"norm": one_of(NORMS), "rotary": one_config_of(RotaryConfig)}

    order: str = field(default="pre_norm", metadata=about(defines=True, unseen=True, usual=True))
    norm: str = field(default="layer", metadata=about(defines=True))
    gated: bool = field(default=False, metadata=about(defines=True))
    bias: bool = field(default=True, metadata=about(defines=True, shown="block_0/mlp/dense2/bias"))
    attention_bias: bool = field(default=True, metadata=about(defines=True))
    key_bias: bool = field(default=True, metadata=about(defines=True))
    attention_norm: bool = field(default=False, metadata=about(defines=True, shown="block_0/attention/output_norm/.*"))
    mlp_norm: bool = field(default=False, metadata=about(defines=True, shown="block_0/mlp/hidden_norm/.*"))
    num_experts: int = field(default=1, metadata=about(defines=True))
    expert_dim: int | None = field(
        default=None, metadata=about(defines=True, shown="block_0/mlp/expert_0/kernel", axis=-1)
    )
    expert: int = field(default=0, metadata=about(unseen=True, usual=True))
    rotary: RotaryConfig | None = field(default=None, metadata=about(defines=True))

    def __post_init__(self):
        super().__post_init__()
        rules = {
            "{num_experts} above 1 needs {expert_dim}, and 1 has none": (self.num_experts > 1) != bool(self.expert_dim),
            "{expert} must be below {num_experts}": self.expert >= self.num_experts,
        }
        self._refuse(rules)

    @property
    def has_mixed_rotary(self) -> bool:
        """Return whether each block has rotary positions of its own."""
        return self.rotary is not None and self.rotary.kind == "mixed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowConfig(Config):
    """Describe attention inside windows, with a few global blocks.

    This is the attention of ViTDet (arXiv 2203.16527) and of SAM's image encoder (arXiv 2304.02643). The grid is padded
    with zeros at the bottom and the right to a multiple of the window, after the norm; tokens attend to the padding,
    which is then cut off.

    Args:
        size: rows and columns of a window in tokens; None has no windows, so that every block is global.
        global_blocks: indices, from 0, of the blocks that attend to the whole grid.
        relative_positions: whether every block has learned keys for the offsets of rows and of columns between query
            and key, which are added to the attention logits (arXiv 2112.01526, section 4.1).

    Raises:
        ValueError: if a value is out of range.
    """

    own_checks = {"size": checks.check_integer}

    size: int | None = field(default=None, metadata=about(unseen=True, usual=True))
    global_blocks: Sequence[int] = field(default=(), metadata=about(unseen=True))
    relative_positions: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadConfig(Config):
    """Describe the pooling and the head.

    Args:
        neck: channels of the neck of SAM (arXiv 2304.02643): a 1 x 1 and a 3 x 3 convolution without biases, each with
            a norm over the channels (epsilon 1e-6), which turn the patch tokens into a map; None has no neck.
        projection: width of a dense layer without bias before the head; None has none. The head of a CLIP is such a
            projection; `keras_vit.zero_shot` puts a classifier after it.
        normalize: whether the input of the head is divided by its L2 norm (at least 1e-12).
        bias: whether the head has a bias; the projections of CLIP have none.
        map_heads: attention heads of the pooling `map`; None uses those of the blocks.
        map_mlp_dim: width of the hidden layer of the pooling `map`; None uses that of the blocks.
        map_prefix: whether the pooling `map` also reads class tokens and registers.
        num_blocks: number of last blocks whose class tokens the pooling `token_gap` reads, oldest first; DINOv2
            publishes heads for 1 and 4.

    Raises:
        ValueError: if a value is out of range.
    """

    neck: int | None = field(default=None, metadata=about(defines=True, shown="neck/conv2/kernel", axis=-1))
    projection: int | None = None
    normalize: bool = field(default=False, metadata=about(unseen=True, usual=True))
    bias: bool = True
    map_heads: int | None = field(default=None, metadata=about(defines=True, unseen=True, usual=True))
    map_mlp_dim: int | None = None
    map_prefix: bool = field(default=False, metadata=about(defines=True, unseen=True, usual=True))
    num_blocks: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig(Config):
    """Describe the decoder of a `MaskedAutoencoder`.

    The defaults are those of MAE (arXiv 2111.06377, section 4.1 and its code). GELU, epsilon, biases and dtype are
    those of the encoder.

    Args:
        hidden_dim: width of the tokens, at least 8 and divisible by 4 and by `num_heads`.
        num_layers: number of transformer blocks.
        num_heads: attention heads per block.
        mlp_dim: width of the hidden layer of each block's MLP; None is 4 * hidden_dim.

    Raises:
        ValueError: if a value is out of range or the heads do not divide the width.
    """

    network: ClassVar[str] = "mae_decoder"  # selects the array names of its checkpoints

    hidden_dim: int = 512
    num_layers: int = 8
    num_heads: int = 16
    mlp_dim: int | None = None

    def __post_init__(self):
        super().__post_init__()
        rule = "{hidden_dim} must be at least 8 and divisible by 4, for the fixed positions, and by {num_heads}"
        self._refuse({rule: self.hidden_dim < 8 or self.hidden_dim % 4 or self.hidden_dim % self.num_heads})
        if self.mlp_dim is None:
            self._set(mlp_dim=4 * self.hidden_dim)


# `block` is also an argument of layers
ARGUMENTS |= {
    "embedding": one_config_or_default(EmbeddingConfig),
    "block": one_config_or_default(BlockConfig),
    "decoder": one_config_or_default(DecoderConfig),
    "window": optional(one_config_of(WindowConfig)),
    "head": one_config_or_default(HeadConfig),
}
