"""A folder with the files that the examples of the documentation and of `keras-vit --help` speak of."""

import json
import pathlib
import shutil

import keras
import numpy as np
from clip_vocabulary import END, PAD, write_vocabulary
from PIL import Image

import keras_vit
from keras_vit.checkpoints.releases import find_release
from keras_vit.serving import web

TESTS = pathlib.Path(__file__).parent
# repository on the hub -> the golden case of a task model that stands for it, and the JSON of its image processor
HUB = {
    "depth-anything/Depth-Anything-V2-Small-hf": (
        "depth_anything_relative",
        {"image_processor_type": "DPTImageProcessor", "keep_aspect_ratio": True, "ensure_multiple_of": 14},
        {"height": 56, "width": 56},
    ),
    "hustvl/yolos-tiny": (
        "yolos_mid",
        {"image_processor_type": "YolosImageProcessor"},
        {"shortest_edge": 48, "longest_edge": 64},
    ),
    "google/owlv2-base-patch16-ensemble": (
        "owlv2",
        {"image_processor_type": "Owlv2ImageProcessor"},
        {"height": 32, "width": 32},
    ),
    "facebook/sam-vit-base": (
        "sam_prompts",
        {"image_processor_type": "SamImageProcessor", "pad_size": {"height": 40, "width": 40}},
        {"longest_edge": 40},
    ),
    "usyd-community/vitpose-base-simple": (
        "vitpose_simple",
        {"image_processor_type": "VitPoseImageProcessor"},
        {"height": 48, "width": 32},
    ),
    "tue-mps/coco_panoptic_eomt_large_640": (
        "eomt_dinov2",
        {"image_processor_type": "EomtImageProcessor", "do_pad": True},
        {"shortest_edge": 32, "longest_edge": 32},
    ),
    "Intel/dpt-large-ade": (
        "dpt_segmentation",
        {"image_processor_type": "DPTImageProcessor", "ensure_multiple_of": 32},
        {"height": 32, "width": 32},
    ),
    "CIDAS/clipseg-rd64-refined": (
        "clipseg_text",
        {"image_processor_type": "ViTImageProcessor"},
        {"height": 24, "width": 24},
    ),
}
CLASSES = ("n02123394_Persian_cat", "n02124075_Egyptian_cat")


def make(folder):
    """Fills `folder` with `cat.jpg`, class folders in `images`, `drawings.npz`, `ViT-Ti_16.npz` and `model.keras`.

    `person.jpg` is the same image as `cat.jpg`.

    `street` has images with label maps, depths and COCO's files of objects and persons.

    `drawn` has the images and label maps of `street`, and `linear` and `eomt` a model of such classes.

    `scenes.npz` has images with masks of four classes.

    `clip` is a small CLIP with its text tower and tokenizer.

    `hub` has a folder for each repository of task models, `HUB`, with a small model of the same kind.

    `keras` is a cache of Keras (`KERAS_HOME`) in which `weights="imagenet"` of a ViT-Ti/16 is that file. It has files
    that stand for onnxruntime-web.
    `val` has three images that are called as ImageNet's first, and `real.json` right answers for two of them.
    """
    rng = np.random.default_rng(0)
    _draw(rng).save(folder / "cat.jpg")
    shutil.copy(folder / "cat.jpg", folder / "person.jpg")
    for name in CLASSES:
        (folder / "images" / name).mkdir(parents=True)
        for index in range(2):
            _draw(rng).save(folder / "images" / name / f"{index}.jpg")
    np.savez(folder / "drawings.npz", **_arrays("train", 20), **_arrays("test", 8))
    masks = rng.integers(0, 4, size=(8, 7, 7), dtype="int32").repeat(32, axis=1).repeat(32, axis=2)
    scenes = np.repeat((60 * masks).astype("uint8")[..., None], 3, axis=-1)
    np.savez(folder / "scenes.npz", images=scenes, masks=masks)
    _write_street(folder / "street", masks)
    _write_heads(folder)
    official = _with_head(keras_vit.ViT_Ti16(), rng)
    keras_vit.save_weights(official, folder / "ViT-Ti_16.npz")
    release = find_release("ViT-Ti_16", "imagenet", 224)
    cached = folder / "keras" / "models" / "keras_vit" / release.directory / f"{release.file}.npz"
    cached.parent.mkdir(parents=True)
    cached.symlink_to(folder / "ViT-Ti_16.npz")
    runtime = folder / "keras" / "models" / "keras_vit" / pathlib.Path(web.ARCHIVE).stem
    runtime.mkdir()
    for name in web.RUNTIME:
        (runtime / name).write_text(name)
    _with_head(small_model(), rng).save(folder / "model.keras")
    keras.utils.clear_session()
    shutil.copytree(TESTS / "golden" / "zeroshot_clip_hf", folder / "clip")
    (folder / "val" / CLASSES[0]).mkdir(parents=True)
    for number in range(1, 4):
        _draw(rng).save(folder / "val" / CLASSES[0] / f"ILSVRC2012_val_{number:08d}.JPEG")
    (folder / "real.json").write_text(json.dumps([[283], [283, 285], *([] for _ in range(49_998))]))
    make_hub(folder / "hub")


