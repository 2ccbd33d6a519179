"""Merging of similar tokens: TokenMerging, the transformer block that contains it, and TokenUnmerging."""

import keras
import numpy as np
from keras import ops

from keras_vit.layers.attend import at_least_float32
from keras_vit.layers.base import Layer
from keras_vit.layers.forms import recompute, take_rows
from keras_vit.layers.transformer_block import TransformerBlock


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenMerging(Layer):
    """Merge the most similar tokens by bipartite soft matching.

    This is ToMe (arXiv 2210.09461, section 3). The patch tokens go alternately into a set A and a set B. Each token of
    A is matched with the token of B whose key has the largest cosine similarity. The `token_merging` tokens of A with
    the largest similarities are merged into their matches: the result is the mean of the original tokens of both. Ties
    prefer the earlier token. Class, distillation and register tokens are not merged.

    The output has the prefix tokens, the remaining tokens of A and the tokens of B, each in their order. Gradients flow
    through the means, not through the matching.

    Args:
        token_merging: number of tokens to merge into others; at most half of the patch tokens are merged.
        num_prefix_tokens: number of class, distillation and register tokens at the start of the sequence.

    Shapes:
        tokens (batch, tokens, dim), keys (batch, tokens, key dim), and the results of earlier merging or None:
        sizes, int32 (batch, tokens), the number of original tokens in each, and groups, int32 (batch, original tokens),
        the index of the token that now represents each original one -> tokens, sizes and groups, with `merged_count`
        fewer tokens

    Raises:
        ValueError: if a value is out of range; at build, if the number of tokens is unknown.
    """

    def __init__(self, token_merging, num_prefix_tokens=0, **kwargs):
        super().__init__(**kwargs)
        self.configure(token_merging=token_merging, num_prefix_tokens=num_prefix_tokens)

    def build(self, tokens_shape):
        self.count = merged_count(tokens_shape[1], self.token_merging, self.num_prefix_tokens)
        places = np.arange(tokens_shape[1], dtype="int32")
        prefix, patches = np.split(places, [self.num_prefix_tokens])
        self.places_a, self.places_b = patches[::2], patches[1::2]
        self.to_raster = np.argsort(np.concatenate([prefix, self.places_a, self.places_b])).astype("int32")

    def call(self, tokens, keys, sizes=None, groups=None):
        if sizes is None:
            sizes = ops.ones_like(tokens[..., 0], dtype="int32")
            groups = sizes * np.arange(tokens.shape[1], dtype="int32")
        if not self.count:
            return tokens, sizes, groups
        targets, order = self.match(keys)
        groups = take_rows(self._moved(targets, order), groups)
        return *self._merge(tokens, sizes, targets, order), groups

    def match(self, keys):
        """Find the tokens to merge and their matches.

        Args:
            keys: (batch, tokens, key dim).

        Returns:
            Pair of int32 tensors (batch, tokens of A): for each token of A, the index in B of the most similar token;
            and the indices in A of the tokens to merge, most similar first, followed by the indices of the others.
        """
        keys = ops.cast(ops.stop_gradient(keys), at_least_float32(keys.dtype))
        # `take` is faster than a slice with a step on TensorFlow
        keys = ops.take(keys, np.concatenate([self.places_a, self.places_b]), axis=1)
        norms = ops.maximum(ops.sqrt(ops.sum(ops.square(keys), axis=-1, keepdims=True)), 1e-12)
        count = len(self.places_a)
        a, b = keys[:, :count], keys[:, count:] / norms[:, count:]
        products = ops.matmul(a, ops.transpose(b, (0, 2, 1)))  # (batch, A, B): similarity times the norm of a
        largest, targets = ops.top_k(products, 1)  # twice as fast as argmax on TensorFlow
        _, ranked = ops.top_k((largest / norms[:, :count])[..., 0], count)
        ranked = ops.cast(ranked, "int32")
        order = ops.concatenate([ranked[:, : self.count], ops.sort(ranked[:, self.count :], axis=1)], axis=1)
        return ops.cast(targets[..., 0], "int32"), order

    def _merge(self, tokens, sizes, targets, order):
        """Return the tokens and sizes after merging."""
        merged, left = order[:, : self.count], order[:, self.count :]
        prefix = np.arange(self.num_prefix_tokens, dtype="int32")
        parts = [_rows(order, prefix), self._from_a(left), _rows(order, self.places_b), self._from_a(merged)]
        places = ops.concatenate(parts, axis=1)
        tokens, sizes = take_rows(tokens, places), take_rows(sizes, places)
        start, end = tokens.shape[1] - self.count - len(self.places_b), tokens.shape[1] - self.count
        old = ops.cast(sizes[:, start:end], at_least_float32(tokens.dtype))  # sizes of B
        added = ops.cast(sizes[:, end:], old.dtype)[..., None]
        into = ops.one_hot(take_rows(targets, merged), len(self.places_b), dtype=old.dtype)  # (batch, merged, B)
        new = old + ops.sum(added * into, axis=1)
        own = ops.cast(old / new, tokens.dtype)[..., None]
        shares = ops.cast(added * into / new[:, None], tokens.dtype)
        means = own * tokens[:, start:end] + ops.matmul(ops.transpose(shares, (0, 2, 1)), tokens[:, end:])
        tokens = ops.concatenate([tokens[:, :start], means], axis=1)
        return tokens, ops.concatenate([sizes[:, :start], ops.cast(new, "int32")], axis=1)

    def _moved(self, targets, order):
        """Return the index of each token after merging, (batch, tokens)."""
        prefix, left = self.num_prefix_tokens, len(self.places_a) - self.count
        rank = ops.cast(ops.argsort(order, axis=1), "int32")
        a = ops.where(rank < self.count, left + targets, rank - self.count)
        b = _rows(order, left + np.arange(len(self.places_b), dtype="int32"))
        moved = [_rows(order, np.arange(prefix, dtype="int32")), prefix + a, prefix + b]
        return ops.take(ops.concatenate(moved, axis=1), self.to_raster, axis=1)

    def _from_a(self, numbers):
        return self.num_prefix_tokens + 2 * numbers

    def compute_output_spec(self, tokens, keys, sizes=None, groups=None):
        return merged_spec(self, tokens, groups)


