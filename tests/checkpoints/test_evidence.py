"""What timm's config.json says of a file: preprocessing and labels. Hugging Face's is in test_load_huggingface.py."""

import json

import pytest
from faults import for_each

import keras_vit
from keras_vit.checkpoints.evidence import read_evidence
from keras_vit.checkpoints.readers import open_checkpoint

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
AT_248 = keras_vit.Preprocessing(size=248, crop=224, interpolation="bicubic", rounding="torchvision", **IMAGENET)


@pytest.fixture
def timm_folder(make_kind, save_foreign, tmp_path):
    """Function of the values of config.json that writes a repository as timm does."""

    def write(values, kind="vit"):
        save_foreign(make_kind(kind, seed=1), tmp_path / "model.safetensors", "timm")
        (tmp_path / "config.json").write_text(json.dumps(values))
        return tmp_path

    return write


def preprocessing_of(folder):
    return read_evidence(open_checkpoint(folder)).preprocessing


# config.json of timm/swin_tiny_patch4_window7_224.ms_in1k and of others, shortened
PRETRAINED_CFG = {
    "tag": "ms_in1k",
    "input_size": [3, 224, 224],
    "fixed_input_size": True,
    "interpolation": "bicubic",
    "crop_pct": 0.9,
    "crop_mode": "center",
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "num_classes": 1000,
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"size": 248, "crop": 224, "interpolation": "bicubic", **IMAGENET}),  # 224 / 0.9 = 248.9
        ({"interpolation": "bilinear"}, {"size": 248, "crop": 224, "interpolation": "bilinear_antialias", **IMAGENET}),
        (
            {"input_size": [3, 384, 384], "crop_pct": 1.0},
            {"size": 384, "crop": 384, "interpolation": "bicubic", **IMAGENET},
        ),
        (
            {"input_size": [3, 384, 384], "crop_pct": 1.0, "crop_mode": "squash"},
            {"size": (384, 384), "crop": 384, "interpolation": "bicubic", **IMAGENET},
        ),
        (
            {"input_size": [3, 224, 224], "crop_pct": 0.875, "mean": [0.5] * 3, "std": [0.5] * 3},
            {"size": 256, "crop": 224, "interpolation": "bicubic"},
        ),
        (
            {"input_size": [3, 96, 128], "crop_pct": 0.5},
            {"size": 256, "crop": (96, 128), "interpolation": "bicubic", **IMAGENET},
        ),
    ],
)
def test_pretrained_cfg(timm_folder, changes, expected):
    values = {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {**PRETRAINED_CFG, **changes}}
    assert preprocessing_of(timm_folder(values)) == keras_vit.Preprocessing(**expected, rounding="torchvision")


def test_a_config_without_pretrained_cfg(timm_folder):
    assert preprocessing_of(timm_folder(PRETRAINED_CFG)) == AT_248  # timm before 0.9
    assert preprocessing_of(timm_folder({"architecture": "vit_tiny_patch16_224"})) is None
    assert preprocessing_of(timm_folder({"pretrained_cfg": {"tag": "augreg"}})) is None
    defaults = AT_248.replace(size=256, interpolation="bilinear_antialias")
    assert preprocessing_of(timm_folder({"pretrained_cfg": {"input_size": [3, 224, 224]}})) == defaults


@for_each(
    ("changes", "message"),
    [
        ({"interpolation": "lanczos"}, r"interpolation in pretrained_cfg .* \['nearest', .*\]; got 'lanczos'"),
        ({"crop_mode": "border"}, r"crop_mode in pretrained_cfg .* \['center', 'squash'\]; got 'border'"),
        ({"input_size": 224}, r"config\.json': input_size in pretrained_cfg must be a sequence of integers"),
        ({"crop_pct": "0.9"}, "crop_pct in pretrained_cfg must be a finite number above 0"),
        ({"crop_pct": 0}, r"config\.json': crop_pct in pretrained_cfg must be .* above 0; got .*=0$"),
        ({"mean": 0.5}, "its structure is invalid: TypeError"),
    ],
)
def test_a_pretrained_cfg_that_is_wrong(timm_folder, changes, message):
    with pytest.raises(ValueError, match=message):
        preprocessing_of(timm_folder({"pretrained_cfg": {**PRETRAINED_CFG, **changes}}))


@pytest.mark.parametrize("kind", ["vit", "distilled", "swin"])
def test_create_model_takes_what_timm_says(timm_folder, in_zoo, kind):
    values = {"label_names": ["ant", "bee", "cat"], "num_classes": 3, "pretrained_cfg": PRETRAINED_CFG}
    model = in_zoo(kind)(timm_folder(values, kind))
    side = model.config.image_size[0]
    assert (model.labels, model.preprocessing) == (("ant", "bee", "cat"), AT_248.at(side))
    assert model.config.gelu == "erf"


def test_a_checkpoint_tells_its_family(make_kind, tmp_path):
    for kind, layout in (("vit", "official"), ("bit", "official"), ("swin", "timm"), ("distilled", "timm")):
        path = tmp_path / ("a.npz" if layout == "official" else "a.safetensors")
        keras_vit.save_weights(make_kind(kind), path, layout)
        description = read_evidence(open_checkpoint(path))
        assert (description.library, description.classes) == (layout, 3)
    make_kind("swin").save(tmp_path / "a.keras")
    assert read_evidence(open_checkpoint(tmp_path / "a.keras")).library == "keras"
