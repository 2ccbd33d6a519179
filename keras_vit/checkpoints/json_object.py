"""JSON files beside or inside checkpoints: one object each, of bounded size."""

import json

MAX_BYTES = 16 * 2**20  # as Python's objects they take up to 25 times as much


def parse(name, size, read):
    """Returns the dict that a JSON file holds.

    Args:
        name: what messages call it.
        size: its length in bytes.
        read: callable that returns its content; not called for a file of more than `MAX_BYTES`.

    Raises:
        ValueError: if it is too large, no JSON, or no JSON object.
    """
    if size > MAX_BYTES:
        raise ValueError(f"{name} must not exceed {MAX_BYTES} bytes; got {size}")
    try:
        values = json.loads(read())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} must be JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{name} must hold a JSON object; got {type(values).__name__}")
    return values
