"""Arrays as images: checks of their shape and value range."""

import math
import numbers

import numpy as np

_TOLERANCE = 1e-4  # share of the range: float32 resampling produces values such as 1.0000001, which are clipped


def check(name, array, value_range, ranks):
    """Return `array` (as NumPy) and its range (low, high) after checking shape and values.

    Raises:
        TypeError: if it does not contain numbers.
        ValueError: on a rank that is not in `ranks`, sides of 0, channels other than 1, 3 or 4, NaN or infinity, and
            values outside `value_range`; if that is None, outside the range of the dtype.
    """
    array = _numeric(name, array)
    check_shape(name, array.shape, ranks)
    low, high = _range_of(name, array.dtype, value_range)
    # Only the extremes are checked: they show NaN and infinity, and a large batch is not copied.
    least, greatest = float(array.min()), float(array.max())
    if not (math.isfinite(least) and math.isfinite(greatest)):
        raise ValueError(f"{name} must contain finite values; it contains NaN or infinity")
    slack = _TOLERANCE * (high - low)
    if least < low - slack or greatest > high + slack:
        raise ValueError(
            f"{name} must have values from {low:g} to {high:g}; they range from {least:g} to {greatest:g}"
            f"{_advice(array.dtype, least, greatest)}"
        )
    if array.dtype.kind == "f" and (low, high) == (0, 255) and 0 <= least < greatest <= 1:
        raise ValueError(
            f"{name} must have values from 0 to 255 for this value_range; they range from {least:g} to "
            f"{greatest:g} and are probably scaled already: omit value_range"
        )
    return array, (low, high)


def to_levels(array, value_range):
    """Return an image of rank 2 or 3 as (height, width, channels) on [0, 255]: uint8 unchanged, else float32."""
    array = array[..., None] if array.ndim == 2 else array
    low, high = value_range
    if array.dtype == np.uint8 and (low, high) == (0, 255):
        return array
    levels = (array.astype(np.float32) - np.float32(low)) * np.float32(255.0 / (high - low))
    return np.clip(levels, 0.0, 255.0)


def _numeric(name, array):
    given = type(array)
    try:
        array = np.asarray(array)
    except Exception:  # any exception means that the object is not an array
        array = np.empty((), object)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind == "b":
        raise TypeError(f"{name} must contain numbers; got bool: convert with mask.astype('uint8') * 255")
    if array.dtype.kind not in "uif":
        raise TypeError(
            f"{name} must be a path, the bytes of a file, a PIL image or an array of numbers; "
            f"got {given.__module__}.{given.__qualname__}"
        )
    return array


def check_shape(name, shape, ranks):
    """Raise a `ValueError` unless an array of this shape holds one image (rank 2 or 3) or several (rank 4)."""
    forms = {2: "(height, width)", 3: "(height, width, channels)", 4: "(images, height, width, channels)"}
    if len(shape) not in ranks:
        raise ValueError(f"{name} must have shape {' or '.join(forms[rank] for rank in ranks)}; got {shape}")
    if 0 in shape:
        raise ValueError(f"{name} must have no side of length 0; got shape {shape}")
    if len(shape) > 2 and shape[-1] not in (1, 3, 4):
        is_channels_first = shape[-3] in (1, 3, 4) and shape[-3] < min(shape[-2:])
        hint = "; move the channels to the last axis" if is_channels_first else ""
        raise ValueError(f"{name} must have 1, 3 or 4 channels on its last axis; got shape {shape}{hint}")


def _range_of(name, dtype, value_range):
    if value_range is not None:
        pair = tuple(value_range) if isinstance(value_range, (tuple, list)) else ()
        is_pair = len(pair) == 2 and all(isinstance(v, numbers.Real) and math.isfinite(v) for v in pair)
        if not is_pair or pair[0] >= pair[1]:
            raise ValueError(
                "value_range must be None or a pair of numbers (darkest, brightest) such as (0, 255); "
                f"got value_range={value_range!r}"
            )
        return pair
    if dtype.kind == "i":
        raise ValueError(
            f"{name} must be uint8, uint16 or float, or come with value_range=(darkest, brightest); "
            f"got {dtype}, which has no standard range for images"
        )
    return (0, np.iinfo(dtype).max) if dtype.kind == "u" else (0, 1)


def _advice(dtype, least, greatest):
    ranges = ((0, 1), (0, 255), (-1, 1)) if dtype.kind == "f" else ((0, 255), (0, 65535))
    fitting = [pair for pair in ranges if pair[0] <= least and greatest <= pair[1]]
    return f": pass value_range={fitting[0]}" if fitting else ": pass their actual value_range"
