"""The smallest variant of every family of the zoo, as it is, to SavedModel and ONNX, compared in fresh processes."""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit.serving import export

VARIANTS = {
    "pixels": ("ViT-Ti_16", {"image_size": 32, "classes": 9, "include_preprocessing": True}),
    "plain": ("ViT-Ti_16", {}),
    "gap": ("ViT-Ti_16", {"pooling": "gap"}),
    "map": ("ViT-Ti_16", {"pooling": "map"}),
    "hybrid": ("R+ViT-Ti_16", {}),
    "axial": ("AxialViT-B_32", {}),
    "DeiT distilled": ("DeiT-Ti_16", {"distilled": True}),
    "Swin": ("Swin-T", {}),
    "BiT": ("BiT-R50x1", {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", VARIANTS)
def test_they_agree(family, tmp_path):
    name, arguments = VARIANTS[family]
    model = keras_vit.create_model(name, **arguments)
    rng = np.random.default_rng(0)
    for layer in model.layers:
        if layer.name in ("head", "head_dist"):  # a fresh head is all zeros
            layer.kernel.assign(rng.normal(size=layer.kernel.shape) / 8)
    for options in ({}, {"format": "onnx"}):
        folder = export(model, tmp_path, **options)
        check = json.loads((folder / "model_card.json").read_text())["check"]
        print(family, options, check)
        assert max(check["largest_differences"].values()) < 1e-4 and check["same_top1"] == check["images"] == 8
