from types import SimpleNamespace

import pytest

from keras_vit.training import workers


def strategy(task, is_cluster=True):
    """A strategy whose resolver knows of a chief and two workers."""
    jobs = SimpleNamespace(as_dict=lambda: {"chief": ["a:1"], "worker": ["b:1", "c:1"]})
    resolver = SimpleNamespace(task_type=task[0], task_id=task[1], cluster_spec=lambda: jobs)
    return SimpleNamespace(
        cluster_resolver=resolver, extended=SimpleNamespace(_in_multi_worker_mode=lambda: is_cluster)
    )


@pytest.mark.parametrize(
    ("task", "expected"),
    [(("chief", 0), (0, 3)), (("worker", 0), (1, 3)), (("worker", 1), (2, 3))],
)
def test_the_chief_is_the_first_process(task, expected):
    assert workers.place(strategy(task)) == expected


def test_the_machines_of_a_tpu_are_no_processes():
    assert workers.place(strategy(("worker", 1), is_cluster=False)) == (0, 1)


def test_without_a_strategy_there_is_one_process():
    assert workers.place(None) == workers.place(SimpleNamespace()) == (0, 1)
