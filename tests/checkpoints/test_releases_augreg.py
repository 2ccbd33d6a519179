"""AugReg's files, whose names tell what they are: the fine-tunes of the table and others."""

import dataclasses

import pytest

from keras_vit.checkpoints import releases

B16 = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"


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


def test_augreg_file_outside_the_table_is_found_by_its_name():
    file = B16.replace("medium1", "strong2") + "--resisc45-steps_2k-lr_0.001-res_384"
    release = releases.find_release("ViT-B_16", f"augreg/{file}.npz")
    assert release.file == file
    assert (release.alias, release.classes, release.data_set, release.image_size) == (None, 45, "resisc45", 384)


def test_parse_gives_the_tables_own_release():
    for release in releases.list_releases():
        if release.directory == "augreg":
            listed = dataclasses.replace(release, alias=None, top1=None, top1_source="")
            assert releases.parse_augreg(release.path) == listed


@pytest.mark.parametrize(
    ("data_set", "classes"),
    [("imagenet2012", 1000), ("cifar10", 10), ("cifar100", 100), ("oxford_iiit_pet", 37), ("kitti", 4)],
)
def test_parse_reads_the_data_set_of_a_fine_tune(data_set, classes):
    release = releases.parse_augreg(f"{B16}--{data_set}-steps_0k-lr_0.003-res_224.npz")
    assert (release.classes, release.image_size, release.model) == (classes, 224, "ViT-B_16")
    assert release.bytes == 4 * (85_798_656 + 769 * classes)


@pytest.mark.parametrize(
    ("upstream", "classes", "data_set"),
    [("i1k", 1000, "imagenet2012"), ("i21k", 21843, "imagenet21k"), ("i21k_30", 21843, "imagenet21k")],
)
def test_parse_reads_the_data_set_of_pre_training(upstream, classes, data_set):
    release = releases.parse_augreg(f"S_16-{upstream}-30ep-lr_0.001-aug_light0-wd_0.03-do_0.1-sd_0.1")
    assert (release.classes, release.data_set, release.image_size) == (classes, data_set, 224)


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
