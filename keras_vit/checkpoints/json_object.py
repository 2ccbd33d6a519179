"""JSON files next to or inside checkpoints: one object each, of limited size."""

import json

MAX_BYTES = 16 * 2**20  # the Python objects take up to 25 times as much memory


def parse(name, size, read):
    """Return the dict in a JSON file.

    Args:
        name: name of the file in error messages.
        size: size of the file in bytes.
        read: callable that returns its content; not called for a file of more than `MAX_BYTES`.

    Raises:
        ValueError: if the file is too large, is not JSON, or has no JSON object.
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
