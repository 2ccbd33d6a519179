"""flip, shift and cutout."""

import numpy as np
import pytest
from augmented import IMAGE, check_determinism, draw
from slow_rows import slow_after


@pytest.mark.parametrize("text", slow_after(1, ["shift", "flip", "cutout(16)"]))
def test_the_seed_determines_the_image(text):
    check_determinism(text)


def test_flip():
    results = draw("flip", 256)
    mirrored = (results == IMAGE[:, ::-1]).all((1, 2, 3))
    np.testing.assert_array_equal(mirrored, ~(results == IMAGE).all((1, 2, 3)))
    assert 96 < mirrored.sum() < 160


def test_shift():
    padded = np.pad(IMAGE, ((8, 8), (10, 10), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, IMAGE.shape)[:, :, 0]
    places = [np.argwhere((windows == result).all((-1, -2, -3)))[0] for result in draw("shift", 150)]
    rows, columns = np.array(places).T
    assert set(rows) == set(range(17)) and len(set(columns)) > 15


def test_cutout():
    for text, fill in (("cutout(20)", 128), ("cutout(20, fill=0)", 0)):
        centres = []
        for result in draw(text, 200):
            changed = (result != IMAGE).any(-1)
            rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
            box = result[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            assert (box == fill).all() and max(box.shape[:2]) <= 20
            if rows[0] > 0 and rows[-1] < 63 and columns[0] > 0 and columns[-1] < 79:
                assert min(box.shape[:2]) >= 18  # a border of the box may have the fill's value already
            centres.append((rows[0] + rows[-1]) / 2)
        assert min(centres) < 10 and max(centres) > 53
