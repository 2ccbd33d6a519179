"""The rows of the pages in docs/migration: read from the page, run in both libraries, compared.

`python tests/migration_rows.py PAGE both` runs a page in the current folder, `ours` without the other library.
"""

import ast
import dataclasses
import pathlib
import re
import sys
import traceback
import warnings

import numpy as np

TOLERANCE = 1e-3  # largest difference, relative to the largest value: the libraries add in different orders
STARRED = 0.1  # mean difference in rows with a star, whose values differ on purpose
# What a page shows -> what runs here. Other tests check exports; the package knows the sizes of a SAM-B by its name.
SUBSTITUTES = {
    'export(model, "serving")': 'export(model, "serving", check=False)',
    "facebook/sam-vit-base": "small/sam",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One task: its name, the other library's code, or "" if it has none, and ours."""

    task: str
    theirs: str
    ours: str


def read(page):
    """Return the rows of the page's first table. Each `code` of a cell is a statement; other text is not run."""
    table = re.search(r"^\|.*?\n(?!\|)", page.read_text(encoding="utf-8") + "\n", re.MULTILINE | re.DOTALL)[0]
    for line in table.splitlines()[2:]:
        task, *cells = re.split(r"(?<!\\)\|", line.strip("| "))
        yield Row(task.strip(), *("\n".join(re.findall("`([^`]+)`", cell.replace("\\|", "|"))) for cell in cells))


def run(code, names):
    """Run the statements and return the value of the last one, which is an expression or an assignment."""
    for shown, substitute in SUBSTITUTES.items():
        code = code.replace(shown, substitute)
    *first, last = ast.parse(code).body
    exec(compile(ast.Module(first, []), "row", "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "row", "eval"), names)
    exec(compile(ast.Module([last], []), "row", "exec"), names)
    target = last.targets[0] if isinstance(last, ast.Assign) else None
    return names[target.id] if isinstance(target, ast.Name) else None


def compared(row, ours, theirs):
    """Compare both values and return how: `values`, `close`, `equal`, or `run` if nothing is comparable."""
    ours, theirs = plain(ours), plain(theirs)
    if ours is None or theirs is None or isinstance(ours, str) or isinstance(theirs, str):
        return "run"
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return min(compared(row, *pair) for pair in zip(ours, theirs, strict=True))
    if isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray):
        if theirs.shape != ours.shape and theirs.ndim > 2:
            theirs = np.moveaxis(theirs, 1, -1)  # PyTorch's images and maps
        np.testing.assert_equal(ours.shape, theirs.shape)
        difference = np.abs(ours.astype("float64") - theirs) / np.abs(theirs).max()
        if row.task.endswith("*"):
            assert difference.mean() < STARRED, difference.mean()
            return "close"
        assert difference.max() < TOLERANCE, difference.max()
        return "values"
    if type(ours) is type(theirs) and isinstance(ours, int):
        assert ours == theirs, (ours, theirs)
        return "equal"
    return "run"


def plain(value):
    """Return arrays for tensors, lists for tuples and dicts of them, numbers of parameters for models."""
    if hasattr(value, "state_dict") and hasattr(value, "parameters"):
        return sum(parameter.numel() for parameter in value.parameters())
    if hasattr(value, "count_params"):
        return value.count_params()
    if hasattr(value, "detach"):
        return value.detach().numpy()
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "shape") or isinstance(value, float):
        return np.asarray(value)
    return value


def trainable(model):
    """Number of trainable parameters of a model of either library."""
    if hasattr(model, "parameters"):
        return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)


def main(page, columns):
    """Run the rows in order. In each, ours comes first, as the other library reads files that it writes.

    The imports of the first row are the exception: triton, which torch may import, crashes after TensorFlow.
    """
    rows, ours, theirs = list(read(pathlib.Path(page))), {}, {}
    with warnings.catch_warnings(action="ignore"):
        run(rows[0].theirs if columns == "both" else "pass", theirs)
    failed = False
    for row in rows:
        try:
            how = check(row, ours, theirs if columns == "both" and row.theirs else None)
        except Exception:
            traceback.print_exc()
            failed, how = True, "failed"
        print(f"row: {row.task}: {how}", flush=True)
    raise SystemExit(failed)


def check(row, ours, theirs):
    """Run a row with the names of both columns so far, None without the other library; return how it was compared."""
    result = run(row.ours, ours)
    if theirs is None:
        return "run"
    with warnings.catch_warnings(action="ignore"):
        how = compared(row, result, run(row.theirs, theirs))
    if "model" in ours and "model" in theirs and not row.task.endswith("*"):
        np.testing.assert_equal(trainable(ours["model"]), trainable(theirs["model"]))
    if row.task.startswith("preprocessing"):
        theirs["x"] = like(theirs["x"], ours["x"])
    return how


def like(theirs, ours):
    """Return our pixels as an array of the other library, so that the rows below compare the models alone."""
    if not hasattr(theirs, "detach"):
        return ours
    return theirs.new_tensor(np.moveaxis(ours, -1, 1))


if __name__ == "__main__":
    main(*sys.argv[1:])
