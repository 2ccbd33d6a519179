"""resize_position_embedding: every method against another implementation or the formula written out."""

import math

import numpy as np
import onevit
import pytest
from faults import for_each
from PIL import Image
from scipy import ndimage

from keras_vit.layers.position_grid import RESIZE_METHODS, resize_position_embedding, square_grid

GRIDS = [
    ((14, 14), (24, 24)),
    ((24, 24), (14, 14)),
    ((3, 5), (7, 2)),
    ((2, 8), (4, 4)),
    ((5, 3), (1, 6)),
    ((1, 4), (3, 4)),
]
every_grid = pytest.mark.parametrize(("old", "new"), GRIDS)


@every_grid
def test_align_corners_is_scipy_zoom_of_order_one(old, new):
    table = _table(old)
    expected = ndimage.zoom(table.reshape(*old, -1), (new[0] / old[0], new[1] / old[1], 1), order=1)
    _compare(table, old, new, "align_corners", expected)


@every_grid
def test_bilinear_is_tensorflows(old, new):
    tf = pytest.importorskip("tensorflow", reason="compares with tf.image.resize")
    table = _table(old)
    expected = tf.image.resize(table.reshape(*old, -1), new, method="bilinear", antialias=False).numpy()
    _compare(table, old, new, "bilinear", expected, atol=1e-5)  # its positions are float32


@every_grid
def test_bicubic_is_four_taps_per_axis_with_a_075_and_clamped_edges(old, new):
    table = _table(old)
    grid = table.reshape(*old, -1)
    expected = np.zeros((*new, grid.shape[-1]))
    for row in range(new[0]):
        for column in range(new[1]):
            for y, weight_y in _bicubic_taps(row, old[0], new[0]):
                for x, weight_x in _bicubic_taps(column, old[1], new[1]):
                    expected[row, column] += weight_y * weight_x * grid[y, x]
    _compare(table, old, new, "bicubic", expected)


def _bicubic_taps(index, old, new):
    """(row read, weight) of the taps of one output row, in the form torch documents (A = -0.75)."""
    a = -0.75
    centre = (index + 0.5) * old / new - 0.5
    base = math.floor(centre)
    t = centre - base
    weights = (
        a * (t + 1) ** 3 - 5 * a * (t + 1) ** 2 + 8 * a * (t + 1) - 4 * a,
        (a + 2) * t**3 - (a + 3) * t**2 + 1,
        (a + 2) * (1 - t) ** 3 - (a + 3) * (1 - t) ** 2 + 1,
        a * (2 - t) ** 3 - 5 * a * (2 - t) ** 2 + 8 * a * (2 - t) - 4 * a,
    )
    return [(min(max(base + tap, 0), old - 1), weight) for tap, weight in zip((-1, 0, 1, 2), weights, strict=True)]


@every_grid
def test_bicubic_antialias_is_pillows(old, new):
    table = _table(old)
    channels = np.moveaxis(table.reshape(*old, -1), -1, 0)
    images = [Image.fromarray(channel).resize(new[::-1], Image.Resampling.BICUBIC) for channel in channels]
    _compare(table, old, new, "bicubic_antialias", np.stack([np.asarray(image) for image in images], axis=-1))


def _by_matrices(table, old, new, *arguments):
    """The table, multiplied by the matrices of `onevit.resize_matrix`."""
    vertical, horizontal = (onevit.resize_matrix(*sides, *arguments) for sides in zip(old, new, strict=True))
    return np.einsum("yr,xc,rcd->yxd", vertical, horizontal, table.reshape(*old, -1).astype("float64"))


@every_grid
def test_bilinear_antialias_stretches_the_kernel(old, new):
    table = _table(old)
    _compare(table, old, new, "bilinear_antialias", _by_matrices(table, old, new, "bilinear", True))


@every_grid
def test_bilinear_antialias_is_pillows(old, new):
    table = _table(old)
    channels = np.moveaxis(table.reshape(*old, -1), -1, 0)
    images = [Image.fromarray(channel).resize(new[::-1], Image.Resampling.BILINEAR) for channel in channels]
    _compare(table, old, new, "bilinear_antialias", np.stack([np.asarray(image) for image in images], axis=-1))


@every_grid
def test_bicubic_offset_has_the_scale_of_dinov2(old, new):
    table = _table(old)
    _compare(table, old, new, "bicubic_offset", _by_matrices(table, old, new, "bicubic", False, 0.1))


def test_bicubic_offset_of_a_side_that_stays():
    """DINOv2 returns its own grid unchanged, but resizes a side that stays beside one that changes."""
    table = _table((4, 4))
    resized = resize_position_embedding(table, 4, (4, 6), 0, "bicubic_offset")
    _compare(table, (4, 4), (4, 6), "bicubic_offset", _by_matrices(table, (4, 4), (4, 6), "bicubic", False, 0.1))
    assert np.abs(resized - resize_position_embedding(table, 4, (4, 6), 0, "bicubic")).max() > 0.01


