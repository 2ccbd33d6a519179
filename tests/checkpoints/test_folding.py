"""Dialects of array names: each folds to the name that the rules of its layout use, written out here."""

from faults import for_each

from keras_vit.checkpoints import names

BLOCK = "Transformer/encoderblock_7/"
ATTENTION = BLOCK + "MultiHeadDotProductAttention_1/"

# (family, layout, name in a file) -> folded name
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
    ("vit", "timm", "blocks.11.gamma_1"): "blocks.11.gamma_1",
    ("vit", "timm", "blocks.0.gamma_2"): "blocks.0.gamma_2",
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
    # OpenCLIP around a model of timm
    ("vit", "timm", "visual.trunk.blocks.3.attn.q_norm.weight"): "blocks.3.attn.q_norm.weight",
    # BEiT, transformers 4.x and 5.x
    ("vit", "huggingface", "beit.encoder.layer.3.lambda_1"): "encoder.layer.3.lambda_1",
    ("vit", "huggingface", "beit.layers.3.attention.relative_position_bias.relative_position_bias_table"): (
        "encoder.layer.3.attention.attention.relative_position_bias.relative_position_bias_table"
    ),
    # DINOv2, transformers 4.x and 5.x
    ("vit", "dinov2_huggingface", "dinov2.encoder.layer.2.layer_scale1.lambda1"): (
        "encoder.layer.2.layer_scale1.lambda1"
    ),
    ("vit", "dinov2_huggingface", "dinov2_with_registers.embeddings.register_tokens"): "embeddings.register_tokens",
    ("vit", "dinov2_huggingface", "encoder.layer.2.attention.k_proj.bias"): (
        "encoder.layer.2.attention.attention.key.bias"
    ),
    ("vit", "dinov2_huggingface", "encoder.layer.2.mlp.up_proj.weight"): "encoder.layer.2.mlp.weights_in.weight#1",
    # DINOv3, CLIP and AIMv2 in transformers
    ("vit", "dinov3_huggingface", "model.layer.0.mlp.gate_proj.weight"): "layer.0.mlp.gate_proj.weight",
    ("vit", "clip_huggingface", "vision_model.pre_layrnorm.bias"): "pre_layrnorm.bias",
    ("vit", "clip_huggingface", "visual_projection.weight"): "visual_projection.weight",
    ("vit", "aimv2_huggingface", "vision_model.head.cls_token"): "head.cls_token",
}


@for_each(("family", "layout", "name"), FOLDED)
def test_fold(family, layout, name):
    assert names.fold(names.LAYOUTS[family][layout], name) == FOLDED[family, layout, name]


@for_each(("family", "layout", "name"), FOLDED)
def test_folding_twice_changes_nothing(family, layout, name):
    folded = FOLDED[family, layout, name]
    assert names.fold(names.LAYOUTS[family][layout], folded) == folded
