"""Preprocessing: its sizes, what it refuses, and its way through dicts and JSON."""

import json

import numpy as np
import pytest
from faults import for_each

from keras_vit import Preprocessing
from keras_vit.variants import VARIANTS

PAIR = "must be one positive integer or a pair (height, width) of them"
SQUARE = {"size": (224, 224)}
SHORTER_SIDE = {"size": 248, "crop": (224, 224), "interpolation": "bicubic"}
EXACT_THEN_CROP = {"size": (256, 320), "crop": (224, 280), "interpolation": "area"}


@for_each(
    ("values", "image_size", "size", "crop"),
    [
        (SQUARE, 384, (384, 384), None),
        (SQUARE, (160, 224), (160, 224), None),
        (SHORTER_SIDE, 224, 248, (224, 224)),
        (SHORTER_SIDE, 384, 425, (384, 384)),  # 248 * 384 / 224 = 425.14
        (SHORTER_SIDE, (160, 224), 248, (160, 224)),
        (SHORTER_SIDE, 112, 124, (112, 112)),
        (EXACT_THEN_CROP, (112, 140), (128, 160), (112, 140)),
        (EXACT_THEN_CROP, 448, (512, 512), (448, 448)),
    ],
)
def test_preprocessing_at_another_size(values, image_size, size, crop):
    old = Preprocessing(**values, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    new = old.at(image_size)
    assert (new.size, new.crop) == (size, crop)
    assert new.image_size == (image_size if isinstance(image_size, tuple) else (image_size, image_size))
    assert (new.interpolation, new.mean, new.std) == (old.interpolation, old.mean, old.std)
    assert old.at(old.image_size) == old


def test_default_preprocessing_is_the_official_one():
    assert Preprocessing().to_dict() == {
        "size": [224, 224],
        "crop": None,
        "pad": False,
        "interpolation": "bilinear",
        "rounding": "big_vision",
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
        "patch_size": None,
        "max_tokens": None,
        "sizing": None,
        "longest": None,
        "multiple": 1,
        "in_model": False,
    }


def test_native_preprocessing_keeps_the_normalisation():
    old = Preprocessing(size=256, crop=224, interpolation="bicubic", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    native = old.native((8, 16), 100)
    assert (native.patch_size, native.max_tokens, native.crop) == ((8, 16), 100, None)
    assert (native.interpolation, native.mean, native.std) == (old.interpolation, old.mean, old.std)
    assert native.at(96).max_tokens is None and native.at(96).image_size == (96, 96)


@for_each("values", [{"patch_size": 16}, {"max_tokens": 9}, {"in_model": True}, {"crop": 8}, {"pad": True}])
def test_incomplete_native_preprocessing_is_refused(values):
    complete = {} if set(values) <= {"patch_size", "max_tokens"} else {"patch_size": 4, "max_tokens": 9}
    with pytest.raises(ValueError, match="patch_size and max_tokens must be given together, without crop, pad and"):
        Preprocessing(**complete, **values)


@for_each("values", [SQUARE, SHORTER_SIDE, EXACT_THEN_CROP, {"mean": (0.5,), "std": (0.25,)}, {"pad": True}])
def test_preprocessing_round_trip_through_dict_and_json(values):
    preprocessing = Preprocessing(**values)
    assert Preprocessing.from_dict(preprocessing.to_dict()) == preprocessing
    assert Preprocessing.from_dict(json.loads(json.dumps(preprocessing.to_dict()))) == preprocessing


def test_rounding_is_that_of_the_authors_and_of_old_files():
    of_timm = Preprocessing(size=248, crop=224, interpolation="bicubic", rounding="torchvision")
    assert of_timm.at(384).rounding == Preprocessing.from_dict(of_timm.to_dict()).rounding == "torchvision"
    old = {name: value for name, value in of_timm.to_dict().items() if name != "rounding"}
    assert Preprocessing.from_dict(old).rounding == "big_vision"  # which was the only one when it was written
    # The authors of FlexiViT and of the models of the paper use big_vision or vit_jax.
    known = {name: row.preprocessing for name, row in VARIANTS.items() if row.preprocessing}
    cropped = {name: images for name, images in known.items() if images.crop}
    assert {images.rounding for name, images in cropped.items() if "Flexi" not in name} == {"torchvision"}
    assert {images.rounding for name, images in cropped.items() if "Flexi" in name} == {"big_vision"}


@for_each(
    ("values", "channels", "image_size"),
    [
        ({"size": 96}, 3, (96, 96)),
        ({"size": 96, "crop": 64}, 3, (64, 64)),
        ({"size": (96, 128), "mean": 0.5, "std": 0.5}, 1, (96, 128)),
        ({"size": [96, 128], "mean": [0.5], "std": [0.5]}, 1, (96, 128)),
    ],
)
def test_preprocessing_knows_what_comes_out(values, channels, image_size):
    preprocessing = Preprocessing(**values)
    assert (preprocessing.channels, preprocessing.image_size) == (channels, image_size)


# values, pieces of the message
WRONG_PREPROCESSING = [
    ({"size": 0}, ["size", PAIR, "size=0"]),
    ({"size": (224, 0)}, ["size", PAIR, "size=(224, 0)"]),
    ({"size": None}, ["size", PAIR, "size=None"]),
    ({"crop": 0}, ["crop", PAIR, "crop=0"]),
    ({"size": 224, "crop": 224, "pad": True}, ["pad=True keeps the whole image", "crop=(224, 224)"]),
    ({"pad": 1}, ["pad must be True or False", "pad=1"]),
    ({"size": 224, "crop": 256}, ["crop must not exceed size", "crop=(256, 256)", "size=224"]),
    (
        {"size": (256, 224), "crop": (240, 240)},
        ["crop must not exceed size", "crop=(240, 240)", "size=(256, 224)"],
    ),
    (
        {"interpolation": "cubic"},
        ["interpolation must be one of 'bilinear'", "'bicubic'", "interpolation='cubic'"],
    ),
    ({"rounding": "round"}, ["rounding must be one of 'big_vision', 'torchvision'", "rounding='round'"]),
    ({"mean": (0.5, 0.5)}, ["mean and std must have one number per channel", "mean=(0.5, 0.5)"]),
    (
        {"mean": (0.5,)},
        ["mean and std must have one number per channel", "mean=(0.5,)", "std=(0.5, 0.5, 0.5)"],
    ),
    ({"mean": (), "std": ()}, ["one number per channel", "mean=()"]),
    ({"mean": "half"}, ["mean[0] must be a finite number", "half"]),
    ({"mean": ()}, ["mean and std must have one number per channel", "mean=()"]),
    ({"std": (0.5, None, 0.5)}, ["std[1] must be a finite number", "None"]),
    ({"std": (0.5, True, 0.5)}, ["std[1] must be a finite number", "True"]),
    ({"std": (0.5, 0.0, 0.5)}, ["std must be above 0", "std=(0.5, 0.0, 0.5)"]),
    ({"std": (0.5, -1, 0.5)}, ["std must be above 0", "std=(0.5, -1.0, 0.5)"]),
    ({"mean": (0.5, float("nan"), 0.5)}, ["mean[1] must be a finite number", "nan"]),
    ({"std": (0.5, float("inf"), 0.5)}, ["std[1] must be a finite number", "inf"]),
]


@for_each(("values", "pieces"), WRONG_PREPROCESSING)
def test_wrong_preprocessing_is_refused(values, pieces):
    with pytest.raises(ValueError) as caught:
        Preprocessing(**values)
    for piece in pieces:
        assert piece in str(caught.value)


def test_unknown_preprocessing_key_is_refused_with_a_suggestion():
    with pytest.raises(ValueError, match="Preprocessing keys must be among .* got 'croop' .did you mean 'crop'"):
        Preprocessing.from_dict({"croop": 224})


@for_each("image_size", [0, (224, 0), None])
def test_preprocessing_at_a_wrong_size_is_refused(image_size):
    with pytest.raises(ValueError, match="image_size must be one positive integer or a pair"):
        Preprocessing().at(image_size)


def test_to_images_undoes_mean_and_std():
    preprocessing = Preprocessing(size=4, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    images = np.random.default_rng(0).uniform(size=(2, 4, 4, 3))
    inputs = (images - preprocessing.mean) / preprocessing.std
    np.testing.assert_allclose(preprocessing.to_images(inputs.astype("float32")), images, atol=1e-6)
    assert preprocessing.to_images(np.full((1, 1, 3), 9.0)).max() == 1.0  # bicubic resizing overshoots
    with pytest.raises(ValueError, match=r"inputs must have 3 channels in the last axis; got shape \(4, 4, 1\)"):
        preprocessing.to_images(np.zeros((4, 4, 1)))
