"""Rows of a parametrized test of which the default suite runs only the first ones."""

import pytest


def slow_after(count, rows):
    """Return the rows for `pytest.mark.parametrize`; those after the first `count` are marked `slow`."""
    rows = [row if isinstance(row, (tuple, list)) else (row,) for row in rows]
    return [pytest.param(*row, marks=pytest.mark.slow if index >= count else ()) for index, row in enumerate(rows)]