@keras.saving.register_keras_serializable(package="keras_vit")
class MergingTransformerBlock(TransformerBlock):
    """A transformer block that merges similar tokens after its attention.

    It follows ToMe (arXiv 2210.09461, section 3). The keys are averaged over the heads, and two tokens are as
    similar as their averaged keys. If a key represents s original tokens, log(s) is added to its attention logits
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
        self.configure(token_merging=token_merging, num_prefix_tokens=num_prefix_tokens)
        self.merging = self.sublayer(TokenMerging, self.token_merging, self.num_prefix_tokens, name="merging")

    def build(self, tokens_shape):
        super().build(tokens_shape)
        self.merging.build(tokens_shape)

    def call(self, tokens, sizes=None, groups=None, training=None):
        def equations(z):
            branch, keys = self.attention_branch(z, _of_keys(sizes), training, norm=self.norm1, return_keys=True)
            merged, *others = self.merging(self.add_attention(z, branch, training), keys, sizes, groups)
            return self.add_mlp(merged, training, norm=self.norm2), *others

        return recompute([self], equations, tokens, when=training and self.remat == "block")

    def attention_scores(self, tokens, sizes=None, groups=None):
        """Return the attention weights between the original tokens, see `unmerged_scores`."""
        scores = super().attention_scores(tokens, _of_keys(sizes))
        return scores if sizes is None else unmerged_scores(scores, sizes, groups)

    def compute_output_shape(self, tokens_shape, sizes_shape=None, groups_shape=None):
        return merged_shapes(self, tokens_shape, groups_shape)

    def compute_output_spec(self, tokens, sizes=None, groups=None, training=None):
        return merged_spec(self, tokens, groups)


# Keras weights files name layers by class; equal names let models with and without merging share them.
MergingTransformerBlock.__name__ = TransformerBlock.__name__


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenUnmerging(Layer):
    """Copy each merged token to the places of the original tokens that it represents.

    Shapes:
        tokens (batch, tokens, dim), groups, int32 (batch, original tokens), as in `TokenMerging` -> (batch, original
        tokens, dim)
    """

    def call(self, tokens, groups):
        return take_rows(tokens, groups)

    def compute_output_shape(self, tokens_shape, groups_shape):
        return (*groups_shape, tokens_shape[-1])


def merged_count(tokens, token_merging, num_prefix_tokens):
    """Return the number of merged tokens: `token_merging`, but at most half of the patch tokens.

    Raises:
        ValueError: if the number of tokens is unknown.
    """
    if tokens is None:
        raise ValueError("merging needs a known number of tokens; got None")
    return min(token_merging, max(tokens - num_prefix_tokens, 0) // 2)


def merged_shapes(layer, tokens_shape, groups_shape=None):
    """Return the shapes of the tokens, sizes and groups that `layer` outputs for tokens of `tokens_shape`."""
    batch, length, dim = tokens_shape
    left = length - merged_count(length, layer.token_merging, layer.num_prefix_tokens)
    return (batch, left, dim), (batch, left), groups_shape or (batch, length)


def merged_spec(layer, tokens, groups):
    """Return KerasTensors for the tokens, sizes and groups that `layer` outputs."""
    tokens_shape, *others = merged_shapes(layer, tokens.shape, None if groups is None else groups.shape)
    tokens = keras.KerasTensor(tokens_shape, layer.compute_dtype)
    return tokens, *(keras.KerasTensor(shape, "int32") for shape in others)


def unmerged_scores(scores, sizes, groups):
    """Return the attention weights between original tokens.

    As a query, an original token has the weights of the token that represents it. As a key, it gets an equal share of
    that token's weight, so that rows still sum to 1.

    Args:
        scores: (batch, heads, query tokens, key tokens).
        sizes, groups: as in `TokenMerging`.

    Returns:
        (batch, heads, original query tokens, original key tokens)
    """
    shares = scores / ops.cast(sizes, scores.dtype)[:, None, None]
    queries = take_rows(ops.transpose(shares, (0, 2, 1, 3)), groups)  # (batch, original queries, heads, keys)
    keys = take_rows(ops.transpose(queries, (0, 3, 2, 1)), groups)  # (batch, original keys, heads, original queries)
    return ops.transpose(keys, (0, 2, 3, 1))


def _rows(like, numbers):
    """Return the same indices for each sample, int32 (batch, indices)."""
    return ops.zeros_like(like[:, :1]) + numbers


def _of_keys(sizes):
    """Return the positions of the attention for sizes (batch, tokens)."""
    return {} if sizes is None else {"key_sizes": ops.reshape(sizes, (-1, 1, 1, sizes.shape[1]))}
