"""The tables of names: every rule round-trips, every dialect folds to the names written out here."""

import itertools

import numpy as np
import pytest

from keras_vit.checkpoints import names
from keras_vit.checkpoints.entries import Entry
from keras_vit.checkpoints.names import rules

HEADS = 3
# end of the path of ours -> shape of one piece of it, in a model of width 12 with 3 heads
SHAPES = {
    "patch_encoder/projection/kernel": (4, 5, 3, 12),
    "qkv/kernel": (12, 12),
    "proj/kernel": (12, 12),
    "class_token/class_token": (1, 1, 12),
    "class_token/registers": (1, 4, 12),
    "pooling/probe": (1, 1, 12),
}
BLOCK = "Transformer/encoderblock_7/"
ATTENTION = BLOCK + "MultiHeadDotProductAttention_1/"
LAYOUTS = [(family, layout) for family, layouts in names.LAYOUTS.items() for layout in layouts]

FOLDED = {
    # vit_jax, pre-linen: as it is
    ("vit", "official", "embedding/kernel"): "embedding/kernel",
    ("vit", "official", BLOCK + "LayerNorm_0/scale"): BLOCK + "LayerNorm_0/scale",
    ("vit", "official", BLOCK + "LayerNorm_2/bias"): BLOCK + "LayerNorm_2/bias",
    ("vit", "official", BLOCK + "MlpBlock_3/Dense_1/kernel"): BLOCK + "MlpBlock_3/Dense_1/kernel",
    ("vit", "official", ATTENTION + "out/bias"): ATTENTION + "out/bias",
    # vit_jax, linen
    ("vit", "official", BLOCK + "LayerNorm_1/scale"): BLOCK + "LayerNorm_2/scale",
    ("vit", "official", BLOCK + "MlpBlock_0/Dense_0/bias"): BLOCK + "MlpBlock_3/Dense_0/bias",
    ("vit", "official", BLOCK + "MultiHeadDotProductAttention_0/query/kernel"): ATTENTION + "query/kernel",
    ("vit", "official", "Transformer/encoder_norm/scale"): "Transformer/encoder_norm/scale",
    # big_vision
    ("vit", "official", "params/head/kernel"): "head/kernel",
    ("vit", "official", "opt/target/cls"): "cls",
    ("vit", "official", "params/img/pos_embedding"): "pos_embedding",
    ("vit", "official", "img/Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel"): (
        "Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel"
    ),
    (
        "vit",
        "official",
        "params/Transformer/encoderblock/LayerNorm_1/bias",
    ): "Transformer/encoderblock/LayerNorm_2/bias",
    ("vit", "official", "params/MAPHead_0/LayerNorm_0/scale"): "MAPHead_0/LayerNorm_0/scale",
    # big_vision, attention pooling at the root
    ("vit", "official", "opt/target/probe"): "MAPHead_0/probe",
    ("vit", "official", "probe"): "MAPHead_0/probe",
    (
        "vit",
        "official",
        "MultiHeadDotProductAttention_0/key/bias",
    ): "MAPHead_0/MultiHeadDotProductAttention_0/key/bias",
    ("vit", "official", "LayerNorm_0/bias"): "MAPHead_0/LayerNorm_0/bias",
    ("vit", "official", "MlpBlock_0/Dense_1/bias"): "MAPHead_0/MlpBlock_0/Dense_1/bias",
    # timm, and the authors of DeiT-III
    ("vit", "timm", "blocks.11.ls1.gamma"): "blocks.11.ls1.gamma",
    ("vit", "timm", "blocks.11.gamma_1"): "blocks.11.ls1.gamma",
    ("vit", "timm", "blocks.0.gamma_2"): "blocks.0.ls2.gamma",
    ("vit", "timm", "blocks.10.attn.qkv.weight"): "blocks.10.attn.qkv.weight",
    # transformers 4.x, a classifier and a bare model
    ("vit", "huggingface", "vit.embeddings.cls_token"): "embeddings.cls_token",
    ("vit", "huggingface", "embeddings.cls_token"): "embeddings.cls_token",
    ("vit", "huggingface", "vit.encoder.layer.3.attention.attention.query.weight"): (
        "encoder.layer.3.attention.attention.query.weight"
    ),
    ("vit", "huggingface", "vit.encoder.layer.3.output.dense.bias"): "encoder.layer.3.output.dense.bias",
    ("vit", "huggingface", "classifier.weight"): "classifier.weight",
    ("vit", "huggingface", "pooler.dense.bias"): "pooler.dense.bias",
    # transformers 5.x
    (
        "vit",
        "huggingface",
        "vit.layers.12.attention.q_proj.weight",
    ): "encoder.layer.12.attention.attention.query.weight",
    ("vit", "huggingface", "layers.0.attention.k_proj.bias"): "encoder.layer.0.attention.attention.key.bias",
    ("vit", "huggingface", "layers.0.attention.v_proj.bias"): "encoder.layer.0.attention.attention.value.bias",
    ("vit", "huggingface", "vit.layers.2.attention.o_proj.weight"): "encoder.layer.2.attention.output.dense.weight",
    ("vit", "huggingface", "vit.layers.2.mlp.fc1.weight"): "encoder.layer.2.intermediate.dense.weight",
    ("vit", "huggingface", "vit.layers.2.mlp.fc2.bias"): "encoder.layer.2.output.dense.bias",
    ("vit", "huggingface", "vit.layers.2.layernorm_before.weight"): "encoder.layer.2.layernorm_before.weight",
    ("vit", "huggingface", "vit.layers.2.layernorm_after.bias"): "encoder.layer.2.layernorm_after.bias",
    ("vit", "huggingface", "vit.layernorm.weight"): "layernorm.weight",
    # hybrids
    ("vit", "official", "params/block3/unit9/gn_proj/scale"): "block3/unit9/gn_proj/scale",
    ("vit", "timm", "patch_embed.backbone.stages.2.blocks.8.conv3.weight"): (
        "patch_embed.backbone.stages.2.blocks.8.conv3.weight"
    ),
    # DeiT
    ("vit", "huggingface", "deit.embeddings.distillation_token"): "embeddings.distillation_token",
    ("vit", "huggingface", "deit.layers.5.attention.q_proj.bias"): "encoder.layer.5.attention.attention.query.bias",
    ("vit", "huggingface", "cls_classifier.weight"): "cls_classifier.weight",
    # BiT, with and without the numbers of TensorFlow 1
    ("bit", "official", "resnet/block1/unit01/a/standardized_conv2d_3/kernel"): (
        "resnet/block1/unit01/a/standardized_conv2d/kernel"
    ),
    ("bit", "official", "resnet/block4/unit36/c/group_norm_150/gamma"): "resnet/block4/unit36/c/group_norm/gamma",
    ("bit", "official", "resnet/block2/unit01/a/proj/standardized_conv2d_17/kernel"): (
        "resnet/block2/unit01/a/proj/standardized_conv2d/kernel"
    ),
    ("bit", "official", "resnet/head/conv2d_1/bias"): "resnet/head/conv2d/bias",
    ("bit", "official", "resnet/group_norm/beta"): "resnet/group_norm/beta",
    # Swin, transformers 4.x and 5.x
    ("swin", "huggingface", "swin.encoder.layers.2.blocks.5.attention.self.query.weight"): (
        "encoder.layers.2.blocks.5.attention.self.query.weight"
    ),
    ("swin", "huggingface", "encoder.layers.2.blocks.5.attention.v_proj.bias"): (
        "encoder.layers.2.blocks.5.attention.self.value.bias"
    ),
    ("swin", "huggingface", "swin.encoder.layers.0.blocks.1.attention.o_proj.weight"): (
        "encoder.layers.0.blocks.1.attention.output.dense.weight"
    ),
    (
        "swin",
        "huggingface",
        "swin.encoder.layers.0.blocks.1.attention.relative_position_bias.relative_position_bias_table",
    ): "encoder.layers.0.blocks.1.attention.self.relative_position_bias_table",
    ("swin", "huggingface", "swin.encoder.layers.3.blocks.0.mlp.fc1.weight"): (
        "encoder.layers.3.blocks.0.intermediate.dense.weight"
    ),
    ("swin", "huggingface", "swin.encoder.layers.3.blocks.0.mlp.fc2.weight"): (
        "encoder.layers.3.blocks.0.output.dense.weight"
    ),
    ("swin", "timm", "layers.1.downsample.reduction.weight"): "layers.1.downsample.reduction.weight",
}

