"""Resizing of position embeddings from one patch grid to another, the layers that do it, and fixed tables.

Every method multiplies the table by one small matrix per axis: in NumPy when weights are loaded, which takes a few
milliseconds for any table, and with the same functions on tensors in models that take images of any size.
"""

import functools
import math
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.config.base import RESIZE_METHODS
from keras_vit.layers.base import Layer
from keras_vit.typing import Size


def resize_position_embedding(
    table: np.ndarray, old_grid: Size, new_grid: Size, num_prefix_tokens: int = 1, method: str = "align_corners"
) -> np.ndarray:
    """Resize a table of position embeddings to another patch grid.

    Args:
        table: array (1, num_prefix_tokens + rows * columns, dim) or the same without the leading 1.
        old_grid: (rows, columns) of the table; one integer means a square grid.
        new_grid: (rows, columns) wanted; one integer means a square grid.
        num_prefix_tokens: number of rows at the start of the table that belong to no patch; they are copied.
        method: `align_corners`, as in the official code (`scipy.ndimage.zoom(order=1)`); `bilinear`, half-pixel
            centres; `bilinear_antialias`, the same with a kernel that is stretched when shrinking (TIPS); `bicubic`, a
            = -0.75 without antialiasing (Hugging Face, DeiT); `bicubic_antialias`, a = -0.5 (timm); `bicubic_offset`,
            as `bicubic`, but with the scale (new + 0.1) / old, as in DINOv2 without registers. For tables of offsets,
            `geometric` interpolates linearly (timm) and `geometric_cubic` with a cubic spline (BEiT) between old
            offsets that are spaced geometrically.

    Returns:
        Array of the rank and dtype of `table`.

    Raises:
        ValueError: if the rows of `table` do not match `old_grid`, or a choice or size is invalid.
    """
    checks.check_choice("method", method, RESIZE_METHODS)
    old_grid, new_grid = checks.check_pair("old_grid", old_grid), checks.check_pair("new_grid", new_grid)
    checks.check_integer("num_prefix_tokens", num_prefix_tokens, minimum=0)
    table = np.asarray(table)
    rows = table.shape[-2] if table.ndim in (2, 3) else None
    if rows != num_prefix_tokens + math.prod(old_grid):
        raise ValueError(
            f"table must have {num_prefix_tokens} prefix rows and {old_grid[0]} x {old_grid[1]} grid rows; "
            f"got shape {table.shape}"
        )
    if method.startswith("geometric") and any(side % 2 == 0 for side in (*old_grid, *new_grid)):
        raise ValueError(
            f"method={method!r} is for tables of offsets, whose sides are odd; got old_grid={old_grid}, "
            f"new_grid={new_grid} (use 'bicubic')"
        )
    if old_grid == new_grid:
        return table.copy()
    prefix, grid = np.split(table, [num_prefix_tokens], axis=-2)
    grid = grid.reshape(*old_grid, -1)  # (rows, columns, dim)
    vertical, horizontal = (resize_matrix(method, old, new) for old, new in zip(old_grid, new_grid, strict=True))
    grid = np.einsum("yr,xc,rcd->yxd", vertical, horizontal, grid, optimize=True)
    grid = grid.reshape(*table.shape[:-2], math.prod(new_grid), table.shape[-1])
    return np.concatenate([prefix, grid.astype(table.dtype)], axis=-2)


def resize_matrix(method, old, new):
    """Return the matrix (new, old) that resizes one axis of a table; `resize_position_embedding` lists the methods."""
    if method in _OFFSETS:
        return _OFFSETS[method](old, new)
    return resize_weights(method, np.arange(new, dtype="float64"), old, np.full(new, float(new)))


def square_grid(num_patches):
    """Return (side, side) if `num_patches` is a perfect square, else None."""
    side = math.isqrt(num_patches)
    return (side, side) if side * side == num_patches and side else None


