"""The table of published files against the bucket's listing and counts made from the architecture."""

import collections
import dataclasses
import inspect

import pytest

import keras_vit
from keras_vit import zoo
from keras_vit.checkpoints import releases
from keras_vit.compat.initial_values import build_deferred

# width, layers, patch of the plain models; the MLP is 4 times as wide
PLAIN = {
    "ViT-Ti_16": (192, 12, 16),
    "ViT-S_32": (384, 12, 32),
    "ViT-S_16": (384, 12, 16),
    "ViT-B_32": (768, 12, 32),
    "ViT-B_16": (768, 12, 16),
    "ViT-B_8": (768, 12, 8),
    "ViT-L_16": (1024, 24, 16),
    "ViT-L_32": (1024, 24, 32),
    "ViT-H_14": (1280, 32, 14),
    "DeiT-Ti_16": (192, 12, 16),
    "DeiT-S_16": (384, 12, 16),
    "DeiT-B_16": (768, 12, 16),
}
# the hybrids' parameters at 224 with 21,843 classes, without and with pre_logits; width
HYBRID = {
    "R+ViT-Ti_16": (10_360_403, 10_397_459, 192),
    "R26+ViT-S_32": (44_456_467, 44_604_307, 384),
    "R26+ViT-B_32": (117_412_243, 118_002_835, 768),
    "R50+ViT-B_16": (114_687_379, 115_277_971, 768),
    "R50+ViT-L_32": (350_358_931, 351_408_531, 1024),
}
TOKENS = {  # at 224 and 384
    "R+ViT-Ti_16": (49, 144),
    "R26+ViT-S_32": (49, 144),
    "R26+ViT-B_32": (49, 144),
    "R50+ViT-B_16": (196, 576),
    "R50+ViT-L_32": (49, 144),
}
DISTILLED, WINDOW = {"distilled": True}, {"window_size": 12}
B16 = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"


# width, blocks per stage, heads of the first stage
SWIN = {
    "Swin-T": (96, (2, 2, 6, 2), 3),
    "Swin-S": (96, (2, 2, 18, 2), 3),
    "Swin-B": (128, (2, 2, 18, 2), 4),
    "Swin-L": (192, (2, 2, 18, 2), 6),
}
BIT_UNITS = {"50": (3, 4, 6, 3), "101": (3, 4, 23, 3), "152": (3, 8, 36, 3)}


def parameters(release):
    """Counts a release's parameters from its architecture, independently of the table."""
    family = release.model.partition("-")[0]
    return {"Swin": swin_parameters, "BiT": bit_parameters}.get(family, vit_parameters)(release)


