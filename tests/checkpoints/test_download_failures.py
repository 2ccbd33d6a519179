"""Downloads that fail: what is said, what is refused, and that nothing stays behind."""

import contextlib
import dataclasses
import errno
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from download_server import ARRAYS, QUOTED, RELEASE, archive, files, flipped, npy, npz, send, wait_for
from slow_rows import slow_after

from keras_vit.checkpoints import locate, transfer


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))


def test_missing_file(server, tmp_path):
    server.answer = lambda handler: handler.send_error(404)
    with pytest.raises(FileNotFoundError) as error:
        locate.fetch_release(RELEASE)
    assert f"http://127.0.0.1:{server.server_port}{QUOTED}" in str(error.value)
    assert "404" in str(error.value) and locate.URL_VARIABLE in str(error.value)
    assert files(tmp_path) == []


def test_refusing_server(server, tmp_path):
    server.answer = lambda handler: handler.send_error(503, "Busy today")
    with pytest.raises(ConnectionError, match=r"the server answered 503 Busy today"):
        locate.fetch_release(RELEASE)
    assert files(tmp_path) == []


def test_no_server(tmp_path, monkeypatch):
    with socket.socket() as unused:  # bound and not listening: its port refuses connections
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv(locate.URL_VARIABLE, f"http://127.0.0.1:{unused.getsockname()[1]}")
        monkeypatch.setenv("no_proxy", "*")
        with pytest.raises(ConnectionError, match=r"expected the whole file at http://127.*[Rr]efused"):
            locate.fetch_release(RELEASE)
    assert files(tmp_path) == []


def test_truncated_file(server, tmp_path):
    whole = npz()
    server.answer = lambda handler: send(handler, whole[:9000], length=len(whole))
    with pytest.raises(ConnectionError, match=rf"127.*only 9000 out of {len(whole)} bytes"):
        locate.fetch_release(RELEASE)
    assert files(tmp_path) == []


def test_truncated_file_of_a_server_that_states_no_length(server, tmp_path):
    server.answer = lambda handler: send(handler, npz()[:9000], length=False)
    with pytest.raises(ValueError, match=r"got 9000 bytes: a whole \.npz was expected"):
        locate.fetch_release(RELEASE)
    assert files(tmp_path) == []