# arrays that models of several kinds have, in one place or another
SHARED = {
    ("vit", "timm"): {"cls_token"},
    ("vit", "huggingface"): {"embeddings.cls_token", "embeddings.distillation_token"},
}


def piece_shape(rule):
    for path, shape in SHAPES.items():
        if rule.ours.endswith(path):
            return shape
    if rule.form == "convolution":
        return (3, 2, 5, 12)
    return (12, 6) if rule.ours.endswith("kernel") else (12,)


def layout_of(family, layout):
    return names.LAYOUTS[family][layout]


@pytest.mark.parametrize(("family", "layout"), LAYOUTS)
def test_every_rule_round_trips(family, layout):
    rng = np.random.default_rng(0)
    for rule in layout_of(family, layout).rules:
        ours = rng.normal(size=piece_shape(rule))
        theirs = rules.to_theirs(ours, rule.form, HEADS)
        assert theirs.shape == rules.theirs_shape(ours.shape, rule.form, HEADS), rule
        back = rules.to_ours(theirs, rule.form, ours.shape)
        assert back.shape == ours.shape
        np.testing.assert_array_equal(back, ours, err_msg=str(rule))


def test_forms_by_hand():
    kernel = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)  # height, width, in, out
    assert rules.to_theirs(kernel, "convolution", 1)[4, 2, 1, 0] == kernel[1, 0, 2, 4]
    dense = np.arange(6 * 4).reshape(6, 4)
    assert rules.to_theirs(dense, "transposed", 1)[3, 5] == dense[5, 3]
    assert rules.to_theirs(dense, "heads_last", 2)[5, 1, 0] == dense[5, 2]  # (in, heads, head_dim)
    assert rules.to_theirs(dense, "heads_first", 2)[1, 2, 3] == dense[5, 3]  # (heads, head_dim, out)
    assert rules.theirs_shape((6, 4), "heads_first", 2) == (2, 3, 4)
    assert rules.to_theirs(dense, "pointwise", None)[0, 0, 3, 2] == dense[3, 2]  # a 1 x 1 convolution


