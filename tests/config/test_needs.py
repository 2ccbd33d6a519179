"""Choices of a ViTConfig that contradict each other: each is refused with a way out, and the way out is accepted."""

import re

import pytest
from faults import for_each

from keras_vit import ResNetConfig, ViTConfig
from keras_vit.config import needs
from keras_vit.config.fields import fields_of

TINY = ViTConfig(name="t", image_size=32, patch_size=8, hidden_dim=48, num_layers=2, num_heads=3, mlp_dim=96)
ANY = {"image_size": "any", "embedding.position_grid": (4, 4)}
GAP, GRID, PE = {"pooling": "gap"}, {"embedding.position_grid": (4, 4)}, {"block.rotary": {"kind": "pe"}}
NECK = {"head.neck": 8, "pooling": "gap", "norm_position": "none"}
PACKED, ROOT = {**ANY, "embedding.images_per_sequence": 3}, {"stem": ResNetConfig(stage_sizes=()), "patch_size": 2}
OFFSETS = {"position_embedding": "relative", "position_placement": "every"}
BEIT = {**OFFSETS, "position_embedding": "relative_2d"}
MLP_OFFSETS = {**OFFSETS, "position_embedding": "relative_mlp"}
DIFFERENTIAL = {"attention": "differential"}
BLOCKS = {"pooling": "token_gap", "head.num_blocks": 2}
DROPPED, MERGED, SCANNED = {"embedding.patch_drop_rate": 0.5}, {"token_merging": 2}, {"scan_layers": True}
AXIAL, DISTILLED, WINDOW = {"attention": "axial", **GAP}, {"distilled": True}, {"window": {"size": 2}, **GAP}