def _write_street(folder, masks):
    """Writes four images of 64 x 64 pixels and all kinds of answers."""
    for name in ("images", "label_maps", "depths"):
        (folder / name).mkdir(parents=True)
    entries, objects = [], []
    for number, mask in enumerate(masks[:4, :64, :64].astype("uint8")):
        Image.fromarray(np.repeat(60 * mask[..., None], 3, axis=-1)).save(folder / "images" / f"{number}.jpg")
        Image.fromarray(mask).save(folder / "label_maps" / f"{number}.png")
        Image.fromarray(mask.astype("uint16") * 256).save(folder / "depths" / f"{number}.png")
        entries.append({"id": number, "file_name": f"{number}.jpg", "height": 64, "width": 64})
        shape = {"bbox": [8, 8, 32, 40], "segmentation": [[8, 8, 40, 8, 40, 48, 8, 48]], "area": 1280, "iscrowd": 0}
        points = {"keypoints": [20, 12, 2, 16, 10, 2, 24, 10, 1], "num_keypoints": 3}
        objects.append({"id": number, "image_id": number, "category_id": 1, **shape, **points})
    (folder / "classes.txt").write_text("road\nhouse\ntree\nsky\n")
    person = {"id": 1, "name": "person", "keypoints": ["nose", "left_eye", "right_eye"]}
    content = {"images": entries, "annotations": objects, "categories": [person]}
    (folder / "instances.json").write_text(json.dumps(content))
    (folder / "keypoints.json").write_text(json.dumps(content))


def _write_heads(folder):
    """Writes what the guide on heads makes in its first steps."""
    (folder / "drawn").mkdir()
    for name, answers in (("images", "images"), ("masks", "label_maps")):
        shutil.copytree(folder / "street" / answers, folder / "drawn" / name)
    encoder = small_model(image_size=32)
    heads = keras_vit.LinearSegmentation(encoder, 4), keras_vit.EoMT(encoder, 4, num_queries=3, num_blocks=1)
    for name, model in zip(("linear", "eomt"), heads, strict=True):
        (folder / name).mkdir()
        model.save(folder / name / "model.keras")


def make_hub(folder):
    """Fills `folder` with a folder for each repository of `HUB`."""
    for name, (case, processor, size) in HUB.items():
        _write_repository(folder / name, case, {**processor, "size": size})


def _write_repository(folder, case, processor):
    """Copies the files of a golden case, and writes its processor, names of classes and a vocabulary for texts."""
    shutil.copytree(TESTS / "golden_tasks" / case, folder, ignore=shutil.ignore_patterns("case.json", "io.npz"))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    config = json.loads((folder / "config.json").read_text())
    if "text_config" in config:
        write_vocabulary(folder, **PAD)
        config["text_config"]["eos_token_id"] = END
    if "id2label" in config:
        names = ["person", *(f"class {n}" for n in range(1, len(config["id2label"])))]
        config |= {"id2label": dict(enumerate(names)), "label2id": {name: n for n, name in enumerate(names)}}
    (folder / "config.json").write_text(json.dumps(config))


def small_model(**arguments):
    """A model of 16 x 16 pixels and three classes."""
    values = {
        "name": "small",
        "image_size": 16,
        "patch_size": 8,
        "hidden_dim": 16,
        "num_layers": 1,
        "num_heads": 2,
        "mlp_dim": 16,
        "classes": 3,
    }
    config = keras_vit.ViTConfig(**{**values, **arguments})
    return keras_vit.VisionTransformer(config, labels=("cat", "dog", "fox"))


def _draw(rng):
    """An image of soft colours, wider than high."""
    small = rng.integers(0, 256, size=(6, 8, 3), dtype="uint8")
    return Image.fromarray(small).resize((320, 240), Image.Resampling.BICUBIC)


def _arrays(part, count):
    """Dark and light images of 16 x 16 pixels, by turns."""
    labels = np.arange(count) % 2
    levels = np.random.default_rng(count).integers(0, 100, size=(count, 16, 16, 3)) + 150 * labels[:, None, None, None]
    return {f"x_{part}": levels.astype("uint8"), f"y_{part}": labels}


def _with_head(model, rng):
    """A fresh head is all zeros, and `predict` warns of it."""
    head = model.get_layer("head")
    head.set_weights([rng.normal(size=weight.shape).astype("float32") for weight in head.weights])
    return model