@pytest.mark.parametrize(("family", "layout", "name"), FOLDED)
def test_fold(family, layout, name):
    assert names.fold(layout_of(family, layout), name) == FOLDED[family, layout, name]


@pytest.mark.parametrize(("family", "layout", "name"), FOLDED)
def test_folding_twice_changes_nothing(family, layout, name):
    folded = FOLDED[family, layout, name]
    assert names.fold(layout_of(family, layout), folded) == folded


@pytest.mark.parametrize(("family", "layout"), LAYOUTS)
def test_the_rules_use_folded_names_that_differ(family, layout):
    key, layout = (family, layout), layout_of(family, layout)
    numbers = {"block": 3, "stage": 2, "stage0": 1, "unit": 4, "unit0": 3}
    theirs = [name.format(**numbers) for rule in layout.rules for name in rule.theirs] + list(layout.position_tables)
    for name in theirs:
        assert names.fold(layout, name) == name
    assert {name for name in theirs if theirs.count(name) > 1} == SHARED.get(key, set())


@pytest.mark.parametrize(("family", "layout"), LAYOUTS)
def test_every_variable_has_one_rule(family, layout):
    ours = [rule.ours for rule in layout_of(family, layout).rules]
    assert len(set(ours)) == len(ours)


@pytest.mark.parametrize(
    ("kind", "layout", "changes"),
    [
        ("vit", "official", {"pooling": "map", "representation_size": 5}),
        ("vit", "timm", {"num_registers": 2, "qk_norm": True, "layer_scale_init": 1.0, "representation_size": 5}),
        ("vit", "huggingface", {"representation_size": 5}),
        ("hybrid", "official", {"representation_size": 5}),
        ("hybrid", "timm", {}),
        ("root", "official", {}),
        ("root", "timm", {}),
        ("distilled", "timm", {"layer_scale_init": 1.0}),
        ("distilled", "huggingface", {}),
        ("swin", "huggingface", {}),
        ("swin", "microsoft", {}),
        ("swin", "timm", {}),
        ("bit", "official", {}),
    ],
)
def test_the_rules_know_every_variable_of_a_model(make_kind, kind, layout, changes):
    model = make_kind(kind, **changes)
    layout = layout_of(model.config.family, layout)
    theirs = []
    for variable in model.weights:
        rule = names.find_rule(layout, variable.path, model.config)
        assert (rule is None) == (variable.path == "position_embs/embedding"), variable.path
        theirs += rule.theirs if rule else ()
    assert len(set(theirs)) == len(theirs)


