"""Which rows of a position table are those of class tokens, by counting."""

import pytest

from keras_vit.checkpoints.position_table import PositionTable

CLASS_OR_NONE = ("class", "none")


@pytest.mark.parametrize(
    "num_rows, words, stored, grid, expected",
    [
        (197, CLASS_OR_NONE, None, (14, 14), (1, (14, 14))),
        (196, CLASS_OR_NONE, None, (14, 14), (0, (14, 14))),
        (197, CLASS_OR_NONE, None, (16, 16), (1, (14, 14))),  # another square
        (201, ("class and registers", "class"), None, (14, 14), (5, (14, 14))),
        (11, CLASS_OR_NONE, None, (5, 2), (1, (5, 2))),  # the model's grid need not be square
        (10, CLASS_OR_NONE, None, (5, 2), (1, (3, 3))),  # a square after the likeliest prefix comes before it
        (11, CLASS_OR_NONE, (2, 5), (14, 14), (1, (2, 5))),
        (10, CLASS_OR_NONE, (2, 5), (14, 14), (0, (2, 5))),
    ],
)
def test_rows_are_split_into_prefix_and_grid(num_rows, words, stored, grid, expected):
    table = PositionTable.of(num_rows, words, 1, 4, stored)
    assert table.split(grid) == expected
    assert table.has_class_rows(grid) == (expected[0] > 0)


def test_the_grid_is_the_stated_one_or_a_square():
    tables = [
        PositionTable.of(rows, CLASS_OR_NONE, 1, 0, stored) for rows, stored in ((197, None), (12, None), (9, (2, 4)))
    ]
    assert [table.grid for table in tables] == [(14, 14), None, (2, 4)]


@pytest.mark.parametrize("stored, named", [(None, "14 x 14"), ((3, 4), "3 x 4")])
def test_rows_without_such_a_grid_are_refused(stored, named):
    with pytest.raises(ValueError, match=f"{named}.* 15 rows"):
        PositionTable.of(15, ("class", "none"), 1, 0, stored).split((14, 14))
