"""Random numbers on two replicas; they come from replica_cases.py, in a process of its own.

test_fit.py has the masks of two replicas.
"""

import pytest
from replica_process import run_cases

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return run_cases(tmp_path_factory, "replica_cases.py", ("masks", "stock_masks", "corrupted_places"))


def _drawn(found, case, when="once"):
    """Outputs and seeds of two replicas in two steps: [step 1: outputs 0, 1; seeds 0, 1; step 2: ...]."""
    return found[case][when]


def test_masks_follow_from_the_seed(found):
    assert _drawn(found, "masks") == _drawn(found, "masks", "again")


def test_replicas_and_steps_corrupt_different_patches(found):
    drawn = found["corrupted_places"]
    assert len(drawn) == 4 and len({str(places) for places in drawn}) == 4
    assert all(len(places[0]) == 32 for places in drawn)


def test_one_device_draws_as_keras_does(found):
    assert _drawn(found, "masks", "one") == _drawn(found, "stock_masks", "one")


def test_keras_still_draws_the_same_mask_everywhere(found):
    """The fault that separate_replica_seeds is for; when this fails, delete it."""
    first, second, seed, other_seed = _drawn(found, "stock_masks")[:4]
    assert first == second and seed == other_seed


def test_run_with_dropout_is_reproducible(tmp_path_factory):
    found = run_cases(tmp_path_factory, "replica_cases.py", ("dropout_runs",))["dropout_runs"]
    assert found["same seed"] == 0
    assert found["another seed"] > 1e-3