def test_no_other_code_has_names_for_an_axial_resnet():
    assert names.LAYOUTS["axial_resnet"] == {}


@pytest.mark.parametrize(
    ("arrays", "family", "layout"),
    [
        (["embedding/kernel", "cls"], "vit", "official"),
        (["step", "opt/target/embedding/kernel"], "vit", "official"),
        (["params/img/embedding/kernel", "params/txt/x"], "vit", "official"),
        (["cls_token", "patch_embed.proj.weight"], "vit", "timm"),
        (["vit.embeddings.patch_embeddings.projection.weight"], "vit", "huggingface"),
        (["embeddings.patch_embeddings.projection.weight"], "vit", "huggingface"),
        (["deit.embeddings.patch_embeddings.projection.weight"], "vit", "huggingface"),
        (["resnet/root_block/standardized_conv2d/kernel"], "bit", "official"),
        (["resnet/root_block/standardized_conv2d_53/kernel"], "bit", "official"),
        (["swin.encoder.layers.0.blocks.0.attention.self.relative_position_bias_table"], "swin", "huggingface"),
        (["encoder.layers.0.blocks.0.attention.self.relative_position_bias_table"], "swin", "huggingface"),
        (["layers.0.blocks.0.attn.relative_position_bias_table", "layers.0.downsample.norm.bias"], "swin", "microsoft"),
        (["layers.0.blocks.0.attn.relative_position_bias_table", "layers.1.downsample.norm.bias"], "swin", "timm"),
        # the patches of a Swin have the same names as those of a ViT
        (["patch_embed.proj.weight", "layers.0.blocks.0.attn.relative_position_bias_table"], "swin", "timm"),
        (
            [
                "embeddings.patch_embeddings.projection.weight",
                "encoder.layers.0.blocks.0.attention.self.relative_position_bias_table",
            ],
            "swin",
            "huggingface",
        ),
        (["conv1.weight", "bn1.weight"], None, None),
        (["deit.embedding/kernel"], None, None),
        ([], None, None),
    ],
)
def test_detect(arrays, family, layout):
    for other in names.LAYOUTS:
        expected = layout if other == family else None
        assert names.detect(arrays, other) == expected
        assert names.detect(dict.fromkeys(arrays), other) == expected


def test_find_rule_fills_in_the_numbers(make_kind):
    config = make_kind("vit").config
    official, timm, huggingface = (layout_of("vit", layout) for layout in ("official", "timm", "huggingface"))
    rule = names.find_rule(official, "block_07/attention/qkv/kernel", config)
    assert rule.theirs == tuple(f"{ATTENTION}{part}/kernel" for part in ("query", "key", "value"))
    assert rule.form == "heads_last"
    assert names.find_rule(timm, "block_11/layer_scale1/gamma", config).theirs == ("blocks.11.ls1.gamma",)
    assert names.find_rule(official, "block_00/layer_scale1/gamma", config) is None
    assert names.find_rule(official, "class_token/registers", config) is None
    # counted from 1 in the official files, from 0 in timm's
    path = "stage_3/unit_09/conv1/kernel"
    assert names.find_rule(official, path, config).theirs == ("block3/unit9/conv1/kernel",)
    assert names.find_rule(timm, path, config).theirs == ("patch_embed.backbone.stages.2.blocks.8.conv1.weight",)
    assert names.find_rule(huggingface, path, config) is None
    bit = layout_of("bit", "official")
    for unit, text in (("09", "unit09"), ("36", "unit36")):
        rule = names.find_rule(bit, f"stage_3/unit_{unit}/conv2/kernel", make_kind("bit").config)
        assert rule.theirs == (f"resnet/block3/{text}/b/standardized_conv2d/kernel",)


