"""The tables of names: every rule round-trips, and each variable of a model has one; test_folding.py: dialects."""

import re

import numpy as np
import pytest
from faults import for_each
from slow_rows import slow_after

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
# what the models of published families have
BEIT = {"position_embedding": "relative_2d", "layer_scale_init": 0.1, "pooling": "gap", "class_token": True}
BEIT |= {"norm_position": "after_pooling"}
EVA02 = {"block": {"gated": True, "key_bias": False, "rotary": {"kind": "eva02"}}}
DINOV3 = {"position_embedding": "none", "num_registers": 4, "layer_scale_init": 0.1}
DINOV3 |= {"block": {"key_bias": False, "rotary": {"kind": "dinov3"}}}
CLIP = {"embedding": {"pre_norm": True, "patch_bias": False}, "head": {"bias": False}}
AIMV2 = {"embedding": {"patch_norm": True}, "block": {"norm": "rms", "gated": True, "bias": False}}
AIMV2 |= {"qkv_bias": False, "pooling": "gap", "include_top": False}
# layouts of task models, whose encoders have the names of other layouts
TASKS = {f"{name}_huggingface" for name in ("clipseg", "depth_anything", "dpt", "eomt", "owl", "vitpose", "yolos")}
TASKS |= {f"{name}_huggingface" for name in ("dpt_dinov2", "dpt_hybrid", "eomt_dinov3")}
TASKS |= {"sam_prompts_huggingface", "sam_prompts_tied_huggingface"}
TASKS |= {f"{name}_original" for name in ("depth_anything", "eomt", "vitpose", "yolos")}
LAYOUTS = [(family, layout) for family, layouts in names.LAYOUTS.items() for layout in layouts]

# Arrays that belong to one variable in some models and to another one in others: DeiTForImageClassification has a
# distillation token without a head; BEiT, EVA-02 and DINOv3 have no biases of keys.
BEIT_BIASES = {"blocks.3.attn.q_proj.bias", "blocks.3.attn.v_proj.bias"}
OF_HUGGINGFACE = {
    "embeddings.distillation_token",
    "encoder.layer.3.attention.attention.query.bias",
    "encoder.layer.3.attention.attention.value.bias",
}
RESIZE = "neck.reassemble_stage.layers.2.resize"  # a transposed convolution that enlarges, or one that reduces
RESIZED = {f"{RESIZE}.weight", f"{RESIZE}.bias"}
# the first and the last convolution of the heads for depth and for segmentation
OF_DPT = RESIZED | {"head.head.0.weight", "head.head.4.weight", "head.head.4.bias"}
SHARED_BY_TASKS = {
    **{"depth_anything": RESIZED, "dpt_dinov2": OF_DPT},
    **dict.fromkeys(("dpt", "dpt_hybrid"), OF_DPT | OF_HUGGINGFACE),
    **dict.fromkeys(("yolos", "vitpose"), OF_HUGGINGFACE),
}
SHARED = {
    **{("vit", layout): BEIT_BIASES for layout in ("timm", "naflex_timm", "sam_timm")},
    **{("vit", f"{model}_original"): BEIT_BIASES for model in ("beit", "dinov2", "eomt", "sam", "vitpose", "yolos")},
    ("vit", "depth_anything_original"): BEIT_BIASES | RESIZED,
    ("vit", "huggingface"): OF_HUGGINGFACE,
    **{("vit", f"{task}_huggingface"): shared for task, shared in SHARED_BY_TASKS.items()},
    ("vit", "dinov3_original"): {"blocks.3.attn.qkv.bias#0", "blocks.3.attn.qkv.bias#2", *BEIT_BIASES},
    ("vit", "eomt_dinov3_huggingface"): {"layers.3.attention.q_proj.bias", "layers.3.attention.v_proj.bias"},
    ("vit", "dinov3_huggingface"): {"layer.3.attention.q_proj.bias", "layer.3.attention.v_proj.bias"},
}


def entry(name, shape=(4, 4, 3, 12)):
    return Entry(name, shape, "float32", lambda: np.zeros(shape))


def piece_shape(rule):
    for path, shape in SHAPES.items():
        if rule.ours.endswith(path):
            return shape
    if rule.form in ("convolution", "depthwise", "flat", "patches"):
        return (3, 2, 5, 12)
    return (12, 6) if rule.ours.endswith("kernel") else (12,)


def layout_of(family, layout):
    return names.LAYOUTS[family][layout]


@for_each(("family", "layout"), LAYOUTS)
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


