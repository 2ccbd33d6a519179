"""Load tiny copies of published files of medicine and of the Earth, and compare their outputs with the authors' code.

It needs `pip install -e '.[tensorflow,bench]'`, and downloads nothing. docs/generate/field_files.tsv has the files.
Where it says how, a copy has the structure that the authors publish, and its config.json states what theirs states.
"""

import json
import pathlib
import re
import tempfile

import numpy as np
import safetensors.numpy

from benchmarks import timm_files, transformers_files
from benchmarks.report import Table, is_installed

NEEDED = ("torch", "timm", "transformers")
FILES = pathlib.Path(__file__).parents[1] / "docs" / "generate" / "field_files.tsv"
NOTE = (
    "Each difference is the largest one from the output of timm or transformers for a copy with random weights, "
    "relative to the largest output. A dash: no copy could be made, as the published config or code was not found, or "
    "`load` refuses the file."
)


def run(options):
    """Yield the table of all files."""
    if missing := [name for name in NEEDED if not is_installed(name)]:
        raise SystemExit(f"field_files needs {', '.join(NEEDED)}; missing: {', '.join(missing)}")
    rows = [[row["name"], compared(row)] for row in read()]
    yield Table("Files of medicine and of the Earth", NOTE, ("file", "largest difference"), rows)


def read():
    """Return the rows of the table of files as dicts."""
    lines = [line for line in FILES.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    columns, *rows = (line.split("\t") for line in lines)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def compared(row):
    """Return the difference of a copy that is opened as the row says, or why it is not; a dash without a copy."""
    if not row["copy"]:
        return "-"
    copy, given = json.loads(row["copy"]), dict(re.findall(r"(\w+)=\"?(\w+)", row["open"]))
    with tempfile.TemporaryDirectory() as folder:
        make = _of_transformers if "transformers" in copy else _of_timm
        try:
            return make(copy, given, pathlib.Path(folder))
        except ValueError as error:
            return f"refused: {str(error).replace(folder, 'FOLDER')}"


def _of_transformers(copy, given, folder):
    import keras_vit

    model = next(model for model in transformers_files.MODELS if model.name == copy["transformers"])
    theirs = transformers_files.save(model, folder)
    config = folder / "config.json"
    stated = json.loads(config.read_text())
    config.write_text(json.dumps({**stated, "model_type": copy.get("model_type", stated["model_type"])}))
    return transformers_files.difference(keras_vit.load(folder, **given), theirs, model)


def _of_timm(copy, given, folder):
    import timm
    import torch

    import keras_vit

    unstated = {"mlp_layer": timm.layers.SwiGLUPacked, "act_layer": torch.nn.SiLU} if copy.get("gated") else {}
    theirs = timm_files.save_copy(copy["architecture"], folder, copy["arguments"], unstated)
    config = folder / "config.json"
    stated = json.loads(config.read_text())
    if copy["config"] != "model_args":
        given["num_heads"] = 2  # of the copy
        config.write_text(json.dumps({name: value for name, value in stated.items() if name != "model_args"}))
    if copy["config"] == "none":
        config.unlink()
    size = theirs.patch_embed.img_size
    if copy["config"] == "open_clip":
        theirs = _as_open_clip(folder, copy["architecture"], theirs)
    ours = keras_vit.load(folder, image_size=size, **given)
    images = np.random.default_rng(1).normal(size=(2, *ours.input_shape[1:])).astype("float32")
    if given.get("pooling") == "token_gap":  # as the authors pool all tokens
        return timm_files.difference(ours, _ClassAndMean(theirs), images)
    return timm_files.difference(ours, theirs, images)


def _as_open_clip(folder, architecture, model):
    """Change a file of timm to that of an OpenCLIP around it, with a projection; return its image tower."""
    import torch

    projection = torch.nn.Linear(model.embed_dim, 24, bias=False)
    file = folder / "model.safetensors"
    arrays = {f"visual.trunk.{name}": array for name, array in safetensors.numpy.load_file(file).items()}
    arrays["visual.head.proj.weight"] = projection.weight.detach().numpy()
    arrays["logit_scale"] = np.zeros((), "float32")
    safetensors.numpy.save_file(arrays, file)
    (folder / "config.json").unlink()
    vision = {"timm_model_name": architecture, "timm_pool": "", "timm_proj": "linear"}
    vision["image_size"] = list(model.patch_embed.img_size)
    config = {"model_cfg": {"embed_dim": 24, "vision_cfg": vision, "text_cfg": {}}, "preprocess_cfg": {}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return torch.nn.Sequential(model, projection)


class _ClassAndMean:
    """The class token and the mean of the patches, of a model of timm that returns all tokens."""

    def __init__(self, model):
        self.model = model

    def to(self, dtype):
        return _ClassAndMean(self.model.to(dtype))

    def __call__(self, images):
        import torch

        tokens = self.model(images)
        return torch.cat([tokens[:, 0], tokens[:, self.model.num_prefix_tokens :].mean(dim=1)], dim=-1)
