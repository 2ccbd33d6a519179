"""The table of published task models; benchmarks/task_models.py compares it with transformers."""

import pytest
from faults import assert_no_faults

import keras_vit
from keras_vit.checkpoints.foreign_names import near_names, task_models
from keras_vit.compat.initial_values import build_deferred
from keras_vit.models import TaskModel
from keras_vit.variants import VARIANTS

# The text tower of OWL-ViT-B (github.com/google-research/scenic, owl_vit/clip)
TEXT = dict(vocab_size=49408, context_length=16, hidden_dim=512, num_layers=12, num_heads=8, mlp_dim=2048)
TEXT |= dict(projection_dim=512, projection_bias=False, causal=True, pooling="end", gelu="quick", epsilon=1e-5)
ROWS = task_models()
SMALLEST = [
    min((row for row in ROWS.values() if row["class"] == kind), key=lambda row: row["parameters"])["model"]
    for kind in sorted({row["class"] for row in ROWS.values()})
]
# million parameters as the authors state them, see the sources in the table
PUBLISHED = {
    "depth-anything/Depth-Anything-V2-Small-hf": 24.8,
    "depth-anything/Depth-Anything-V2-Base-hf": 97.5,
    "depth-anything/Depth-Anything-V2-Large-hf": 335.3,
    "hustvl/yolos-tiny": 6.5,
    "hustvl/yolos-small": 30.7,
}


def test_each_row_has_a_model_and_an_encoder():
    def rule(row):
        assert issubclass(getattr(keras_vit, row["class"]), TaskModel)
        assert row["encoder"] in VARIANTS and row["source"].startswith("arXiv ")

    assert_no_faults(rule, ROWS)
    assert len({(row["class"], row["task"]) for row in ROWS.values()}) == len(SMALLEST)
    of_files = {one.__name__ for one in TaskModel.__subclasses__()} - {"LinearSegmentation"}
    assert {ROWS[name]["class"] for name in SMALLEST} == of_files


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SMALLEST else pytest.mark.slow) for name in ROWS]
)
def test_the_stated_parameters_are_those_of_the_model(name):
    row = ROWS[name]
    changes, arguments = row.get("config", {}), dict(row.get("arguments", {}))
    if "text" in arguments:
        arguments["text"] = {**TEXT, **arguments["text"]}
    changes = {"include_top": row["class"] == "CLIPSeg", **changes}

    def build():
        encoder = keras_vit.VisionTransformer(VARIANTS[row["encoder"]].reference.replace(**changes))
        return getattr(keras_vit, row["class"])(encoder, **arguments)

    assert build_deferred(build)[0].count_params() == row["parameters"]


def test_published_sizes():
    assert {name: round(ROWS[name]["parameters"] / 1e6, 1) for name in PUBLISHED} == PUBLISHED


def test_near_names():
    assert near_names("hf://depth-anything/Depth-Anything-V2-Smal-hf").startswith(
        " (did you mean 'depth-anything/Depth-Anything-V2-Small-hf' or "
    )
    assert near_names("hf://depth-anything/Depth-Anything-V2-Small-hf") == near_names("facebook/dinov2-base") == ""
