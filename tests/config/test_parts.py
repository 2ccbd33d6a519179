"""The parts of a ViTConfig, such as BlockConfig and HeadConfig: what they refuse, and their place in it."""

import dataclasses
import json

import pytest
from faults import for_each

from keras_vit import ViTConfig
from keras_vit.config import BlockConfig, DecoderConfig, EmbeddingConfig, HeadConfig, RotaryConfig, WindowConfig

TINY = {
    "name": "tiny",
    "image_size": 32,
    "patch_size": 8,
    "hidden_dim": 48,
    "num_layers": 2,
    "num_heads": 3,
    "mlp_dim": 96,
}
ROTARY = {"kind": "eva02", "theta": 50.0, "reference_grid": (16, 8)}
# class -> every field with another value than its default
EVERYTHING = {
    RotaryConfig: ROTARY,
    EmbeddingConfig: {
        "patch_bias": False,
        "patch_norm": True,
        "pre_norm": True,
        "class_position": False,
        "resize": "geometric_cubic",
        "position_grid": (3, 5),
        "square_positions": True,
        "kernel_size": (4, 8),
        "pad": True,
        "patch_padding": 2,
        "whole_patches": True,
        "position_mlp_dim": 24,
        "position_init": "sincos2d_mae",
        "patch_drop_rate": 0.5,
        "images_per_sequence": 3,
    },
    BlockConfig: {
        "order": "post_norm",
        "norm": "rms",
        "gated": True,
        "bias": False,
        "attention_bias": False,
        "key_bias": False,
        "attention_norm": True,
        "mlp_norm": True,
        "num_experts": 6,
        "expert_dim": 8,
        "expert": 5,
        "rotary": RotaryConfig(**ROTARY),
    },
    DecoderConfig: {"hidden_dim": 64, "num_layers": 2, "num_heads": 4, "mlp_dim": 96},
    WindowConfig: {"size": 7, "global_blocks": (0, 3), "relative_positions": False},
    HeadConfig: {
        "neck": 16,
        "projection": 24,
        "normalize": True,
        "bias": False,
        "map_heads": 2,
        "map_mlp_dim": 12,
        "map_prefix": True,
        "num_blocks": 4,
    },
}
FLAG = "must be True or False"
INTEGER = "must be an integer of at least 1"


@for_each("config_class", EVERYTHING)
def test_round_trip_through_dict_and_json(config_class):
    config = config_class(**EVERYTHING[config_class])
    assert config_class.from_dict(config.to_dict()) == config
    assert config_class.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert set(config.to_dict()) == {field.name for field in dataclasses.fields(config_class)}


@for_each("config_class", EVERYTHING)
def test_the_examples_change_every_default(config_class):
    values = EVERYTHING[config_class]
    for field in dataclasses.fields(config_class):
        assert values[field.name] != field.default, field.name


@for_each("config_class", EVERYTHING)
def test_configs_are_frozen_and_hashable(config_class):
    config = config_class(**EVERYTHING[config_class])
    name = dataclasses.fields(config_class)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, name, None)
    assert hash(config) == hash(config_class(**EVERYTHING[config_class]))


@pytest.mark.parametrize(
    ("kind", "theta"), [("dinov3", 100.0), ("eva02", 10000.0), ("pe", 10000.0), ("rope_vit", 100.0), ("mixed", 10.0)]
)
def test_theta_follows_the_kind(kind, theta):
    assert RotaryConfig(kind=kind).theta == theta
    assert RotaryConfig(kind=kind, theta=7).theta == 7.0