@for_each(("family", "layout"), LAYOUTS)
def test_the_rules_use_folded_names_that_differ(family, layout):
    key, layout = (family, layout), layout_of(family, layout)
    numbers = {"block": 3, "attention_bias": 3, "stage": 2, "stage0": 1, "unit": 4, "unit0": 3}
    numbers |= {"level": 2, "fusion": 2, "upscale": 1, "dense": 2, "dense0": 1, "mask_head": 1}
    numbers |= {"expert": 2, "detection_positions": 3, "detection_positions0": 2}
    found = {name: {"the position table"} for name in layout.position_tables}  # name -> our variables
    for rule in layout.rules:
        assert len(set(rule.theirs)) == len(rule.theirs)
        # Variants of a layer are one variable; RMSNorm calls its only variable `scale`.
        variable = re.sub("@[a-z_]+", "", rule.ours).replace("/scale", "/gamma")
        for name in rule.theirs:
            found.setdefault(name.format(**numbers), set()).add(variable)
    for name in found:
        assert names.fold(layout, name) == name
    assert {name for name, variables in found.items() if len(variables) > 1} == SHARED.get(key, set())


@for_each(("family", "layout"), LAYOUTS)
def test_every_variable_has_one_rule(family, layout):
    ours = [rule.ours for rule in layout_of(family, layout).rules]
    assert len(set(ours)) == len(ours)


@pytest.mark.parametrize(
    ("kind", "layout", "changes"),
    slow_after(
        12,
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
            ("vit", "big_vision", {"pooling": "map", "include_top": False}),
            ("vit", "timm", {"pooling": "map", "norm_position": "none"}),
            ("vit", "timm", {"pooling": "gap", "norm_position": "after_pooling", "embedding": {"pre_norm": True}}),
            ("vit", "timm", {**BEIT, "position_placement": "every"}),
            ("vit", "timm", {**EVA02, "block": {**EVA02["block"], "mlp_norm": True, "attention_norm": True}}),
            ("vit", "timm", {"qk_norm": True, "block": {"order": "parallel"}}),
            ("vit", "timm", {"qkv_bias": False, "qk_norm": True, "block": {"order": "parallel"}}),
            ("vit", "beit_original", {**BEIT, "position_placement": "shared", "block": {"key_bias": False}}),
            ("vit", "eva02_original", EVA02),
            ("vit", "eva02_original", {**EVA02, "block": {**EVA02["block"], "mlp_norm": True}}),
            ("vit", "dinov2_original", {"layer_scale_init": 1.0, "num_registers": 4, "block": {"gated": True}}),
            ("vit", "dinov3_original", {**DINOV3, "block": {**DINOV3["block"], "gated": True}}),
            ("vit", "huggingface", {**BEIT, "position_placement": "every", "block": {"key_bias": False}}),
            ("vit", "huggingface", {"pooling": "gap", "norm_position": "after_pooling"}),
            ("vit", "dinov2_huggingface", {"layer_scale_init": 1.0, "num_registers": 4}),
            ("vit", "dinov2_huggingface", {"layer_scale_init": 1.0, "block": {"gated": True}}),
            ("vit", "dinov3_huggingface", DINOV3),
            ("vit", "dinov3_huggingface", {**DINOV3, "block": {**DINOV3["block"], "gated": True}}),
            ("vit", "clip_huggingface", CLIP),
            ("vit", "clip_huggingface", {"pooling": "map", "include_top": False}),
            ("vit", "openclip", CLIP),
            ("vit", "openclip", {**CLIP, "pooling": "map", "layer_scale_init": 0.1}),
            ("vit", "aimv2_original", AIMV2),
            ("vit", "aimv2_huggingface", AIMV2),
            ("vit", "aimv2_huggingface", {**AIMV2, "pooling": "aim"}),
        ],
    ),
)
def test_the_rules_know_every_variable_of_a_model(make_kind, kind, layout, changes):
    model = make_kind(kind, **changes)
    layout = layout_of(model.config.network, layout)
    theirs = []
    for variable in model.weights:
        rule = names.find_rule(layout, variable.path, model.config)
        assert (rule is None) == (variable.path == "position_embs/embedding"), variable.path
        theirs += rule.theirs if rule else ()
    assert len(set(theirs)) == len(theirs)


def test_no_other_code_has_names_for_an_axial_resnet():
    assert names.LAYOUTS["axial_resnet"] == {}


