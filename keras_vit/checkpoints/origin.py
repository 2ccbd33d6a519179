"""Origin: what a task model keeps of its file of transformers, so that `save_weights` can write such a file again."""

import collections
import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from keras_vit.checkpoints.config_json import count_labels, read_labels
from keras_vit.checkpoints.entries import Entry
from keras_vit.checkpoints.names.rules import Layout
from keras_vit.checkpoints.readers import IMAGE_PROCESSOR, PROCESSOR
from keras_vit.checkpoints.written_json import CannotHold, label_keys, square

COUNTS = ("classes", "num_keypoints")  # arguments of task models: what their last layer has one output for
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_COPIES = {"prompt_encoder.shared_embedding.positional_embedding": "shared_image_embedding.positional_embedding"}  # SAM
_CLASS_WEIGHTS = "criterion.empty_weight"  # of the loss of EoMT: one for each class, the last for no object


@dataclasses.dataclass(frozen=True)
class Origin:
    """The file that a task model was built from, without the values of its variables.

    Attributes:
        layout: `Layout` of the file.
        entries: dict from the name of each array to its `Entry`; `read` is None for those that are variables.
        pieces: dict from the names that the layout's rules use to the names of their arrays.
        grid: (rows, columns) of its position table, or None.
        config_json, processor: the JSON files, dicts; `processor` is None without one.
    """

    layout: Layout
    entries: Mapping[str, Entry]
    pieces: Mapping[str, str]
    grid: tuple | None
    config_json: Mapping
    processor: Mapping | None

    @classmethod
    def of(cls, evidence, unused, classes=None):
        """Return that of a file; the arrays that are no variables are read.

        Args:
            evidence: its `Evidence`.
            unused: names of the arrays that are no variables.
            classes: number of classes of the model, None if it has none.
        """
        checkpoint, entries = evidence.checkpoint, {}
        for name, entry in checkpoint.entries.items():
            array = np.array(entry.read(), _DTYPES.get(entry.dtype)) if name in unused else None
            if name == _CLASS_WEIGHTS and len(array) != classes + 1:
                array = np.append(np.ones(classes, array.dtype), array[-1:])
            entries[name] = dataclasses.replace(entry, read=None if array is None else array.copy, check=None)
        pieces = {piece: entry.name for piece, entry in evidence.entries.items()}
        return cls(evidence.layout, entries, pieces, evidence.grid, checkpoint.config_json, checkpoint.processor)

    def named(self, arrays):
        """Return {name in the file: array} of all arrays of the file, with its dtypes where these are exact.

        Args:
            arrays: dict from name that the layout's rules use to array, of all variables.
        """
        parts, stored = collections.defaultdict(list), {}
        for piece, name in self.pieces.items():
            parts[name] += [arrays[piece]] if piece in arrays else []
        for name, entry in self.entries.items():
            found = parts[_COPIES.get(name, name)]
            array = np.concatenate(found) if len(found) > 1 else found[0] if found else entry.read()
            if array.size == math.prod(entry.shape):
                array = array.reshape(entry.shape)
            with np.errstate(over="ignore"):
                exact = array.astype(_DTYPES.get(entry.dtype, array.dtype))
            stored[name] = exact if np.array_equal(exact.astype(array.dtype), array, equal_nan=True) else array
        return stored

    def texts(self, model):
        """Return {file name: JSON values}: those of the file, with the labels and the image size of the model.

        Args:
            model: the task model.

        Raises:
            CannotHold: if the number of labels is wrong, or the position table is of another size, and no square.
        """
        values, config = dict(self.config_json), model.config
        count = next((model._arguments[name] for name in COUNTS if name in model._arguments), None)
        labels = model.labels and tuple(model.labels)
        if labels and len(labels) != count:
            wanted = f"{count} names" if count else "None"
            raise CannotHold(f"labels must be {wanted} for {model.name}; got {len(labels)} names")
        if count is not None and (labels, count) != (read_labels(values), count_labels(values)):
            values |= label_keys(labels, count)
        if self.layout.position_tables and config.table_grid != self.grid:
            side = square("position table", config.table_grid)
            values = _resized(values, {"image_size": side * config.patch_size[0], "image_embedding_size": side})
        texts = {"config.json": values}
        if self.processor is not None:
            texts[PROCESSOR if "image_processor" in self.processor else IMAGE_PROCESSOR] = self.processor
        return texts


def _resized(values, sizes):
    """Return a config with other sizes, also in its parts."""
    return {
        key: _resized(value, sizes) if isinstance(value, dict) else sizes.get(key, value)
        for key, value in values.items()
    }
