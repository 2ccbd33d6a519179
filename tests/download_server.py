"""A server of published files on the loopback interface, and what it answers."""

import hashlib
import http.server
import io
import pathlib
import time
import zipfile

import numpy as np

from keras_vit.checkpoints import releases

ARRAYS = {
    "cls": np.zeros((1, 1, 4), "float32"),
    "head/kernel": np.arange(4000, dtype="float32").reshape(4, 1000),
}
RELEASE = releases.find_release("R50+ViT-B_16", "imagenet21k+imagenet2012")
QUOTED = "/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz"


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
        self.address = f"http://127.0.0.1:{self.server_port}"
        digest = hashlib.sha256(f"@{self.address}".encode()).hexdigest()
        self.final = f"models/keras_vit/mirror-{digest[:16]}/{RELEASE.path}"  # where the cache keeps the file

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


def files(folder):
    paths = (path for path in pathlib.Path(folder).rglob("*") if path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def wait_for(condition):
    deadline = time.monotonic() + 5
    while not (result := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return result


def flipped():
    """The whole archive with one bit of the array's numbers turned over."""
    content = bytearray(npz())
    content[content.index(np.arange(100, 200, dtype="float32").tobytes())] ^= 1
    return bytes(content)