@for_each(
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
        (["visual.conv1.weight", "transformer.resblocks.0.ln_1.weight"], "vit", "openclip"),
        (["visual.conv1.weight", "visual.layer1.0.conv1.weight"], None, None),  # a ResNet
        (["vision_model.embeddings.patch_embedding.weight", "text_model.x"], "vit", "clip_huggingface"),
        (["vision_model.embeddings.patch_embed.weight"], "vit", "aimv2_huggingface"),
        (["preprocessor.patchifier.proj.weight"], "vit", "aimv2_original"),
        (["layer.0.attention.q_proj.weight"], "vit", "dinov3_huggingface"),
        (
            ["embeddings.patch_embeddings.projection.weight", "encoder.layer.0.norm1.weight"],
            "vit",
            "dinov2_huggingface",
        ),
        (["patch_embed.proj.weight", "register_tokens"], "vit", "dinov2_original"),
        (["patch_embed.proj.weight", "storage_tokens"], "vit", "dinov3_original"),
        (["patch_embed.proj.weight", "blocks.0.mlp.w1.weight"], "vit", "eva02_original"),
        (["patch_embed.proj.weight", "blocks.0.gamma_1"], "vit", "timm"),
        (["conv1.weight", "bn1.weight"], None, None),
        (["deit.embedding/kernel"], None, None),
        ([], None, None),
        (["embeds.proj.weight"], None, None),  # of a convolution
    ],
)
def test_detect(arrays, family, layout):
    for other in names.LAYOUTS:
        expected = names.LAYOUTS[other][layout] if other == family else None
        assert names.detect({name: entry(name) for name in arrays}, other) == expected


@for_each(
    ("array", "rank", "layout"),
    [
        ("params/img/embedding/kernel", 2, "big_vision_naflex"),
        ("params/img/embedding/kernel", 4, "official"),
        ("vision_model.embeddings.patch_embedding.weight", 2, "siglip2_huggingface"),
        ("vision_model.embeddings.patch_embedding.weight", 4, "clip_huggingface"),
        ("embeds.proj.weight", 2, "naflex_timm"),
        ("embeds.proj.weight", 4, None),
    ],
)
def test_patches_that_are_vectors_have_layouts_of_their_own(array, rank, layout):
    assert names.detect({array: entry(array, (4,) * rank)}, "vit") is names.LAYOUTS["vit"].get(layout)


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


def test_names_of_the_norm_before_and_after_pooling(make_kind):
    configs = [
        make_kind("vit", pooling="gap", norm_position=position).config
        for position in ("before_pooling", "after_pooling")
    ]
    found = {
        key: tuple(names.find_rule(layout, "encoder_norm/gamma", config) for config in configs)
        for key, layout in names.LAYOUTS["vit"].items()
    }
    theirs = {key: tuple(rule and rule.theirs[0] for rule in pair) for key, pair in found.items()}
    theirs = {key: pair for key, pair in theirs.items() if key not in TASKS}
    assert theirs == {
        "official": ("Transformer/encoder_norm/scale", None),
        "big_vision": ("Transformer/encoder_norm/scale", None),
        "big_vision_naflex": ("Transformer/encoder_norm/scale", None),
        "big_vision_flexi": ("Transformer/encoder_norm/scale", None),
        **dict.fromkeys(
            (
                *("timm", "naflex_timm", "beit_original", "eva02_original", "dinov2_original", "dinov3_original"),
                *("sam_original", "sam_timm"),
            ),
            ("norm.weight", "fc_norm.weight"),
        ),
        "huggingface": ("layernorm.weight", "pooler.layernorm.weight"),
        "dinov2_huggingface": ("layernorm.weight", None),
        "dinov3_huggingface": ("norm.weight", None),
        **dict.fromkeys(
            (
                *("clip_huggingface", "siglip2_huggingface", "clip_classifier_huggingface"),
                *("siglip_classifier_huggingface", "siglip2_classifier_huggingface"),
            ),
            ("post_layernorm.weight", None),
        ),
        "aimv2_huggingface": ("rms_norm.weight", None),
        "sam_huggingface": (None, None),
        "aimv2_original": ("trunk.post_trunk_norm.weight", None),
        "openclip": ("visual.ln_post.weight", "visual.ln_post.weight"),
    }


def test_scanned_names():
    stack = np.arange(12.0).reshape(3, 4)
    entries = {
        name: Entry(name, stack.shape, "float64", lambda: stack)
        for name in ("Transformer/encoderblock/LayerNorm_0/scale", "Transformer/encoder_norm/scale")
    }
    found, _ = names.fold_entries("a.npz", entries, names.LAYOUTS["vit"]["official"])
    blocks = [f"Transformer/encoderblock_{block}/LayerNorm_0/scale" for block in range(3)]
    assert list(found) == [*blocks, "Transformer/encoder_norm/scale"]
    np.testing.assert_array_equal([found[name].read() for name in blocks], stack)
