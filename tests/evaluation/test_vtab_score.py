"""VtabScore against the means of the paper."""

import pytest

from keras_vit.data import list_vtab_tasks
from keras_vit.evaluation import VtabScore

# Table 9 of arXiv 2010.11929, in percent, and the means: of all tasks in Table 2, of the groups by hand
H14 = (95.3, 85.5, 75.2, 99.7, 97.2, 65.0, 88.9, 83.3, 96.7, 91.4, 76.6, 91.7, 63.8, 53.1, 79.4, 63.3, 84.5, 33.2, 51.2)
L16 = (90.8, 84.1, 74.1, 99.3, 92.7, 61.0, 80.9, 82.5, 95.6, 85.2, 75.3, 70.3, 56.1, 41.9, 74.7, 64.9, 79.9, 30.5, 41.7)


def score(row):
    return VtabScore({name: value / 100 for name, value in zip(list_vtab_tasks(), row, strict=True)})


@pytest.mark.parametrize(
    ("row", "mean", "groups"), [(H14, 77.63, (86.7, 87.0, 65.0)), (L16, 72.72, (83.3, 84.7, 57.5))]
)
def test_means_are_those_of_the_paper(row, mean, groups):
    found = score(row)
    assert 100 * found.mean == pytest.approx(mean, abs=0.011)  # of figures that were rounded
    assert list(found.groups) == ["natural", "specialized", "structured"]
    assert [100 * value for value in found.groups.values()] == pytest.approx(groups, abs=0.051)


def test_text_is_one_line():
    assert str(score(H14)) == "VTAB 77.63 % (natural 86.69 %, specialized 87.00 %, structured 65.03 %)"


def test_refusals():
    whole = score(H14).accuracies
    with pytest.raises(ValueError, match=r"the VTAB tasks; missing: \['Pets'\], unknown: \['Cats'\]"):
        VtabScore({name.replace("Pets", "Cats"): value for name, value in whole.items()})
    for wrong in (97.2, True, float("nan")):
        with pytest.raises(ValueError, match=r"numbers in \[0, 1\], not percent; got .* for Pets"):
            VtabScore(whole | {"Pets": wrong})