@for_each(
    ("config_class", "changes", "message"),
    [
        (
            RotaryConfig,
            {"kind": "axial"},
            "kind must be one of 'dinov3', 'eva02', 'pe', 'rope_vit', 'mixed'; got kind='axial'",
        ),
        (RotaryConfig, {"kind": None}, "kind must be one of .* got kind=None"),
        (RotaryConfig, {"kind": "pe", "theta": 0}, "theta must be a finite number above 0; got theta=0"),
        (RotaryConfig, {"kind": "pe", "reference_grid": (0, 2)}, r"reference_grid must be one positive .*=\(0, 2\)"),
        (
            RotaryConfig,
            {"kind": "dinov3", "reference_grid": 16},
            r"so reference_grid must be None; got kind='dinov3', reference_grid=\(16, 16\)",
        ),
        (EmbeddingConfig, {"patch_bias": 1}, f"patch_bias {FLAG}; got patch_bias=1"),
        (EmbeddingConfig, {"patch_norm": "rms"}, f"patch_norm {FLAG}; got patch_norm='rms'"),
        (EmbeddingConfig, {"pre_norm": None}, f"pre_norm {FLAG}; got pre_norm=None"),
        (EmbeddingConfig, {"class_position": 0}, f"class_position {FLAG}; got class_position=0"),
        (EmbeddingConfig, {"resize": "cubic"}, "resize must be one of 'align_corners', .* got resize='cubic'"),
        (EmbeddingConfig, {"position_init": "zeros"}, "position_init must be one of 'normal', 'sincos2d_mae'; got"),
        (DecoderConfig, {"hidden_dim": 24}, "and by num_heads; got hidden_dim=24, num_heads=16"),
        (DecoderConfig, {"mlp_dim": 0}, f"mlp_dim {INTEGER}; got mlp_dim=0"),
        (BlockConfig, {"order": "prenorm"}, r"got order='prenorm' \(did you mean 'pre_norm'\?\)"),
        (BlockConfig, {"norm": "batch"}, "norm must be one of 'layer', 'rms'; got norm='batch'"),
        (BlockConfig, {"gated": 1}, f"gated {FLAG}; got gated=1"),
        (BlockConfig, {"bias": None}, f"bias {FLAG}; got bias=None"),
        (BlockConfig, {"key_bias": "no"}, f"key_bias {FLAG}; got key_bias='no'"),
        (BlockConfig, {"attention_norm": 0}, f"attention_norm {FLAG}; got attention_norm=0"),
        (BlockConfig, {"mlp_norm": 1}, f"mlp_norm {FLAG}; got mlp_norm=1"),
        (BlockConfig, {"num_experts": 2}, "1 has none; got num_experts=2, expert_dim=None"),
        (BlockConfig, {"expert_dim": 8}, "above 1 needs expert_dim, and 1 has none; got num_experts=1, expert_dim=8"),
        (BlockConfig, {"num_experts": 2, "expert_dim": 8, "expert": 2}, "must be below num_experts; got expert=2"),
        (BlockConfig, {"rotary": "eva02"}, "rotary must be a RotaryConfig of keras_vit, or None; got rotary='eva02'"),
        (BlockConfig, {"rotary": {"kind": "rope"}}, "kind must be one of .* got kind='rope'"),
        (BlockConfig, {"rotary": {"class_name": "HeadConfig"}}, "class_name of rotary must be one of 'RotaryConfig'"),
        (WindowConfig, {"size": (3, 4)}, rf"size {INTEGER}; got size=\(3, 4\)"),
        (WindowConfig, {"global_blocks": 2}, "global_blocks must be a sequence of integers; got global_blocks=2"),
        (WindowConfig, {"global_blocks": (0, -1)}, r"global_blocks\[1\] must be an integer of at least 0; got .*=-1"),
        (WindowConfig, {"relative_positions": 1}, f"relative_positions {FLAG}; got relative_positions=1"),
        (HeadConfig, {"neck": 0}, f"neck {INTEGER}; got neck=0"),
        (HeadConfig, {"bias": 0}, f"bias {FLAG}; got bias=0"),
        (HeadConfig, {"map_heads": 0}, f"map_heads {INTEGER}; got map_heads=0"),
        (HeadConfig, {"map_mlp_dim": 1.5}, f"map_mlp_dim {INTEGER}; got map_mlp_dim=1.5"),
        (HeadConfig, {"map_prefix": 1}, f"map_prefix {FLAG}; got map_prefix=1"),
        (HeadConfig, {"num_blocks": 0}, f"num_blocks {INTEGER}; got num_blocks=0"),
        (HeadConfig, {"num_blocks": None}, f"num_blocks {INTEGER}; got num_blocks=None"),
    ],
)
def test_wrong_values_are_refused(config_class, changes, message):
    with pytest.raises(ValueError, match=message):
        config_class(**changes)


def test_unknown_fields_are_refused():
    with pytest.raises(ValueError, match=r"BlockConfig keys must be among .* got 'gate' \(did you mean 'gated'\?\)"):
        BlockConfig.from_dict({"gate": True})
    with pytest.raises(ValueError, match="EmbeddingConfig keys must be among .* got 'bias'"):
        ViTConfig(**TINY, embedding={"bias": False})