WRONG = {
    "one bit": (flipped(), r"Bad CRC-32 for file 'head/kernel\.npy'"),
    "other bytes": (b"\0" * len(npz()), r"a whole \.npz was expected: File is not a zip file"),
    "a web page": (b"<!DOCTYPE html><html>Log in", r"first bytes are b'<!DOCTYPE html><"),
    "nothing": (b"", r"got 0 bytes: a whole"),
    "no arrays": (archive({}), r"the archive is empty"),
    "a text": (archive({"a.txt": b"hello"}), r"every member must be a \.npy array; got 'a\.txt'"),
    "no npy": (archive({"a.npy": b"hello, I am no array"}), r"magic string"),
    "objects": (npz({"a": np.array([{}], object)}), r"'a\.npy' must hold numbers; got Python objects"),
    "too few numbers": (
        archive({"a.npy": npy(ARRAYS["cls"])[:-4]}),
        r"'a\.npy' must hold float32 of shape \(1, 1, 4\); got 12 bytes",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_whole_transfer_of_wrong_content(server, tmp_path, case):
    content, message = WRONG[case]
    server.answer = lambda handler: send(handler, content)
    with pytest.raises(ValueError, match=message) as error:
        locate.fetch_release(RELEASE)
    url = f"http://127.0.0.1:{server.server_port}{QUOTED}"
    assert str(error.value).startswith(
        f"expected {RELEASE.path} of about 377.6 MiB from {url}; got {len(content)} bytes: "
    )
    assert files(tmp_path) == []


def test_right_size_with_wrong_content_has_the_right_size():
    assert len(WRONG["one bit"][0]) == len(WRONG["other bytes"][0]) == len(npz())


def test_connection_closed_in_the_middle_shows_no_final_name_meanwhile(server, tmp_path):
    seen = []

    def answer(handler):
        whole = npz()
        with contextlib.suppress(OSError):
            send(handler, whole[:12000], length=len(whole))
            seen.extend(wait_for(lambda: files(tmp_path)))
            # an abort in place of an orderly end: the client meets a reset
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            handler.connection.close()

    server.answer = answer
    with pytest.raises(ConnectionError, match=r"expected the whole file at http://127"):
        locate.fetch_release(RELEASE)
    assert len(seen) == 1 and seen[0] != server.final
    assert seen[0].startswith(server.final.replace("R50+ViT-B_16.npz", ".partial-"))
    assert files(tmp_path) == []


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="the system cannot signal one thread")
def test_keyboard_interrupt_in_the_middle(server, tmp_path):
    client = threading.get_ident()
    finished = threading.Event()

    def answer(handler):
        whole = npz()
        with contextlib.suppress(OSError):
            send(handler, whole[:12000], length=len(whole))
            wait_for(lambda: files(tmp_path))
            signal.pthread_kill(client, signal.SIGINT)
            finished.wait(5)

    server.answer = answer
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            locate.fetch_release(RELEASE)
    finally:
        signal.signal(signal.SIGINT, previous)
        finished.set()
    assert files(tmp_path) == []
    server.answer = lambda handler: send(handler, npz())
    assert locate.fetch_release(RELEASE).read_bytes() == npz()


def test_unwritable_cache_is_refused_rather_than_replaced(server, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="KERAS_HOME"):
        locate.fetch_release(RELEASE)
    assert server.requests == []


def test_full_disk_is_no_connection_error(server, tmp_path, monkeypatch):
    def transfer(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(locate, "transfer", transfer)
    with pytest.raises(OSError, match=r"downloading http://127.* failed: No space left") as error:
        locate.fetch_release(RELEASE)
    assert not isinstance(error.value, ConnectionError)
    assert error.value.errno == errno.ENOSPC
    assert error.value.filename == str((tmp_path / server.final).parent)


# Bounds of size and time


SMALL = dataclasses.replace(RELEASE, bytes=20_000)
MOST = 21_000 + 2**20


@pytest.mark.parametrize("is_announced", [True, False])
def test_more_than_the_release_has_is_not_written(server, tmp_path, is_announced):
    sent = []

    def answer(handler):
        with contextlib.suppress(OSError):
            send(handler, b"", length=2**40 if is_announced else False)
            while True:  # for ever
                sent.append(handler.wfile.write(bytes(2**16)))

    server.answer = answer
    with pytest.raises(ValueError, match=f"expected at most {MOST} bytes, .* at http://127.*; the server sends [0-9]+"):
        locate.fetch_release(SMALL)
    assert sum(sent) < MOST + 64 * 2**20  # what the system's buffers take, of an endless file
    assert files(tmp_path) == []


def test_a_release_may_be_as_large_as_the_bound(server, tmp_path):
    array = np.zeros(MOST - 200, "uint8")
    content = npz({"a": array, "b": np.zeros(0)})
    exact = dataclasses.replace(RELEASE, bytes=round((len(content) - 2**20) / 1.05))
    assert locate.most_bytes(exact) - len(content) in (0, 1)
    server.answer = lambda handler: send(handler, content)
    assert locate.fetch_release(exact).stat().st_size == len(content)


@pytest.mark.parametrize("where", slow_after(1, ["body", "header", "status", "chunk"]))
def test_a_server_that_drips_is_left(server, tmp_path, monkeypatch, where):
    monkeypatch.setattr(transfer, "WINDOW", 0.3)
    released = threading.Event()
    start = {
        "body": b"HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n",
        "header": b"HTTP/1.1 200 OK\r\nX-Long: ",
        "status": b"HTTP/1.1 200 ",
        "chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;",
    }[where]

    def answer(handler):
        with contextlib.suppress(OSError):
            handler.wfile.write(start)
            while not released.wait(0.02):
                handler.wfile.write(b"a")

    server.answer = answer
    message = r"at http://127.*the transfer failed: fewer than 1024 bytes per second came during 0\.3 seconds"
    began = time.monotonic()
    with pytest.raises(ConnectionError, match=message):
        locate.fetch_release(RELEASE)
    assert time.monotonic() - began < 3
    released.set()
    assert files(tmp_path) == []


def test_the_pace_is_that_of_the_last_minute():
    pace, done = transfer.Pace(0.0), 0
    assert not pace.is_too_slow(59.9, 0)
    assert pace.is_too_slow(60.0, 60 * 1024 - 1)
    pace = transfer.Pace(0.0)
    for second in range(1, 200):  # 1 KiB/s is enough
        done += 1024
        assert not pace.is_too_slow(float(second), done)
    assert pace.is_too_slow(200.0, done)
    pace = transfer.Pace(0.0)
    assert not pace.is_too_slow(1.0, 10**9)
    assert [pace.is_too_slow(float(second), 10**9) for second in (30, 60, 61, 62)] == [False, False, True, True]


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://127.0.0.1/a", "data:,a", "http://me:secret@127.0.0.1/"]
)
def test_a_redirect_to_another_kind_of_address_is_refused(server, tmp_path, target):
    def answer(handler):
        handler.send_response(302, "Found")
        handler.send_header("Location", target)
        handler.end_headers()

    server.answer = answer
    with pytest.raises(ConnectionError, match=r"the server answered 302 .*[Rr]edirect") as error:
        locate.fetch_release(RELEASE)
    assert "secret" not in str(error.value)
    assert files(tmp_path) == []


def test_https_is_not_left_for_http():
    request = urllib.request.Request("https://host/a")
    follow = transfer._Redirects().redirect_request
    assert follow(request, None, 302, "Found", {}, "https://other/b").full_url == "https://other/b"
    with pytest.raises(urllib.error.HTTPError, match="a redirect to http://host/b, which is not followed"):
        follow(request, None, 302, "Found", {}, "http://host/b")


def test_a_redirect_is_followed_without_the_login(server, tmp_path, monkeypatch):
    sent = []

    def answer(handler):
        sent.append((handler.path, handler.headers["Authorization"] is None))
        if len(sent) > 1:
            return send(handler, npz())
        handler.send_response(302)
        handler.send_header("Location", server.address.replace("127.0.0.1", "localhost") + "/else")
        handler.end_headers()

    server.answer = answer
    monkeypatch.setenv(locate.URL_VARIABLE, server.address.replace("//", "//me:secret@"))
    locate.fetch_release(RELEASE)
    assert sent == [(QUOTED, False), ("/else", True)]


def test_every_single_wrong_byte_in_an_archive_is_a_value_error_or_harmless(tmp_path):
    """Damage anywhere, in names, headers, sizes or numbers, never ends in another kind of error."""
    whole = npz({"a": np.arange(8, dtype="float32")})
    path = tmp_path / "file.npz"
    refused = 0
    for index in range(len(whole)):
        content = bytearray(whole)
        content[index] ^= 0xFF
        path.write_bytes(content)
        try:
            locate.check_archive(path)
        except ValueError:
            refused += 1
            continue
        with np.load(path) as arrays:  # what passes is read to the same numbers
            np.testing.assert_array_equal(arrays[arrays.files[0]], np.arange(8, dtype="float32"))
    assert refused > len(whole) / 2
