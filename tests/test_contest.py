"""benchmarks/contest.py and worker.py with toy contenders, and the contenders of benchmarks/data.py in small."""

import numpy as np
import pytest

from benchmarks import data, loaders
from benchmarks.__main__ import Options
from benchmarks.contest import Contender, contest


def test_processor_time_is_told_from_the_clock():
    jobs = [Contender(name, f"tests.toy_contenders:{name}", {"seconds": 0.02}) for name in ("busy", "idle")]
    results = contest(jobs, rounds=2, seconds=0.1, warm_up=1)
    busy, idle = results["busy"], results["idle"]
    assert len(busy.turns) == len(busy.processor) == 2
    assert 0.02 <= busy.processor_median < 0.03
    assert idle.processor_median < 0.01 and idle.median >= 0.02
    median, least, most = busy.times_less_processor_than(idle)
    assert least <= median <= most < 0.5


def test_a_contender_reports_its_own_figures():
    jobs = [Contender(str(peak), "tests.toy_contenders:reporting", {"peak": peak, "macs": 3}) for peak in (7, None)]
    results = contest(jobs, rounds=1, seconds=0, warm_up=0)
    assert results["7"].peak == 7 and results["None"].peak > 2**20
    assert all(result.figures == {"macs": 3} for result in results.values())


KINDS = [(kind, name) for kind, (_, contenders, _) in data.KINDS.items() for name in contenders]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_loaders_do_the_same_work(tmp_path, kind, name):
    function, packages, arguments = data.KINDS[kind][1][name]
    for package in packages:
        pytest.importorskip({"keras-cv": "keras_cv", "pillow": "PIL"}.get(package, package))
    folder = data.write_images(tmp_path, count=8, classes=2, size=(240, 320))
    next_batch = getattr(loaders, function)(folder, kind, **arguments)
    for _ in range(3):
        batch = np.asarray(next_batch())
        assert batch.shape == (32, 224, 224, 3) and batch.dtype == np.float32
        assert -1 <= batch.min() < -0.3 and 0.3 < batch.max() <= 1 + 1e-6


def test_without_peers_ours_alone_takes_part(tmp_path):
    for kind, (_, contenders, _) in data.KINDS.items():
        assert [c.name for c in data.contenders(kind, contenders, tmp_path, Options(peers=False))] == [data.OURS]
