"""Load a small model of each model type of transformers that has a Vision Transformer, and compare the outputs.

It needs `pip install -e '.[tensorflow,bench]'`, and downloads nothing. The models have the settings that the type has
by default, two blocks, two heads and random weights. transformers saves them with `save_pretrained`, and
`keras_vit.load` reads the folder. Run it with transformers 4 and 5, which name many arrays differently.
"""

import dataclasses
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.report import Table, is_installed

NEEDED = ("torch", "transformers")
NOTE = (
    "Each difference is the largest one from the output of transformers {version}, relative to the largest value of "
    "that output. The models have random weights."
)
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96}
TOWER = {**SIZES, "image_size": 64, "patch_size": 16}
TEXT = {**SIZES, "vocab_size": 99, "max_position_embeddings": 16, "eos_token_id": 2, "bos_token_id": 1}
PAIR = {"vision_config": TOWER, "text_config": TEXT, "projection_dim": 48}
LABELS = {"num_labels": 7}


@dataclasses.dataclass(frozen=True)
class Model:
    """A class of transformers: arguments of its config, and the name of the output that is compared."""

    name: str
    arguments: Mapping[str, Any]
    output: str = "logits"
    method: str = "__call__"
    load: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_packed(self) -> bool:
        """Return whether it takes sequences of patches, as SigLIP 2 does."""
        return self.name.startswith("Siglip2")


