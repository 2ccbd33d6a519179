"""Files that are whole or are not there."""

import os
import pathlib
import uuid


def replace_file(path, write):
    """Writes a file under a temporary name beside its place, then renames it.

    Args:
        path: of the file; its folder must exist.
        write: function of the path to write to, which has the same ending.
    """
    path = pathlib.Path(path)
    partial = path.with_name(f".{uuid.uuid4().hex}{path.suffix}")
    try:
        write(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
