"""The tables of accuracy and cost in the guides have the numbers of the package, and their figures show each row."""

import importlib.util
import pathlib
import re
import sys

import pytest
from faults import assert_no_faults

from keras_vit.checkpoints.releases import list_releases
from keras_vit.variants import VARIANTS

pytest.importorskip("matplotlib", reason="needs the extra [test]")
REPOSITORY = pathlib.Path(__file__).parents[2]
GENERATE = REPOSITORY / "docs" / "generate"
# how the tables write the names of variants
SHORT = {"SigLIP 2 ": "SigLIP2-", "Perception Encoder ": "PE-core-", "EVA-02-": "EVA02-", "/": "_", ", distilled": ""}


@pytest.fixture
def figures(monkeypatch):
    monkeypatch.syspath_prepend(str(GENERATE))
    spec = importlib.util.spec_from_file_location("figures", GENERATE / "figures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("repository", None)


def published(variant, size):
    """The accuracies that the package knows for a variant at an image size."""
    known = {row.top1 for row in list_releases(variant.name) if row.image_size == size and row.top1}
    if variant.result and variant.image_size == size:
        known |= {float(number) for number in re.findall(r"([\d.]+) %", variant.result)}
    return {round(accuracy, 1) for accuracy in known}


def test_tables_and_figures(figures):
    def rule(row):
        name, size, parameters, macs, accuracy = row
        for shown, written in SHORT.items():
            name = name.replace(shown, written)
        variant = VARIANTS[name]
        assert parameters == pytest.approx(variant.parameters / 1e6, abs=1), "parameters"
        if size == variant.image_size:
            assert macs == pytest.approx(variant.macs / 1e9, rel=0.01, abs=0.05), "GMAC"
        assert round(accuracy, 1) in published(variant, size), "accuracy"

    for guide, image in figures.FIGURES.items():
        rows = figures.rows(guide)
        assert len(rows) > 7
        assert_no_faults(rule, {f"{guide}: {row[0]}, {row[1]:.0f}": row for row in rows})
        (axes,) = figures.draw(rows).axes
        assert sum(len(points.get_offsets()) for points in axes.collections) == len(axes.texts) == len(rows)
        assert (REPOSITORY / "docs" / "images" / image).stat().st_size < 200_000