@pytest.mark.parametrize("method", RESIZE_METHODS)
class TestEveryMethod:
    def test_prefix_rows_are_copied(self, method):
        table = _table((3, 3), prefix=4)
        resized = resize_position_embedding(table, (3, 3), (5, 1), 4, method)
        assert resized.shape == (1, 4 + 5, 3)
        np.testing.assert_array_equal(resized[:, :4], table[:, :4])
        alone = resize_position_embedding(table[:, 4:], (3, 3), (5, 1), 0, method)
        np.testing.assert_array_equal(resized[:, 4:], alone)

    def test_constants_stay(self, method):
        table = np.full((1, 26, 2), 0.3, "float32")
        for new in ((1, 3), (9, 9), (1, 1)):
            np.testing.assert_allclose(resize_position_embedding(table, 5, new, 1, method), 0.3, atol=1e-6)

    def test_axes_are_not_swapped(self, method):
        rows = np.repeat(np.arange(5.0), 7)[None, :, None]  # the value is the row; tables of offsets have odd sizes
        resized = resize_position_embedding(rows, (5, 7), (9, 3), 0, method).reshape(9, 3)
        assert (np.diff(resized, axis=0) > 0).sum() >= 18
        np.testing.assert_allclose(resized, np.broadcast_to(resized[:, :1], (9, 3)), atol=1e-12)

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_rank_and_dtype_stay(self, method, dtype):
        table = _table((3, 3), prefix=1).astype(dtype)
        for given in (table, table[0]):
            resized = resize_position_embedding(given, 3, 5, 1, method)
            assert (resized.ndim, resized.dtype) == (given.ndim, given.dtype)

    def test_same_grid_gives_a_copy(self, method):
        table = _table((3, 3), prefix=1)
        resized = resize_position_embedding(table, 3, (3, 3), 1, method)
        np.testing.assert_array_equal(resized, table)
        assert not np.shares_memory(resized, table)


@pytest.mark.parametrize("method", ["geometric", "geometric_cubic"])
def test_offsets_have_odd_sides(method):
    with pytest.raises(ValueError, match=r"whose sides are odd; got old_grid=\(4, 4\), new_grid=\(7, 7\)"):
        resize_position_embedding(np.zeros((16, 2)), 4, 7, 0, method)


def test_methods_differ():
    table = _table((5, 5))
    results = [[resize_position_embedding(table, 5, new, 0, method) for new in (9, 3)] for method in RESIZE_METHODS]
    for index, (grown, shrunk) in enumerate(results):
        for other_grown, other_shrunk in results[:index]:
            assert max(np.abs(grown - other_grown).max(), np.abs(shrunk - other_shrunk).max()) > 0.01


@for_each(
    ("changes", "message"),
    [
        ({"table": np.zeros((1, 9, 2))}, r"1 prefix rows and 3 x 3 grid rows; got shape \(1, 9, 2\)"),
        ({"old_grid": (2, 5)}, r"1 prefix rows and 2 x 5 grid rows; got shape \(1, 10, 2\)"),
        ({"num_prefix_tokens": 0}, r"0 prefix rows and 3 x 3 grid rows; got shape \(1, 10, 2\)"),
        ({"table": np.zeros(10)}, r"table must have .* got shape \(10,\)"),
        ({"table": np.zeros((1, 1, 10, 2))}, r"table must have .* got shape \(1, 1, 10, 2\)"),
        ({"method": "cubic"}, "method must be one of 'align_corners', 'bilinear', .* got method='cubic'"),
        ({"new_grid": (0, 3)}, r"new_grid must be one positive integer or a pair .* got new_grid=\(0, 3\)"),
        ({"old_grid": (3, 3, 1)}, r"old_grid must be one positive integer or a pair .* got old_grid=\(3, 3, 1\)"),
        (
            {"num_prefix_tokens": -1},
            "num_prefix_tokens must be an integer of at least 0; got num_prefix_tokens=-1",
        ),
    ],
)
def test_wrong_arguments_are_refused(changes, message):
    arguments = {
        "table": np.zeros((1, 10, 2)),
        "old_grid": 3,
        "new_grid": 4,
        "num_prefix_tokens": 1,
        **changes,
    }
    with pytest.raises(ValueError, match=message):
        resize_position_embedding(**arguments)


@for_each(("count", "grid"), [(196, (14, 14)), (1, (1, 1)), (195, None), (0, None), (10**12, (10**6,) * 2)])
def test_square_grid(count, grid):
    assert square_grid(count) == grid


def _table(grid, prefix=0):
    size = (1, prefix + grid[0] * grid[1], 3)
    return np.random.default_rng(grid[0]).normal(size=size).astype("float32")


def _compare(table, old, new, method, expected, atol=3e-6):
    resized = resize_position_embedding(table, old, new, 0, method)
    np.testing.assert_allclose(resized[0].reshape(*new, -1), expected, atol=atol)
