"""Downloads against a server on the loopback interface: what arrives, where, and the cache."""

import os
import threading
import time

import numpy as np
import pytest
from download_server import FINAL, QUOTED, RELEASE, files, flipped, npz, send

from keras_vit.checkpoints import download, releases


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


def test_members_may_be_compressed_and_of_any_plain_type(tmp_path):
    path = tmp_path / "file.npz"
    np.savez_compressed(path, a=np.zeros((3, 0)), b=np.array(7), c=np.zeros(5, "V2"), d=np.ones(9, "uint8"))
    download.check_archive(path)
