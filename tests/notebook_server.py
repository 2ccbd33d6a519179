"""A Jupyter server on localhost, and a client that runs notebooks on it as its page in a browser does."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.request
import uuid

import nbformat
import websocket
from notebooks import REPOSITORY, outputs, without_outputs

_PATIENCE = 60  # seconds until the server has started
_TIMEOUT = 600  # of a cell, in seconds
# TensorFlow's C++ messages differ by machine; this keeps them out of the outputs.
_CONFIG = "c.IPKernelApp.capture_fd_output = False\nc.IPKernelApp.log_level = 'ERROR'\n"


class Server:
    """The files and kernels of a server.

    Args:
        about: dict that the server writes when it has started, with `url` and `token`.
    """

    def __init__(self, about):
        self._url, self._token = about["url"], about["token"]

    def run(self, path):
        """Opens a notebook, runs its cells in order until one fails, saves it, and returns the saved notebook."""
        notebook = without_outputs(nbformat.from_dict(self._ask("GET", f"contents/{path}")["content"]))
        kernel = {"kernel": {"name": "python3"}, "name": path, "path": path, "type": "notebook"}
        session = self._ask("POST", "sessions", kernel)
        try:
            self._run_cells(notebook, session["kernel"]["id"])
        finally:
            self._ask("DELETE", f"sessions/{session['id']}")
        self._ask("PUT", f"contents/{path}", {"type": "notebook", "content": notebook})
        return nbformat.from_dict(self._ask("GET", f"contents/{path}")["content"])

    def _ask(self, method, path, body=None):
        headers = {"Authorization": f"token {self._token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}api/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            return json.loads(answer.read() or "null")

    def _run_cells(self, notebook, kernel):
        address = f"ws{self._url.removeprefix('http')}api/kernels/{kernel}/channels"
        header = [f"Authorization: token {self._token}"]
        with contextlib.closing(websocket.create_connection(address, _TIMEOUT, header=header)) as socket:
            for cell in notebook.cells:
                if cell.cell_type == "code" and not any(found.output_type == "error" for found in outputs(notebook)):
                    _run_cell(socket, cell)


def _run_cell(socket, cell):
    """Runs a cell, and collects its outputs until the kernel has replied and is idle."""
    number, awaited = uuid.uuid4().hex, {"execute_reply", "idle"}
    header = {"msg_id": number, "msg_type": "execute_request", "session": number, "username": "", "version": "5.3"}
    content = {"code": cell.source, "silent": False, "store_history": True, "allow_stdin": False, "stop_on_error": True}
    message = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}, "content": content}
    socket.send(json.dumps(message))
    while awaited:
        message = json.loads(socket.recv())
        if message["parent_header"].get("msg_id") != number:
            continue
        kind, content = message["header"]["msg_type"], message["content"]
        awaited -= {kind, content.get("execution_state")}
        cell.execution_count = content.get("execution_count", cell.execution_count)
        if kind in ("stream", "display_data", "execute_result", "error"):
            cell.outputs.append(nbformat.v4.output_from_msg(message))


@contextlib.contextmanager
def start(folder):
    """Context with a Server on a free port, whose root is `folder`; it does not read the settings of the user."""
    places = {name: folder / f".{name.lower()}" for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR")}
    profile = places["IPYTHONDIR"] / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_kernel_config.py").write_text(_CONFIG, encoding="utf-8")
    settings = {"ip": "127.0.0.1", "port": 0, "root_dir": folder, "allow_root": True, "open_browser": False}
    words = [f"--ServerApp.{name}={value}" for name, value in settings.items()]
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), **{name: str(place) for name, place in places.items()}}
    with open(folder / "log.txt", "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyter_server", *words], env=variables, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield Server(_read_address(process, places["JUPYTER_RUNTIME_DIR"], pathlib.Path(log.name)))
        finally:
            process.terminate()  # it ends its kernels first
            process.wait(_PATIENCE)


def _read_address(process, folder, log):
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(json.JSONDecodeError):  # while it is written
            for file in folder.glob("jpserver-*.json"):
                return json.loads(file.read_text(encoding="utf-8"))
        time.sleep(0.1)
    raise RuntimeError(f"the server did not start: {log.read_text(encoding='utf-8')}")
