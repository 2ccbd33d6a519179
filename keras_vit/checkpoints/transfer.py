"""Download of one file with limits on size and time, which protect against slow or malicious servers.

The library pooch (1.9) is no replacement: it limits neither the bytes nor the rate, follows redirects from https to
http, and compares hashes, which the authors of the weights do not publish.
"""

import base64
import collections
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from keras_vit.logs import LOGGER
from keras_vit.progress import progress_bar

MIN_RATE = 1024  # bytes per second, averaged over WINDOW
WINDOW = 60.0  # seconds

_CHUNK = 2**18  # bytes
_REPORT_SECONDS = 10.0  # between two progress messages


class TooLarge(ValueError):
    """The address holds more than the allowed number of bytes; nothing beyond the limit was written."""


def transfer(url, file, most, login=None):
    """Write the content of an address to an open file.

    Args:
        url: `https`, `http` or `file` address without user and password.
        file: binary file that is open for writing.
        most: maximum number of bytes.
        login: None or `"user:password"` for this server; it is not sent to other servers.

    Raises:
        TooLarge: if the server announces or sends more than `most` bytes.
        TimeoutError: if fewer than `MIN_RATE` bytes per second arrive on average over the last `WINDOW` seconds.
        OSError, http.client.HTTPException: as raised by urllib.
    """
    pull, bar = _Pull(url, file, most, login), progress_bar(None, "MiB")
    pace, start = Pace(time.monotonic()), time.monotonic()
    pull.start()
    reports = 1
    try:
        while pull.is_alive():
            pull.join(WINDOW / 60)
            now = time.monotonic()
            if pull.is_alive() and pace.is_too_slow(now, pull.done):
                raise TimeoutError(f"fewer than {MIN_RATE} bytes per second came during {WINDOW:g} seconds")
            _show(bar, pull, finalize=False)
            if not bar.verbose and now - start > reports * _REPORT_SECONDS:
                reports += 1
                LOGGER.info("%.0f MiB of %s", pull.done / 2**20, url)
    finally:
        pull.is_given_up = True
        if pull.done:
            _show(bar, pull, finalize=True)
    if pull.error is not None:
        raise pull.error


def _show(bar, pull, finalize):
    """Update the bar, in MiB, rounded up."""
    bar.target = pull.total and -(-pull.total // 2**20)
    bar.update(-(-pull.done // 2**20), finalize=finalize)


class Pace:
    """A sliding window over the number of received bytes."""

    def __init__(self, now):
        self._marks = collections.deque([(now, 0)])

    def is_too_slow(self, now, done):
        """Return whether fewer than `MIN_RATE` bytes per second arrived in the `WINDOW` seconds before `now`."""
        self._marks.append((now, done))
        while self._marks[1][0] <= now - WINDOW:
            self._marks.popleft()
        start, before = self._marks[0]
        return now - start >= WINDOW and done - before < MIN_RATE * (now - start)


def redacted(text):
    """Return the text with user and password removed from its addresses."""
    return re.sub(r"//[^/\s]*@", "//", text)


class _Pull(threading.Thread):
    """The transfer, in a thread of its own: reading a header or a chunk length may block forever."""

    def __init__(self, url, file, most, login):
        super().__init__(daemon=True)
        self.done, self.total, self.error, self.is_given_up = 0, None, None, False
        self._request, self._file, self._most = urllib.request.Request(url), file, most
        if login is not None:
            value = "Basic " + base64.b64encode(login.encode()).decode()
            self._request.add_unredirected_header("Authorization", value)

    def run(self):
        try:
            with urllib.request.build_opener(_Redirects).open(self._request, timeout=WINDOW) as response:
                self._read(response)
        except BaseException as error:
            self.error = error

    def _read(self, response):
        self.total = length = getattr(response, "length", None)  # None for a file:// address and for chunked encoding
        self._check(length or 0)
        while not self.is_given_up and (piece := response.read1(_CHUNK)):
            self._check(self.done + len(piece))
            self._file.write(piece)
            self.done += len(piece)
        if length is not None and self.done != length:
            raise urllib.error.ContentTooShortError(f"got only {self.done} out of {length} bytes", None)

    def _check(self, size):
        if size > self._most:
            raise TooLarge(f"the server sends {size} or more")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects to https, and from http to http; reject all others."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        parts = urllib.parse.urlsplit(newurl)
        if parts.scheme not in ("https", req.type) or "@" in parts.netloc:
            text = f"and a redirect to {redacted(newurl)}, which is not followed"
            raise urllib.error.HTTPError(req.full_url, code, text, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)
