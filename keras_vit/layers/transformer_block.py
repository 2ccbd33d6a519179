"""TransformerBlock and its parts: the MLP, LayerScale and stochastic depth.

`TransformerBlock.call` applies one of `_ORDERS`, such as `_pre_norm`, which has Eqs. 2 and 3; both are after the class.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import keras
from keras import ops

from keras_vit import checks
from keras_vit.config import BlockConfig, WindowConfig
from keras_vit.config.base import optional
from keras_vit.layers.base import Layer, build_in_sequence
from keras_vit.layers.differential_attention import DifferentialSelfAttention
from keras_vit.layers.forms import absent, gelu, on_rows, project, recompute
from keras_vit.layers.grid_attention import GridSelfAttention
from keras_vit.layers.self_attention import MultiHeadSelfAttention
from keras_vit.typing import Size, Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class MlpBlock(Layer):
    """Apply two dense layers with GELU between them (arXiv 2010.11929, section 3.1).

    Dropout follows each dense layer. If `block.gated`, the first dense layer computes [gate, up], each of width
    `mlp_dim`, and the hidden layer is silu(gate) * up (SwiGLU, arXiv 2002.05202).

    Args:
        mlp_dim: width of the hidden layer; the output has the width of the input.
        dropout_rate: dropout rate in [0, 1).
        gelu: `tanh` (approximate, the official code), `erf` (exact; timm, Hugging Face, DeiT) or `quick`,
            x sigmoid(1.702 x) (CLIP).
        block: `BlockConfig`; its `gated`, `bias`, `mlp_norm`, `norm` and experts apply here. None is the default one.
        epsilon: epsilon of the norm of the hidden layer, if any.

    Shapes:
        (..., dim) -> the same. A layer `norm` is applied to the input first.

    Raises:
        ValueError: if a value is out of range or a choice is unknown.
    """

    def __init__(
        self,
        mlp_dim: int,
        dropout_rate: float = 0.0,
        gelu: str = "tanh",
        block: BlockConfig | None = None,
        epsilon: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.configure(mlp_dim=mlp_dim, dropout_rate=dropout_rate, gelu=gelu, block=block, epsilon=epsilon)

    def build(self, input_shape):
        hidden_shape = (*input_shape[:-1], self.mlp_dim)
        self.dense1 = self._dense(self.mlp_dim * (2 if self.block.gated else 1), "dense1", input_shape)
        norm = self.block.norm, self.epsilon, "hidden_norm", hidden_shape
        self.hidden_norm = self.make_norm(*norm) if self.block.mlp_norm else absent
        self.dropout = self.sublayer(keras.layers.Dropout, self.dropout_rate, name="dropout", shape=hidden_shape)
        part = self.block.expert_dim or 0
        self.dense2 = self._dense(input_shape[-1] - part, "dense2", hidden_shape)
        experts = range(self.block.num_experts if part else 0)
        self.experts = [self._dense(part, f"expert_{e}", hidden_shape, e == self.block.expert) for e in experts]

    def _dense(self, units, name, shape, trainable=True):
        bias = keras.initializers.RandomNormal(stddev=1e-6)
        more = {"bias_initializer": bias, "use_bias": self.block.bias, "trainable": trainable}
        return self.dense(units, name, shape=shape, **more)

    def call(self, x: Tensor, training: bool | None = None, *, norm: keras.layers.Layer | None = None) -> Tensor:
        def rest(x):
            x = self.hidden_norm(_ACTIVATIONS["gated" if self.block.gated else self.gelu](x, training))
            x = self.dropout(x, training=training)
            parts = [project(dense, x) for dense in (self.dense2, *expert)]
            return self.dropout(ops.concatenate(parts, axis=-1) if expert else parts[0], training=training)

        expert = self.experts[self.block.expert : self.block.expert + 1]
        layers = [self.dropout, self.dense2, *expert, *([self.hidden_norm] if self.block.mlp_norm else [])]
        x = project(self.dense1, x, norm, training)
        return recompute(layers, rest, x, when=training)


def _swiglu(x, _):
    gate, up = ops.split(x, 2, axis=-1)
    return ops.silu(gate) * up


# `gated`, or `gelu` of the MLP -> function of the hidden layer and `training`
_ACTIVATIONS = {
    "gated": _swiglu,
    "quick": lambda x, _: x * ops.sigmoid(1.702 * x),
    "tanh": lambda x, training: gelu(x, True, training),
    "erf": lambda x, training: gelu(x, False, training),
}


class ResidualBlock(Layer):
    """Apply attention and an MLP, each in a residual branch after a norm.

    It is the base class of the transformer blocks. Parts that a block does not have return their input.

    Shapes:
        as in the subclasses
    """

    layer_scale_init: float | None = None
    block = BlockConfig()

    def make_parts(self) -> None:
        """Create the sub-layers of both branches except the first norm and the attention."""
        has_two_norms, has_scale = self.block.order != "parallel", self.layer_scale_init is not None
        self.dropout = self.sublayer(keras.layers.Dropout, self.dropout_rate, name="dropout")
        self.norm2 = self.make_norm(self.block.norm, self.epsilon, "norm2") if has_two_norms else absent
        mlp = self.mlp_dim, self.dropout_rate, self.gelu, self.block, self.epsilon
        self.mlp = self.sublayer(MlpBlock, *mlp, name="mlp")
        scale = partial(self.sublayer, LayerScale, self.layer_scale_init)
        self.layer_scale1 = scale(name="layer_scale1") if has_scale else absent
        self.layer_scale2 = scale(name="layer_scale2") if has_scale and has_two_norms else absent
        self.drop_path = self.sublayer(DropPath, self.drop_path_rate, name="drop_path")

    def build_parts(self, shape: Any) -> None:
        """Build these sub-layers and the first norm.

        Args:
            shape: of the tokens, (batch, tokens, dim).
        """
        parts = (self.norm1, self.dropout, self.layer_scale1, self.norm2, self.mlp, self.layer_scale2, self.drop_path)
        build_in_sequence(shape, *parts)

    def add_attention(self, tokens: Tensor, branch: Tensor, training: bool | None) -> Tensor:
        """Return the sum of Eq. 2, z' = MSA(LN(z)) + z, of a given MSA(LN(z)).

        Dropout, LayerScale and stochastic depth act on it.

        Args:
            tokens: input of the block, (batch, tokens, dim).
            branch: MSA(LN(z)), the output of the attention for these tokens.
            training: whether dropout and stochastic depth are active.
        """
        branch = self.layer_scale1(self.dropout(branch, training=training))
        return tokens + self.drop_path(branch, training=training)

    def add_mlp(self, tokens: Tensor, training: bool | None, norm: Any = None, then: Any = absent) -> Tensor:
        """Return the sum of Eq. 3: z = MLP(LN(z')) + z'.

        Args:
            tokens: (batch, tokens, dim), after the attention.
            training: whether dropout and stochastic depth are active.
            norm: layer that is applied to the tokens first, or None.
            then: layer that is applied to the output of the MLP, or `absent`.
        """

        def add(tokens):
            branch = self.layer_scale2(then(self.mlp(tokens, training=training, norm=norm)))
            return tokens + self.drop_path(branch, training=training)

        # As a matrix of rows, the sum is fused into the last product. Stochastic depth needs the axis of the batch.
        return add(tokens) if training else on_rows(add, tokens)


@keras.saving.register_keras_serializable(package="keras_vit")
class TransformerBlock(ResidualBlock):
    """Apply one block of the encoder (arXiv 2010.11929, Eqs. 2 and 3).

    `BlockConfig` describes the variations of other families.

    Args:
        num_heads: attention heads; they must divide the width of the input.
        mlp_dim: width of the hidden layer of the MLP.
        dropout_rate: dropout rate after the attention output and both MLP layers, in [0, 1).
        attention_dropout_rate: dropout rate on the attention weights, in [0, 1).
        drop_path_rate: share of samples whose residual branches are dropped in training, in [0, 1).
        layer_scale_init: initial value of LayerScale on both branches; None for no LayerScale.
        qkv_bias: whether the query, key and value projections have biases.
        qk_norm: whether queries and keys are normalised per head.
        gelu: `tanh` (the official code), `erf` or `quick`.
        epsilon: epsilon of the norms.
        remat: what the backward pass computes again, see `ViTConfig`.
        block: `BlockConfig`, None for the default one.
        window, grid_size: as in `GridSelfAttention`, which then is the attention; None for global attention.
        lambda_init: as in `DifferentialSelfAttention`, which then is the attention; None for another one.

    Shapes:
        (batch, tokens, dim), and optionally a dict `positions` as in `MultiHeadSelfAttention` or `GridSelfAttention` ->
        the same as the tokens

    Raises:
        ValueError: if a value is out of range or a choice is unknown; at build, if `num_heads` does not divide the
            width; in a call, if `positions` has names that the attention does not know.
    """

    own_checks = {"grid_size": optional(checks.check_pair)}

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        dropout_rate: float = 0.0,
        attention_dropout_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        layer_scale_init: float | None = None,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        gelu: str = "tanh",
        epsilon: float = 1e-6,
        remat: str | None = None,
        block: BlockConfig | None = None,
        window: WindowConfig | None = None,
        grid_size: Size | None = None,
        lambda_init: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.configure(num_heads=num_heads, mlp_dim=mlp_dim, gelu=gelu, epsilon=epsilon, remat=remat, block=block)
        self.configure(window=window, grid_size=grid_size, qkv_bias=qkv_bias, qk_norm=qk_norm, lambda_init=lambda_init)
        self.configure(dropout_rate=dropout_rate, attention_dropout_rate=attention_dropout_rate)
        self.configure(drop_path_rate=drop_path_rate, layer_scale_init=layer_scale_init)
        self.norm1 = self.make_norm(self.block.norm, self.epsilon, "norm1")
        attention = (num_heads, attention_dropout_rate, qkv_bias, qk_norm, epsilon, self.block)
        if self.window is not None:
            self.attention = self.sublayer(GridSelfAttention, self.grid_size, self.window, *attention, name="attention")
        elif self.lambda_init is not None:
            self.attention = self.sublayer(DifferentialSelfAttention, self.lambda_init, *attention, name="attention")
        else:
            self.attention = self.sublayer(MultiHeadSelfAttention, *attention, name="attention")
        self.make_parts()

    def build(self, input_shape):
        self.attention.build(input_shape)
        self.build_parts(input_shape)

    def call(
        self, tokens: Tensor, positions: Mapping[str, Tensor] | None = None, training: bool | None = None
    ) -> Tensor:
        equations = partial(_ORDERS[self.block.order], self, training=training)
        return recompute([self], equations, tokens, positions, when=training and self.remat == "block")

    def attention_branch(
        self,
        tokens: Tensor,
        positions: Mapping[str, Tensor] | None,
        training: bool | None,
        norm: Any = None,
        then: Any = absent,
        **options: Any,
    ) -> Any:
        """Return then(MSA(norm(tokens))).

        With `remat`, the backward pass may compute it again.

        Args:
            tokens: (batch, tokens, dim).
            positions: as in the call of the block.
            training: whether dropout is active.
            norm: layer that is applied to the tokens first, or None.
            then: layer that is applied to the output of the attention, or `absent`.
            **options: further arguments of the attention.
        """

        def attention(tokens, positions):
            return then(self.attention(tokens, positions, training=training, norm=norm, **options))

        layers, is_remat = [self.norm1, self.attention], training and self.remat == "attention"
        return recompute(layers, attention, tokens, positions, when=is_remat)

    def attention_scores(self, tokens: Tensor, positions: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the attention weights (batch, heads, query tokens, key tokens).

        Blocks with a `window` return those of `GridSelfAttention`.

        Args:
            tokens: input of the block, (batch, tokens, dim).
            positions: as in the call of the block.
        """
        if not self.built:
            self.build(tokens.shape)
        attended = tokens if self.block.order == "post_norm" else self.norm1(tokens)
        return self.attention(attended, positions, return_attention_scores=True)[1]


def _pre_norm(block, z, positions, training):
    """x + f(norm(x)), the order of the paper."""
    z = block.add_attention(z, block.attention_branch(z, positions, training, norm=block.norm1), training)  # Eq. 2
    return block.add_mlp(z, training, norm=block.norm2)  # Eq. 3


def _post_norm(block, z, positions, training):
    """x + norm(f(x))"""
    z = block.add_attention(z, block.attention_branch(z, positions, training, then=block.norm1), training)
    return block.add_mlp(z, training, then=block.norm2)


def _parallel(block, z, positions, training):
    """x + (attention(norm(x)) + mlp(norm(x))), whose sum LayerScale multiplies (arXiv 2302.05442)"""
    normed, mlp = block.norm1(z), partial(block.mlp, training=training)
    branch = block.attention_branch(normed, positions, training) + on_rows(mlp, normed)
    return block.add_attention(z, branch, training)


# `order` of `BlockConfig` -> function of the block, its tokens, their positions and `training`
_ORDERS = {"pre_norm": _pre_norm, "post_norm": _post_norm, "parallel": _parallel}


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerScale(Layer):
    """Multiply each channel by a learned factor (arXiv 2103.17239, Eq. 4).

    Args:
        init: initial value of every factor, above 0 (DeiT-III: 1e-4).

    Shapes:
        (..., dim) -> the same

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, init: float = 1e-4, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(init=init)

    def build(self, input_shape):
        initializer = keras.initializers.Constant(self.init)
        self.gamma = self.add_weight(name="gamma", shape=(input_shape[-1],), initializer=initializer)

    def call(self, x: Tensor) -> Tensor:
        return x * ops.cast(self.gamma, x.dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class DropPath(keras.layers.Dropout):
    """Drop the residual branch of random samples in training (arXiv 1603.09382).

    This is stochastic depth. The remaining branches are divided by `1 - rate`, so inference needs no scaling.

    Args:
        rate: share of samples whose branch is dropped, in [0, 1).
        seed: integer for reproducible drops.

    Shapes:
        (batch, tokens, dim) -> the same

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(checks.check_rate("rate", rate), noise_shape=(None, 1, 1), seed=seed, **kwargs)

    def get_config(self):
        config = super().get_config()
        del config["noise_shape"]
        return config
