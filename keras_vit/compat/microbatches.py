"""Splitting of a batch into parts of nearly equal size, for `microbatches`, which Keras does not have."""

import keras


def count_parts(data, parts):
    """Return the number of parts of a batch: `parts`, or the number of rows if it is known to be smaller."""
    rows = next(tensor.shape[0] for tensor in keras.tree.flatten(data) if tensor is not None)
    return parts if rows is None else max(1, min(parts, rows))


def take_part(data, part, parts):
    """Return part number `part` of a batch: every `parts`-th row from row `part`.

    Strided rows keep a batch that is distributed over devices distributed.

    Args:
        data: structure of tensors (batch, ...) and None.
        part: 0 to `parts` - 1.
        parts: number of parts; 1 returns `data` itself.
    """
    if parts == 1:
        return data
    return keras.tree.map_structure(lambda tensor: tensor if tensor is None else tensor[part::parts], data)


def add(total, gradients):
    """Add two lists of gradients, which have None for unused variables; `total` may be None."""
    if total is None:
        return gradients
    return [more if sum_ is None else sum_ + more for sum_, more in zip(total, gradients, strict=True)]
