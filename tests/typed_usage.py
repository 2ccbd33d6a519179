"""Calls as users write them, for mypy alone (test_types.py): what each gives, and what each must refuse.

`type: ignore[code]` stands where mypy must report just that; an ignore that is not needed fails.
"""

import pathlib
from typing import Any, assert_type

import numpy as np

import keras_vit
from keras_vit import analysis


def constructors() -> None:
    vit = keras_vit.ViT_B16(weights="ViT-B_16.npz", image_size=(160, 224), classes=10, labels=["a", "b"])
    assert_type(vit, keras_vit.VisionTransformer)
    assert_type(vit.config, keras_vit.ViTConfig)
    assert_type(vit.config.gelu, str | None)
    assert_type(vit.preprocessing, keras_vit.Preprocessing)
    assert_type(vit.labels, tuple[str, ...] | None)
    assert_type(keras_vit.R50_ViT_L32(weights=pathlib.Path("folder")), keras_vit.VisionTransformer)
    assert_type(keras_vit.AxialViT_B16(pooling="map"), keras_vit.VisionTransformer)
    assert_type(keras_vit.Swin_T(include_preprocessing=True), keras_vit.SwinTransformer)
    assert_type(keras_vit.Swin_T(patch_size=4).config, keras_vit.SwinConfig)
    assert_type(keras_vit.BiT_R50x1().config, keras_vit.BiTConfig)
    assert_type(keras_vit.AxialResNet_50().config, keras_vit.AxialResNetConfig)
    keras_vit.ViT_X99()  # type: ignore[attr-defined]
    keras_vit.ViT_B16("ViT-B_16.npz")  # type: ignore[call-arg]
    keras_vit.ViT_B16(patch_size=16)  # type: ignore[call-arg]
    keras_vit.ViT_B16(image_size="224")  # type: ignore[arg-type]
    keras_vit.Swin_T(token_merging=8)  # type: ignore[call-arg]
    keras_vit.BiT_R50x1(labels=3)  # type: ignore[arg-type]


def zoo() -> None:
    model = keras_vit.create_model("ViT-B_16", classes=10, gelu="erf")
    assert_type(model.config.image_size, tuple[int, int] | Any)
    assert_type(keras_vit.list_models("ViT-*"), list[str])
    assert_type(keras_vit.load_weights(model, "file.npz").resized, tuple[str, ...])
    keras_vit.save_weights(model, pathlib.Path("file.safetensors"), layout="timm")
    keras_vit.create_model("ViT-B_16", "file.npz")  # type: ignore[call-arg]
    keras_vit.load_weights(model, 3)  # type: ignore[arg-type]


def copies() -> None:
    swin = keras_vit.Swin_T()
    assert_type(keras_vit.clone(swin), keras_vit.SwinTransformer)
    assert_type(keras_vit.resize(swin, (448, 224), method="bicubic"), keras_vit.SwinTransformer)
    assert_type(keras_vit.freeze(swin, up_to="stage_2"), list[str])
    keras_vit.resize(swin, "large")  # type: ignore[arg-type]
    swin.preprocessing = None  # the official one
    assert_type(swin.preprocessing, keras_vit.Preprocessing)
    swin.labels = 10  # type: ignore[assignment]


def configs() -> None:
    config = keras_vit.ViTConfig(
        name="ViT", image_size=32, patch_size=4, hidden_dim=64, num_layers=2, num_heads=4, mlp_dim=128
    )
    assert_type(config.replace(num_layers=3), keras_vit.ViTConfig)
    assert_type(keras_vit.ViTConfig.from_dict(config.to_dict()), keras_vit.ViTConfig)
    assert_type(config.grid_size, tuple[int, int] | Any)
    config.num_layers = 3  # type: ignore[misc]
    keras_vit.SwinConfig(name="Swin", image_size=32, embed_dim=96)  # type: ignore[call-arg]
    keras_vit.VisionTransformer(keras_vit.BiTConfig(name="BiT", image_size=32, stage_sizes=(1,), width_factor=1))  # type: ignore[arg-type]


def layers() -> None:
    assert_type(keras_vit.MlpBlock(128, gelu="erf", name="mlp"), keras_vit.MlpBlock)
    keras_vit.MlpBlock("wide")  # type: ignore[arg-type]
    keras_vit.TransformerBlock(num_heads=3)  # type: ignore[call-arg]


def predictions() -> None:
    model = keras_vit.ViT_Ti16()
    images = keras_vit.preprocess(["cat.jpg", pathlib.Path("dog.jpg"), b"bytes"], model.preprocessing)
    assert_type(images, np.ndarray)
    for label, score in keras_vit.predict(model, "cat.jpg", top=3)[0]:
        assert_type((label, score), tuple[str, float])
    found = keras_vit.evaluate(model, "images", top=(1, 5))
    assert_type(found.top, dict[int, float])
    assert_type(found.report(), str)
    keras_vit.preprocess(3.5, model.preprocessing)  # type: ignore[arg-type]
    keras_vit.preprocess("cat.jpg", "bicubic")  # type: ignore[arg-type]
    keras_vit.evaluate(model, "images", topp=5)  # type: ignore[call-overload]


def training() -> None:
    rest, held_out = keras_vit.data.from_directory("images").split(0.5)
    recipe = keras_vit.training.RECIPES["vit/finetune/cifar10"].replace(steps=2)
    assert_type(recipe, keras_vit.training.Recipe)
    with keras_vit.distribution("mirrored") as devices:
        result = keras_vit.train(recipe, rest, "run", model="ViT-Ti_16", validation=held_out, strategy=devices)
    assert_type(result.history, dict[str, list[float]])
    assert_type(result.accuracy, float | None)
    assert_type(recipe.compile(keras_vit.ViT_Ti16(), steps=10), keras_vit.VisionTransformer)
    keras_vit.train(recipe, rest)  # type: ignore[call-arg]
    keras_vit.train(recipe, rest, "run", checkpoint_every="often")  # type: ignore[arg-type]


def inside() -> None:
    model = keras_vit.ViT_Ti16()
    images = np.zeros((1, 224, 224, 3), "float32")
    assert_type(analysis.attention_weights(model, images, layers=["block_03", -1]), list[np.ndarray])
    assert_type(analysis.filter_components(model).explained, np.ndarray)
    assert_type(keras_vit.explain(model, "cat.jpg", layer="block_05").answers, list[tuple[str, float]])
    keras_vit.explain(model, "cat.jpg").save(5)  # type: ignore[arg-type]
    analysis.plots.attention_distance(analysis.mean_attention_distance(model, images)).savefig("distance.png")
    analysis.plots.attention_map(images)  # type: ignore[attr-defined]
    analysis.attention_maps(model)  # type: ignore[attr-defined]


def serving() -> None:
    folder = keras_vit.export(keras_vit.ViT_Ti16(), "serving", format="onnx", check=["cat.jpg"])
    assert_type(folder, pathlib.Path)
    keras_vit.export(keras_vit.ViT_Ti16(), "serving", "onnx", 1, None)  # type: ignore[call-arg]
