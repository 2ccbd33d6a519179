"""AugReg's files, whose names tell what they are: the fine-tunes of the table and others."""

import numpy as np
import pytest
from faults import for_each

from keras_vit.checkpoints import releases
from keras_vit.checkpoints.locate import most_bytes
from keras_vit.zoo import VARIANTS

B16 = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"


@for_each(
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


@for_each(
    ("data_set", "classes"),
    [("imagenet2012", 1000), ("cifar10", 10), ("cifar100", 100), ("oxford_iiit_pet", 37), ("kitti", 4)],
)
def test_the_name_states_the_data_set_of_a_fine_tune(data_set, classes):
    release = releases.find_release("ViT-B_16", f"{B16}--{data_set}-steps_0k-lr_0.003-res_224.npz")
    assert (release.classes, release.image_size, release.model) == (classes, 224, "ViT-B_16")
    assert (release.alias, release.top1, release.file[:4]) == (None, None, "B_16")
    assert release.bytes == pytest.approx(4 * (85_798_656 + 769 * classes), rel=0.01)


@for_each(
    ("upstream", "classes", "data_set"),
    [("i1k", 1000, "imagenet2012"), ("i21k", 21843, "imagenet21k"), ("i21k_30", 21843, "imagenet21k")],
)
def test_the_name_states_the_data_set_of_pre_training(upstream, classes, data_set):
    release = releases.find_release("ViT-S_16", f"S_16-{upstream}-30ep-lr_0.001-aug_light0-wd_0.03-do_0.1-sd_0.1")
    assert (release.classes, release.data_set, release.image_size) == (classes, data_set, 224)
    assert release.bytes == 4 * (21_665_664 + 385 * classes)


def test_the_limit_of_a_download_leaves_room_for_every_file_outside_the_table():
    models = {r.model: r.file.partition("-")[0] for r in releases.list_releases() if r.directory == "augreg"}
    for model, start in models.items():
        for size in (224, 384):
            fine_tuned = f"{start}-i1k-300ep-lr_1-aug_none-wd_0-do_0-sd_0--imagenet2012-steps_0k-lr_0-res_{size}"
            release = releases.find_release(model, fine_tuned)
            config = VARIANTS[model].config(image_size=224)
            larger = config.replace(image_size=size)
            listed = releases.find_release(model, "augreg+imagenet2012", 224)
            rows = np.prod(larger.grid_size) - np.prod(config.grid_size)
            room = most_bytes(release) - (listed.bytes + 4 * config.hidden_dim * rows)
            assert 0 <= room < 0.06 * listed.bytes + 2**21


@for_each(
    "filename",
    [
        B16 + ".part",
        B16.replace("-wd_0.1", ""),
        B16.replace("i21k", "jft"),
        B16.replace("300ep", "90ep"),
        B16.replace("medium1", "medium3"),
        B16 + "--food101-steps_2k-lr_0.01-res_224",
        B16 + "--cifar10-steps_5k-lr_0.01-res_224",
        B16 + "--cifar10-steps_2k-lr_0.01-res_512",
    ],
)
def test_other_names_are_refused_with_the_scheme(filename):
    match = r"the name of an AugReg file must be MODEL-\(i1k.*resisc45.*res_.*; got 'B_16.*'; published for ViT-B_16: "
    with pytest.raises(ValueError, match=match):
        releases.find_release("ViT-B_16", filename)


def test_other_models_are_no_files_of_augreg():
    with pytest.raises(ValueError, match="is no file of ViT-B_16"):
        releases.find_release("ViT-B_16", B16.replace("B_16", "M_16"))


def test_the_scheme_reads_the_names_in_the_table():
    listed = [release for release in releases.list_releases() if release.directory == "augreg"]
    assert len(listed) > 20
    for release in listed:
        (found,) = releases._find_augreg(release.file, release.model)
        for name in ("model", "address", "data_set", "image_size"):
            assert getattr(found, name) == getattr(release, name), (release.file, name)
