"""The layouts of every family: how their files are recognised, their dialects, and what they imply."""

from typing import Any

from keras_vit.checkpoints.names.rules import Layout, read_rules

_BUFFERS = r"(\.attn_mask|\.relative_position_index)$"
_LINEN_BLOCK = r"^(Transformer/encoderblock(?:_\d+)?/)"
_HF_5 = r"^layers\.(\d+)\."
_OF_SWIN = r"\.relative_position_bias_table$"  # Swin uses the same names for patches

_VIT = {
    "official": Layout(
        rules=read_rules("vit", "official"),
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
        rules=read_rules("vit", "timm"),
        marker=r"^patch_embed\.proj\.weight$",
        foreign=_OF_SWIN,
        aliases=((r"^(blocks\.\d+)\.gamma_(\d)$", r"\1.ls\2.gamma"),),  # the names of the DeiT-III authors
        ignored=_BUFFERS,
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
        rules=read_rules("vit", "huggingface"),
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

_HF_SWIN_ATTENTION = r"^(encoder\.layers\.\d+\.blocks\.\d+\.)attention\."
_HF_SWIN_MLP = r"^(encoder\.layers\.\d+\.blocks\.\d+\.)mlp\."
_OF_SWIN_FILES: dict[str, Any] = {
    "gelu": "erf",
    "epsilon": 1e-5,
    "resize": "bicubic",
    "shows": {"num_heads": "", "window_size": ""},  # the sides of the tables of biases
}

_SWIN = {
    "huggingface": Layout(
        rules=read_rules("swin", "huggingface"),
        marker=r"^encoder\.layers\.0\.blocks\.0\.attention\.self\.relative_position_bias_table$",
        aliases=(
            (r"^swin\.", ""),
            # transformers 5.x
            (_HF_SWIN_ATTENTION + r"q_proj\.", r"\1attention.self.query."),
            (_HF_SWIN_ATTENTION + r"k_proj\.", r"\1attention.self.key."),
            (_HF_SWIN_ATTENTION + r"v_proj\.", r"\1attention.self.value."),
            (_HF_SWIN_ATTENTION + r"o_proj\.", r"\1attention.output.dense."),
            (_HF_SWIN_ATTENTION + r"relative_position_bias\.", r"\1attention.self."),
            (_HF_SWIN_MLP + r"fc1\.", r"\1intermediate.dense."),
            (_HF_SWIN_MLP + r"fc2\.", r"\1output.dense."),
        ),
        ignored=r"(\.relative_position_index|^embeddings\.mask_token)$",
        **_OF_SWIN_FILES,
    ),
    "microsoft": Layout(
        rules=read_rules("swin", "microsoft"),
        marker=r"^layers\.0\.downsample\.",
        ignored=_BUFFERS,
        **_OF_SWIN_FILES,
    ),
    "timm": Layout(
        rules=read_rules("swin", "timm"),
        marker=r"^layers\.0\.blocks\.0\.attn\.relative_position_bias_table$",
        ignored=_BUFFERS,
        **_OF_SWIN_FILES,
    ),
}

_BIT = {
    "official": Layout(
        rules=read_rules("bit", "official"),
        marker=r"^resnet/root_block/standardized_conv2d/kernel$",
        squeezed=r"/group_norm/(gamma|beta)$",
        aliases=((r"/(standardized_conv2d|group_norm|conv2d)_\d+/", r"/\1/"),),  # TensorFlow 1 adds the numbers
    ),
}

# family of a config -> name of a layout -> Layout
LAYOUTS = {"vit": _VIT, "bit": _BIT, "swin": _SWIN, "axial_resnet": {}}
LAYOUT_NAMES = tuple(dict.fromkeys(name for layouts in LAYOUTS.values() for name in layouts))
