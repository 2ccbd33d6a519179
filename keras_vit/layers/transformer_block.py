"""TransformerBlock and its parts: the MLP, LayerScale and stochastic depth."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
from keras import ops

from keras_vit import checks
from keras_vit.config import BlockConfig, WindowConfig
from keras_vit.config.base import optional
from keras_vit.layers.base import Layer, build_in_sequence, with_norm
from keras_vit.layers.forms import gelu, on_rows, project, recompute
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
        block: `BlockConfig`; its `gated`, `bias`, `mlp_norm` and `norm` apply here. None is the default one.
        epsilon: epsilon of the norm of the hidden layer, if any.

    Shapes:
        (batch, tokens, dim) -> the same. A layer `norm` is applied to the input first.

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
        if self.block.mlp_norm:
            self.hidden_norm = self.make_norm(self.block.norm, self.epsilon, "hidden_norm", hidden_shape)
        self.dropout = self.sublayer(keras.layers.Dropout, self.dropout_rate, name="dropout", shape=hidden_shape)
        self.dense2 = self._dense(input_shape[-1], "dense2", hidden_shape)

    def _dense(self, units, name, shape):
        bias = keras.initializers.RandomNormal(stddev=1e-6)
        return self.dense(units, name, shape=shape, bias_initializer=bias, use_bias=self.block.bias)

    def call(self, x: Tensor, training: bool | None = None, *, norm: keras.layers.Layer | None = None) -> Tensor:
        if not training:  # compilers look for the norm of (batch, tokens, dim)
            x, norm = x if norm is None else norm(x), None
        return on_rows(lambda rows: self._both_layers(rows, training, norm), x)

    def _both_layers(self, x, training, norm):
        x = with_norm(norm, self.dense1, partial(project, self.dense1), x, training)
        layers = [self.dropout, self.dense2]
        if self.block.mlp_norm:
            layers.append(self.hidden_norm)
        rest = partial(self._after_dense1, training=training)
        return recompute(layers, rest, x) if training else rest(x)

    def _after_dense1(self, x, training):
        if self.block.gated:
            gate, up = ops.split(x, 2, axis=-1)
            x = ops.silu(gate) * up
        elif self.gelu == "quick":
            x = x * ops.sigmoid(1.702 * x)
        else:
            x = gelu(x, self.gelu == "tanh", training)
        if self.block.mlp_norm:
            x = self.hidden_norm(x)
        x = self.dropout(x, training=training)
        x = project(self.dense2, x)
        return self.dropout(x, training=training)


class ResidualBlock(Layer):
    """Apply attention and an MLP, each in a residual branch after a layer norm.

    It is the base class of the transformer blocks.

    Shapes:
        as in the subclasses
    """

    layer_scale_init: float | None = None
    block = BlockConfig()
    remat: str | None = None

    def recomputed(self, part: str, layers: Sequence, call: Callable, training: bool | None) -> Callable:
        """Return `call`, which the backward pass computes again if `remat` is `part`.

        Args:
            part: `attention` or `block`.
            layers: the layers that `call` uses.
            call: function of tensors.
            training: whether the block is called in training.
        """
        return partial(recompute, layers, call) if training and self.remat == part else call

    def add_branches(self) -> None:
        """Create the sub-layers of both branches except the first norm and the attention."""
        self.dropout = self.sublayer(keras.layers.Dropout, self.dropout_rate, name="dropout")
        if self.block.order != "parallel":
            self.norm2 = self.make_norm(self.block.norm, self.epsilon, "norm2")
        mlp = self.mlp_dim, self.dropout_rate, self.gelu, self.block, self.epsilon
        self.mlp = self.sublayer(MlpBlock, *mlp, name="mlp")
        if self.layer_scale_init is not None:
            self.layer_scale1 = self.sublayer(LayerScale, self.layer_scale_init, name="layer_scale1")
            if self.block.order != "parallel":
                self.layer_scale2 = self.sublayer(LayerScale, self.layer_scale_init, name="layer_scale2")
        self.drop_path = self.sublayer(DropPath, self.drop_path_rate, name="drop_path")

    def add_attention(self, tokens: Tensor, branch: Tensor, training: bool | None) -> Tensor:
        """Return the tokens plus the output of the attention.

        Args:
            tokens: input of the block, (batch, tokens, dim).
            branch: output of the attention for these tokens.
            training: whether dropout and stochastic depth are active.
        """
        branch = self.dropout(branch, training=training)
        if self.layer_scale_init is not None:
            branch = self.layer_scale1(branch)
        return tokens + self.drop_path(branch, training=training)

    def add_mlp(self, tokens: Tensor, training: bool | None) -> Tensor:
        """Return the tokens plus the output of the MLP: z = MLP(LN(z')) + z', Eq. 3.

        Args:
            tokens: (batch, tokens, dim), after the attention.
            training: whether dropout and stochastic depth are active.
        """

        def add(tokens):
            if self.block.order == "post_norm":
                branch = self.norm2(self.mlp(tokens, training=training))
            else:
                branch = self.mlp(tokens, training=training, norm=self.norm2)
            if self.layer_scale_init is not None:
                branch = self.layer_scale2(branch)
            return tokens + self.drop_path(branch, training=training)

        # of rows, TensorFlow adds the tokens in the last product
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

    Shapes:
        (batch, tokens, dim), and optionally `relative_keys`, `attention_bias`, `rotary` and `images` as in
        `MultiHeadSelfAttention`, or `grid` as in `GridSelfAttention` -> the same as the tokens

    Raises:
        ValueError: if a value is out of range or a choice is unknown; at build, if `num_heads` does not divide the
            width.
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
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.configure(num_heads=num_heads, mlp_dim=mlp_dim, gelu=gelu, epsilon=epsilon, remat=remat, block=block)
        self.configure(window=window, grid_size=grid_size, qkv_bias=qkv_bias, qk_norm=qk_norm)
        self.configure(dropout_rate=dropout_rate, attention_dropout_rate=attention_dropout_rate)
        self.configure(drop_path_rate=drop_path_rate, layer_scale_init=layer_scale_init)
        self.norm1 = self.make_norm(self.block.norm, self.epsilon, "norm1")
        attention = (num_heads, attention_dropout_rate, qkv_bias, qk_norm, epsilon, self.block)
        if self.window is None:
            self.attention = self.sublayer(MultiHeadSelfAttention, *attention, name="attention")
        else:
            self.attention = self.sublayer(GridSelfAttention, self.grid_size, self.window, *attention, name="attention")
        self.add_branches()

    def build(self, input_shape):
        layers = [self.norm1, self.attention, self.dropout, self.mlp, self.drop_path]
        if self.layer_scale_init is not None:
            layers.append(self.layer_scale1)
        if self.block.order != "parallel":
            layers += [self.norm2] if self.layer_scale_init is None else [self.norm2, self.layer_scale2]
        build_in_sequence(input_shape, *layers)

    def call(
        self,
        tokens: Tensor,
        relative_keys: Tensor = None,
        attention_bias: Tensor = None,
        rotary: Tensor = None,
        images: Tensor = None,
        grid: Tensor = None,
        training: bool | None = None,
    ) -> Tensor:
        given = _given(relative_keys=relative_keys, attention_bias=attention_bias, rotary=rotary, grid=grid)
        owners = _given(images=images)  # integers have no gradient, and TensorFlow would warn of them as inputs

        def attend(tokens, *positions):
            """Return MSA(LN(z)), Eq. 2; in blocks of another order, with the norm after it or outside."""
            positions = {**dict(zip(given, positions, strict=True)), **owners}
            norm = self.norm1 if self.block.order == "pre_norm" else None
            branch = self.attention(tokens, training=training, norm=norm, **positions)
            return self.norm1(branch) if self.block.order == "post_norm" else branch

        def run(tokens, *positions):
            attended = tokens if self.block.order != "parallel" else self.norm1(tokens)
            branch = self.recomputed("attention", [self.norm1, self.attention], attend, training)(attended, *positions)
            if self.block.order == "parallel":
                return self.add_attention(tokens, branch + self.mlp(attended, training=training), training)
            return self.add_mlp(self.add_attention(tokens, branch, training), training)

        return self.recomputed("block", [self], run, training)(tokens, *given.values())

    def attention_scores(
        self,
        tokens: Tensor,
        relative_keys: Tensor = None,
        attention_bias: Tensor = None,
        rotary: Tensor = None,
        grid: Tensor = None,
    ) -> Tensor:
        """Return the attention weights (batch, heads, query tokens, key tokens).

        Blocks with a `window` return those of `GridSelfAttention`.

        Args:
            tokens: input of the block, (batch, tokens, dim).
            relative_keys, attention_bias, rotary, grid: as in the call of the block.
        """
        if not self.built:
            self.build(tokens.shape)
        positions = _given(relative_keys=relative_keys, attention_bias=attention_bias, rotary=rotary, grid=grid)
        attended = tokens if self.block.order == "post_norm" else self.norm1(tokens)
        return self.attention(attended, return_attention_scores=True, **positions)[1]


def _given(**tensors):
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


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
