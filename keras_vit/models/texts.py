"""WithTexts, the part of task models that embeds texts: the text tower of a CLIP."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.compat.graph import keep_beside_graph
from keras_vit.config.base import one_config_of
from keras_vit.config.text import TextConfig
from keras_vit.models.text import text_tower
from keras_vit.typing import Tensor

_TEXT_TOWER = "text_tower"
_read_text = one_config_of(TextConfig)


def read_text(text: TextConfig | Mapping[str, Any]) -> TextConfig:
    """Return the config of the text tower of a CLIP.

    Args:
        text: a `TextConfig`, or its dict.

    Raises:
        ValueError: if it is something else, or `causal` is not True or `pooling` not `end`.
    """
    config = _read_text("text", text)
    if not config.causal or config.pooling != "end":
        got = f"causal={config.causal}, pooling={config.pooling!r}"
        raise ValueError(f"text must have causal=True and pooling='end', as the text tower of a CLIP; got {got}")
    return config


class WithTexts:
    """Add the text tower of a CLIP to a model.

    Attributes:
        text_config: `TextConfig` of the tower.
        text_tower: the tower, see `keras_vit.models.text.text_tower`.
        tokenizer: function from a list of strings to lists of token ids, which start with the start token and end with
            the end token. `keras_vit.load` sets it if the folder has a tokenizer; otherwise it is None. It is not saved
            with the model.
    """

    text_config: TextConfig
    text_tower: keras.Model
    tokenizer: Callable[[list[str]], list[list[int]]] | None = None

    def _add_text_tower(self, config):
        self.text_config = config
        with keras.name_scope(_TEXT_TOWER):
            self.text_tower = text_tower(config)
        keep_beside_graph(self, self.text_tower)

    def _embed(self, texts: Any, attention_mask: Any) -> tuple[np.ndarray, Tensor]:
        """Return the ids of texts (..., context_length), and their embeddings (..., width)."""
        most = self.text_config.context_length
        is_array = not isinstance(texts, (str, list, tuple))
        given = ops.convert_to_numpy(texts) if is_array else np.array(texts, object, ndmin=1)
        if given.size and all(isinstance(text, str) for text in given.flat):
            if attention_mask is not None:
                raise ValueError(f"attention_mask must be None for strings; got {checks.quoted(attention_mask)}")
            ids = self._tokenized(given)
        else:
            ids = ops.convert_to_numpy(texts)
            if ids.dtype.kind not in "iu" or ids.ndim not in (2, 3) or not 1 <= ids.shape[-1] <= most:
                wanted = f"strings, or integers (texts, tokens) or (batch, texts, tokens) of at most {most} tokens"
                raise ValueError(f"texts must be {wanted}; got {ids.dtype} of shape {ids.shape}")
        largest = self.text_config.vocab_size - 1
        if not ids.size or not 0 <= ids.min() <= ids.max() <= largest:
            got = f"{ids.min()} to {ids.max()}" if ids.size else f"an array of shape {ids.shape}"
            raise ValueError(f"texts must have ids from 0 to {largest}, at least one; got {got}")
        if attention_mask is not None:
            ids = np.where(_check_mask(attention_mask, ids.shape), ids, 0)
        ids = np.pad(ids.astype("int32"), [(0, 0)] * (ids.ndim - 1) + [(0, most - ids.shape[-1])])
        embeddings = self.text_tower({"ids": ops.convert_to_tensor(ids.reshape(-1, most))})
        return ids, ops.reshape(embeddings, (*ids.shape[:-1], embeddings.shape[-1]))

    def _tokenized(self, texts):
        """Return the ids of an array of strings, padded with 0: (..., context_length)."""
        most = self.text_config.context_length
        if self.tokenizer is None:
            raise ValueError(
                "texts must be token ids, as this model was not loaded from a folder with its tokenizer "
                f"(tokenizer.json, or vocab.json and merges.txt); got {checks.quoted(texts.tolist())}"
            )
        ids = np.zeros((texts.size, most), "int32")
        for row, text, tokens in zip(ids, texts.flat, self.tokenizer([*texts.flat]), strict=True):
            if len(tokens) > most:
                got = f"{len(tokens)} for {checks.quoted(text)}"
                raise ValueError(f"texts must have at most {most} tokens, with those of start and end; got {got}")
            row[: len(tokens)] = tokens
        return ids.reshape(*texts.shape, most)


def _check_mask(attention_mask, shape):
    """Return an attention mask as booleans; raise `ValueError` if it is none of padding at the end."""
    mask = ops.convert_to_numpy(attention_mask)
    if mask.shape != shape:
        raise ValueError(f"attention_mask must have the shape of texts, {shape}; got {mask.shape}")
    wrong = (mask != (np.arange(shape[-1]) < np.count_nonzero(mask, axis=-1)[..., None])).any(axis=-1)
    if wrong.any():
        raise ValueError(f"attention_mask must have ones, then zeros, in each row; got {mask[wrong][0].tolist()}")
    return mask.astype(bool)
