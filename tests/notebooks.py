"""Runs the notebooks of examples/; as a script it writes their outputs anew: `python tests/notebooks.py [NAME ...]`.

Each runs in a kernel and a temporary folder of its own, and is written when all of its cells have run.
"""

import argparse
import base64
import io
import os
import pathlib
import tempfile
import time

import nbclient
import nbformat
from PIL import Image

REPOSITORY = pathlib.Path(__file__).parents[1]
NOTEBOOKS = {path.stem: path for path in sorted(REPOSITORY.glob("examples/*.ipynb"))}
METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}

# The kernel's own streams are kept apart from what the C++ below TensorFlow writes: greetings, which differ by machine.
_KERNEL = ("--IPKernelApp.capture_fd_output=False", "--log-level=ERROR")


def execute(notebook, folder, timeout=600, **environment):
    """Runs all cells of a notebook in a fresh kernel, and returns it with their outputs.

    Args:
        notebook: as `nbformat.read` gives it; it is changed.
        folder: where the kernel runs.
        timeout: of a cell, in seconds.
        **environment: variables that the kernel gets besides those of this process.

    Raises:
        nbclient.exceptions.CellExecutionError: with the traceback, if a cell fails.
    """
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = nbclient.NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=list(_KERNEL),
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
    client.execute(cwd=str(folder), env=environment)
    for cell in notebook.cells:
        cell.metadata = {}
    notebook.metadata = nbformat.from_dict(METADATA)
    return notebook


def read(name):
    """The notebook of a name in NOTEBOOKS."""
    return nbformat.read(NOTEBOOKS[name], as_version=4)


def streams(notebook, name="stdout"):
    """What the cells wrote to a stream."""
    return "".join(output.text for output in outputs(notebook) if output.get("name") == name)


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def _compress(notebook):
    """Writes the figures anew with the same pixels, which takes a fifth less than matplotlib does."""
    for data in (output["data"] for output in outputs(notebook) if "image/png" in output.get("data", {})):
        image, file = Image.open(io.BytesIO(base64.b64decode(data["image/png"]))), io.BytesIO()
        is_opaque = image.mode == "RGBA" and image.getextrema()[3] == (255, 255)
        (image.convert("RGB") if is_opaque else image).save(file, "PNG", optimize=True)
        data["image/png"] = base64.b64encode(file.getvalue()).decode()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(NOTEBOOKS)}")
    for name in parser.parse_args().names or NOTEBOOKS:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(read(name), folder, KERAS_VIT_TINY="")
        _compress(notebook)
        nbformat.write(notebook, NOTEBOOKS[name])
        size = NOTEBOOKS[name].stat().st_size
        print(f"{name}: {time.perf_counter() - start:.0f} s, {size / 1e3:.0f} KB", flush=True)


if __name__ == "__main__":
    main()
