"""Two processes that train together, of which one is killed: both are started again and end as if nothing was."""

import json
import os
import random
import re
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


@pytest.fixture(scope="module")
def unbroken(workers, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("unbroken") / "run"
    assert [code for code, _ in start(workers, workdir)] == [0, 0]
    return workdir


def start(workers, workdir, jobs=({}, {}), signals=()):
    """Starts both, each with its job, and sends the first of them `signals`; returns exit codes and what they said."""
    ports = [_free_port() for _ in workers]
    for index, (worker, job) in enumerate(zip(workers, jobs, strict=True)):
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        environment = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})}
        worker.start(workdir, strategy="multi_worker", environment=environment, **job)
    for number in signals:
        os.kill(workers[0].answer()["training"], number)
    return [worker.finish() for worker in workers]


def _free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_to_one_of_them_ends_both(workers, unbroken, tmp_path, number, code):
    ends = start(workers, tmp_path, [{"die_in": "announced"}, {}], [number])
    assert [end[0] for end in ends] == [code, code]
    steps = {re.search(r"saved at step (\d+), the same", said)[1] for _, said in ends}
    assert len(steps) == 1 and 0 < int(steps.pop()) < STEPS
    assert [code for code, _ in start(workers, tmp_path)] == [0, 0]
    check_equal(tmp_path, unbroken)


def test_five_kills_of_one_of_them(workers, unbroken, tmp_path):
    broken, draw = tmp_path / "broken", random.Random(0)
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
