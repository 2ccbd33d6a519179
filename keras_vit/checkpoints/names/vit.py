"""Array names of Vision Transformers, hybrids and DeiT in official, timm and Hugging Face files."""

from keras_vit.checkpoints.names.rules import FLAX, TORCH, Layout, expand

_FLAX_BLOCK = "Transformer/encoderblock_{block}/"
_FLAX_ATTENTION = _FLAX_BLOCK + "MultiHeadDotProductAttention_1/"
_FLAX_MAP = "MAPHead_0/MultiHeadDotProductAttention_0/"

# The names of the published .npz files (vit_jax before linen), and big_vision's for attention pooling.
_FLAX_UNIT = "block{stage}/unit{unit}/"
_OFFICIAL = expand(
    FLAX,
    [
        ("root_conv", "conv_root", "kernel"),
        ("root_norm", "gn_root", "norm"),
        ("stage_{stage}/unit_{unit}/conv[123]", _FLAX_UNIT + "conv[123]", "kernel"),
        ("stage_{stage}/unit_{unit}/norm[123]", _FLAX_UNIT + "gn[123]", "norm"),
        ("stage_{stage}/unit_{unit}/shortcut_conv", _FLAX_UNIT + "conv_proj", "kernel"),
        ("stage_{stage}/unit_{unit}/shortcut_norm", _FLAX_UNIT + "gn_proj", "norm"),
        ("patch_encoder/projection", "embedding", "dense"),
        ("class_token/class_token", "cls", "array"),
        ("block_{block}/norm[12]", _FLAX_BLOCK + "LayerNorm_[02]", "norm"),
        ("block_{block}/attention/qkv", _FLAX_ATTENTION + "(query|key|value)", "heads_out"),
        ("block_{block}/attention/proj", _FLAX_ATTENTION + "out", "heads_in"),
        ("block_{block}/mlp/dense[12]", _FLAX_BLOCK + "MlpBlock_3/Dense_[01]", "dense"),
        ("encoder_norm", "Transformer/encoder_norm", "norm"),
        ("pooling/probe", "MAPHead_0/probe", "array"),
        ("pooling/query", _FLAX_MAP + "query", "heads_out"),
        ("pooling/key_value", _FLAX_MAP + "(key|value)", "heads_out"),
        ("pooling/proj", _FLAX_MAP + "out", "heads_in"),
        ("pooling/norm", "MAPHead_0/LayerNorm_0", "norm"),
        ("pooling/mlp/dense[12]", "MAPHead_0/MlpBlock_0/Dense_[01]", "dense"),
        ("pre_logits", "pre_logits", "dense"),
        ("head", "head", "dense"),
    ],
)

_TIMM_STEM = "patch_embed.backbone."
_TIMM_UNIT = _TIMM_STEM + "stages.{stage0}.blocks.{unit0}."
_TIMM = expand(
    TORCH,
    [
        ("root_conv", _TIMM_STEM + "stem.conv", "conv_kernel"),
        ("root_norm", _TIMM_STEM + "stem.norm", "norm"),
        ("root_conv@root_only", _TIMM_STEM + "conv", "conv_kernel"),
        ("root_norm@root_only", _TIMM_STEM + "norm", "norm"),
        ("stage_{stage}/unit_{unit}/conv[123]", _TIMM_UNIT + "conv[123]", "conv_kernel"),
        ("stage_{stage}/unit_{unit}/norm[123]", _TIMM_UNIT + "norm[123]", "norm"),
        ("stage_{stage}/unit_{unit}/shortcut_conv", _TIMM_UNIT + "downsample.conv", "conv_kernel"),
        ("stage_{stage}/unit_{unit}/shortcut_norm", _TIMM_UNIT + "downsample.norm", "norm"),
        ("patch_encoder/projection", "patch_embed.proj", "conv"),
        ("class_token/class_token", "cls_token", "tokens"),
        ("class_token@distilled/class_token", "(cls_token|dist_token)", "tokens"),
        ("class_token/registers", "reg_token", "array"),
        ("block_{block}/norm[12]", "blocks.{block}.norm[12]", "norm"),
        ("block_{block}/attention/qkv", "blocks.{block}.attn.qkv", "dense"),
        ("block_{block}/attention/query_norm", "blocks.{block}.attn.q_norm", "norm"),
        ("block_{block}/attention/key_norm", "blocks.{block}.attn.k_norm", "norm"),
        ("block_{block}/attention/proj", "blocks.{block}.attn.proj", "dense"),
        ("block_{block}/layer_scale[12]", "blocks.{block}.ls[12].gamma", "gamma"),
        ("block_{block}/mlp/dense[12]", "blocks.{block}.mlp.fc[12]", "dense"),
        ("encoder_norm", "norm", "norm"),
        ("encoder_norm@after_pooling", "fc_norm", "norm"),
        ("pooling/probe", "attn_pool.latent", "array"),
        ("pooling/query", "attn_pool.q", "dense"),
        ("pooling/key_value", "attn_pool.kv", "dense"),
        ("pooling/proj", "attn_pool.proj", "dense"),
        ("pooling/norm", "attn_pool.norm", "norm"),
        ("pooling/mlp/dense[12]", "attn_pool.mlp.fc[12]", "dense"),
        ("pre_logits", "pre_logits.fc", "dense"),
        ("head", "head", "dense"),
        ("head_dist", "head_dist", "dense"),
    ],
)

