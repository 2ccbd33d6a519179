"""ViTConfig: what it refuses, and its way through dicts and JSON."""

import dataclasses
import json

import keras
import numpy as np
import pytest
from faults import for_each

from keras_vit import ResNetConfig, ViTConfig
from keras_vit.config import BlockConfig, EmbeddingConfig, FeatureMapConfig, HeadConfig, WindowConfig

TINY = {
    "name": "tiny",
    "image_size": 32,
    "patch_size": 8,
    "hidden_dim": 48,
    "num_layers": 2,
    "num_heads": 3,
    "mlp_dim": 96,
}
EVERYTHING = {
    **TINY,
    "image_size": (32, 48),
    "classes": 7,
    "include_top": False,
    "pooling": "gap",
    "class_token": True,
    "norm_position": "after_pooling",
    "representation_size": 24,
    "classifier_activation": "softmax",
    "position_embedding": "sincos2d",
    "position_placement": "stem",
    "dropout_rate": 0.1,
    "attention_dropout_rate": 0.2,
    "drop_path_rate": 0.3,
    "layer_scale_init": 1e-4,
    "qkv_bias": False,
    "qk_norm": True,
    "num_registers": 4,
    "gelu": "erf",
    "epsilon": 1e-12,
    "remat": "attention",
    "token_merging": 5,
    "channels": 1,
    "dtype": "mixed_bfloat16",
    "include_preprocessing": True,
    "stem": ResNetConfig(stage_sizes=(1, 2), width_factor=0.5, style="timm", gn_epsilon=1e-4, std_epsilon=1e-7),
}
EVERYTHING["patch_size"] = (2, 3)  # of the feature map of 4 x 6
EVERYTHING |= {
    "embedding": EmbeddingConfig(patch_bias=False, pre_norm=True, resize="bicubic"),
    "block": BlockConfig(norm="rms", gated=True, mlp_norm=True),
    "head": HeadConfig(bias=False, map_heads=6),
}
AXIAL = {**TINY, "attention": "axial", "pooling": "gap", "position_embedding": "learned_2d"}
DISTILLED = {**TINY, "distilled": True, "position_placement": "every"}
WINDOWED = {**TINY, "pooling": "gap", "window": WindowConfig(size=3, global_blocks=(1,))}
SCANNED = {**TINY, "scan_layers": True}
OWN_STEM = {**TINY, "stem": FeatureMapConfig(size=(8, 16))}
INTEGER = "must be an integer of at least"
PAIR = "must be one positive integer or a pair (height, width) of them"
RATE = "must be a number in [0, 1)"
FLAG = "must be True or False"
POSITIVE = "must be a finite number above 0"