IMAGE = {**TOWER, **LABELS}
DINO = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 56, "patch_size": 14}
GATED = {"use_swiglu_ffn": True}
SWIN = {"embed_dim": 16, "depths": (1, 1), "num_heads": (1, 2), "window_size": 4, "image_size": 32}
MAE = {**TOWER, "decoder_hidden_size": 32, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
NAFLEX = {**SIZES, "num_patches": 16, "patch_size": 8}
SAM = {**SIZES, "image_size": 64, "patch_size": 16, "mlp_dim": 96, "window_size": 2, "global_attn_indexes": [1]}
AIM = {**SIZES, "image_size": 56, "patch_size": 14}
MODELS = (
    Model("ViTForImageClassification", IMAGE),
    Model("ViTModel", TOWER, "pooler_output"),
    Model("DeiTForImageClassificationWithTeacher", IMAGE),
    Model("BeitForImageClassification", {**IMAGE, "use_relative_position_bias": True}),
    Model("Data2VecVisionForImageClassification", {**IMAGE, "use_shared_relative_position_bias": True}),
    Model("SwinForImageClassification", {**SWIN, **LABELS}),
    Model("ViTMSNForImageClassification", IMAGE),
    Model("IJepaForImageClassification", IMAGE),
    Model("ViTMAEForPreTraining", MAE, "last_hidden_state", "vit"),
    Model("Dinov2ForImageClassification", {**DINO, **LABELS}),
    Model("Dinov2Model", {**DINO, **GATED}, "pooler_output"),
    Model("Dinov2WithRegistersForImageClassification", {**DINO, **LABELS}),
    Model("Dinov2WithRegistersModel", {**DINO, **GATED}, "pooler_output"),
    Model("DINOv3ViTModel", {**DINO, "num_register_tokens": 4, "intermediate_size": 96}, "pooler_output"),
    Model("Tipsv2VisionModel", DINO, "pooler_output"),
    Model("Tipsv2VisionModel", {**DINO, **GATED}, "pooler_output"),
    Model("Tipsv2Model", {"vision_config": DINO, "text_config": TEXT}, "pooler_output", "get_image_features"),
    Model("CLIPForImageClassification", {**PAIR, **LABELS}),
    Model("CLIPModel", PAIR, "pooler_output", "get_image_features"),
    Model("CLIPVisionModelWithProjection", {**TOWER, "projection_dim": 48}, "image_embeds"),
    Model("AltCLIPModel", {**PAIR, "text_config": {**TEXT, "project_dim": 48}}, "pooler_output", "get_image_features"),
    Model("AltCLIPVisionModel", TOWER, "pooler_output"),
    Model("ChineseCLIPModel", PAIR, "pooler_output", "get_image_features"),
    Model("ChineseCLIPVisionModel", TOWER, "pooler_output"),
    Model("MetaClip2Model", PAIR, "pooler_output", "get_image_features"),
    Model("MetaClip2VisionModelWithProjection", {**TOWER, "projection_dim": 48}, "image_embeds"),
    Model("SiglipForImageClassification", {**PAIR, **LABELS}),
    Model("SiglipModel", PAIR, "pooler_output", "get_image_features"),
    Model("SiglipVisionModel", TOWER, "pooler_output"),
    Model("Siglip2ForImageClassification", {"vision_config": NAFLEX, "text_config": TEXT, **LABELS}),
    Model("Siglip2VisionModel", NAFLEX, "pooler_output"),
    Model("Aimv2VisionModel", AIM, "pooler_output"),
    Model("SamVisionModel", SAM, "last_hidden_state"),
    Model("SamHQVisionModel", SAM, "last_hidden_state"),
    Model("TimmWrapperForImageClassification", {"architecture": "vit_tiny_patch16_224", "model_args": {"depth": 2}}),
)


def run(options):
    """Yield the table of all models."""
    if missing := [name for name in NEEDED if not is_installed(name)]:
        raise SystemExit(f"transformers_files needs {', '.join(NEEDED)}; missing: {', '.join(missing)}")
    import transformers

    yield table([model for model in MODELS if hasattr(transformers, model.name)])


def table(chosen):
    """Return the table of some of the `MODELS`."""
    import transformers

    rows = [[model.name, *compared(model)] for model in chosen]
    note = NOTE.format(version=transformers.__version__)
    return Table("Files of transformers", note, ("class", "model type", "largest difference"), rows)


def compared(model):
    """Return the model type of a `Model`, and the difference between the outputs, or the refusal of `load`."""
    import keras_vit

    with tempfile.TemporaryDirectory() as folder:
        theirs = save(model, folder)
        try:
            ours = keras_vit.load(folder, **model.load)
        except ValueError as error:
            return [theirs.config.model_type, f"refused: {str(error).replace(folder, 'FOLDER')}"]
    return [theirs.config.model_type, difference(ours, theirs, model)]


def save(model, folder):
    """Save a model of transformers with random weights; return it."""
    import torch
    import transformers

    model_class = getattr(transformers, model.name)
    theirs = model_class(model_class.config_class(**model.arguments)).eval()
    generator = torch.Generator().manual_seed(0)
    for name, values in theirs.named_parameters():
        is_scale = values.ndim == 1 and name.endswith(("weight", "lambda1", "lambda_1", "lambda_2"))
        values.data = torch.randn(values.shape, generator=generator) * 0.1 + is_scale
    theirs.save_pretrained(folder)
    return theirs


def difference(ours, theirs, model):
    """Return the largest difference of the outputs, relative to the largest output of transformers."""
    import torch

    generator = np.random.default_rng(1)
    if model.is_packed:
        found, given = _packed(ours, generator)
    else:
        images = generator.normal(size=(2, *ours.input_shape[1:])).astype("float32")
        found, given = ours(images), {"pixel_values": torch.from_numpy(images.transpose(0, 3, 1, 2).copy())}
    if model.method == "vit":  # of MAE: with noise in order, and nothing masked
        theirs.config.mask_ratio, count = 0.0, theirs.vit.embeddings.patch_embeddings.num_patches
        given["noise"] = torch.arange(count, dtype=torch.float32).expand(2, count)
    with torch.no_grad():
        outputs = getattr(theirs, model.method)(**given)
    expected = outputs if torch.is_tensor(outputs) else getattr(outputs, model.output)
    expected, found = expected.numpy(), np.asarray(found)
    if model.output == "last_hidden_state" and expected.ndim == 3:
        expected = expected[:, 0]
    if expected.ndim == 4:
        expected = expected.transpose(0, 2, 3, 1)
    if found.shape != expected.shape:
        return f"shapes {found.shape} and {expected.shape}"
    return f"{np.abs(found - expected).max() / np.abs(expected).max():.1e}"


def _packed(ours, generator):
    """Return the output of ours for images of 32 x 32 pixels, and the inputs of SigLIP 2 for them: rows of patches."""
    import torch

    side = ours.config.patch_size[0]
    images = generator.normal(size=(2, 4 * side, 4 * side, 3)).astype("float32")
    patches = images.reshape(2, 4, side, 4, side, 3).transpose(0, 1, 3, 2, 4, 5).reshape(2, 16, -1)
    given = {"pixel_values": torch.from_numpy(patches.copy()), "spatial_shapes": torch.tensor([[4, 4]] * 2)}
    return ours(images), given | {"pixel_attention_mask": torch.ones((2, 16), dtype=torch.long)}
