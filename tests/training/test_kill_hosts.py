"""Several processes that train together on JAX, of which one is killed: the same command ends as if nothing was."""

import os
import re
import signal

import numpy as np
import pytest
from killed_runs import STEPS, Runs, check_equal, end_arrays, end_state, step_rows
from replica_process import host_environments

# name -> number of processes, and what their jobs share; Keras's SwapEMAWeights needs whole weights in each process
HOSTS = {
    "data_parallel": (2, {"strategy": "data_parallel"}),
    "model_parallel": (
        4,
        {"strategy": "model_parallel", "options": {"mesh": [2, 2]}, "recipe": {"ema_momentum": None}},
    ),
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    pytest.importorskip("jax")
    pytest.importorskip("orbax.checkpoint")
    found = [Runs(tmp_path_factory.mktemp("server") / "log.txt", KERAS_BACKEND="jax") for _ in range(4)]
    yield found
    for process in found:
        process.close()


@pytest.fixture(scope="module")
def unbroken(processes, tmp_path_factory):
    """Function from a name of HOSTS to the folder of its uninterrupted run."""
    folders = {}

    def unbroken(name):
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("unbroken") / "run"
            assert set(codes(start(processes, name, folders[name]))) == {0}
        return folders[name]

    return unbroken


def start(processes, name, workdir, jobs=None, signals=()):
    """Starts all, each with its job of `jobs`, and sends the last `signals`; returns exit codes and what they said."""
    count, common = HOSTS[name]
    for index, (process, environment) in enumerate(zip(processes, host_environments(count), strict=False)):
        process.start(workdir, environment=environment, **common, **(jobs or {}).get(index, {}))
    for number in signals:
        os.kill(processes[count - 1].answer()["training"], number)
    return [process.finish() for process in processes[:count]]


def codes(ends):
    return [code for code, _ in ends]


@pytest.mark.parametrize("name", HOSTS)
def test_one_process_gives_the_same(processes, unbroken, tmp_path, name):
    together, (_, common) = unbroken(name), HOSTS[name]
    assert processes[0].run(tmp_path, recipe=common.get("recipe", {}))[0] == 0
    expected, found = end_arrays(tmp_path), end_arrays(together)
    assert expected.keys() == found.keys()
    for place, array in expected.items():
        np.testing.assert_allclose(found[place].astype("float64"), array, rtol=0, atol=1e-5, err_msg=place)
    for one, several in zip(step_rows(tmp_path), step_rows(together), strict=True):
        assert {key: float(value) for key, value in several.items()} == pytest.approx(
            {key: float(value) for key, value in one.items()}, abs=1e-5
        )


@pytest.mark.parametrize(
    ("name", "killed", "job"),
    [
        ("data_parallel", 0, {"die_in": "write together", "step": 5}),
        ("data_parallel", 1, {"die_in": "step", "step": 12, "delay": 0.01}),
        ("model_parallel", 2, {"die_in": "step", "step": 9, "delay": 0.0}),
    ],
)
def test_a_kill_of_one_of_them(processes, unbroken, tmp_path, name, killed, job):
    broken = tmp_path / "broken"
    ends = codes(start(processes, name, broken, {killed: job}))
    assert ends.pop(killed) == -signal.SIGKILL and 0 not in ends
    assert not (broken / "history.json").exists()
    assert set(codes(start(processes, name, broken))) == {0}
    check_equal(broken, unbroken(name))
    assert sorted(path.name for path in (broken / "checkpoints").iterdir()) == [
        f"step-{STEPS - 1:09d}",
        f"step-{STEPS:09d}",
    ]


@pytest.mark.parametrize("killed", [0, 1])
def test_a_kill_at_every_step_of_two_epochs(processes, unbroken, tmp_path, killed):
    """Each start is killed one step later, or in a validation; the newest checkpoint may be that of an epoch's end."""
    deaths = []
    for epoch in range(2):
        deaths += [{"die_in": "step", "step": 8 * epoch + step, "delay": 0.0} for step in range(8)]
        deaths += [{"die_in": "epoch end", "epoch": epoch, "before": before} for before in (True, False)]
    deaths.append({"die_in": "epoch end", "epoch": 2, "before": True})
    for job in deaths:
        jobs = {index: {"every": 4, **(job if index == killed else {})} for index in range(2)}
        ends = start(processes, "data_parallel", tmp_path, jobs)
        assert ends[killed][0] == -signal.SIGKILL, (job, ends)
        assert 0 not in codes(ends) and "already exists" not in "".join(said for _, said in ends)
    assert set(codes(start(processes, "data_parallel", tmp_path, {index: {"every": 4} for index in range(2)}))) == {0}
    check_equal(tmp_path, unbroken("data_parallel"))


def test_a_signal_to_one_of_them_ends_both(processes, unbroken, tmp_path):
    ends = start(processes, "data_parallel", tmp_path, {1: {"die_in": "announced"}}, [signal.SIGTERM])
    assert codes(ends) == [75, 75]
    steps = {re.search(r"saved at step (\d+), the same", said)[1] for _, said in ends}
    assert len(steps) == 1 and 0 < int(steps.pop()) < STEPS
    # One process resumes what two have saved: not bit by bit, as it adds in another order.
    assert processes[0].run(tmp_path)[0] == 0
    (found, history), (expected, whole) = end_state(tmp_path), end_state(unbroken("data_parallel"))
    assert found.keys() == expected.keys() and history == {key: pytest.approx(whole[key], abs=1e-5) for key in whole}


def test_a_damaged_array_and_another_run_are_refused(processes, tmp_path):
    job = {"die_in": "step", "step": 6, "delay": 0.0}
    start(processes, "data_parallel", tmp_path, {1: job})
    other = {index: {"recipe": {"seed": 1}} for index in range(2)}
    ends = start(processes, "data_parallel", tmp_path, other)
    assert 0 not in codes(ends) and all("recipe.seed is 0 there, 1 here" in said for _, said in ends)
    ends = start(processes, "data_parallel", tmp_path, {1: {"recipe": {"weight_decay": 0.2}}})
    assert 0 not in codes(ends) and all("all workers must start the same run" in said for _, said in ends)
    newest = max((tmp_path / "checkpoints").glob("step-*"))
    for path in newest.rglob("d/*"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    ends = start(processes, "data_parallel", tmp_path)
    assert 0 not in codes(ends) and "must be a whole checkpoint of step" in "".join(said for _, said in ends)