# changes to TINY, pieces of the message
REFUSED = [
    ({"name": None}, ["name must be a string that is not empty", "name=None"]),
    ({"name": ""}, ["name must be a string that is not empty", "name=''"]),
    ({"classifier_activation": ""}, ["classifier_activation must be a string that is not empty", "=''"]),
    (
        {"classifier_activation": len},
        ["classifier_activation must be a string that is not empty", "built-in"],
    ),
    ({"dtype": 16}, ["dtype must be the name of a Keras dtype policy", "got dtype=16"]),
    ({"image_size": None}, ["image_size must not be None: image_size='any' takes images of any size"]),
    ({"image_size": 0}, ["image_size", PAIR, "image_size=0"]),
    ({"image_size": (32, 32, 3)}, ["image_size must be one positive integer or a pair", "image_size=(32, 32, 3)"]),
    ({"image_size": 32.5}, ["image_size", PAIR, "image_size=32.5"]),
    ({"patch_size": -8}, ["patch_size", PAIR, "patch_size=-8"]),
    ({"hidden_dim": 0}, [f"hidden_dim {INTEGER} 1", "hidden_dim=0"]),
    ({"num_layers": 1.5}, [f"num_layers {INTEGER} 1", "num_layers=1.5"]),
    ({"num_heads": "3"}, [f"num_heads {INTEGER} 1", "num_heads='3'"]),
    ({"mlp_dim": True}, [f"mlp_dim {INTEGER} 1", "mlp_dim=True"]),
    ({"classes": 0}, [f"classes {INTEGER} 1", "classes=0"]),
    ({"classes": None}, [f"classes {INTEGER} 1", "classes=None"]),
    ({"channels": 0}, [f"channels {INTEGER} 1", "channels=0"]),
    ({"num_registers": -1}, [f"num_registers {INTEGER} 0", "num_registers=-1"]),
    ({"token_merging": -1}, [f"token_merging {INTEGER} 0", "token_merging=-1"]),
    ({"token_merging": 0.5}, [f"token_merging {INTEGER} 0", "token_merging=0.5"]),
    ({"representation_size": 0}, [f"representation_size {INTEGER} 1", "representation_size=0"]),
    ({"representation_size": True}, [f"representation_size {INTEGER} 1", "representation_size=True"]),
    ({"dropout_rate": 1.0}, [f"dropout_rate {RATE}", "dropout_rate=1.0"]),
    ({"dropout_rate": -0.1}, [f"dropout_rate {RATE}", "dropout_rate=-0.1"]),
    ({"attention_dropout_rate": "0.1"}, [f"attention_dropout_rate {RATE}", "attention_dropout_rate='0.1'"]),
    ({"drop_path_rate": float("nan")}, [f"drop_path_rate {RATE}", "drop_path_rate=nan"]),
    ({"include_top": 1}, [f"include_top {FLAG}", "include_top=1"]),
    ({"qkv_bias": None}, [f"qkv_bias {FLAG}", "qkv_bias=None"]),
    ({"qk_norm": "yes"}, [f"qk_norm {FLAG}", "qk_norm='yes'"]),
    ({"remat": 0}, ["remat must be one of 'attention', 'block'", "remat=0"]),
    ({"scan_layers": 1}, [f"scan_layers {FLAG}", "scan_layers=1"]),
    ({"class_token": 1}, [f"class_token {FLAG}", "class_token=1"]),
    ({"layer_scale_init": 0.0}, [f"layer_scale_init {POSITIVE}", "layer_scale_init=0.0"]),
    ({"epsilon": -1e-6}, [f"epsilon {POSITIVE}", "epsilon=-1e-06"]),
    ({"epsilon": 0}, [f"epsilon {POSITIVE}", "epsilon=0"]),
    ({"gelu": "exact"}, ["gelu must be one of 'tanh', 'erf', 'quick'", "gelu='exact'"]),
    (
        {"pooling": "tokn"},
        ["pooling must be one of 'token', 'gap', 'token_gap', 'map', 'aim', 'first'", "pooling='tokn'"],
    ),
    ({"norm_position": "pre"}, ["norm_position must be one of 'before_pooling', 'after_pooling'", "='pre'"]),
    ({"position_embedding": "sincos"}, ["position_embedding must be one of 'learned'", "='sincos'"]),
    ({"position_placement": "blocks"}, ["position_placement must be one of 'stem', 'every'", "='blocks'"]),
    ({"attention": "local"}, ["attention must be one of 'global', 'axial'", "attention='local'"]),
    ({"distilled": 1}, [f"distilled {FLAG}", "distilled=1"]),
    ({"stem": "resnet"}, ["stem must be a ResNetConfig or FeatureMapConfig of keras_vit, or None", "stem='resnet'"]),
    ({"stem": {"class_name": "BiTConfig"}}, ["class_name of stem must be one of 'ResNetConfig'", "'BiTConfig'"]),
]
CONTRADICTIONS = [
    (
        {"image_size": (225, 224), "patch_size": 16, "embedding": {"whole_patches": True}},
        ["image_size must be divisible by patch_size", "image_size=(225, 224)", "patch_size=(16, 16)"],
    ),
    ({"image_size": (32, 7)}, ["image_size must be at least patch_size", "image_size=(32, 7)"]),
    (
        {"image_size": 4},
        ["image_size must be at least patch_size", "image_size=(4, 4)", "patch_size=(8, 8)"],
    ),
    ({"num_heads": 5}, ["hidden_dim must be divisible by num_heads", "hidden_dim=48", "num_heads=5"]),
    *(
        (
            {"position_embedding": "sincos2d", **changes},
            ["need hidden_dim of 8 or more, divisible by 4", "position_embedding='sincos2d'", "hidden_dim="],
        )
        for changes in ({"hidden_dim": 42}, {"hidden_dim": 4, "num_heads": 1})
    ),
    (
        {"embedding": EmbeddingConfig(position_init="sincos2d_mae"), "hidden_dim": 42},
        ["need hidden_dim of 8 or more, divisible by 4", "embedding.position_init='sincos2d_mae', hidden_dim=42"],
    ),
    (
        {"position_embedding": "learned_2d", "hidden_dim": 9},
        ["position_embedding='learned_2d' needs an even hidden_dim", "hidden_dim=9"],
    ),
    (
        {"block": BlockConfig(rotary={"kind": "pe"}), "num_heads": 8},
        ["block.rotary needs hidden_dim / num_heads divisible by 4", "hidden_dim=48, num_heads=8"],
    ),
    (
        {"block": BlockConfig(num_experts=2, expert_dim=48)},
        ["block.expert_dim must be below hidden_dim", "expert_dim=48, hidden_dim=48"],
    ),
    (
        {"window": WindowConfig(global_blocks=(0, 2)), "pooling": "gap"},
        ["window.global_blocks must be below num_layers", "global_blocks=(0, 2), num_layers=2"],
    ),
    (
        {"pooling": "token_gap", "head": HeadConfig(num_blocks=3)},
        ["head.num_blocks must be at most num_layers; got head.num_blocks=3, num_layers=2"],
    ),
    (
        {
            "embedding": EmbeddingConfig(position_grid=4, images_per_sequence=2),
            "image_size": "any",
            "position_placement": "every",
        },
        ["images_per_sequence above 1 repeats", "got embedding.images_per_sequence=2, position_placement='every'"],
    ),
    (
        {"embedding": EmbeddingConfig(kernel_size=(4, 16))},
        ["kernel_size can only be resized in one direction", "kernel_size=(4, 16), patch_size=(8, 8)"],
    ),
    (
        {"stem": ResNetConfig(stage_sizes=(1, 1)), "patch_size": 5},
        ["the feature map of image_size (32, 32) must be at least patch_size", "=(4, 4), patch_size=(5, 5)"],
    ),
]
ALL_REFUSED = REFUSED + CONTRADICTIONS


