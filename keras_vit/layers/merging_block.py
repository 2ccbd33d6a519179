"""MergingTransformerBlock: a TransformerBlock that merges tokens between its attention and its MLP."""

import keras
from keras import ops

from keras_vit.compat.kernels import recompute
from keras_vit.layers.token_merging import TokenMerging, merged_shapes, merged_spec, unmerged_scores
from keras_vit.layers.transformer_block import TransformerBlock


@keras.saving.register_keras_serializable(package="keras_vit")
class MergingTransformerBlock(TransformerBlock):
    """A transformer block that merges similar tokens after its attention.

    It follows ToMe (arXiv 2210.09461, section 3). The similarity of two tokens is that of their keys, averaged over the
    heads. A merged token that represents s original tokens has log(s) added to its attention logits as a key
    (proportional attention, section 3.2).

    Its weights, and their names in files, are those of a `TransformerBlock`.

    Args:
        token_merging, num_prefix_tokens: as in `TokenMerging`.
        **kwargs: the arguments of `TransformerBlock`.

    Shapes:
        tokens (batch, tokens, dim) and, except in the first block, the sizes and groups from the previous block ->
        tokens, sizes and groups, see `TokenMerging`

    Raises:
        ValueError: if a value is out of range or a choice is unknown; at build, if the number of tokens is unknown.
    """

    def __init__(self, token_merging, num_prefix_tokens=0, **kwargs):
        super().__init__(**kwargs)
        self.merging = TokenMerging(token_merging, num_prefix_tokens, dtype=self.dtype_policy, name="merging")

    def build(self, tokens_shape):
        super().build(tokens_shape)
        self.merging.build(tokens_shape)

    def call(self, tokens, sizes=None, groups=None, training=None):
        def run(tokens):
            return self._run_merging(tokens, sizes, groups, training)

        return recompute(self, run, tokens) if self.remat and training else run(tokens)

    def _run_merging(self, tokens, sizes, groups, training):
        normalised, key_sizes = self.norm1(tokens), _of_keys(sizes)
        branch, keys = self.attention(normalised, key_sizes=key_sizes, training=training, return_keys=True)
        tokens = self._add_attention(tokens, branch, training)
        tokens, sizes, groups = self.merging(tokens, keys, sizes, groups)
        return self._add_mlp(tokens, training), sizes, groups

    def attention_scores(self, tokens, sizes=None, groups=None):
        """Return the attention weights between the original tokens, see `unmerged_scores`."""
        normalised, key_sizes = self.norm1(tokens), _of_keys(sizes)
        scores = self.attention(normalised, key_sizes=key_sizes, return_attention_scores=True)[1]
        return scores if sizes is None else unmerged_scores(scores, sizes, groups)

    def compute_output_shape(self, tokens_shape, sizes_shape=None, groups_shape=None):
        first = (groups_shape or tokens_shape)[1]
        return merged_shapes(tokens_shape, first, self.merging.token_merging, self.merging.num_prefix_tokens)

    def compute_output_spec(self, tokens, sizes=None, groups=None, training=None):
        shapes = self.compute_output_shape(tokens.shape, None, None if groups is None else groups.shape)
        return merged_spec(shapes, self.compute_dtype)

    def get_config(self):
        merging = self.merging
        config = {"token_merging": merging.token_merging, "num_prefix_tokens": merging.num_prefix_tokens}
        return {**super().get_config(), **config}


def _of_keys(sizes):
    """(batch, tokens) -> (batch, 1, 1, tokens)"""
    return None if sizes is None else ops.reshape(sizes, (-1, 1, 1, sizes.shape[1]))


# Keras weights files name layers by class; equal names let models with and without merging share them.
MergingTransformerBlock.__name__ = TransformerBlock.__name__
