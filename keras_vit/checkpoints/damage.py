"""Conversion of the errors from reading a damaged file to one clear ValueError; other OSErrors stay unchanged."""

import contextlib
import errno
import zipfile
import zlib

# The errors of zipfile for damaged archives. RuntimeError (also NotImplementedError) means encryption or an unknown
# compression method; OSError "invalid argument" and OverflowError mean a member outside of the file.
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, UnicodeDecodeError, OverflowError, OSError)


@contextlib.contextmanager
def explained(expectation, path, more=()):
    """Convert the errors of damaged files to `ValueError("<expectation>: <reason> (the first bytes are ...)")`.

    Args:
        expectation: what the file should be, in words.
        path: path of the file.
        more: exception types that mean damage, in addition to `DAMAGE`.
    """
    try:
        yield
    except (*DAMAGE, *more) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        with open(path, "rb") as file:
            start = file.read(16)
        raise ValueError(f"{expectation}: {error} (the first bytes are {start!r})") from error
