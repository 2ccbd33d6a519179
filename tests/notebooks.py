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

# notebook -> {text of its code: what the tests run instead}, because training takes too long
SHORT = {
    "quickstart": {"epochs=30": "epochs=1"},
    "finetune_colab": {"steps = 400": "steps = 2", "else 400": "else 2"},
    "look_inside": {"steps=600": "steps=5"},
    "export_and_serve": {"steps = 30 * (train.size // recipe.batch_size)": "steps = 20"},
    "train_head": {"range(600)": "range(60)", "epochs=30": "epochs=2", "warmup_steps=50": "warmup_steps=1"},
    "masked_patches": {"epochs=55": "epochs=1", "steps = 200": "steps = 2"},
}
# The same, because nothing is downloaded, in the tests and for the saved outputs; `make_files` makes the files.
OFFLINE = {"your_photos": {"facebook/dinov2-small": "model.keras", "google/siglip-base-patch16-224": "clip"}}

# The kernel's own streams are kept apart from what the C++ below TensorFlow writes: greetings, which differ by machine.
_KERNEL = ("--IPKernelApp.capture_fd_output=False", "--log-level=ERROR")


def read(name, *changes):
    """The notebook of a name in NOTEBOOKS, with texts of its code replaced by dicts as those of SHORT."""
    notebook = nbformat.read(NOTEBOOKS[name], as_version=4)
    for before, after in (pair for texts in changes for pair in texts.items()):
        cells = [cell for cell in notebook.cells if cell.cell_type == "code" and before in cell.source]
        if not cells:
            raise ValueError(f"{name}.ipynb must have {before!r} in its code")
        for cell in cells:
            cell.source = cell.source.replace(before, after)
    return notebook


def make_files(folder, weights=None):
    """Makes what OFFLINE names: `model.keras`, a ViT-Ti/16, and `clip`, a very small CLIP with random weights."""
    import keras_vit  # here, as the other functions need no Keras

    keras_vit.ViT_Ti16(weights=weights).save(folder / "model.keras")
    (folder / "clip").symlink_to(REPOSITORY / "tests" / "golden" / "zeroshot_clip_hf")


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
    client = nbclient.NotebookClient(
        without_outputs(notebook),
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


def without_outputs(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


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


def _run(name, folder):
    """A notebook with the outputs that are saved."""
    if name in OFFLINE:
        real_data = pathlib.Path(os.environ.get("KERAS_VIT_REAL_DATA", REPOSITORY.parent / "shared" / "real"))
        make_files(folder, real_data / "weights" / "ViT-Ti_16-imagenet2012-224.npz")
    run, shown = execute(read(name, OFFLINE.get(name, {})), folder), read(name)
    for cell, as_shown in zip(run.cells, shown.cells, strict=True):
        cell.source = as_shown.source
    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(NOTEBOOKS)}")
    for name in parser.parse_args().names or NOTEBOOKS:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            notebook = _run(name, pathlib.Path(folder))
        _compress(notebook)
        nbformat.write(notebook, NOTEBOOKS[name])
        size = NOTEBOOKS[name].stat().st_size
        print(f"{name}: {time.perf_counter() - start:.0f} s, {size / 1e3:.0f} KB", flush=True)


if __name__ == "__main__":
    main()
