"""TransformerBlock: pre-norm attention and MLP, each on a residual branch."""

from typing import Any

import keras

from keras_vit import checks
from keras_vit.compat.kernels import recompute
from keras_vit.layers.drop_path import DropPath
from keras_vit.layers.layer_norm import LayerNorm
from keras_vit.layers.layer_scale import LayerScale
from keras_vit.layers.mlp import MlpBlock
from keras_vit.layers.self_attention import MultiHeadSelfAttention
from keras_vit.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class TransformerBlock(keras.layers.Layer):
    """Apply one block of the encoder (arXiv 2010.11929, Eqs. 2 and 3).

    Args:
        num_heads: attention heads; they must divide the width of the input.
        mlp_dim: width of the hidden layer of the MLP.
        dropout_rate: dropout rate after the attention output and both MLP layers, in [0, 1).
        attention_dropout_rate: dropout rate on the attention weights, in [0, 1).
        drop_path_rate: share of samples whose residual branches are dropped in training, in [0, 1).
        layer_scale_init: initial value of LayerScale on both branches; None for no LayerScale.
        qkv_bias: whether the query, key and value projections have biases.
        qk_norm: whether queries and keys are layer-normalised per head.
        gelu: `tanh` (the official code) or `erf`.
        epsilon: epsilon of the layer norms.
        remat: recompute the block in the backward pass; training stores only its input.

    Shapes:
        (batch, tokens, dim), and optionally `relative_keys` (offsets, dim / num_heads) from `RelativePositions` -> the
        same as the tokens

    Raises:
        ValueError: if a value is out of range or a choice is unknown; at build, if `num_heads` does not divide the
            width.
    """

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
        remat: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.dropout_rate = checks.check_rate("dropout_rate", dropout_rate)
        self.drop_path_rate = checks.check_rate("drop_path_rate", drop_path_rate)
        checks.check_rate("attention_dropout_rate", attention_dropout_rate)
        if layer_scale_init is not None:
            checks.check_positive("layer_scale_init", layer_scale_init)
        self.layer_scale_init = layer_scale_init
        self.epsilon = checks.check_positive("epsilon", epsilon)
        self.remat = checks.check_flag("remat", remat)
        common = {"dtype": self.dtype_policy}
        self.norm1 = LayerNorm(epsilon=epsilon, name="norm1", **common)
        self.attention = MultiHeadSelfAttention(
            num_heads, attention_dropout_rate, qkv_bias, qk_norm, epsilon, name="attention", **common
        )
        self.dropout = keras.layers.Dropout(dropout_rate, name="dropout", **common)
        self.norm2 = LayerNorm(epsilon=epsilon, name="norm2", **common)
        self.mlp = MlpBlock(mlp_dim, dropout_rate, gelu, name="mlp", **common)
        if layer_scale_init is not None:
            self.layer_scale1 = LayerScale(layer_scale_init, name="layer_scale1", **common)
            self.layer_scale2 = LayerScale(layer_scale_init, name="layer_scale2", **common)
        self.drop_path = DropPath(drop_path_rate, name="drop_path", **common)

    def build(self, input_shape):
        layers = [self.norm1, self.attention, self.dropout, self.norm2, self.mlp, self.drop_path]
        if self.layer_scale_init is not None:
            layers += [self.layer_scale1, self.layer_scale2]
        for layer in layers:
            layer.build(input_shape)
        self.built = True

    def call(self, tokens: Tensor, relative_keys: Tensor = None, training: bool | None = None) -> Tensor:
        if not (self.remat and training):
            return self._run(tokens, relative_keys, training)
        if relative_keys is None:
            return recompute(self, lambda tokens: self._run(tokens, None, training), tokens)
        return recompute(self, lambda tokens, keys: self._run(tokens, keys, training), tokens, relative_keys)

    def _run(self, tokens, relative_keys, training):
        # z' = MSA(LN(z)) + z, Eq. 2
        branch = self.attention(self.norm1(tokens), relative_keys=relative_keys, training=training)
        return self._add_mlp(self._add_attention(tokens, branch, training), training)

    def _add_attention(self, tokens, branch, training):
        branch = self.dropout(branch, training=training)
        if self.layer_scale_init is not None:
            branch = self.layer_scale1(branch)
        return tokens + self.drop_path(branch, training=training)

    def _add_mlp(self, tokens, training):
        # z = MLP(LN(z')) + z', Eq. 3
        branch = self.mlp(self.norm2(tokens), training=training)
        if self.layer_scale_init is not None:
            branch = self.layer_scale2(branch)
        return tokens + self.drop_path(branch, training=training)

    def attention_scores(self, tokens: Tensor, relative_keys: Tensor = None) -> Tensor:
        """Return the attention weights (batch, heads, query tokens, key tokens).

        Args:
            tokens: input of the block, (batch, tokens, dim).
            relative_keys: (offsets, dim / num_heads) from `RelativePositions`, or None.
        """
        normalised = self.norm1(tokens)
        return self.attention(normalised, relative_keys=relative_keys, return_attention_scores=True)[1]

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.attention.num_heads,
            "mlp_dim": self.mlp.mlp_dim,
            "dropout_rate": self.dropout_rate,
            "attention_dropout_rate": self.attention.dropout_rate,
            "drop_path_rate": self.drop_path_rate,
            "layer_scale_init": self.layer_scale_init,
            "qkv_bias": self.attention.qkv_bias,
            "qk_norm": self.attention.qk_norm,
            "gelu": self.mlp.gelu,
            "epsilon": self.epsilon,
            "remat": self.remat,
        }
