"""Two processes that train together, of which one is killed: both are started again and end as if nothing was."""

import json
import random
import signal
import socket

import pytest
from killed_runs import STEPS, Runs, check_equal

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    workers = [Runs(tmp_path_factory.mktemp("server") / "log.txt") for _ in range(2)]
    yield workers
    for worker in workers:
        worker.close()


def start(workers, workdir, jobs=({}, {})):
    """Starts both, each with its job; returns their exit codes."""
    ports = [_free_port() for _ in workers]
    for index, (worker, job) in enumerate(zip(workers, jobs, strict=True)):
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        environment = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})}
        worker.start(workdir, strategy="multi_worker", environment=environment, **job)
    return [worker.finish() for worker in workers]


def _free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_five_kills_of_one_of_them(workers, tmp_path):
    unbroken, broken, draw = tmp_path / "unbroken", tmp_path / "broken", random.Random(0)
    assert [code for code, _ in start(workers, unbroken)] == [0, 0]
    for kill in range(5):
        job = {"die_in": "step", "step": 4 * kill + draw.randint(1, 4), "delay": draw.uniform(0, 0.02)}
        killed = draw.randrange(2)
        jobs = [{}, {}]
        jobs[killed] = job
        codes = [code for code, _ in start(workers, broken, jobs)]
        assert codes[killed] == -signal.SIGKILL and codes[1 - killed] != 0
    assert [code for code, _ in start(workers, broken)] == [0, 0]
    check_equal(broken, unbroken)
    assert len(list((broken / "checkpoints").glob("step-*"))) == 2 and STEPS == 24