# need -> [changes that contradict each other, one change that the error must offer and that resolves it]
CASES = {
    "any_size": [({**GRID, "embedding.images_per_sequence": 3}, {"image_size": "any"})],
    "one_size": [
        ({**ANY, **ROOT}, {"stem": None}),
        ({**GRID, **ROOT}, {"embedding.position_grid": None}),
        ({**ANY, **DROPPED}, {"embedding.patch_drop_rate": 0.0}),
        ({**ANY, **MERGED}, {"token_merging": 0}),
        ({**GRID, **AXIAL}, {"attention": "global"}),
        ({**GRID, **OFFSETS}, {"position_embedding": "learned"}),
        ({**GRID, **BEIT}, {"embedding.position_grid": None}),
        ({**GRID, **MLP_OFFSETS}, {"embedding.position_grid": None}),
    ],
    "images": [
        ({**PACKED, "embedding.kernel_size": 4}, {"embedding.kernel_size": None}),
        ({**PACKED, "embedding.pad": True}, {"embedding.pad": False}),
        ({**PACKED, "include_preprocessing": True}, {"include_preprocessing": False}),
        ({**PACKED, **WINDOW}, {"window": None}),
        ({**PACKED, **NECK}, {"embedding.images_per_sequence": None}),
        ({**PACKED, "pooling": "first"}, {"pooling": "token"}),
    ],
    "position_grid": [
        ({"image_size": "any"}, GRID),
        ({"embedding.square_positions": True}, GRID),
    ],
    "grid_method": [
        ({**GRID, "embedding.resize": method}, {"embedding.resize": None})
        for method in ("geometric", "geometric_cubic")
    ],
    "learned_table": [
        ({"embedding.position_init": "sincos2d_mae", "position_embedding": name}, {"position_embedding": "learned"})
        for name in ("factorized", "learned_2d", "none")
    ],
    "learned_grid": [
        ({**GRID, "embedding.square_positions": True, "position_embedding": name}, {"position_embedding": "factorized"})
        for name in ("learned_2d", "sincos2d", "none")
    ],
    "stem_positions": [
        ({"position_embedding": "none", "position_placement": name}, {"position_placement": "stem"})
        for name in ("every", "shared")
    ],
    "block_positions": [
        ({"position_embedding": "relative"}, {"position_placement": "every"}),
        ({"position_embedding": "relative_2d"}, {"position_embedding": "learned"}),
        ({"position_embedding": "relative_mlp"}, {"position_placement": "shared"}),
    ],
    "scanned_positions": [({**SCANNED, "position_placement": "shared"}, {"position_placement": "stem"})],
    "class_token": [
        ({"class_token": False}, {"class_token": True}),
        ({"class_token": False, "pooling": "token_gap"}, {"class_token": None}),
        ({"class_token": False, "pooling": "token_unpooled"}, {"pooling": "gap"}),
        ({**BEIT, **GAP}, {"class_token": True}),
        ({**BEIT, **GAP, "class_token": False}, {"class_token": True}),
    ],
    "no_class_token": [({"pooling": "unpooled", "class_token": True}, {"class_token": False})],
    "patches_alone": [
        ({"window": {}}, {"pooling": "gap"}),
        ({"window": {}, "pooling": "token_unpooled"}, {"pooling": "map"}),
        ({**WINDOW, "class_token": True}, {"class_token": None}),
        ({**WINDOW, "num_registers": 1}, {"num_registers": 0}),
        ({"attention": "axial"}, {"pooling": "gap"}),
        ({"attention": "axial", "pooling": "token_gap"}, {"attention": "global"}),
        ({**AXIAL, "num_registers": 1}, {"num_registers": 0}),
        ({"pooling": "first", "num_registers": 2}, {"num_registers": 0}),
        ({"pooling": "first", "class_token": True}, {"class_token": False}),
        ({**NECK, "class_token": True}, {"class_token": False}),
        ({**NECK, "num_registers": 1}, {"head.neck": None}),
    ],
    "only_class_token": [
        ({**BEIT, "num_registers": 2}, {"num_registers": 0}),
        ({**BEIT, **DISTILLED}, {"distilled": False}),
    ],
    "whole_grid": [
        ({**MERGED, **PE}, {"token_merging": 0}),
        ({**MERGED, "position_placement": "every"}, {"position_placement": "stem"}),
        ({**MERGED, "position_placement": "shared"}, {"token_merging": 0}),
        ({**MERGED, **AXIAL}, {"attention": "global"}),
        ({**MERGED, **WINDOW}, {"window": None}),
        ({**MERGED, **DROPPED}, {"embedding.patch_drop_rate": 0.0}),
        ({**DROPPED, **PE}, {"block.rotary": None}),
        ({**DROPPED, **WINDOW}, {"window": None}),
        ({**DROPPED, **AXIAL}, {"embedding.patch_drop_rate": 0.0}),
        ({**DROPPED, "position_placement": "shared"}, {"position_placement": "stem"}),
    ],
    "all_patches": [
        ({**DROPPED, "pooling": "first"}, {"embedding.patch_drop_rate": 0.0}),
        ({**DROPPED, "pooling": "unpooled"}, {"pooling": "token"}),
        ({**DROPPED, "pooling": "token_unpooled"}, {"pooling": "token"}),
        ({**DROPPED, **NECK}, {"head.neck": None}),
    ],
    "same_tokens": [({**MERGED, **SCANNED}, {"scan_layers": False}), ({**MERGED, **BLOCKS}, {"token_merging": 0})],
    "whole_sequence": [
        ({**AXIAL, **OFFSETS}, {"attention": "global"}),
        ({**AXIAL, **MLP_OFFSETS}, {"attention": "global"}),
        ({**AXIAL, **PE}, {"block.rotary": None}),
        ({**AXIAL, "window": {}}, {"attention": "global"}),
        ({**WINDOW, **OFFSETS}, {"window": None}),
        ({**WINDOW, **PE}, {"block.rotary": None}),
    ],
    "whole_heads": [
        ({**DIFFERENTIAL, **OFFSETS}, {"attention": "global"}),
        ({**DIFFERENTIAL, **PE}, {"block.rotary": None}),
        ({**DIFFERENTIAL, "qk_norm": True}, {"qk_norm": False}),
        ({**DIFFERENTIAL, **WINDOW}, {"window": None}),
    ],
    "equal_blocks": [
        ({**SCANNED, **DIFFERENTIAL}, {"attention": "global"}),
        ({**SCANNED, "drop_path_rate": 0.1}, {"drop_path_rate": 0.0}),
        ({**SCANNED, **WINDOW}, {"window": None}),
        ({**SCANNED, **OFFSETS}, {"position_placement": "shared"}),
    ],
    "last_block": [({**SCANNED, **DISTILLED}, {"distilled": False}), ({**SCANNED, **BLOCKS}, {"head.num_blocks": 1})],
    "pre_norm": [
        ({**MERGED, "block.order": order}, {"block.order": "pre_norm"}) for order in ("post_norm", "parallel")
    ],
    "one_vector": [
        ({"pooling": name, "norm_position": "after_pooling"}, {"norm_position": "before_pooling"})
        for name in ("unpooled", "token_unpooled")
    ],
    "class_pooling": [({**DISTILLED, "pooling": name}, {"pooling": "token"}) for name in ("gap", "token_gap")],
    "class_and_mean": [({"head.num_blocks": 2}, {"pooling": "token_gap"})],
    "map_pooling": [({**NECK, "pooling": name}, {"pooling": "unpooled"}) for name in ("map", "first", "token")],
    "norm_before": [
        ({**DISTILLED, "norm_position": "after_pooling"}, {"norm_position": "before_pooling"}),
        ({**BLOCKS, "norm_position": "none"}, {"head.num_blocks": 1}),
    ],
    "no_norm": [({**NECK, "norm_position": "before_pooling"}, {"norm_position": "none"})],
    "linear_heads": [
        ({**DISTILLED, "head.projection": 8}, {"head.projection": None}),
        ({**DISTILLED, "head.normalize": True}, {"head.normalize": False}),
        ({**DISTILLED, "representation_size": 8}, {"representation_size": None}),
        ({**DISTILLED, "classifier_activation": "softmax"}, {"distilled": False}),
    ],
}