def patch_coordinates(rows, columns):
    """Return [row, column, rows, columns] of each patch of a grid in raster order, integers (patches, 4).

    Args:
        rows, columns: size of the grid; integers give a NumPy array, tensors a tensor.
    """
    xp = np if isinstance(rows, int) and isinstance(columns, int) else ops
    index = xp.arange(rows * columns)
    sizes = (xp.zeros_like(index) + rows, xp.zeros_like(index) + columns)
    return xp.stack([index // columns, index % columns, *sizes], axis=-1)


def resize_weights(method, places, old, new):
    """Return the weights by which rows of a table make up rows of the resized table.

    Args:
        method: see `resize_position_embedding`, except the methods for tables of offsets.
        places: (...), the rows of the resized table, floats from 0.
        old: number of rows of the table; a float tensor if it is known in a call only.
        new: (...), the number of rows of the resized table, floats.

    Returns:
        (..., old): a tensor if `places` is one, else a NumPy array.
    """
    return _WEIGHTS[method](array_module(places), places, old, new)


def array_module(x):
    """Return NumPy for its arrays, `keras.ops` for tensors."""
    return np if isinstance(x, np.ndarray) else ops


# form of a fixed table -> what is taken from the number of frequencies in their exponents
SINCOS_FORMS = {"sincos2d": 1, "sincos2d_mae": 0}


def sincos2d_table(grid_size, dim, form="sincos2d"):
    """Return the fixed 2-D table (rows * columns, dim): [sin x, cos x, sin y, cos y] of x = column, y = row.

    Frequencies are 10000^(-i / (dim / 4 - 1)) for i = 0 ... dim / 4 - 1, as in MoCo-v3 and big_vision, or
    10000^(-i / (dim / 4)) in the form of MAE.
    """
    if dim % 4 or dim < 8:
        raise ValueError(f"position_embedding={form!r} needs a width of at least 8 divisible by 4; got {dim}")
    y, x, *_ = patch_coordinates(*grid_size).T
    return sincos(x, y, dim, form).astype("float32")


def sincos(x, y, dim, form):
    """Return sines and cosines of columns `x` and rows `y`, arrays or tensors (...), as (..., dim)."""
    xp = array_module(x)
    frequencies = 10000.0 ** -(np.arange(dim // 4) / (dim // 4 - SINCOS_FORMS[form]))
    frequencies = frequencies if xp is np else frequencies.astype("float32")
    x, y = x[..., None] * frequencies, y[..., None] * frequencies
    return xp.concatenate([xp.sin(x), xp.cos(x), xp.sin(y), xp.cos(y)], axis=-1)


class ResizedTables(Layer):
    """Resize tables of another size when a layer loads them.

    By default a table is one-dimensional: it has one row per position along one axis.

    Attributes:
        usual_method: method of resizing, unless a layer has an argument `resize`, see `resize_position_embedding`.
        size_name: name of the attribute with the (rows, columns) of the tables; None if the shapes of the tables show
            their size. Tables of 4 x 4 and 2 x 8 positions have equal shapes, so they need the attribute.
        name_in_files: name of the size in files.
    """

    usual_method = "align_corners"
    size_name: str | None = None
    name_in_files: str | None = None

    @property
    def resize_method(self) -> str:
        """Return the authors' method, also for `keras_vit.resize` and Keras files."""
        return getattr(self, "resize", None) or self.usual_method

    @property
    def tables(self) -> list[keras.Variable]:
        """Return the variables to resize."""
        return self.weights

    def resized(self, variable: keras.Variable, table: np.ndarray, method: str, old_size: Any = None) -> np.ndarray:
        """Return a table of this layer, resized from another size.

        Args:
            variable: the table of this layer.
            table: array, this table in a layer of another size.
            method: resize method, see `resize_position_embedding`.
            old_size: (rows, columns) of `table`, if the shape does not show it.

        Raises:
            ValueError: if the shape of `table` does not match its size.
        """
        old, new = table.shape[-2], variable.shape[-2]
        return resize_position_embedding(table, (old, 1), (new, 1), 0, method)

    def resize_from(self, other: Self, method: str | None = None) -> None:
        """Copy the tables from the same layer of a model for another image size.

        Args:
            other: the layer, built for that size.
            method: resize method, see `resize_position_embedding`; None means `resize_method`.
        """
        old_size = self.size_name and getattr(other, self.size_name)
        method = method or self.resize_method
        for variable, table in zip(self.tables, other.tables, strict=True):
            variable.assign(self.resized(variable, ops.convert_to_numpy(table), method, old_size))

    def save_own_variables(self, store):
        super().save_own_variables(store)
        if self.size_name and self.tables:
            store[self.name_in_files] = np.array(getattr(self, self.size_name))

    def load_own_variables(self, store):
        old_size = None
        if self.size_name:
            if not self.tables or self.name_in_files not in store.keys():
                super().load_own_variables(store)
                return
            old_size = tuple(int(side) for side in np.asarray(store[self.name_in_files]))
        for index, variable in enumerate(self.tables):
            variable.assign(self.resized(variable, np.asarray(store[str(index)]), self.resize_method, old_size))


def _rows(old):
    # exact, and of the dtype of tensors
    return ops.arange(old, dtype="float32") if ops.is_tensor(old) else np.arange(old, dtype="float32")


def _centres(places, old, new, offset=0.0):
    return (places + 0.5) * (old / (new + offset)) - 0.5


def _linear(xp, positions, old):
    distance = xp.abs(xp.clip(positions, 0, old - 1)[..., None] - _rows(old))
    return xp.maximum(1.0 - distance, 0.0)


def _align_corners(xp, places, old, new):
    return _linear(xp, places * ((old - 1) / xp.maximum(new - 1.0, 1.0)), old)


def _bilinear(xp, places, old, new):
    return _linear(xp, _centres(places, old, new), old)


def _antialias(kernel, xp, places, old, new):
    # Shrinking stretches the kernel; taps outside the table are dropped and the rest is renormalised.
    scale = xp.maximum(old / new, 1.0)
    distance = _centres(places, old, new)[..., None] - _rows(old)
    weights = kernel(xp, xp.abs(distance) / scale[..., None])
    return weights / xp.sum(weights, axis=-1, keepdims=True)


def _bicubic(xp, places, old, new, offset=0.0):
    # There are four taps around each centre; a tap outside of the table has the value at the edge.
    centres = _centres(places, old, new, offset)[..., None]
    taps = xp.floor(centres) + np.arange(-1, 3, dtype="float32")  # (..., 4)
    is_row = xp.equal(xp.clip(taps, 0, old - 1)[..., None], _rows(old))
    return xp.sum(xp.where(is_row, _cubic(xp, xp.abs(centres - taps), a=-0.75)[..., None], 0.0), axis=-2)


def _cubic(xp, x, a):
    """Return Keys's cubic convolution kernel at distances x."""
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * (x**3 - 5 * x**2 + 8 * x - 4)
    return xp.where(x <= 1, near, xp.where(x < 2, far, 0.0))


def _geometric_offsets(old, new):
    """Return where BEiT places the `old` offsets -n ... n among the `new` ones: at 1, 1 + q, 1 + q + q^2, ...

    The ratio q is found by bisection between 1.01 and 1.5, such that the last one is the largest new offset.
    """
    count, low, high = old // 2, 1.01, 1.5
    while high - low > 1e-6:
        ratio = (low + high) / 2
        is_too_large = (1 - ratio**count) / (1 - ratio) > new // 2
        low, high = (low, ratio) if is_too_large else (ratio, high)
    places = np.cumsum(ratio ** np.arange(count))
    return np.concatenate([-places[::-1], [0.0], places])


def _geometric(old, new):
    places, wanted = _geometric_offsets(old, new), np.arange(new) - new // 2
    columns = [np.interp(wanted, places, column) for column in np.eye(old)]
    return np.stack(columns, axis=1)


def _geometric_cubic(old, new):
    if old < 4:
        return _geometric(old, new)
    places, wanted = _geometric_offsets(old, new), np.arange(new) - new // 2
    return _cubic_spline(places, np.clip(wanted, places[0], places[-1]))


def _cubic_spline(x, wanted):
    """Return the matrix (wanted, x) of the not-a-knot cubic spline through values at x."""
    steps, rows = np.diff(x), np.arange(1, len(x) - 1)
    # The second derivatives m of the spline at x solve `system @ m = slopes @ values`.
    system, slopes = np.zeros((len(x), len(x))), np.zeros((len(x), len(x)))
    system[rows, rows - 1], system[rows, rows], system[rows, rows + 1] = (
        steps[:-1], 2 * (steps[:-1] + steps[1:]), steps[1:]
    )  # fmt: skip
    slopes[rows, rows - 1], slopes[rows, rows + 1] = 6 / steps[:-1], 6 / steps[1:]
    slopes[rows, rows] = -slopes[rows, rows - 1] - slopes[rows, rows + 1]
    system[0, :3] = steps[1], -steps[0] - steps[1], steps[0]  # the third derivative is continuous at x[1] and x[-2]
    system[-1, -3:] = steps[-1], -steps[-1] - steps[-2], steps[-2]
    curvature = np.linalg.solve(system, slopes)
    left = np.clip(np.searchsorted(x, wanted, side="right") - 1, 0, len(x) - 2)
    step = steps[left][:, None]
    a = (x[left + 1] - wanted)[:, None] / step
    b, values = 1 - a, np.eye(len(x))
    bent = (a**3 - a) * curvature[left] + (b**3 - b) * curvature[left + 1]
    return a * values[left] + b * values[left + 1] + bent * step**2 / 6


# method -> function of the array module and the arguments of `resize_weights`
_WEIGHTS = {
    "align_corners": _align_corners,
    "bilinear": _bilinear,
    "bilinear_antialias": functools.partial(_antialias, lambda xp, x: xp.maximum(1.0 - x, 0.0)),
    "bicubic": _bicubic,
    "bicubic_antialias": functools.partial(_antialias, functools.partial(_cubic, a=-0.5)),
    "bicubic_offset": functools.partial(_bicubic, offset=0.1),
}
# method for tables of offsets -> function of the old and the new number of rows; it returns the matrix (new, old)
_OFFSETS = {"geometric": _geometric, "geometric_cubic": _geometric_cubic}
