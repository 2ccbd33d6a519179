"""Files that are whole or are not there."""

import os
import pathlib
import uuid


def replace_file(path, write):
    """Writes a file under a temporary name beside its place, then renames it.

    Args:
        path: of the file; its folder must exist.
        write: function of the path to write to, which has the same endings.

    Raises:
        OSError: what the system or `write` refuses; the file that was there before is still whole.
    """
    path = pathlib.Path(path)
    partial = path.with_name(f".{uuid.uuid4().hex}.{path.name}")
    try:
        write(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