@for_each("need", CASES)
def test_conflicts_are_refused_with_a_way_out(need):
    for changes, fix in CASES[need]:
        with pytest.raises(ValueError) as caught:
            TINY.replace(**changes)
        text = str(caught.value)
        (name, value), (rule, ways, got) = *fix.items(), re.fullmatch(r"(.*) \(use (.*)\); got (.*)", text).groups()
        assert re.search(rf"needs {re.escape(needs._NEEDS[need][0])}(, but |$)", rule), text
        assert (f"{name}=" in ways and repr(value) in ways) or f"{ways}, ".startswith(f"{name}, "), text
        named = re.findall(r"^[\w.]+|(?<=, but )[\w.]+", rule)
        assert all(f"{one}=" in got for one in (*named, name)), text
        TINY.replace(**{**changes, **fix})


def test_each_choice_of_the_table_has_a_case(monkeypatch):
    """A row of the table without a case would be a rule that no test proves."""
    monkeypatch.setattr(ViTConfig, "_refuse", lambda config, rules: None)
    for need, cases in CASES.items():
        configs = [TINY.replace(**changes) for changes, _ in cases]
        rows = {one for one in needs._CHOICES if need in (*one.needs, *one.breaks)}
        assert not [one for one in rows if not any(one.is_made(config) for config in configs)], need


def test_table_names_needs_and_fields():
    wanted = {need for one in needs._CHOICES for need in one.needs}
    met = {need for one in needs._CHOICES for need in (*one.gives, *one.breaks)}
    assert {*wanted, "pixels"} == met == set(needs._NEEDS) == {*CASES, "pixels"}  # a MaskedAutoencoder needs pixels
    for one in needs._CHOICES:
        default, values = fields_of(ViTConfig)[one.argument].default, needs.values_of(one.argument)
        assert one.argument in fields_of(ViTConfig), one
        assert values == ["set"] or default is None or default in values, one
        assert all(len(needs._NEEDS[need]) == 2 for need in one.breaks), one
