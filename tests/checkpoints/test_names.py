"""The tables of names: every rule round-trips, every dialect folds to the names written out here."""

import itertools

import numpy as np
import pytest

from keras_vit.checkpoints import names

HEADS = 3
# path of ours -> shape of one piece of it, in a model of width 12 with 3 heads
SHAPES = {
    "patch_encoder/projection/kernel": (4, 5, 3, 12),
    "query_key_value/kernel": (12, 12),
    "output_projection/kernel": (12, 12),
    "class_token/class_token": (1, 1, 12),
    "class_token/registers": (1, 4, 12),
    "pooling/probe": (1, 1, 12),
}
BLOCK = "Transformer/encoderblock_7/"
ATTENTION = BLOCK + "MultiHeadDotProductAttention_1/"

FOLDED = {
    # vit_jax, pre-linen: as it is
    ("official", "embedding/kernel"): "embedding/kernel",
    ("official", BLOCK + "LayerNorm_0/scale"): BLOCK + "LayerNorm_0/scale",
    ("official", BLOCK + "LayerNorm_2/bias"): BLOCK + "LayerNorm_2/bias",
    ("official", BLOCK + "MlpBlock_3/Dense_1/kernel"): BLOCK + "MlpBlock_3/Dense_1/kernel",
    ("official", ATTENTION + "out/bias"): ATTENTION + "out/bias",
    # vit_jax, linen
    ("official", BLOCK + "LayerNorm_1/scale"): BLOCK + "LayerNorm_2/scale",
    ("official", BLOCK + "MlpBlock_0/Dense_0/bias"): BLOCK + "MlpBlock_3/Dense_0/bias",
    ("official", BLOCK + "MultiHeadDotProductAttention_0/query/kernel"): ATTENTION + "query/kernel",
    ("official", "Transformer/encoder_norm/scale"): "Transformer/encoder_norm/scale",
    # big_vision
    ("official", "params/head/kernel"): "head/kernel",
    ("official", "opt/target/cls"): "cls",
    ("official", "params/img/pos_embedding"): "pos_embedding",
    ("official", "img/Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel"): (
        "Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel"
    ),
    (
        "official",
        "params/Transformer/encoderblock/LayerNorm_1/bias",
    ): "Transformer/encoderblock/LayerNorm_2/bias",
    ("official", "params/MAPHead_0/LayerNorm_0/scale"): "MAPHead_0/LayerNorm_0/scale",
    # big_vision, attention pooling at the root
    ("official", "opt/target/probe"): "MAPHead_0/probe",
    ("official", "probe"): "MAPHead_0/probe",
    (
        "official",
        "MultiHeadDotProductAttention_0/key/bias",
    ): "MAPHead_0/MultiHeadDotProductAttention_0/key/bias",
    ("official", "LayerNorm_0/bias"): "MAPHead_0/LayerNorm_0/bias",
    ("official", "MlpBlock_0/Dense_1/bias"): "MAPHead_0/MlpBlock_0/Dense_1/bias",
    # timm, and the authors of DeiT-III
    ("timm", "blocks.11.ls1.gamma"): "blocks.11.ls1.gamma",
    ("timm", "blocks.11.gamma_1"): "blocks.11.ls1.gamma",
    ("timm", "blocks.0.gamma_2"): "blocks.0.ls2.gamma",
    ("timm", "blocks.10.attn.qkv.weight"): "blocks.10.attn.qkv.weight",
    # transformers 4.x, a classifier and a bare model
    ("huggingface", "vit.embeddings.cls_token"): "embeddings.cls_token",
    ("huggingface", "embeddings.cls_token"): "embeddings.cls_token",
    ("huggingface", "vit.encoder.layer.3.attention.attention.query.weight"): (
        "encoder.layer.3.attention.attention.query.weight"
    ),
    ("huggingface", "vit.encoder.layer.3.output.dense.bias"): "encoder.layer.3.output.dense.bias",
    ("huggingface", "classifier.weight"): "classifier.weight",
    ("huggingface", "pooler.dense.bias"): "pooler.dense.bias",
    # transformers 5.x
    (
        "huggingface",
        "vit.layers.12.attention.q_proj.weight",
    ): "encoder.layer.12.attention.attention.query.weight",
    ("huggingface", "layers.0.attention.k_proj.bias"): "encoder.layer.0.attention.attention.key.bias",
    ("huggingface", "layers.0.attention.v_proj.bias"): "encoder.layer.0.attention.attention.value.bias",
    ("huggingface", "vit.layers.2.attention.o_proj.weight"): "encoder.layer.2.attention.output.dense.weight",
    ("huggingface", "vit.layers.2.mlp.fc1.weight"): "encoder.layer.2.intermediate.dense.weight",
    ("huggingface", "vit.layers.2.mlp.fc2.bias"): "encoder.layer.2.output.dense.bias",
    ("huggingface", "vit.layers.2.layernorm_before.weight"): "encoder.layer.2.layernorm_before.weight",
    ("huggingface", "vit.layers.2.layernorm_after.bias"): "encoder.layer.2.layernorm_after.bias",
    ("huggingface", "vit.layernorm.weight"): "layernorm.weight",
}


