"""kill -9 at any moment of a compiled run with augmentation: what comes out is the unbroken run, bit for bit."""

import os
import pathlib
import random
import re
import signal
import time

import numpy as np
import pytest
from killed_runs import STEPS, Runs, check_equal, step_rows

from keras_vit.files import LOCK


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    runs = Runs(tmp_path_factory.mktemp("server") / "log.txt")
    yield runs
    runs.close()


@pytest.fixture(scope="module")
def unbroken(runs, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("unbroken") / "run"
    assert runs.run(workdir)[0] == 0
    return workdir


def check_reads(workdir, starts):
    """Each start but the first read one file, which was a whole checkpoint, or had none to read yet."""
    reads = pathlib.Path(f"{workdir}-reads.txt").read_text().splitlines()
    assert len(reads) <= starts - 1
    assert all(re.fullmatch(r"step-\d{9}\.safetensors", os.path.basename(read)) for read in reads)
    assert not (workdir / LOCK).exists()
    assert not list(workdir.rglob(".*")) and len(os.listdir(workdir / "checkpoints")) == 2  # nothing half written


def test_a_run_that_is_killed_as_it_writes_ends_as_the_unbroken_one(runs, tmp_path):
    """One epoch of eight steps; half of the checkpoint of step 5 is on the disk."""
    unbroken, workdir, short = tmp_path / "unbroken", tmp_path / "run", {"epochs": 1}
    assert runs.run(unbroken, recipe=short)[0] == 0
    assert runs.run(workdir, recipe=short, die_in="write", step=5, share=0.5)[0] == -signal.SIGKILL
    assert runs.run(workdir, recipe=short)[0] == 0
    check_equal(workdir, unbroken, steps=8)
    check_reads(workdir, starts=2)


@pytest.mark.slow
def test_the_unbroken_run_is_all_there(unbroken):
    assert {"recipe.json", "steps.csv", "history.csv", "best.keras", "model.keras", "history.json"} <= set(
        os.listdir(unbroken)
    )
    losses = [float(row["loss"]) for row in step_rows(unbroken)]
    assert len(losses) == STEPS and np.isfinite(losses).all() and len(set(losses)) > STEPS / 2


@pytest.mark.slow
def test_a_kill_a_preemption_and_control_c(runs, unbroken, tmp_path):
    workdir = tmp_path / "run"
    assert runs.run(workdir, die_in="write", step=11, share=0.5)[0] == -signal.SIGKILL
    code, said = runs.run(workdir, after_start=lambda process: os.kill(process, signal.SIGTERM))
    assert code == 75 and "ended by SIGTERM" in said
    code, said = runs.run(workdir, after_start=lambda process: os.kill(process, signal.SIGINT))
    assert code == 130 and re.search(
        r"Interrupted\(\d+\) interrupted by Ctrl-C; saved at step \d+, the same call", said
    )
    assert "Ctrl-C: the current step ends and a checkpoint is written" in said
    assert runs.run(workdir)[0] == 0
    check_equal(workdir, unbroken)
    check_reads(workdir, starts=4)


@pytest.mark.slow
def test_three_kills_a_preemption_and_a_full_disk(runs, unbroken, tmp_path):
    workdir = tmp_path / "run"
    assert runs.run(workdir, die_in="step", step=5, delay=0.004)[0] == -signal.SIGKILL
    assert runs.run(workdir, die_in="write", step=11, share=0.5)[0] == -signal.SIGKILL
    assert list((workdir / "checkpoints").glob("*/step-000000011.safetensors"))  # half of it
    assert runs.run(workdir, die_in="epoch end", epoch=1, before=False)[0] == -signal.SIGKILL

    code, said = runs.run(workdir, after_start=lambda process: os.kill(process, signal.SIGTERM))
    step = int(re.search(r"ended by SIGTERM; saved at step (\d+), the same command resumes", said)[1])
    assert code == 75 and 16 <= step <= 18  # within a step of the first one after the epoch's end
    assert os.path.exists(workdir / "checkpoints" / f"step-{step:09d}.safetensors")

    code, said = runs.run(workdir, die_in="full disk", step=20, bytes=50_000)
    assert code == 1
    failed = int(re.search(r"CheckpointError: .*step-(\d+).safetensors could not be .*File too large", said)[1])
    assert failed in (20, 21)  # that of step 20 may still have been in the writing
    assert "earlier files are kept, and the same command resumes from the last checkpoint" in said

    assert runs.run(workdir)[0] == 0
    check_equal(workdir, unbroken)
    check_reads(workdir, starts=6)


@pytest.mark.slow
def test_twenty_kills(runs, unbroken, tmp_path):
    """A third each: inside a step, inside a write, at an epoch's end; and as many from outside, at any time."""
    workdir, draw = tmp_path / "run", random.Random(0)
    kills = step = 0
    while kills < 20:
        kind = draw.choice(["step", "write", "epoch end", "outside"])
        ahead = min(STEPS - 1, step + draw.randint(0, 2))
        if kind == "outside":
            wait = draw.uniform(0, 0.15)
            code, _ = runs.run(workdir, after_start=lambda pid, wait=wait: (time.sleep(wait), os.kill(pid, 9)))
        else:
            job = {"delay": draw.uniform(0, 0.02), "share": draw.choice([0, draw.random(), 1]), "epoch": ahead // 8}
            job["before"] = draw.random() < 0.5
            code, _ = runs.run(workdir, die_in=kind, step=ahead, **job)
        assert code in (-9, 0)
        kills += code == -9
        files = sorted((workdir / "checkpoints").glob("step-*"))
        step = int(files[-1].stem[5:]) if files else 0
        if code == 0:  # the run was over before the kill: another one
            check_equal(workdir, unbroken)
            workdir, step = tmp_path / f"run-{kills}", 0
    assert runs.run(workdir)[0] == 0
    check_equal(workdir, unbroken)
