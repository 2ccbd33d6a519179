"""The table of steps on TPUs: which steps it has, the memory that it expects, and the arithmetic of its bounds."""

import pytest
from faults import for_each

import keras_vit
from benchmarks import tpu_table
from keras_vit.compat.initial_values import build_deferred


def test_every_model_has_a_row_and_alike_ones_share_it():
    rows = tpu_table.rows()
    names = [name for names in rows.values() for name in names]
    assert sorted(names) == sorted(keras_vit.list_models())
    assert {"ViT-B_16", "DeiT-B_16", "CLIP-B_16", "SigLIP-B_16"} <= set(rows["ViT-B_16"])  # 196 and 197 tokens
    assert all(model in rows for model in tpu_table.LARGE)
    assert "DINOv2-B_14" in rows and "ViT-B_32" in rows  # of the same width, with other tokens


def test_jobs_are_for_one_and_eight_chips_and_the_large_ones_for_256():
    jobs = tpu_table.jobs(["ViT-B_16", "ViT-L_16"])
    assert len(jobs) == len(set(jobs)) == 2 * 2 * (2 + 3)
    assert {job[0] for job in jobs if job[3] == 256} == {"ViT-L_16"}
    assert {job[1] for job in tpu_table.jobs(["SAM-B_16"])} == {"inference"}  # it has no head to train


@pytest.mark.parametrize(
    ("model", "work", "peak", "batch"),
    [("ViT-Ti_16", "training", 743e6, 64), ("ViT-Ti_16", "inference", 131e6, 64)],  # as compiled for a v5e
)
def test_the_expected_memory_is_near_the_compiled_one(model, work, peak, batch):
    built, _ = build_deferred(lambda: keras_vit.create_model(model))
    expected = built.count_params() * (16 if work == "training" else 2)
    expected += batch * tpu_table.image_bytes(built, work, None)
    assert expected == pytest.approx(peak, rel=0.25)


@for_each(
    ("memory", "work", "expected"),
    [
        (16e9, "training", (None, (8, 1), 1024)),
        (1.5e9, "training", (None, (8, 1), 64)),
        (0.3e9, "training", ("block", (8, 1), 32)),
        (0.09e9, "training", ("block", (4, 2), 16)),  # the weights, gradients and moments take 91 MB
        (1e6, "training", (None, (1, 8), 0)),
        (0.1e9, "inference", (None, (8, 1), 32)),
    ],
)
def test_settings_use_the_memory_of_a_chip(memory, work, expected):
    built, _ = build_deferred(lambda: keras_vit.create_model("ViT-Ti_16"))
    chip = tpu_table.Chip(1.0, memory, 1.0, 1.0)
    assert tpu_table.settings(built, work, chip, 8) == expected


def test_the_bound_is_the_longest_of_three_times():
    row = {"job": ["ViT-B_16", "training", "v5e", 8], "counted_flops": 98.5e12}
    row |= {"flops": 197e12, "bytes_accessed": 819e8, "exchanged_bytes": 4e9}
    assert tpu_table.roofline(row) == pytest.approx((1.0, 0.5))
    assert tpu_table.roofline(row | {"bytes_accessed": 2 * 819e9}) == pytest.approx((2.0, 0.25))
    assert tpu_table.roofline(row | {"exchanged_bytes": 16e11}) == pytest.approx((4.0, 0.125))


def test_stored_results_belong_to_the_table():
    rows = tpu_table.rows()
    jobs = set(tpu_table.jobs(rows))
    stored = tpu_table.results()
    assert len({tuple(row["job"]) for row in stored}) == len(stored)
    for row in stored:
        assert tuple(row["job"]) in jobs
        if "failure" not in row:
            # 1.07: what the documentation calls a GB is 2**30 bytes
            assert row["peak_bytes"] < 1.07 * tpu_table.CHIPS[row["job"][2]].memory
            assert row["mesh"][0] * row["mesh"][1] == row["job"][3]