class TestInsideAViTConfig:
    PARTS = {
        "embedding": EmbeddingConfig(pre_norm=True, patch_bias=False),
        "block": BlockConfig(gated=True, key_bias=False, rotary=RotaryConfig(kind="pe")),
        "head": HeadConfig(bias=False),
    }

    def test_round_trip_through_dict_and_json(self):
        config = ViTConfig(**TINY, **self.PARTS)
        assert ViTConfig.from_dict(config.to_dict()) == config
        assert ViTConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config

    def test_dicts_need_neither_class_name_nor_every_field(self):
        config = ViTConfig(
            **TINY,
            embedding={"pre_norm": True, "patch_bias": False},
            block={"gated": True, "key_bias": False, "rotary": {"kind": "pe"}},
            head={"bias": False},
        )
        assert config == ViTConfig(**TINY, **self.PARTS)
        assert ViTConfig(**TINY, block={}) == ViTConfig(**TINY, block=None) == ViTConfig(**TINY)
        with pytest.raises(ValueError, match="class_name of block must be one of 'BlockConfig'; got .*'HeadConfig'"):
            ViTConfig(**TINY, block={"class_name": "HeadConfig"})
        with pytest.raises(ValueError, match="head must be a HeadConfig of keras_vit, or None; got head='map'"):
            ViTConfig(**TINY, head="map")

    def test_replace_takes_names_with_dots(self):
        config = ViTConfig(**TINY, **self.PARTS)
        changed = config.replace(**{"block.gated": False, "block.rotary.theta": 5.0, "head.map_heads": 6, "classes": 3})
        block = BlockConfig(key_bias=False, rotary=RotaryConfig(kind="pe", theta=5.0))
        assert changed == ViTConfig(
            **TINY, classes=3, embedding=self.PARTS["embedding"], block=block, head=HeadConfig(bias=False, map_heads=6)
        )
        assert config == ViTConfig(**TINY, **self.PARTS)  # unchanged

    def test_replace_of_a_part_that_is_absent_or_whole(self):
        config = ViTConfig(**TINY)
        rotary = config.replace(**{"block.rotary.kind": "dinov3"}).block.rotary
        assert rotary == RotaryConfig(kind="dinov3")
        assert config.replace(block=BlockConfig(gated=True)).block == BlockConfig(gated=True)
        assert config.replace(**{"block.rotary": rotary}).block.rotary == rotary
        assert config.replace(**{"block.rotary": rotary}).replace(**{"block.rotary": None}) == config

    def test_replace_refuses_what_the_constructor_refuses(self):
        config = ViTConfig(**TINY)
        with pytest.raises(ValueError, match="BlockConfig keys must be among .* got 'gatd'"):
            config.replace(**{"block.gatd": True})
        with pytest.raises(ValueError, match=f"gated {FLAG}; got gated=1"):
            config.replace(**{"block.gated": 1})
        with pytest.raises(ValueError, match="ViTConfig keys must be among .* got 'blok'"):
            config.replace(**{"blok.gated": True})

    def test_field_takes_names_with_dots(self):
        config = ViTConfig(**TINY, **self.PARTS)
        assert config.field("hidden_dim") == 48
        assert config.field("block.gated") is True
        assert config.field("block.rotary.kind") == "pe"
        assert config.field("head.map_heads") is None
        assert ViTConfig(**TINY).field("block.rotary.kind") is None

    def test_resolve_keeps_the_parts(self):
        config = ViTConfig(**TINY, **self.PARTS).resolve()
        assert {name: getattr(config, name) for name in self.PARTS} == self.PARTS

    @for_each(
        "changes",
        [
            {"position_embedding": "relative_2d", "position_placement": "shared"},
            {"position_embedding": "relative_2d", "position_placement": "every", "pooling": "gap", "class_token": True},
            {"position_embedding": "none", "block": BlockConfig(rotary=RotaryConfig(kind="dinov3"))},
            {"block": BlockConfig(order="parallel"), "qk_norm": True},
            {"block": BlockConfig(order="post_norm"), "layer_scale_init": 0.1},
            {"num_layers": 4, "pooling": "token_gap", "head": HeadConfig(num_blocks=4)},
            {"pooling": "aim", "num_registers": 2},
        ],
    )
    def test_consistent_ones_are_accepted(self, changes):
        config = ViTConfig(**{**TINY, **changes})
        assert {name: getattr(config, name) for name in changes} == changes

    @for_each(
        ("changes", "rows"),
        [
            ({}, 1),
            ({"embedding": {"class_position": False}}, 0),
            ({"distilled": True}, 2),
            ({"pooling": "gap", "num_registers": 4}, 0),
            ({"pooling": "token_gap", "num_registers": 4}, 1),
        ],
    )
    def test_rows_of_class_tokens_in_the_position_table(self, changes, rows):
        assert ViTConfig(**{**TINY, **changes}).num_position_rows == rows
