"""A batch in parts of nearly equal size. Keras has no such option; this serves ours."""

import keras


def count_parts(data, parts):
    """Returns the number of parts of a batch: `parts`, or its rows where they are known to be fewer."""
    rows = next(tensor.shape[0] for tensor in keras.tree.flatten(data) if tensor is not None)
    return parts if rows is None else max(1, min(parts, rows))


def take_part(data, part, parts):
    """Returns part number `part` of a batch: each `parts`-th row from row `part` on.

    These rows lie apart, so that a batch that is spread over devices stays spread.

    Args:
        data: structure of tensors (batch, ...) and None.
        part: 0 to `parts` - 1.
        parts: number of parts; 1 gives `data` itself.
    """
    if parts == 1:
        return data
    return keras.tree.map_structure(lambda tensor: tensor if tensor is None else tensor[part::parts], data)


def add(total, gradients):
    """Adds two lists of gradients, of which a variable that does not take part has none; `total` may be None."""
    if total is None:
        return gradients
    return [more if sum_ is None else sum_ + more for sum_, more in zip(total, gradients, strict=True)]
