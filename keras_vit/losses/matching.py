"""assign: which query answers for which object, so that the total cost is the least (the Hungarian algorithm)."""

from typing import Any

from keras import ops

from keras_vit.typing import Tensor

NO_OBJECT = -1
_LARGEST = 1e6


def assign(costs: Any, exists: Any) -> Tensor:
    """Assign a query of its own to each object of an image, so that the sum of their costs is the least.

    The assignment is that of SciPy's `linear_sum_assignment`; with equal sums, it may be another one. It is computed in
    the graph by shortest augmenting paths (Jonker and Volgenant 1987), for all images at once, and has no gradient.

    Args:
        costs: (batch, objects, queries). Values beyond 1e6 count as 1e6, and NaN too.
        exists: booleans (batch, objects): which objects an image has; the others only fill the array.

    Returns:
        int32 (batch, objects): the query of each object; -1 for those that do not exist, and, if there are more objects
        than queries, for those that are left over.
    """
    costs = ops.cast(ops.stop_gradient(costs), "float32")
    costs = ops.clip(ops.where(ops.isnan(costs), _LARGEST, costs), -_LARGEST, _LARGEST)  # a path needs finite costs
    batch, objects, queries = ops.shape(costs)
    exists = ops.convert_to_tensor(exists, "bool")
    places = ops.arange(objects, dtype="int32")
    counts = ops.sum(ops.cast(exists, "int32"), axis=-1)
    # Where an image has more objects than queries, columns without cost take the objects that are left over.
    spare = places[None] < ops.maximum(counts - queries, 0)[:, None]
    spare = ops.broadcast_to(ops.where(spare, 0.0, float("inf"))[:, None], (batch, objects, objects))
    costs = ops.concatenate([costs, spare], axis=-1)
    columns = queries + objects

    def add_row(row, of_rows, of_columns, owner):
        active = ops.take(exists, row, axis=1)
        of_rows, of_columns, last, before = _shortest_path(costs, row, active, of_rows, of_columns, owner)
        return row + 1, of_rows, of_columns, _turned(row, last, before, owner)

    start = (
        ops.zeros((), "int32"),
        ops.zeros((batch, objects)),
        ops.zeros((batch, columns)),
        ops.full((batch, columns), NO_OBJECT, "int32"),
    )
    stop = ops.max(ops.where(exists, places + 1, 0))
    *_, owner = ops.while_loop(lambda row, *others: row < stop, add_row, start)
    is_query = places[None, :, None] == owner[:, None, :queries]
    return ops.where(ops.any(is_query, -1), ops.cast(ops.argmax(is_query, -1), "int32"), NO_OBJECT)


def _shortest_path(costs, row, active, of_rows, of_columns, owner):
    """Return both potentials after the search from a row, the free column it ends in, and the column before each.

    The names follow the dual problem: `cost - of_rows - of_columns` is at least 0, and 0 for pairs that are assigned.
    """
    batch, objects, columns = ops.shape(costs)

    def step(of_rows, of_columns, least, before, seen, rows, row, column, active):
        reduced = _at(costs, row) - _at(of_rows, row)[:, None] - of_columns
        is_less = ~seen & (reduced < least) & active[:, None]
        least, before = ops.where(is_less, reduced, least), ops.where(is_less, column[:, None], before)
        open_ = ops.where(seen, float("inf"), least)
        nearest = ops.cast(ops.argmin(open_, -1), "int32")
        moved = ops.where(active, ops.min(open_, -1), 0.0)[:, None]
        of_rows = of_rows + ops.where(rows, moved, 0.0)
        of_columns = of_columns - ops.where(seen, moved, 0.0)
        least = least - ops.where(seen, 0.0, moved)
        column = ops.where(active, nearest, column)
        row = ops.where(active, _at(owner, column), row)
        active = ops.logical_and(active, row >= 0)
        seen = ops.logical_or(seen, _is(column, columns, active))
        rows = ops.logical_or(rows, _is(row, objects, active))
        return of_rows, of_columns, least, before, seen, rows, ops.maximum(row, 0), column, active

    rows = ops.broadcast_to(row, (batch,))
    start = (
        of_rows,
        of_columns,
        ops.full((batch, columns), float("inf")),
        ops.full((batch, columns), NO_OBJECT, "int32"),
        ops.zeros((batch, columns), "bool"),
        _is(rows, objects, active),
        rows,
        ops.full((batch,), NO_OBJECT, "int32"),
        active,
    )
    found = ops.while_loop(lambda *state: ops.any(state[-1]), step, start)
    return found[0], found[1], found[7], found[3]


def _turned(row, last, before, owner):
    """Return the owners of the columns after the path to `last` is turned: each column gets the row before it."""
    columns = owner.shape[-1]

    def step(owner, column):
        active, previous = column >= 0, _at(before, ops.maximum(column, 0))
        new = ops.where(previous >= 0, _at(owner, ops.maximum(previous, 0)), row)
        owner = ops.where(_is(column, columns, active), new[:, None], owner)
        return owner, ops.where(active, previous, column)

    return ops.while_loop(lambda owner, column: ops.any(column >= 0), step, (owner, last))[0]


def _at(values, indices):
    """Return values (batch, n, ...) at one index per image."""
    shape = (-1,) + (1,) * (len(values.shape) - 1)
    taken = ops.take_along_axis(values, ops.reshape(indices, shape), axis=1)
    return ops.squeeze(taken, axis=1)


def _is(indices, count, where):
    """Return booleans (batch, count): the index of each image, where a condition (batch,) holds."""
    return ops.logical_and(ops.arange(count, dtype="int32")[None] == indices[:, None], where[:, None])