def piece_shape(rule):
    for path, shape in SHAPES.items():
        if rule.ours.endswith(path):
            return shape
    return (12, 6) if rule.ours.endswith("kernel") else (12,)


@pytest.mark.parametrize("layout", names.LAYOUTS)
def test_every_rule_round_trips(layout):
    rng = np.random.default_rng(0)
    for rule in names.LAYOUTS[layout].rules:
        ours = rng.normal(size=piece_shape(rule))
        theirs = names.to_theirs(ours, rule.form, HEADS)
        assert theirs.shape == names.theirs_shape(ours.shape, rule.form, HEADS), rule
        back = names.to_ours(theirs, rule.form, ours.shape)
        assert back.shape == ours.shape
        np.testing.assert_array_equal(back, ours, err_msg=str(rule))


def test_forms_by_hand():
    kernel = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)  # height, width, in, out
    assert names.to_theirs(kernel, "convolution", 1)[4, 2, 1, 0] == kernel[1, 0, 2, 4]
    dense = np.arange(6 * 4).reshape(6, 4)
    assert names.to_theirs(dense, "transposed", 1)[3, 5] == dense[5, 3]
    assert names.to_theirs(dense, "heads_last", 2)[5, 1, 0] == dense[5, 2]  # (in, heads, head_dim)
    assert names.to_theirs(dense, "heads_first", 2)[1, 2, 3] == dense[5, 3]  # (heads, head_dim, out)
    assert names.theirs_shape((6, 4), "heads_first", 2) == (2, 3, 4)


@pytest.mark.parametrize(("layout", "name"), FOLDED)
def test_fold(layout, name):
    assert names.fold(layout, name) == FOLDED[layout, name]


@pytest.mark.parametrize(("layout", "name"), FOLDED)
def test_folding_twice_changes_nothing(layout, name):
    assert names.fold(layout, FOLDED[layout, name]) == FOLDED[layout, name]


@pytest.mark.parametrize("layout", names.LAYOUTS)
def test_the_rules_use_folded_names_that_differ(layout):
    theirs = [name.replace("{i}", "3") for rule in names.LAYOUTS[layout].rules for name in rule.theirs]
    theirs += names.LAYOUTS[layout].position_tables
    assert len(set(theirs)) == len(theirs)
    for name in theirs:
        assert names.fold(layout, name) == name


@pytest.mark.parametrize("layout", names.LAYOUTS)
def test_every_variable_has_one_rule(layout):
    ours = [rule.ours for rule in names.LAYOUTS[layout].rules]
    assert len(set(ours)) == len(ours)


@pytest.mark.parametrize("layout", names.LAYOUTS)
def test_the_rules_know_every_variable_of_a_model(layout, make_model):
    config = {
        "official": {"classifier": "map"},
        "timm": {"num_registers": 2, "qk_norm": True, "layer_scale_init": 1.0},
    }
    model = make_model(representation_size=5, **config.get(layout, {}))
    for variable in model.weights:
        rule = names.find_rule(layout, variable.path, "before_pooling")
        assert (rule is None) == (variable.path == "position_embs/embedding"), variable.path


@pytest.mark.parametrize(
    ("arrays", "layout"),
    [
        (["embedding/kernel", "cls"], "official"),
        (["step", "opt/target/embedding/kernel"], "official"),
        (["params/img/embedding/kernel", "params/txt/x"], "official"),
        (["cls_token", "patch_embed.proj.weight"], "timm"),
        (["vit.embeddings.patch_embeddings.projection.weight"], "huggingface"),
        (["embeddings.patch_embeddings.projection.weight"], "huggingface"),
        (["conv1.weight", "bn1.weight"], None),
        (["deit.embedding/kernel"], None),
        ([], None),
    ],
)
def test_detect(arrays, layout):
    assert names.detect(arrays) == layout
    assert names.detect(dict.fromkeys(arrays)) == layout


def test_find_rule_fills_in_the_block():
    rule = names.find_rule("official", "block_07/attention/query_key_value/kernel", "before_pooling")
    assert rule.theirs == tuple(f"{ATTENTION}{part}/kernel" for part in ("query", "key", "value"))
    assert rule.form == "heads_last"
    assert names.find_rule("timm", "block_11/layer_scale1/gamma", "before_pooling").theirs == (
        "blocks.11.ls1.gamma",
    )
    assert names.find_rule("official", "block_00/layer_scale1/gamma", "before_pooling") is None
    assert names.find_rule("huggingface", "class_token/registers", "before_pooling") is None


def test_the_norm_after_pooling_has_a_name_of_its_own_in_timm_alone():
    found = {
        (layout, position): names.find_rule(layout, "encoder_norm/gamma", position)
        for layout, position in itertools.product(names.LAYOUTS, ("before_pooling", "after_pooling"))
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
    assert names.is_scanned("Transformer/encoderblock/LayerNorm_0/scale")
    assert not names.is_scanned("Transformer/encoderblock_0/LayerNorm_0/scale")
    assert (
        names.of_block("Transformer/encoderblock/LayerNorm_0/scale", 3)
        == "Transformer/encoderblock_3/LayerNorm_0/scale"
    )
