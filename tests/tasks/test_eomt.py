"""EoMT: encoders that queries can join, and the sizes of its images."""

import keras
import numpy as np
import pytest
from conftest import TESTS
from faults import for_each
from filled import filled
from golden_task_models import with_config

import keras_vit
from keras_vit.models import EoMT

SIZES = {"image_size": 32, "patch_size": 8, "hidden_dim": 16, "num_layers": 3, "num_heads": 2, "mlp_dim": 24}
ROTARY = {"position_embedding": "none", "num_registers": 2, "block": {"rotary": {"kind": "dinov3"}}}
HEAD = {"classes": 3, "num_queries": 4, "num_blocks": 2, "num_upscales": 1}


def encoder_of(**changes):
    return keras_vit.VisionTransformer(keras_vit.ViTConfig(name="tiny", **{**SIZES, **changes}))


@pytest.mark.parametrize("masked", [False, True])
def test_rotary_positions_of_any_size(masked):
    """An encoder for any size computes the angles in every call, and gives the outputs of one for this size."""
    model = filled(lambda: EoMT(encoder_of(**ROTARY), **HEAD, masked=masked), 5, 0.0, 0.3)
    changes = {"image_size": "any", "embedding": {"position_grid": 4, "resize": "bicubic"}}
    of_any_size = EoMT(encoder_of(**{**ROTARY, **changes}), **HEAD, masked=masked)
    values = {variable.path: variable.numpy() for variable in model.weights}
    for variable in of_any_size.weights:
        variable.assign(values[variable.path])
    images = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype("float32")
    found, expected = of_any_size(images), model(images)
    for name in ("class_logits", "mask_logits"):
        np.testing.assert_allclose(*map(keras.ops.convert_to_numpy, (found[name], expected[name])), atol=1e-5)


@for_each(
    ("changes", "arguments", "message"),
    [
        ({}, {"num_blocks": 4}, "num_blocks blocks or more, .*; got num_blocks=4, num_layers=3"),
        (
            {"position_embedding": "none", "block": {"rotary": {"kind": "mixed"}}},
            {},
            "no 'mixed' rotary positions; got num_bl",
        ),
        ({"position_embedding": "relative", "position_placement": "shared"}, {}, "an EoMT needs positions that are ad"),
        ({"position_placement": "every"}, {}, "an EoMT needs positions that are added before the first block only"),
        ({"token_merging": 1}, {}, "an EoMT needs the same tokens in all blocks, but token_merging merges some"),
        ({"attention": "axial", "pooling": "gap"}, {}, "an EoMT needs attention over the whole sequence"),
        ({}, {"activation": "tanh"}, "activation must be one of 'gelu', 'silu'; got activation='tanh'"),
    ],
)
def test_what_queries_cannot_join_is_refused(changes, arguments, message):
    with pytest.raises(ValueError, match=message):
        EoMT(encoder_of(**changes), **{**HEAD, **arguments})


@for_each(
    ("change", "message"),
    [
        ({"rope_parameters": {"rope_theta": 50.0, "rope_type": "yarn"}}, "rope_type in rope_parameters must be 'defa"),
        ({"hidden_act": "gelu_pytorch_tanh"}, r"hidden_act in config.json must be 'gelu' or 'silu'"),
        ({"hidden_act": "silu"}, "hidden_act must be 'silu' with use_gated_mlp, else a GELU; got 'silu'"),
        ({"proj_bias": False}, "proj_bias must be True"),
    ],
)
def test_files_that_state_something_else_are_refused(change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        keras_vit.load(with_config(TESTS / "golden_tasks" / "eomt_dinov3", tmp_path, **change))