@for_each(("changes", "pieces"), ALL_REFUSED)
def test_wrong_values_and_contradictions_are_refused(changes, pieces):
    with pytest.raises(ValueError) as caught:
        ViTConfig(**{**TINY, **changes})
    for piece in pieces:
        assert piece in str(caught.value)


@for_each(
    "changes",
    [
        {"pooling": "gap", "class_token": True},
        {"pooling": "map", "class_token": True},
        {"pooling": "gap", "class_token": False},
        {"pooling": "first", "class_token": False},
        {"pooling": "token", "norm_position": "after_pooling"},
        {"pooling": "unpooled", "num_registers": 3},
        {"position_embedding": "sincos2d", "hidden_dim": 8, "num_heads": 2},
    ],
)
def test_unusual_but_consistent_arguments_are_accepted(changes):
    config = ViTConfig(**{**TINY, **changes})
    assert {name: getattr(config, name) for name in changes} == changes


def test_architecture_has_no_defaults_and_positions_no_meaning():
    for name in TINY:
        with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{name}'"):
            ViTConfig(**{key: value for key, value in TINY.items() if key != name})
    with pytest.raises(TypeError, match="positional argument"):
        ViTConfig("tiny")


def test_config_is_frozen_and_hashable():
    config = ViTConfig(**TINY)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.classes = 3
    assert hash(config) == hash(ViTConfig(**TINY))
    assert config == ViTConfig(**TINY) != ViTConfig(**{**TINY, "classes": 3})


