"""The table of published files: complete, and found by alias, by size and by name."""

import collections
import dataclasses
import inspect

import pytest
from faults import for_each

import keras_vit
from keras_vit import zoo
from keras_vit.checkpoints import releases

DISTILLED, WINDOW = {"distilled": True}, {"window_size": 12}
B16 = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"


def test_files_by_alias():
    counts = collections.Counter(release.alias for release in releases.list_releases())
    assert counts == {
        "imagenet21k": 9 + 6 + 3,  # ViT, BiT and FlexiViT
        "imagenet21k+imagenet2012": 8 + 6,
        "sam": 5,
        "augreg": 10,
        "augreg+imagenet2012": 10 + 9,  # at 384 and at 224
        "imagenet2012": 4 + 2 + 6 + 12,  # DeiT, Swin, BiT and FlexiViT
        "imagenet2012-distilled": 4,
        "imagenet22k": 4,  # Swin
        "imagenet22k+imagenet2012": 4,
    }


def test_paths_are_unique_and_every_release_is_complete():
    table = releases.list_releases()
    assert len({release.path for release in table}) == len(table)
    for release in table:
        assert "arXiv" in release.source
        rows, columns = release.preprocessing.image_size
        assert rows == columns == release.image_size
        if release.is_on_hub:
            assert release.path == release.address == f"hf://{release.directory}/{release.file}"
            continue
        assert release.path == f"{release.directory}/{release.file}.npz"
        assert release.address.startswith("https://storage.googleapis.com/")
        assert release.address.endswith(f"/{release.path}")
        sizes = {"BiT": (224, 480), "FlexiViT": (240,)}
        assert release.image_size in sizes.get(release.model.partition("-")[0], (224, 384))
        assert (release.classes, release.data_set) in ((21843, "imagenet21k"), (1000, "imagenet2012"))
        assert release.preprocessing.mean == release.preprocessing.std == (0.5, 0.5, 0.5)
        of_flexivit = release.directory == "flexivit"
        assert release.preprocessing.crop == ((240, 240) if of_flexivit else None)
        assert release.preprocessing.interpolation == ("bicubic" if of_flexivit else "bilinear")
        assert release.arguments == {}


def test_releases_on_the_hub_have_the_protocol_of_their_authors():
    imagenet = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "interpolation": "bicubic"}
    imagenet["rounding"] = "torchvision"
    at_224 = keras_vit.Preprocessing(size=256, crop=224, **imagenet)
    for model, at_384 in (
        ("DeiT-B_16", keras_vit.Preprocessing(size=438, crop=384, **imagenet)),
        ("Swin-B", keras_vit.Preprocessing(size=384, **imagenet)),
    ):
        for release in releases.list_releases(model):
            assert release.is_on_hub
            assert release.preprocessing == {224: at_224, 384: at_384}[release.image_size]


def test_the_model_of_every_release_is_in_the_zoo():
    for release in releases.list_releases():
        row = zoo.VARIANTS[release.model]
        constructor = getattr(keras_vit, zoo.constructor_name(release.model))
        assert set(release.arguments) <= set(inspect.signature(constructor).parameters)
        row.config(image_size=release.image_size, classes=release.classes, **release.arguments)
        assert {release.path, release.alias} <= set(keras_vit.list_weights(release.model))


def test_pre_logits_are_in_the_raw_files_of_2020_only():
    for release in releases.list_releases():
        assert (release.representation_size is not None) == (release.directory == "imagenet21k")


def test_official_sizes():
    for release in releases.list_releases():
        if not release.model.startswith(("ViT", "R")) or release.directory == "augreg":
            continue
        if release.alias == "imagenet21k+imagenet2012":
            assert release.image_size == (224 if release.file.endswith("-224") else 384)
        else:
            assert release.image_size == 224


def test_labels_of_a_release():
    assert releases.find_release("ViT-B_16", "sam").labels[285] == "Egyptian cat"
    assert releases.find_release("ViT-B_16", "imagenet21k").labels is None
    assert releases.find_release("Swin-B", "imagenet22k").labels is None
    assert releases.find_release("Swin-B", "imagenet22k").classes == 21841
    assert releases.find_release("DeiT-B_16", "imagenet2012-distilled").labels[285] == "Egyptian cat"
    assert releases.find_release("ViT-B_16", f"{B16}--cifar10-steps_10k-lr_0.01-res_224").labels is None


