"""Downloads against a server on the loopback interface: what arrives, where, and the cache."""

import base64
import os
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
from download_server import QUOTED, RELEASE, files, flipped, npz, send
from faults import for_each

from keras_vit.checkpoints import locate, releases


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))


def test_success_then_no_second_request(server, tmp_path, caplog):
    path = locate.fetch_release(RELEASE)
    assert path == tmp_path / server.final
    assert path.read_bytes() == npz()
    assert caplog.messages == [f"Downloading {server.address}{QUOTED} to {path.parent}"]
    assert locate.fetch_release(RELEASE) == path
    assert server.requests == [QUOTED]
    assert files(tmp_path) == [server.final]


def test_without_keras_home_the_cache_is_in_the_users_home(server, tmp_path, monkeypatch):
    monkeypatch.delenv("KERAS_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert locate.fetch_release(RELEASE) == tmp_path / ".keras" / server.final


def test_base_address(monkeypatch):
    monkeypatch.delenv(locate.URL_VARIABLE, raising=False)
    assert locate.release_url(RELEASE)[0] == "https://storage.googleapis.com/vit_models" + QUOTED
    monkeypatch.setenv(locate.URL_VARIABLE, "http://mirror.example/weights/")
    assert locate.release_url(RELEASE)[0] == "http://mirror.example/weights" + QUOTED
    for value in ("mirror.example/weights", "gs://vit_models", "/srv/weights"):
        monkeypatch.setenv(locate.URL_VARIABLE, value)
        with pytest.raises(ValueError, match=f"{locate.URL_VARIABLE} must begin with .*; got '{value}'"):
            locate.release_url(RELEASE)


def test_addresses_of_another_bucket(monkeypatch):
    release = releases.find_release("BiT-R50x1", "imagenet21k+imagenet2012")
    monkeypatch.delenv(locate.URL_VARIABLE, raising=False)
    path = "/bit_models/BiT-M-R50x1-ILSVRC2012.npz"
    assert locate.release_url(release)[0] == "https://storage.googleapis.com" + path
    monkeypatch.setenv(locate.URL_VARIABLE, "http://mirror.example/weights/")
    assert locate.release_url(release)[0] == "http://mirror.example/weights" + path


def test_each_base_address_has_a_cache_of_its_own(server, tmp_path, monkeypatch):
    monkeypatch.delenv(locate.URL_VARIABLE)
    published = tmp_path / "models" / "keras_vit" / RELEASE.path
    published.parent.mkdir(parents=True)
    published.write_bytes(npz({"a": np.zeros(1)}))
    assert locate.fetch_release(RELEASE) == published
    port = server.server_port
    bases = [server.address, f"http://localhost:{port}", f"http://me:pw@127.0.0.1:{port}", f"{server.address}/"]
    paths = []
    for base in bases:
        monkeypatch.setenv(locate.URL_VARIABLE, base)
        paths.append(locate.fetch_release(RELEASE))
    assert paths[3] == paths[0]  # a slash at the end is the same address
    assert len({published, *paths}) == 4
    assert len(server.requests) == 3


def test_a_login_is_sent_and_never_shown(server, tmp_path, monkeypatch, caplog):
    sent = []

    def answer(handler):
        sent.append(handler.headers["Authorization"])
        send(handler, npz()) if len(sent) == 1 else handler.send_error(403, "Not you")

    server.answer = answer
    monkeypatch.setenv(locate.URL_VARIABLE, server.address.replace("//", "//me:s%40cret@"))
    path = locate.fetch_release(RELEASE)
    assert sent == ["Basic " + base64.b64encode(b"me:s@cret").decode()]
    path.write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="is damaged") as warned, pytest.raises(ConnectionError) as error:
        locate.fetch_release(RELEASE)
    assert f"at {server.address}{QUOTED}; the server answered 403 Not you" in str(error.value)
    shown = [str(path), str(error.value), *caplog.messages, *(str(item.message) for item in warned)]
    shown += [str(error.value.__cause__), *files(tmp_path)]
    assert not any("cret" in text or "me:" in text for text in shown), shown


@for_each(
    "base",
    [
        "http://me:secret@host:a/b",  # a port that is no number
        "http://me:sec/ret@host/a",
        "http://me:secret@host/a?key=1",
        "http://me:secret@host/a#b",
        "http://me:secret@[host/a",
        "gs://me:secret@host",
        "me:secret@host/a",
        "http://me:secret@/a",
    ],
)
def test_a_base_address_that_is_none_is_refused_without_its_password(base, monkeypatch):
    monkeypatch.setenv(locate.URL_VARIABLE, base)
    with pytest.raises(ValueError, match=f"{locate.URL_VARIABLE} must begin with one of https, http, file") as error:
        locate.release_url(RELEASE)
    assert "sec" not in str(error.value) and error.value.__cause__ is error.value.__context__ is None


def test_file_address_serves_a_local_mirror(tmp_path, monkeypatch):
    mirror = tmp_path / "mirror"
    monkeypatch.setenv(locate.URL_VARIABLE, mirror.as_uri())
    message = f"expected a file at {mirror.as_uri()}.*{locate.URL_VARIABLE}"
    with pytest.raises(FileNotFoundError, match=message):
        locate.fetch_release(RELEASE)
    (mirror / RELEASE.directory).mkdir(parents=True)
    (mirror / RELEASE.path).write_bytes(npz())
    assert locate.fetch_release(RELEASE).read_bytes() == npz()


def test_damaged_file_in_the_cache_is_replaced_with_a_warning(server, tmp_path):
    final = tmp_path / server.final
    final.parent.mkdir(parents=True)
    final.write_bytes(flipped())
    with pytest.warns(UserWarning, match=r"R50\+ViT-B_16\.npz is damaged and is downloaded again: .*CRC"):
        assert locate.fetch_release(RELEASE) == final
    assert final.read_bytes() == npz()
    assert files(tmp_path) == [server.final]


def test_leftovers_of_killed_processes(server, tmp_path):
    folder = (tmp_path / server.final).parent
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    partials = [
        folder / f".partial-0123-{process}@{socket.gethostname()}" for process in (int(ended.stdout), os.getpid())
    ]
    for partial in partials:
        partial.mkdir(parents=True)
        (partial / "R50+ViT-B_16.npz").write_bytes(npz()[:5000])
    path = locate.fetch_release(RELEASE)
    assert path.read_bytes() == npz()
    assert server.requests == [QUOTED]
    assert sorted(folder.iterdir()) == sorted([path, partials[1]])  # that of this process may be at work


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
    threads = [threading.Thread(target=lambda: results.append(locate.fetch_release(RELEASE))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert results == [tmp_path / server.final] * 2
    assert results[0].read_bytes() == npz()
    assert len(server.requests) == 2
    assert files(tmp_path) == [server.final]


def test_members_may_be_compressed_and_of_any_plain_type(tmp_path):
    path = tmp_path / "file.npz"
    np.savez_compressed(path, a=np.zeros((3, 0)), b=np.array(7), c=np.zeros(5, "V2"), d=np.ones(9, "uint8"))
    locate.check_archive(path)
