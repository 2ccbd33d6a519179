"""What reading a damaged file raises, turned into one clear ValueError; errors of the disk stay what they are."""

import contextlib
import errno
import zipfile
import zlib

# What zipfile raises where an archive's bytes are wrong; RuntimeError (and its NotImplementedError) where they ask for
# encryption or another method, OSError of the kind "invalid argument" and OverflowError where they place a member
# outside of the file.
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, UnicodeDecodeError, OverflowError, OSError)


@contextlib.contextmanager
def explained(expectation, path, more=()):
    """Turns the exceptions of wrong bytes into `ValueError("<expectation>: <reason> (the first bytes are ...)")`.

    Args:
        expectation: what the file should have been, in words.
        path: of the file.
        more: exception types that mean damage beside `DAMAGE`.
    """
    try:
        yield
    except (*DAMAGE, *more) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        with open(path, "rb") as file:
            start = file.read(16)
        raise ValueError(f"{expectation}: {error} (the first bytes are {start!r})") from error
