"""Markdown tables."""


def table(columns, rows):
    """Returns the text of a table; a cell's pipes are escaped."""
    lines = ([cell.replace("|", "\\|") for cell in row] for row in (columns, ["---"] * len(columns), *rows))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