# The names that transformers 4.x writes, without the prefix `vit.` or `deit.` of its classifiers.
_HUGGINGFACE = expand(
    TORCH,
    [
        ("patch_encoder/projection", "embeddings.patch_embeddings.projection", "conv"),
        ("class_token/class_token", "embeddings.cls_token", "tokens"),
        ("class_token@distilled/class_token", "embeddings.(cls_token|distillation_token)", "tokens"),
        # DeiTForImageClassification has a distillation token without a head; here it is a register
        ("class_token/registers", "embeddings.distillation_token", "tokens"),
        ("block_{block}/norm1", "encoder.layer.{block}.layernorm_before", "norm"),
        ("block_{block}/attention/qkv", "encoder.layer.{block}.attention.attention.(query|key|value)", "dense"),
        ("block_{block}/attention/proj", "encoder.layer.{block}.attention.output.dense", "dense"),
        ("block_{block}/norm2", "encoder.layer.{block}.layernorm_after", "norm"),
        ("block_{block}/mlp/dense1", "encoder.layer.{block}.intermediate.dense", "dense"),
        ("block_{block}/mlp/dense2", "encoder.layer.{block}.output.dense", "dense"),
        ("encoder_norm", "layernorm", "norm"),
        ("pre_logits", "pooler.dense", "dense"),
        ("head", "classifier", "dense"),
        ("head@distilled", "cls_classifier", "dense"),
        ("head_dist", "distillation_classifier", "dense"),
    ],
)

_LINEN_BLOCK = r"^(Transformer/encoderblock(?:_\d+)?/)"
_HF_5 = r"^layers\.(\d+)\."
_OF_SWIN = r"\.relative_position_bias_table$"  # Swin uses the same names for patches


VIT_LAYOUTS = {
    "official": Layout(
        rules=_OFFICIAL,
        marker=r"^embedding/kernel$",
        aliases=(
            (r"^opt/target/", ""),
            (r"^params/", ""),
            (r"^img/", ""),
            (_LINEN_BLOCK + "LayerNorm_1/", r"\1LayerNorm_2/"),
            (_LINEN_BLOCK + "MultiHeadDotProductAttention_0/", r"\1MultiHeadDotProductAttention_1/"),
            (_LINEN_BLOCK + "MlpBlock_0/", r"\1MlpBlock_3/"),
            (r"^(probe$|MultiHeadDotProductAttention_0/|LayerNorm_0/|MlpBlock_0/)", r"MAPHead_0/\1"),
        ),
        ignored=r"^(opt/state/|opt/step$|step$|txt/|t$|b$)",
        squeezed=r"(^|/)gn(\d+|_root|_proj)/(scale|bias)$",
        position_tables={
            "Transformer/posembed_input/pos_embedding": ("class",),
            "Transformer/pos_embedding": ("class", "none"),
            "pos_embedding": ("none",),
        },
        gelu="tanh",
        epsilon=1e-6,
        resize="align_corners",
        stem_style="vit",
        shows={
            "num_heads": "",
            "norm_position": "",
            "position_placement": "",
            "pooling": r"^(cls|MAPHead_0/probe)$",
            "position_embedding": r"pos_embedding$",
        },
    ),
    "timm": Layout(
        rules=_TIMM,
        marker=r"^patch_embed\.proj\.weight$",
        foreign=_OF_SWIN,
        aliases=((r"^(blocks\.\d+)\.gamma_(\d)$", r"\1.ls\2.gamma"),),  # the names of the DeiT-III authors
        ignored=r"(\.attn_mask|\.relative_position_index)$",
        position_tables={"pos_embed": ("class and registers", "class", "none")},
        gelu="erf",
        epsilon=1e-6,
        resize="bicubic_antialias",
        stem_style="timm",
        shows={
            "norm_position": "",
            "position_placement": "",
            "pooling": r"^attn_pool\.latent$",
            "position_embedding": r"^pos_embed$",
        },
    ),
    "huggingface": Layout(
        rules=_HUGGINGFACE,
        marker=r"^embeddings\.patch_embeddings\.projection\.weight$",
        foreign=_OF_SWIN,
        aliases=(
            (r"^(vit|deit)\.", ""),
            # transformers 5.x
            (_HF_5 + r"attention\.q_proj\.", r"encoder.layer.\1.attention.attention.query."),
            (_HF_5 + r"attention\.k_proj\.", r"encoder.layer.\1.attention.attention.key."),
            (_HF_5 + r"attention\.v_proj\.", r"encoder.layer.\1.attention.attention.value."),
            (_HF_5 + r"attention\.o_proj\.", r"encoder.layer.\1.attention.output.dense."),
            (_HF_5 + r"mlp\.fc1\.", r"encoder.layer.\1.intermediate.dense."),
            (_HF_5 + r"mlp\.fc2\.", r"encoder.layer.\1.output.dense."),
            (_HF_5, r"encoder.layer.\1."),
        ),
        ignored=r"^(embeddings\.mask_token|embeddings\.position_ids)$",
        position_tables={"embeddings.position_embeddings": ("class and registers", "class")},
        gelu="erf",
        epsilon=1e-12,
        resize="bicubic",
        shows=dict.fromkeys(("norm_position", "position_placement", "pooling", "position_embedding"), ""),
    ),
}
