"""Array names of Swin Transformers in the files of Hugging Face, timm and the authors (Microsoft)."""

from typing import Any

from keras_vit.checkpoints.names.rules import TORCH, Layout, expand
from keras_vit.layers.position_grid import square_grid

_BUFFERS = r"(\.attn_mask|\.relative_position_index)$"


def _torch_rules(downsample, head):
    """Return the rules of PyTorch names; patch merging belongs to the next stage in timm, to the previous in Swin's."""
    block = "layers.{stage0}.blocks.{block}."
    return expand(
        TORCH,
        [
            ("patch_encoder/projection", "patch_embed.proj", "conv"),
            ("patch_norm", "patch_embed.norm", "norm"),
            ("stage_{stage}_block_{block}/norm[12]", block + "norm[12]", "norm"),
            ("stage_{stage}_block_{block}/attention/qkv", block + "attn.qkv", "dense"),
            (_BIAS, block + "attn.relative_position_bias_table", "array"),
            ("stage_{stage}_block_{block}/attention/proj", block + "attn.proj", "dense"),
            ("stage_{stage}_block_{block}/mlp/dense[12]", block + "mlp.fc[12]", "dense"),
            ("stage_{stage}_downsample/norm", downsample + ".norm", "norm"),
            ("stage_{stage}_downsample/reduction", downsample + ".reduction", "dense_kernel"),
            ("encoder_norm", "norm", "norm"),
            ("head", head, "dense"),
        ],
    )


_BIAS = "stage_{stage}_block_{block}/attention/relative_position_bias/embedding"
_HF_BLOCK = "encoder.layers.{stage0}.blocks.{block}."
_HF_DOWNSAMPLE = "encoder.layers.{stage0}.downsample."

# The names that transformers 4.x writes, without the prefix `swin.` of its classifiers.
_HUGGINGFACE = expand(
    TORCH,
    [
        ("patch_encoder/projection", "embeddings.patch_embeddings.projection", "conv"),
        ("patch_norm", "embeddings.norm", "norm"),
        ("stage_{stage}_block_{block}/norm1", _HF_BLOCK + "layernorm_before", "norm"),
        ("stage_{stage}_block_{block}/attention/qkv", _HF_BLOCK + "attention.self.(query|key|value)", "dense"),
        (_BIAS, _HF_BLOCK + "attention.self.relative_position_bias_table", "array"),
        ("stage_{stage}_block_{block}/attention/proj", _HF_BLOCK + "attention.output.dense", "dense"),
        ("stage_{stage}_block_{block}/norm2", _HF_BLOCK + "layernorm_after", "norm"),
        ("stage_{stage}_block_{block}/mlp/dense1", _HF_BLOCK + "intermediate.dense", "dense"),
        ("stage_{stage}_block_{block}/mlp/dense2", _HF_BLOCK + "output.dense", "dense"),
        ("stage_{stage}_downsample/norm", _HF_DOWNSAMPLE + "norm", "norm"),
        ("stage_{stage}_downsample/reduction", _HF_DOWNSAMPLE + "reduction", "dense_kernel"),
        ("encoder_norm", "layernorm", "norm"),
        ("head", "classifier", "dense"),
    ],
)

_HF_ATTENTION = r"^(encoder\.layers\.\d+\.blocks\.\d+\.)attention\."
_HF_MLP = r"^(encoder\.layers\.\d+\.blocks\.\d+\.)mlp\."
_FAMILY: dict[str, Any] = {
    "gelu": "erf",
    "epsilon": 1e-5,
    "resize": "bicubic",
    "shows": {"num_heads": "", "window_size": ""},  # the sides of the tables of biases
}

SWIN_LAYOUTS = {
    "huggingface": Layout(
        rules=_HUGGINGFACE,
        marker=r"^encoder\.layers\.0\.blocks\.0\.attention\.self\.relative_position_bias_table$",
        aliases=(
            (r"^swin\.", ""),
            # transformers 5.x
            (_HF_ATTENTION + r"q_proj\.", r"\1attention.self.query."),
            (_HF_ATTENTION + r"k_proj\.", r"\1attention.self.key."),
            (_HF_ATTENTION + r"v_proj\.", r"\1attention.self.value."),
            (_HF_ATTENTION + r"o_proj\.", r"\1attention.output.dense."),
            (_HF_ATTENTION + r"relative_position_bias\.", r"\1attention.self."),
            (_HF_MLP + r"fc1\.", r"\1intermediate.dense."),
            (_HF_MLP + r"fc2\.", r"\1output.dense."),
        ),
        ignored=r"(\.relative_position_index|^embeddings\.mask_token)$",
        **_FAMILY,
    ),
    "microsoft": Layout(
        rules=_torch_rules(downsample="layers.{stage0}.downsample", head="head"),
        marker=r"^layers\.0\.downsample\.",
        ignored=_BUFFERS,
        **_FAMILY,
    ),
    "timm": Layout(
        rules=_torch_rules(downsample="layers.{stage}.downsample", head="head.fc"),
        marker=r"^layers\.0\.blocks\.0\.attn\.relative_position_bias_table$",
        ignored=_BUFFERS,
        **_FAMILY,
    ),
}


def window_of(entries):
    """Return the window that the arrays show: that of the largest bias table, as small maps have smaller windows."""
    tables = [entry.shape for name, entry in entries.items() if name.endswith("_position_bias_table")]
    offsets = square_grid(max((shape[0] for shape in tables if len(shape) == 2), default=0))
    return (offsets[0] + 1) // 2 if offsets else None
