"""Downloads against a server on the loopback interface: what arrives, what is refused, what stays behind."""

import contextlib
import errno
import http.server
import io
import os
import pathlib
import signal
import socket
import threading
import time
import zipfile

import keras
import numpy as np
import pytest

from keras_vit.checkpoints import download, releases

ARRAYS = {
    "cls": np.zeros((1, 1, 4), "float32"),
    "head/kernel": np.arange(4000, dtype="float32").reshape(4, 1000),
}
RELEASE = releases.find_release("R50+ViT-B_16", "imagenet21k+imagenet2012")
QUOTED = "/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz"
FINAL = "models/keras_vit/imagenet21k+imagenet2012/R50+ViT-B_16.npz"


def npz(arrays=None):
    buffer = io.BytesIO()
    np.savez(buffer, **(ARRAYS if arrays is None else arrays))
    return buffer.getvalue()


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def archive(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


class Server(http.server.ThreadingHTTPServer):
    """Answers every GET by `self.answer(handler)`; `requests` lists the raw paths asked for."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests = []
        self.answer = lambda handler: send(handler, npz())

    def handle_error(self, request, client_address):
        """Stays silent: clients that break off are part of the tests."""


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        self.server.answer(self)

    def log_message(self, *args):
        """Stays silent."""


def send(handler, body, length=None, status=200):
    handler.send_response(status)
    if length is not False:
        handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body)


@pytest.fixture
def server(monkeypatch):
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv(download.URL_VARIABLE, f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("no_proxy", "*")
        yield server
        server.shutdown()
        thread.join()


def files(folder):
    paths = (path for path in pathlib.Path(folder).rglob("*") if path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def wait_for(condition):
    deadline = time.monotonic() + 5
    while not (result := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return result


def test_success_then_no_second_request(server, tmp_path, capsys):
    path = download.fetch(RELEASE, cache_dir=tmp_path)
    assert path == tmp_path / FINAL
    assert path.read_bytes() == npz()
    assert "Downloading data from http://127.0.0.1" in capsys.readouterr().out
    assert download.fetch(RELEASE, cache_dir=str(tmp_path)) == path
    assert server.requests == [QUOTED]
    assert files(tmp_path) == [FINAL]


def test_keras_home_is_the_default_cache(server, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    assert download.fetch(RELEASE) == tmp_path / FINAL


def test_without_keras_home_the_cache_is_in_the_users_home(server, tmp_path, monkeypatch):
    monkeypatch.delenv("KERAS_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert download.fetch(RELEASE) == tmp_path / ".keras" / FINAL


def test_base_address(monkeypatch):
    monkeypatch.delenv(download.URL_VARIABLE, raising=False)
    assert download.release_url(RELEASE) == "https://storage.googleapis.com/vit_models" + QUOTED
    monkeypatch.setenv(download.URL_VARIABLE, "http://mirror.example/weights/")
    assert download.release_url(RELEASE) == "http://mirror.example/weights" + QUOTED
    for value in ("mirror.example/weights", "gs://vit_models", "/srv/weights"):
        monkeypatch.setenv(download.URL_VARIABLE, value)
        with pytest.raises(ValueError, match=f"{download.URL_VARIABLE} must begin with .*; got '{value}'"):
            download.release_url(RELEASE)


def test_addresses_of_another_bucket(monkeypatch):
    release = releases.find_release("BiT-R50x1", "imagenet21k+imagenet2012")
    monkeypatch.delenv(download.URL_VARIABLE, raising=False)
    path = "/bit_models/BiT-M-R50x1-ILSVRC2012.npz"
    assert download.release_url(release) == "https://storage.googleapis.com" + path
    monkeypatch.setenv(download.URL_VARIABLE, "http://mirror.example/weights/")
    assert download.release_url(release) == "http://mirror.example/weights" + path


def test_file_address_serves_a_local_mirror(tmp_path, monkeypatch):
    mirror = tmp_path / "mirror"
    monkeypatch.setenv(download.URL_VARIABLE, mirror.as_uri())
    message = f"expected a file at {mirror.as_uri()}.*{download.URL_VARIABLE}"
    with pytest.raises(FileNotFoundError, match=message):
        download.fetch(RELEASE, cache_dir=tmp_path / "cache")
    (mirror / RELEASE.directory).mkdir(parents=True)
    (mirror / RELEASE.path).write_bytes(npz())
    assert download.fetch(RELEASE, cache_dir=tmp_path / "cache").read_bytes() == npz()


def test_missing_file(server, tmp_path):
    server.answer = lambda handler: handler.send_error(404)
    with pytest.raises(FileNotFoundError) as error:
        download.fetch(RELEASE, cache_dir=tmp_path)
    assert f"http://127.0.0.1:{server.server_port}{QUOTED}" in str(error.value)
    assert "404" in str(error.value) and download.URL_VARIABLE in str(error.value)
    assert files(tmp_path) == []


def test_refusing_server(server, tmp_path):
    server.answer = lambda handler: handler.send_error(503, "Busy today")
    with pytest.raises(ConnectionError, match=r"the server answered 503 Busy today"):
        download.fetch(RELEASE, cache_dir=tmp_path)
    assert files(tmp_path) == []


def test_no_server(tmp_path, monkeypatch):
    with socket.socket() as unused:  # bound and not listening: its port refuses connections
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv(download.URL_VARIABLE, f"http://127.0.0.1:{unused.getsockname()[1]}")
        monkeypatch.setenv("no_proxy", "*")
        with pytest.raises(ConnectionError, match=r"expected the whole file at http://127.*[Rr]efused"):
            download.fetch(RELEASE, cache_dir=tmp_path)
    assert files(tmp_path) == []


def test_truncated_file(server, tmp_path):
    whole = npz()
    server.answer = lambda handler: send(handler, whole[:9000], length=len(whole))
    with pytest.raises(ConnectionError, match=rf"127.*only 9000 out of {len(whole)} bytes"):
        download.fetch(RELEASE, cache_dir=tmp_path)
    assert files(tmp_path) == []


def test_truncated_file_of_a_server_that_states_no_length(server, tmp_path):
    server.answer = lambda handler: send(handler, npz()[:9000], length=False)
    with pytest.raises(ValueError, match=r"got 9000 bytes in which a whole \.npz was expected"):
        download.fetch(RELEASE, cache_dir=tmp_path)
    assert files(tmp_path) == []


def flipped():
    """The whole archive with one bit of the array's numbers turned over."""
    content = bytearray(npz())
    content[content.index(np.arange(100, 200, dtype="float32").tobytes())] ^= 1
    return bytes(content)


WRONG = {
    "one bit": (flipped(), r"Bad CRC-32 for file 'head/kernel\.npy'"),
    "other bytes": (b"\0" * len(npz()), r"a whole \.npz was expected: File is not a zip file"),
    "a web page": (b"<!DOCTYPE html><html>Log in", r"first bytes are b'<!DOCTYPE html><"),
    "nothing": (b"", r"got 0 bytes in which"),
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
        download.fetch(RELEASE, cache_dir=tmp_path)
    url = f"http://127.0.0.1:{server.server_port}{QUOTED}"
    assert str(error.value).startswith(
        f"expected {RELEASE.path} of about 377.6 MiB from {url}; got {len(content)} bytes in which "
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
        download.fetch(RELEASE, cache_dir=tmp_path)
    assert len(seen) == 1 and seen[0] != FINAL
    assert seen[0].startswith("models/keras_vit/imagenet21k+imagenet2012/.R50+ViT-B_16.")
    assert seen[0].endswith(".partial.npz")
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
            download.fetch(RELEASE, cache_dir=tmp_path)
    finally:
        signal.signal(signal.SIGINT, previous)
        finished.set()
    assert files(tmp_path) == []
    server.answer = lambda handler: send(handler, npz())
    assert download.fetch(RELEASE, cache_dir=tmp_path).read_bytes() == npz()


def test_validate_decides_on_the_checked_file_before_it_gets_its_name(server, tmp_path):
    calls = []

    def validate(path):
        calls.append((path.suffix, files(tmp_path) == [path.relative_to(tmp_path).as_posix()], path.name))
        with np.load(path) as arrays:
            if arrays["head/kernel"].shape != (4, 10):
                raise ValueError(f"head/kernel must be (4, 10); got {arrays['head/kernel'].shape}")

    with pytest.raises(ValueError, match=r"from http://127.*head/kernel must be \(4, 10\); got \(4, 1000\)"):
        download.fetch(RELEASE, cache_dir=tmp_path, validate=validate)
    assert [call[:2] for call in calls] == [(".npz", True)]
    assert calls[0][2] != "R50+ViT-B_16.npz"
    assert files(tmp_path) == []
    server.answer = lambda handler: send(handler, npz({"head/kernel": np.zeros((4, 10))}))
    download.fetch(RELEASE, cache_dir=tmp_path, validate=validate)
    assert files(tmp_path) == [FINAL]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, KeyError])
def test_any_exception_of_validate_leaves_nothing(server, tmp_path, kind):
    def validate(path):
        raise kind("stop")

    with pytest.raises(kind, match="stop"):
        download.fetch(RELEASE, cache_dir=tmp_path, validate=validate)
    assert files(tmp_path) == []


def test_damaged_file_in_the_cache_is_replaced_with_a_warning(server, tmp_path):
    final = tmp_path / FINAL
    final.parent.mkdir(parents=True)
    final.write_bytes(flipped())
    with pytest.warns(UserWarning, match=r"R50\+ViT-B_16\.npz is damaged and is downloaded again: .*CRC"):
        assert download.fetch(RELEASE, cache_dir=tmp_path) == final
    assert final.read_bytes() == npz()
    assert files(tmp_path) == [FINAL]


def test_leftovers_of_killed_processes(server, tmp_path):
    folder = (tmp_path / FINAL).parent
    folder.mkdir(parents=True)
    old = folder / ".R50+ViT-B_16.0123.partial.npz"
    young = folder / ".R50+ViT-B_16.4567.partial.npz"
    other = folder / ".R50+ViT-B_16-224.89ab.partial.npz"
    for partial in (old, young, other):
        partial.write_bytes(npz()[:5000])
    for partial in (old, other):
        os.utime(partial, (time.time() - 2 * 86400,) * 2)
    path = download.fetch(RELEASE, cache_dir=tmp_path)
    assert path.read_bytes() == npz()
    assert server.requests == [QUOTED]
    # the young one may be another process at work, the other one is another file's
    assert sorted(folder.iterdir()) == sorted([path, young, other])


def test_two_downloads_at_once_do_not_meet(server, tmp_path):
    both = threading.Barrier(2, timeout=5)

    def answer(handler):
        both.wait()
        whole = npz()
        send(handler, whole[:9000], length=len(whole))
        both.wait()
        handler.wfile.write(whole[9000:])

    server.answer = answer
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(download.fetch(RELEASE, cache_dir=tmp_path))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert results == [tmp_path / FINAL] * 2
    assert results[0].read_bytes() == npz()
    assert len(server.requests) == 2
    assert files(tmp_path) == [FINAL]


def test_unwritable_cache_is_refused_rather_than_replaced(server, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="KERAS_HOME"):
        download.fetch(RELEASE, cache_dir=tmp_path)
    assert server.requests == []


def test_full_disk_is_no_connection_error(server, tmp_path, monkeypatch):
    def get_file(**kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(keras.utils, "get_file", get_file)
    with pytest.raises(OSError, match=r"downloading http://127.* failed: No space left") as error:
        download.fetch(RELEASE, cache_dir=tmp_path)
    assert not isinstance(error.value, ConnectionError)
    assert error.value.errno == errno.ENOSPC
    assert error.value.filename == str((tmp_path / FINAL).parent)


def test_members_may_be_compressed_and_of_any_plain_type(tmp_path):
    path = tmp_path / "file.npz"
    np.savez_compressed(path, a=np.zeros((3, 0)), b=np.array(7), c=np.zeros(5, "V2"), d=np.ones(9, "uint8"))
    download.check_archive(path)


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
            download.check_archive(path)
        except ValueError:
            refused += 1
            continue
        with np.load(path) as arrays:  # what passes is read to the same numbers
            np.testing.assert_array_equal(arrays[arrays.files[0]], np.arange(8, dtype="float32"))
    assert refused > len(whole) / 2