def test_release_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        releases.list_releases()[0].alias = "other"
    assert len(set(releases.list_releases())) == len(releases.list_releases())


def test_list_releases_of_one_model():
    files = [release.path for release in releases.list_releases("R50+ViT-B_16")]
    assert files == ["imagenet21k/R50+ViT-B_16.npz", "imagenet21k+imagenet2012/R50+ViT-B_16.npz"]
    assert releases.list_releases("ViT-g_14") == ()


@for_each(
    ("image_size", "file"),
    [
        (None, "ViT-B_16"),
        (224, "ViT-B_16-224"),
        (32, "ViT-B_16-224"),
        (303, "ViT-B_16-224"),
        (304, "ViT-B_16"),
        (305, "ViT-B_16"),
        (384, "ViT-B_16"),
        (1024, "ViT-B_16"),
        ((224, 320), "ViT-B_16-224"),
        ((160, 640), "ViT-B_16"),
    ],
)
def test_alias_takes_the_nearest_published_size(image_size, file):
    assert releases.find_release("ViT-B_16", "imagenet21k+imagenet2012", image_size).file == file


def test_alias_with_one_size_takes_it_whatever_the_image_size():
    assert releases.find_release("ViT-B_32", "imagenet21k+imagenet2012", 224).image_size == 384
    assert releases.find_release("ViT-B_8", "augreg+imagenet2012", 384).image_size == 224
    assert releases.find_release("ViT-B_16", "augreg+imagenet2012", 224).image_size == 224


@for_each(
    ("model", "image_size", "alias", "side"),
    [
        ("ViT-B_16", 224, "augreg+imagenet2012", 224),
        ("ViT-B_16", 384, "augreg+imagenet2012", 384),
        ("ViT-S_16", 224, "augreg+imagenet2012", 224),
        ("ViT-L_32", 384, "imagenet21k+imagenet2012", 384),
        ("R50+ViT-B_16", 224, "imagenet21k+imagenet2012", 384),
        ("DeiT-B_16", 224, "imagenet2012-distilled", 224),
        ("Swin-T", 224, "imagenet2012", 224),
        ("Swin-B", 384, "imagenet22k+imagenet2012", 384),
        ("BiT-R50x1", 224, "imagenet2012", 224),
        ("BiT-R152x4", 480, "imagenet21k+imagenet2012", 480),
    ],
)
def test_imagenet_is_the_best_file_of_the_nearest_size(model, image_size, alias, side):
    release = releases.find_release(model, "imagenet", image_size)
    assert (release.alias, release.image_size, release.classes) == (alias, side, 1000)
    rivals = [r for r in releases.list_releases(model) if r.data_set == "imagenet2012" and r.image_size == side]
    assert release.top1 is None or release.top1 == max(rival.top1 for rival in rivals if rival.top1)


def test_imagenet_of_every_model_that_has_such_a_file():
    for model in keras_vit.list_models():
        has_one = any(release.data_set == "imagenet2012" for release in releases.list_releases(model))
        assert (keras_vit.list_weights(model)[:1] == ["imagenet"]) == has_one
        if not has_one:
            with pytest.raises(ValueError, match="'imagenet'"):
                releases.find_release(model, "imagenet")


@for_each(
    ("model", "alias", "image_size", "path", "arguments"),
    [
        ("DeiT-B_16", "imagenet2012", 224, "hf://facebook/deit-base-patch16-224", {}),
        ("DeiT-B_16", "imagenet2012", (320, 400), "hf://facebook/deit-base-patch16-384", {}),
        ("DeiT-B_16", "imagenet2012-distilled", 384, "hf://facebook/deit-base-distilled-patch16-384", DISTILLED),
        ("DeiT-S_16", "imagenet2012-distilled", 384, "hf://facebook/deit-small-distilled-patch16-224", DISTILLED),
        ("Swin-T", "imagenet2012", 224, "hf://microsoft/swin-tiny-patch4-window7-224", {}),
        ("Swin-B", "imagenet22k+imagenet2012", 224, "hf://microsoft/swin-base-patch4-window7-224", {}),
        ("Swin-B", "imagenet22k+imagenet2012", 384, "hf://microsoft/swin-base-patch4-window12-384", WINDOW),
        ("Swin-L", "imagenet22k", None, "hf://microsoft/swin-large-patch4-window12-384-in22k", WINDOW),
        ("BiT-R152x4", "imagenet21k+imagenet2012", 224, "bit_models/BiT-M-R152x4-ILSVRC2012.npz", {}),
        ("BiT-R50x1", "imagenet21k", 480, "bit_models/BiT-M-R50x1.npz", {}),
        ("BiT-R101x3", "imagenet2012", None, "bit_models/BiT-S-R101x3.npz", {}),
    ],
)
def test_aliases_of_the_other_families(model, alias, image_size, path, arguments):
    release = releases.find_release(model, alias, image_size)
    assert (release.path, release.arguments) == (path, arguments)


