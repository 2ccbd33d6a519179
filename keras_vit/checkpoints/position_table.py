"""PositionTable: which rows of a file's position table belong to class tokens and registers, and the others' grid."""

import dataclasses
import math

from keras_vit.layers.position_grid import square_grid


@dataclasses.dataclass(frozen=True)
class PositionTable:
    """The rows of a position table.

    Attributes:
        num_rows: number of its rows.
        prefixes: numbers of rows of class tokens and registers that it may have, most likely first.
        num_class: number of class tokens of the file.
        stored_grid: (rows, columns) that the file states, or None.
    """

    num_rows: int
    prefixes: tuple[int, ...]
    num_class: int
    stored_grid: tuple[int, int] | None

    @classmethod
    def of(cls, num_rows, words, num_class, num_registers, stored_grid):
        """Return the table; `words` name what may have rows in it, see `Layout.position_tables`."""
        counts = {"class": num_class, "class and registers": num_class + num_registers, "none": 0}
        return cls(num_rows, tuple(dict.fromkeys(counts[word] for word in words)), num_class, stored_grid)

    @property
    def grid(self):
        """Return the (rows, columns) that the file states, or the square of its patches; None without one."""
        if self.stored_grid is not None:
            return self.stored_grid
        squares = self._squares()
        return squares[0][1] if squares else None

    def has_class_rows(self, grid):
        """Return whether class tokens have rows in the table of a model with this grid."""
        found = self._splits(grid)
        return not found or found[0][0] >= self.num_class

    def split(self, grid):
        """Return the number of prefix rows, and the (rows, columns) of the others.

        Args:
            grid: (rows, columns) of the model.

        Raises:
            ValueError: if the rows form no such grid, or contradict the stated one. Published files have square grids;
                any other grid must be stated or equal the model's.
        """
        if found := self._splits(grid):
            return found[0]
        if self.stored_grid is not None:
            stated = f"{self.stored_grid[0]} x {self.stored_grid[1]}"
            raise ValueError(f"the file states a grid of {stated} patches; its table has {self.num_rows} rows")
        raise ValueError(
            f"the position table must have a square grid of rows, or the model's {grid[0]} x {grid[1]}, after "
            f"{' or '.join(map(str, self.prefixes))} prefix rows; got {self.num_rows} rows"
        )

    def _splits(self, grid):
        """Return the possible pairs of `split`, most likely first.

        A table that has the first number of prefix rows and the model's grid is not taken for another square grid.
        """
        grid = tuple(self.stored_grid or grid)
        exact = [(prefix, grid) for prefix in self.prefixes if self.num_rows - prefix == math.prod(grid)]
        if self.stored_grid is not None or (exact and exact[0][0] == self.prefixes[0]):
            return exact
        return sorted(self._squares(), key=lambda pair: pair[1] != grid) or exact  # stable sort: the model's first

    def _squares(self):
        """Return the pairs of `split` with square grids."""
        pairs = ((prefix, square_grid(self.num_rows - prefix)) for prefix in self.prefixes if self.num_rows > prefix)
        return [(prefix, grid) for prefix, grid in pairs if grid]
