"""TextConfig: the text tower of a CLIP or SigLIP."""

import dataclasses
from functools import partial

from keras_vit import checks
from keras_vit.config.base import Config, one_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextConfig(Config):
    """Describe the text tower of a CLIP (arXiv 2103.00020, section 2.4) or SigLIP (arXiv 2303.15343).

    Args:
        vocab_size: number of tokens that the tokenizer knows.
        context_length: number of tokens of every text, after padding.
        hidden_dim: width of every token.
        num_layers: number of transformer blocks.
        num_heads: attention heads per block; they must divide `hidden_dim`.
        mlp_dim: width of the hidden layer of each block's MLP.
        projection_dim: width of the embeddings of texts.
        projection_bias: whether the projection to it has a bias; that of CLIP has none.
        causal: whether a token attends only to itself and to earlier tokens. Otherwise it attends to all, padding
            included.
        pooling: `end`, the token where the text ends (CLIP); `last`, the last token, which may be padding (SigLIP).
        end_token: id of the token that ends a text; its first occurrence counts. None is the highest id of each text.
        gelu: `tanh`, `erf` or `quick`, as in `ViTConfig`.
        epsilon: epsilon of every norm.

    Raises:
        ValueError: if a value is out of range, a choice is unknown, or `num_heads` does not divide `hidden_dim`.
    """

    own_checks = {"pooling": one_of(("end", "last")), "end_token": partial(checks.check_integer, minimum=0)}

    vocab_size: int
    context_length: int
    hidden_dim: int
    num_layers: int
    num_heads: int
    mlp_dim: int
    projection_dim: int
    projection_bias: bool
    causal: bool
    pooling: str
    end_token: int | None = None
    gelu: str
    epsilon: float

    def __post_init__(self):
        super().__post_init__()
        self._refuse({"{hidden_dim} must be divisible by {num_heads}": self.hidden_dim % self.num_heads})