@for_each("prefix", ["hf://facebook/", "facebook/", ""])
def test_names_of_repositories(prefix):
    weights = f"{prefix}deit-base-patch16-384"
    assert releases.find_release("DeiT-B_16", weights, 224).image_size == 384
    with pytest.raises(ValueError, match="is a file of DeiT-B_16, not of DeiT-S_16; published for DeiT-S_16: 'hf://"):
        releases.find_release("DeiT-S_16", weights)


def test_find_address():
    address = "hf://microsoft/swin-tiny-patch4-window7-224"
    assert releases.find_address("Swin-T", address).alias == "imagenet2012"
    assert releases.find_address("Swin-T", address + "/").alias == "imagenet2012"
    assert releases.find_address("Swin-S", address) is None
    assert releases.find_address("Swin-T", "hf://org/repo") is None


@for_each(
    "weights",
    [
        "sam/ViT-B_32",
        "sam/ViT-B_32.npz",
        "imagenet21k+imagenet2012/ViT-B_32.npz",
        "B_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0",
        "augreg/B_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0.npz",
    ],
)
def test_file_names_with_and_without_directory_and_suffix(weights):
    release = releases.find_release("ViT-B_32", weights)
    assert release in releases.list_releases("ViT-B_32")
    assert release.path.removesuffix(".npz").endswith(weights.removesuffix(".npz"))


def test_unique_name_needs_no_directory():
    release = releases.find_release("ViT-L_16", "ViT-L_16-224.npz", image_size=384)
    assert release.path == "imagenet21k+imagenet2012/ViT-L_16-224.npz"


@for_each(
    ("model", "weights", "message"),
    [
        ("ViT-B_16", "imagenet22k", r"no file of ViT-B_16 .did you mean 'imagenet21k' or 'imagenet'..$"),
        ("ViT-B_16", "imagenet1k", r"no file of ViT-B_16 .did you mean 'imagenet21k' or 'imagenet'..$"),
        ("ViT-H_14", "sam", r"'sam' is no file of ViT-H_14; .* 'imagenet21k/ViT-H_14\.npz'"),
        ("ViT-B_16", "ViT-B_16", r"several published files; name one of 'imagenet21k/ViT-B_16\.npz', "),
        ("ViT-B_16", "sam/ViT-B_32", r"is a file of ViT-B_32, not of ViT-B_16; published for ViT-B_16: "),
        ("ViT-B_32", B16, r"is a file of ViT-B_16, not of ViT-B_32"),
        ("ViT-B_32", B16.replace("medium1", "dark"), r"must be MODEL-.*aug_\(none.*_dark.*; published for ViT-B_32: "),
        ("ViT-B_32", f"sam/{B16}", r"is no file of ViT-B_32"),
        ("ViT-g_14", "imagenet21k", r"nothing is published for 'ViT-g_14'; .* are ViT-B_16, ViT-B_32, "),
    ],
)
def test_what_is_not_published_is_refused_with_what_is(model, weights, message):
    with pytest.raises(ValueError, match=message):
        releases.find_release(model, weights)


def test_bad_arguments_are_refused():
    with pytest.raises(TypeError, match="weights must be a string; got weights=7"):
        releases.find_release("ViT-B_16", 7)
    with pytest.raises(ValueError, match="image_size must be .*; got image_size='big'"):
        releases.find_release("ViT-B_16", "sam/ViT-B_16", image_size="big")