def vit_parameters(release):
    if release.model in PLAIN:
        width, layers, patch = PLAIN[release.model]
        tokens = (release.image_size // patch) ** 2
        block = 4 * width * (width + 1) + 2 * width * 4 * width + 5 * width + 4 * width
        body = (patch * patch * 3 + 1) * width + width + (tokens + 1) * width + layers * block + 2 * width
    else:
        plain, _, width = HYBRID[release.model]
        at_224, at_384 = TOKENS[release.model]
        body = plain - 21843 * (width + 1) + (width * (at_384 - at_224) if release.image_size == 384 else 0)
    representation = width * (width + 1) if release.representation_size else 0
    head = release.classes * (width + 1)
    distillation = 2 * width + head if release.arguments.get("distilled") else 0  # token, its position, its head
    return body + representation + head + distillation


def swin_parameters(release):
    width, depths, heads = SWIN[release.model]
    offsets = (2 * release.arguments.get("window_size", 7) - 1) ** 2
    count = (4 * 4 * 3 + 1 + 2) * width
    for stage, blocks in enumerate(depths):
        dim = width * 2**stage
        count += blocks * (4 * dim + 4 * dim * (dim + 1) + offsets * heads * 2**stage + 8 * dim**2 + 5 * dim)
        count += 8 * dim + 8 * dim**2 if stage + 1 < len(depths) else 2 * dim  # merging, or the last norm
    return count + release.classes * (dim + 1)


def bit_parameters(release):
    depth, _, factor = release.model.removeprefix("BiT-R").partition("x")
    channels = 64 * int(factor)
    count = 7 * 7 * 3 * channels
    for stage, units in enumerate(BIT_UNITS[depth]):
        middle = 64 * int(factor) * 2**stage
        for unit in range(units):
            norms = 2 * channels + 2 * middle + 2 * middle
            count += norms + channels * middle + 9 * middle**2 + 4 * middle**2
            count += 4 * middle * channels if unit == 0 else 0
            channels = 4 * middle
    return count + 2 * channels + release.classes * (channels + 1)


def test_files_by_alias():
    counts = collections.Counter(release.alias for release in releases.list_releases())
    assert counts == {
        "imagenet21k": 9 + 6,  # ViT and BiT
        "imagenet21k+imagenet2012": 8 + 6,
        "sam": 5,
        "augreg": 10,
        "augreg+imagenet2012": 10,
        "imagenet2012": 4 + 2 + 6,  # DeiT, Swin and BiT
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
        assert release.image_size in ((224, 480) if release.model.startswith("BiT") else (224, 384))
        assert (release.classes, release.label_set) in ((21843, "imagenet21k"), (1000, "imagenet2012"))
        assert release.preprocessing.crop is None
        assert release.preprocessing.mean == release.preprocessing.std == (0.5, 0.5, 0.5)
        assert release.preprocessing.interpolation == "bilinear"
        assert release.arguments == {}


def test_releases_on_the_hub_have_the_protocol_of_their_authors():
    imagenet = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "interpolation": "bicubic"}
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


@pytest.mark.parametrize(
    "path",
    [
        "hf://facebook/deit-tiny-distilled-patch16-224",
        "hf://microsoft/swin-base-patch4-window12-384-in22k",
        "bit_models/BiT-M-R50x1-ILSVRC2012.npz",
    ],
)
def test_the_bytes_are_those_of_the_zoos_models(path):
    release = next(release for release in releases.list_releases() if release.path == path)
    arguments = {"image_size": release.image_size, "classes": release.classes, **release.arguments}
    model, _ = build_deferred(lambda: keras_vit.create_model(release.model, **arguments))
    assert release.bytes == 4 * model.count_params()


@pytest.mark.parametrize("release", releases.list_releases(), ids=lambda release: release.path)
def test_bytes_are_those_of_the_parameters(release):
    """A wrong size, class count or representation_size in a row shows as a file of another length."""
    expected = 4 * parameters(release)
    if release.directory in ("augreg", "bit_models") or release.is_on_hub:
        assert release.bytes == expected
    elif release.path == "sam/ViT-S_16.npz":
        assert release.bytes == pytest.approx(3 * expected, rel=2e-3)
    else:  # the listing has three digits for the files above 1 GiB
        assert release.bytes == pytest.approx(expected, rel=6e-3 if release.bytes > 2**30 else 1e-3)


def test_pre_logits_are_in_the_raw_files_of_2020_only():
    for release in releases.list_releases():
        assert (release.representation_size is not None) == (release.directory == "imagenet21k")


@pytest.mark.parametrize(
    ("file", "model", "size"),
    [
        (f"{B16}--imagenet2012-steps_20k-lr_0.03-res_384", "ViT-B_16", 384),
        (
            "R_Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0--imagenet2012-steps_20k-lr_0.03-res_384",
            "R+ViT-Ti_16",
            384,
        ),
        (
            "R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1--imagenet2012-steps_20k-lr_0.01-res_384",
            "R50+ViT-L_32",
            384,
        ),
        (
            "B_8-i21k-300ep-lr_0.001-aug_medium2-wd_0.1-do_0.0-sd_0.0--imagenet2012-steps_20k-lr_0.03-res_224",
            "ViT-B_8",
            224,
        ),
    ],
)
def test_recommended_augreg_fine_tunes(file, model, size):
    release = releases.find_release(model, "augreg+imagenet2012")
    assert (release.file, release.image_size, release.classes) == (file, size, 1000)
    upstream = releases.find_release(model, "augreg")
    assert upstream.file == file.split("--")[0]
    assert (upstream.image_size, upstream.classes, upstream.representation_size) == (224, 21843, None)


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
    assert releases.parse_augreg(f"{B16}--cifar10-steps_10k-lr_0.01-res_224").labels is None


def test_release_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        releases.list_releases()[0].alias = "other"
    assert len(set(releases.list_releases())) == len(releases.list_releases())


def test_list_releases_of_one_model():
    files = [release.path for release in releases.list_releases("R50+ViT-B_16")]
    assert files == ["imagenet21k/R50+ViT-B_16.npz", "imagenet21k+imagenet2012/R50+ViT-B_16.npz"]
    assert releases.list_releases("ViT-g_14") == ()


@pytest.mark.parametrize(
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
    assert releases.find_release("ViT-B_16", "augreg+imagenet2012", 224).image_size == 384


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("prefix", ["hf://facebook/", "facebook/", ""])
def test_names_of_repositories(prefix):
    weights = f"{prefix}deit-base-patch16-384"
    assert releases.find_release("DeiT-B_16", weights, 224).image_size == 384
    with pytest.raises(ValueError, match="is a file of DeiT-B_16, not of DeiT-S_16; published for it are 'hf://face"):
        releases.find_release("DeiT-S_16", weights)


def test_find_address():
    address = "hf://microsoft/swin-tiny-patch4-window7-224"
    assert releases.find_address("Swin-T", address).alias == "imagenet2012"
    assert releases.find_address("Swin-T", address + "/").alias == "imagenet2012"
    assert releases.find_address("Swin-S", address) is None
    assert releases.find_address("Swin-T", "hf://org/repo") is None


@pytest.mark.parametrize(
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


def test_augreg_file_outside_the_table_is_found_by_its_name():
    file = B16.replace("medium1", "strong2") + "--resisc45-steps_2k-lr_0.001-res_384"
    release = releases.find_release("ViT-B_16", f"augreg/{file}.npz")
    assert release.file == file
    assert (release.alias, release.classes, release.label_set, release.image_size) == (None, 45, None, 384)


@pytest.mark.parametrize(
    ("model", "weights", "message"),
    [
        ("ViT-B_16", "imagenet22k", r"no file of ViT-B_16; published for it are 'imagenet21k/ViT-B_16\.npz'"),
        ("ViT-H_14", "sam", r"'sam' is no file of ViT-H_14; .* 'imagenet21k/ViT-H_14\.npz'"),
        ("ViT-B_16", "ViT-B_16", r"several published files; name one of 'imagenet21k/ViT-B_16\.npz', "),
        ("ViT-B_16", "sam/ViT-B_32", r"is a file of ViT-B_32, not of ViT-B_16; published for it are "),
        ("ViT-B_32", B16, r"is a file of ViT-B_16, not of ViT-B_32"),
        ("ViT-B_32", B16.replace("medium1", "dark"), r"level in .* must be one of .*; published for it are "),
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


def test_parse_gives_the_tables_own_release():
    for release in releases.list_releases():
        if release.directory == "augreg":
            assert releases.parse_augreg(release.path) == release


@pytest.mark.parametrize(
    ("data_set", "classes"),
    [("imagenet2012", 1000), ("cifar10", 10), ("cifar100", 100), ("oxford_iiit_pet", 37), ("kitti", 4)],
)
def test_parse_reads_the_data_set_of_a_fine_tune(data_set, classes):
    release = releases.parse_augreg(f"{B16}--{data_set}-steps_0k-lr_0.003-res_224.npz")
    assert (release.classes, release.image_size, release.model) == (classes, 224, "ViT-B_16")
    assert release.bytes == 4 * (85_798_656 + 769 * classes)


@pytest.mark.parametrize(
    ("upstream", "classes", "label_set"),
    [("i1k", 1000, "imagenet2012"), ("i21k", 21843, "imagenet21k"), ("i21k_30", 21843, "imagenet21k")],
)
def test_parse_reads_the_data_set_of_pre_training(upstream, classes, label_set):
    release = releases.parse_augreg(f"S_16-{upstream}-30ep-lr_0.001-aug_light0-wd_0.03-do_0.1-sd_0.1")
    assert (release.classes, release.label_set, release.image_size) == (classes, label_set, 224)


@pytest.mark.parametrize(
    ("filename", "message"),
    [
        ("ViT-B_16", r"the name of an AugReg file must be .* got 'ViT-B_16'"),
        (B16 + ".npz.part", r"the name of an AugReg file must be"),
        (B16.replace("-wd_0.1", ""), r"the name of an AugReg file must be"),
        (B16.replace("B_16", "M_16"), r"model in .* must be one of 'Ti_16', .*; got 'M_16'"),
        (B16.replace("i21k", "jft"), r"upstream in .* must be one of 'i1k', 'i21k', 'i21k_30'; got 'jft'"),
        (B16.replace("300ep", "90ep"), r"epochs in .* must be one of '300', '30'; got '90'"),
        (B16 + "--food101-steps_2k-lr_0.01-res_224", r"data_set in .* 'resisc45'; got 'food101'"),
        (B16 + "--cifar10-steps_5k-lr_0.01-res_224", r"steps in .* must be one of .*; got '5k'"),
        (B16 + "--cifar10-steps_2k-lr_0.01-res_512", r"res in .* must be one of '224', '384'; got '512'"),
    ],
)
def test_parse_refuses_other_names(filename, message):
    with pytest.raises(ValueError, match=message):
        releases.parse_augreg(filename)
