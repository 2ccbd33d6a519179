"""Checks of the numbers in the string of an operation."""

import math
import numbers


def check_number(name, value, least=-math.inf, most=math.inf):
    """Return `value` as a finite float within [least, most]."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not least <= value <= most:
        limits = f"of at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        raise ValueError(f"{name} must be a number {limits}; got {name}={value!r}")
    return float(value)


def check_span(least_name, least, most_name, most, limit=math.inf):
    """Return the pair as floats with `0 < least <= most <= limit`."""
    least, most = check_number(least_name, least, 0.0), check_number(most_name, most, 0.0)
    if not 0.0 < least <= most <= limit:
        raise ValueError(
            f"{least_name} and {most_name} must satisfy 0 < {least_name} <= {most_name}"
            f"{'' if limit == math.inf else f' <= {limit:g}'}; "
            f"got {least_name}={least:g}, {most_name}={most:g}"
        )
    return least, most