def test_numbers_become_plain_ones():
    config = ViTConfig(**{**TINY, "hidden_dim": np.int64(48), "dropout_rate": np.float32(0.5), "image_size": [32, 40]})
    assert (type(config.hidden_dim), type(config.dropout_rate)) == (int, float)
    assert config.image_size == (32, 40) and config.patch_size == (8, 8)


def test_dtype_is_the_name_of_a_policy_or_the_policy():
    policy = keras.DTypePolicy("mixed_bfloat16")
    assert ViTConfig(**TINY, dtype=policy) == ViTConfig(**TINY, dtype="mixed_bfloat16")


@for_each("values", [TINY, EVERYTHING, AXIAL, DISTILLED, WINDOWED, SCANNED, OWN_STEM])
def test_round_trip_through_dict_and_json(values):
    config = ViTConfig(**values)
    assert ViTConfig.from_dict(config.to_dict()) == config
    assert ViTConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert set(config.to_dict()) == {field.name for field in dataclasses.fields(ViTConfig)}


def test_the_examples_change_every_default():
    fields = dataclasses.fields(ViTConfig)
    assert set().union(EVERYTHING, AXIAL, DISTILLED, WINDOWED, SCANNED) == {field.name for field in fields}
    for field in fields:
        examples = (EVERYTHING, AXIAL, DISTILLED, WINDOWED, SCANNED)
        values = [example[field.name] for example in examples if field.name in example]
        assert any(value != field.default for value in values), field.name


def test_unknown_key_is_refused_with_a_suggestion():
    with pytest.raises(
        ValueError,
        match=r"ViTConfig keys must be among 'name', .* \(\d+ in all\); got 'clases' \(did you mean 'classes'",
    ):
        ViTConfig.from_dict({**TINY, "clases": 3})
    with pytest.raises(ValueError, match=r"got 'zzz'$"):
        ViTConfig.from_dict({**TINY, "zzz": 3})


def test_replace_changes_only_what_is_named_and_validates():
    config = ViTConfig(**EVERYTHING)
    changed = config.replace(classes=3)
    assert changed == ViTConfig(**{**EVERYTHING, "classes": 3})
    assert config.classes == 7
    with pytest.raises(ValueError, match="did you mean 'num_heads'"):
        config.replace(num_head=4)
    with pytest.raises(ValueError, match="hidden_dim must be divisible by num_heads"):
        config.replace(num_heads=7)


def test_resolve_states_the_papers_gelu_and_epsilon_only_where_they_are_open():
    resolved = ViTConfig(**TINY).resolve()
    assert (resolved.gelu, resolved.epsilon) == ("tanh", 1e-6)
    assert resolved == ViTConfig(**TINY, gelu="tanh", epsilon=1e-6)
    kept = ViTConfig(**TINY, gelu="erf", epsilon=1e-12)
    assert kept.resolve() == kept


@for_each(
    ("changes", "grid", "class_tokens", "prefix"),
    [
        ({}, (4, 4), 1, 1),
        ({"image_size": (32, 48), "patch_size": (16, 8)}, (2, 6), 1, 1),
        ({"num_registers": 4}, (4, 4), 1, 5),
        ({"pooling": "gap"}, (4, 4), 0, 0),
        ({"pooling": "gap", "class_token": True, "num_registers": 2}, (4, 4), 1, 3),
        ({"pooling": "map"}, (4, 4), 0, 0),
        ({"pooling": "first"}, (4, 4), 0, 0),
        ({"pooling": "unpooled", "num_registers": 2}, (4, 4), 0, 2),
        ({"pooling": "token_unpooled"}, (4, 4), 1, 1),
    ],
)
def test_tokens_follow_the_config(changes, grid, class_tokens, prefix):
    config = ViTConfig(**{**TINY, **changes})
    assert (config.grid_size, config.num_class_tokens, config.num_prefix_tokens) == (
        grid,
        class_tokens,
        prefix,
    )
