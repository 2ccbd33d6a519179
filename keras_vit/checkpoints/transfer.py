"""One file from an address, bounded in size and in time: a server decides neither how much nor how long."""

import base64
import collections
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from keras_vit.logs import LOGGER

MIN_RATE = 1024  # bytes per second, on average over WINDOW
WINDOW = 60.0  # seconds

_CHUNK = 2**18  # bytes
_REPORT_SECONDS = 10.0  # from one line about the progress to the next


class TooLarge(ValueError):
    """The address holds more than was allowed; nothing beyond the bound was written."""


def transfer(url, file, most, login=None):
    """Writes what an address holds into an open file.

    Args:
        url: `https`, `http` or `file` address without user and password.
        file: binary file that is open for writing.
        most: largest number of bytes.
        login: None or `"user:password"` for this server; it is not sent to another one.

    Raises:
        TooLarge: where the server announces or sends more than `most`.
        TimeoutError: where fewer than `MIN_RATE` bytes per second came on average over the last `WINDOW` seconds.
        OSError, http.client.HTTPException: as urllib raises them.
    """
    pull = _Pull(url, file, most, login)
    pace, start = Pace(time.monotonic()), time.monotonic()
    pull.start()
    reports = 1
    try:
        while pull.is_alive():
            pull.join(WINDOW / 60)
            now = time.monotonic()
            if pull.is_alive() and pace.is_too_slow(now, pull.done):
                raise TimeoutError(f"fewer than {MIN_RATE} bytes per second came during {WINDOW:g} seconds")
            if now - start > reports * _REPORT_SECONDS:
                reports += 1
                LOGGER.info("%.0f MiB of %s", pull.done / 2**20, url)
    finally:
        pull.is_given_up = True
    if pull.error is not None:
        raise pull.error


class Pace:
    """A sliding window over the bytes that have come."""

    def __init__(self, now):
        self._marks = collections.deque([(now, 0)])

    def is_too_slow(self, now, done):
        """Whether fewer than `MIN_RATE` bytes per second came on average since `WINDOW` seconds before `now`."""
        self._marks.append((now, done))
        while self._marks[1][0] <= now - WINDOW:
            self._marks.popleft()
        start, before = self._marks[0]
        return now - start >= WINDOW and done - before < MIN_RATE * (now - start)


def redacted(text):
    """Returns a text without what stands before the @ of its addresses."""
    return re.sub(r"//[^/\s]*@", "//", text)


class _Pull(threading.Thread):
    """The transfer itself, in a thread: reading a header or a chunk's length may block for ever, byte by byte."""

    def __init__(self, url, file, most, login):
        super().__init__(daemon=True)
        self.done, self.error, self.is_given_up = 0, None, False
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
        length = getattr(response, "length", None)  # of a file:// address, and of one sent in chunks, there is none
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
    """Follows to https, from http to http as well, and nowhere else."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        parts = urllib.parse.urlsplit(newurl)
        if parts.scheme not in ("https", req.type) or "@" in parts.netloc:
            text = f"and a redirect to {redacted(newurl)}, which is not followed"
            raise urllib.error.HTTPError(req.full_url, code, text, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)
