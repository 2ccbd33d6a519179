"""The notebooks of examples/ as pages, with the outputs and images that they hold."""

import functools
import pathlib

import nbformat
from nbconvert import MarkdownExporter
from repository import REPOSITORY

# In the order in which a newcomer reads them; a notebook that is not named here comes last.
_ORDER = (
    "quickstart",
    "your_photos",
    "finetune_colab",
    "look_inside",
    "train_head",
    "export_and_serve",
    "masked_patches",
)


@functools.cache
def pages():
    found = sorted(REPOSITORY.glob("examples/*.ipynb"), key=_place)
    made = {}
    for notebook in found:
        node = nbformat.read(notebook, as_version=4)
        node.metadata["language_info"] = {"name": "python"}  # what the cells are coloured as
        text, resources = MarkdownExporter().from_notebook_node(node)
        made[f"notebooks/{notebook.stem}.md"] = _with_own_images(text, notebook.stem, resources["outputs"])
        made |= {f"notebooks/{notebook.stem}_{name}": data for name, data in resources["outputs"].items()}
    return made


def _place(notebook: pathlib.Path):
    named = notebook.stem in _ORDER
    return (not named, _ORDER.index(notebook.stem) if named else 0, notebook.stem)


def _with_own_images(text, stem, images):
    for name in images:
        text = text.replace(f"]({name})", f"]({stem}_{name})")
    return text