def test_timm_has_the_downsample_of_swin_in_the_next_stage(make_kind):
    config, path = make_kind("swin").config, "stage_1_downsample/reduction/kernel"
    found = {key: names.find_rule(layout, path, config).theirs for key, layout in names.LAYOUTS["swin"].items()}
    assert found == {
        "huggingface": ("encoder.layers.0.downsample.reduction.weight",),
        "microsoft": ("layers.0.downsample.reduction.weight",),
        "timm": ("layers.1.downsample.reduction.weight",),
    }
    rule = names.find_rule(layout_of("swin", "timm"), "stage_3_block_17/mlp/dense1/bias", config)
    assert rule.theirs == ("layers.2.blocks.17.mlp.fc1.bias",)


def test_variants_of_a_layer_have_names_of_their_own(make_kind):
    plain, distilled, root = (make_kind(kind).config for kind in ("vit", "distilled", "root"))
    timm, huggingface = layout_of("vit", "timm"), layout_of("vit", "huggingface")
    token = "class_token/class_token"
    assert names.find_rule(timm, token, plain).theirs == ("cls_token",)
    assert names.find_rule(timm, token, distilled).theirs == ("cls_token", "dist_token")
    assert names.find_rule(huggingface, token, distilled).theirs == (
        "embeddings.cls_token",
        "embeddings.distillation_token",
    )
    assert names.find_rule(huggingface, "head/bias", plain).theirs == ("classifier.bias",)
    assert names.find_rule(huggingface, "head/bias", distilled).theirs == ("cls_classifier.bias",)
    assert names.find_rule(timm, "head/bias", distilled).theirs == ("head.bias",)
    assert names.find_rule(timm, "root_conv/kernel", plain).theirs == ("patch_embed.backbone.stem.conv.weight",)
    assert names.find_rule(timm, "root_conv/kernel", root).theirs == ("patch_embed.backbone.conv.weight",)


def test_the_norm_after_pooling_has_a_name_of_its_own_in_timm_alone(make_kind):
    configs = {
        position: make_kind("vit", pooling="gap", norm_position=position).config
        for position in ("before_pooling", "after_pooling")
    }
    found = {
        (layout, position): names.find_rule(layout_of("vit", layout), "encoder_norm/gamma", config)
        for layout, (position, config) in itertools.product(names.LAYOUTS["vit"], configs.items())
    }
    assert {key: rule and rule.theirs for key, rule in found.items()} == {
        ("official", "before_pooling"): ("Transformer/encoder_norm/scale",),
        ("official", "after_pooling"): None,
        ("timm", "before_pooling"): ("norm.weight",),
        ("timm", "after_pooling"): ("fc_norm.weight",),
        ("huggingface", "before_pooling"): ("layernorm.weight",),
        ("huggingface", "after_pooling"): None,
    }


def test_scanned_names():
    stack = np.arange(12.0).reshape(3, 4)
    entries = {
        name: Entry(name, stack.shape, "float64", lambda: stack)
        for name in ("Transformer/encoderblock/LayerNorm_0/scale", "Transformer/encoder_norm/scale")
    }
    found = names.fold_entries("a.npz", entries, names.LAYOUTS["vit"]["official"])
    blocks = [f"Transformer/encoderblock_{block}/LayerNorm_0/scale" for block in range(3)]
    assert list(found) == [*blocks, "Transformer/encoder_norm/scale"]
    np.testing.assert_array_equal([found[name].read() for name in blocks], stack)
