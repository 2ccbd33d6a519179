"""SwinConfig: what it refuses, what it derives, and its way through dicts and JSON."""

import json

import pytest
from faults import for_each

from keras_vit.config import SwinConfig

TINY = {
    "name": "tiny",
    "image_size": 32,
    "embed_dim": 8,
    "depths": (2, 3),
    "num_heads": (2, 4),
    "window_size": 4,
}
EVERYTHING = {
    **TINY,
    "image_size": (32, 48),
    "patch_size": (2, 4),
    "mlp_ratio": 2.5,
    "qkv_bias": False,
    "dropout_rate": 0.1,
    "drop_path_rate": 0.2,
    "gelu": "tanh",
    "epsilon": 1e-6,
    "classes": 7,
    "include_top": False,
    "classifier_activation": "softmax",
    "channels": 1,
    "dtype": "mixed_bfloat16",
}


def test_defaults_are_the_authors():
    config = SwinConfig(**TINY)
    assert (config.patch_size, config.mlp_ratio, config.qkv_bias) == ((4, 4), 4.0, True)
    assert (config.gelu, config.epsilon, config.classes) == ("erf", 1e-5, 1000)
    assert (config.dropout_rate, config.drop_path_rate) == (0.0, 0.0)


@pytest.mark.parametrize("values", [TINY, EVERYTHING])
def test_round_trip_through_json(values):
    config = SwinConfig(**values)
    assert SwinConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    for name, value in values.items():
        assert getattr(config, name) == ((32, 32) if (name, value) == ("image_size", 32) else value)


@pytest.mark.parametrize(
    ("image_size", "patch_size", "sizes"),
    [
        (224, 4, [(56, 56), (28, 28), (14, 14), (7, 7)]),
        ((36, 44), 4, [(9, 11), (5, 6), (3, 3), (2, 2)]),
        ((8, 64), (2, 4), [(4, 16), (2, 8), (1, 4), (1, 2)]),
    ],
)
def test_maps_halve_and_round_up_while_widths_double(image_size, patch_size, sizes):
    changes = {"depths": (1, 1, 1, 1), "num_heads": (1, 2, 4, 8)}
    config = SwinConfig(**{**TINY, "image_size": image_size, "patch_size": patch_size, **changes})
    assert [config.stage_size(stage) for stage in range(4)] == sizes
    assert config.grid_size == sizes[0]
    assert [config.stage_dim(stage) for stage in range(4)] == [8, 16, 32, 64]
    assert [config.mlp_dim(stage) for stage in range(4)] == [32, 64, 128, 256]


INTEGER = "must be an integer of at least 1"


@for_each(
    ("changes", "message"),
    [
        ({"embed_dim": 0}, f"embed_dim {INTEGER}; got embed_dim=0"),
        ({"window_size": (7, 7, 7)}, "window_size must be one number, or one per stage; got window_size=(7, 7, 7)"),
        ({"window_size": (7, 0)}, f"window_size[1] {INTEGER}; got window_size[1]=0"),
        ({"window_size": 0}, f"window_size {INTEGER}; got window_size=0"),
        ({"patch_size": 0}, "patch_size must be one positive integer or a pair"),
        ({"depths": 2}, "depths must be a sequence of integers; got depths=2"),
        ({"depths": (2, 0)}, f"depths[1] {INTEGER}; got depths[1]=0"),
        ({"num_heads": (2, "4")}, f"num_heads[1] {INTEGER}; got num_heads[1]='4'"),
        ({"depths": (2,)}, "one number per stage, for at least one stage; got depths=(2,), num_heads=(2, 4)"),
        ({"depths": (), "num_heads": ()}, "for at least one stage; got depths=(), num_heads=()"),
        ({"num_heads": (2, 3)}, "num_heads must divide the widths of the stages, (8, 16); got num_heads=(2, 3)"),
        ({"mlp_ratio": 0}, "mlp_ratio must be a finite number above 0; got mlp_ratio=0"),
        ({"mlp_ratio": 0.1}, "must be at least 1, the width of the MLPs; got mlp_ratio=0.1, embed_dim=8"),
        ({"qkv_bias": 1}, "qkv_bias must be True or False; got qkv_bias=1"),
        ({"dropout_rate": 1.0}, "dropout_rate must be a number in [0, 1); got dropout_rate=1.0"),
        ({"drop_path_rate": -1}, "drop_path_rate must be a number in [0, 1)"),
        ({"gelu": "exact"}, "gelu must be one of 'tanh', 'erf', 'quick'; got gelu='exact'"),
        ({"epsilon": 0}, "epsilon must be a finite number above 0; got epsilon=0"),
        ({"image_size": 30}, "image_size must be divisible by patch_size; got image_size=(30, 30), patch_size=(4, 4)"),
    ],
)
def test_wrong_values_are_refused(changes, message):
    with pytest.raises(ValueError) as error:
        SwinConfig(**{**TINY, **changes})
    assert message in str(error.value)


def test_unknown_keys_are_refused():
    with pytest.raises(ValueError, match="did you mean 'window_size'"):
        SwinConfig.from_dict({**TINY, "windowsize": 4})
