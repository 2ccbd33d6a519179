"""Starts the scripts that need several devices: each in a process of its own, as devices are set up once."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import keras
import pytest

TESTS = pathlib.Path(__file__).parent


def run_cases(tmp_path_factory, script, cases):
    """Returns what each case of a script found, by name; skips the test on a backend without replicas."""
    if keras.backend.backend() != "tensorflow":
        pytest.skip("replicas are those of tf.distribute")
    file = tmp_path_factory.mktemp("cases") / "found.json"
    wait([start(script, file, *cases)])
    return json.loads(file.read_text(encoding="utf-8"))


def start(script, *arguments, **environment):
    """Starts a script of this folder; returns the process and the file of its output."""
    path = os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    output = pathlib.Path(str(arguments[0]) + ".log")
    command = [sys.executable, str(TESTS / script), *map(str, arguments)]
    with output.open("w", encoding="utf-8") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT), output


def wait(started, timeout=1800):
    """Waits for processes of `start`; raises with their output if one fails, and leaves none behind."""
    try:
        for process, output in started:
            if process.wait(timeout):
                raise RuntimeError(output.read_text(encoding="utf-8")[-4000:])
    finally:
        for process, _ in started:
            process.kill()
            process.wait()


def free_addresses(count):
    """Returns addresses on this machine whose ports are free."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


def host_environments(count, devices=1):
    """Returns what `keras.distribution.initialize` reads in each of `count` processes with some devices each."""
    common = {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": free_addresses(1)[0],
        "KERAS_DISTRIBUTION_NUM_PROCESSES": str(count),
    }
    return [{**common, "KERAS_DISTRIBUTION_PROCESS_ID": str(index)} for index in range(count)]


def worker_environments(count):
    """Returns TF_CONFIG of each of `count` processes on this machine."""
    cluster = {"worker": free_addresses(count)}
    tasks = [{"type": "worker", "index": index} for index in range(count)]
    return [{"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})} for task in tasks]
