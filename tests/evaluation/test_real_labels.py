"""ReaL labels: the published form of the file, images by number, and evaluate with several right answers."""

import functools
import json

import keras
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
from faults import for_each

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.checkpoints.releases.release import label_set
from keras_vit.data import from_arrays, from_directory
from keras_vit.evaluation import evaluate, read_real_labels
from keras_vit.evaluation.real_labels import right_answers

pytestmark = pytest.mark.usefixtures("eagerly")  # test_accuracy.py has the compiled evaluation

CONFIG = ViTConfig(
    name="tiny", image_size=16, patch_size=8, hidden_dim=12, num_layers=1, num_heads=2, mlp_dim=16, classes=1000
)
NUMBERS = (50_000, 7, 123, 8, 31_415, 2, 40_001, 9)
IMAGES = np.random.default_rng(0).integers(0, 256, (len(NUMBERS), 16, 16, 3), dtype=np.uint8)


@functools.cache
def tiny(labels=None, **changes):
    keras.utils.set_random_seed(0)
    model = VisionTransformer(CONFIG.replace(**changes), labels=labels)
    kernel = model.get_layer("head").kernel
    kernel.assign(np.random.default_rng(2).normal(0.0, 1.0, kernel.shape))
    return model


def best(model, count):
    """The `count` best logits of each image, by sorting."""
    logits = keras.ops.convert_to_numpy(model(IMAGES.astype(np.float32) / 127.5 - 1.0))
    return np.argsort(-logits, axis=1, kind="stable")[:, :count]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The images in two folders, as their numbers fall."""
    folder = tmp_path_factory.mktemp("val")
    for number, image in zip(NUMBERS, IMAGES, strict=True):
        place = folder / ("odd" if number % 2 else "even")
        place.mkdir(exist_ok=True)
        PIL.Image.fromarray(image).save(place / f"ILSVRC2012_val_{number:08d}.png")
    return folder


def write(path, answers):
    """real.json with `answers` {number of the image, from 1: classes} and nothing for all others."""
    path.write_text(json.dumps([answers.get(n, []) for n in range(1, 50_001)]))
    return path


def test_an_image_is_right_if_the_prediction_is_in_its_set(tmp_path, images):
    model = tiny()
    ranked = dict(zip(NUMBERS, best(model, 1000).tolist(), strict=True))
    answers = {
        50_000: [ranked[50_000][700], ranked[50_000][0]],  # right
        7: [ranked[7][0]],  # right
        123: [ranked[123][1], ranked[123][4]],  # second
        31_415: [ranked[31_415][3]],  # fourth
        2: [ranked[2][5]],  # sixth
        40_001: [ranked[40_001][900], ranked[40_001][999]],  # far off
    }  # 8 and 9 have no answer
    real = write(tmp_path / "real.json", answers)
    found = evaluate(model, images, batch_size=8, labels=real, top=(1, 2, 5))
    assert (found.count, found.left_out, found.correct) == (6, 2, {1: 2, 2: 3, 5: 4})
    assert str(found).startswith(
        "top-1 accuracy 33.33 % (2 of 6), top-2 accuracy 50.00 % (3 of 6), top-5 accuracy 66.67 % (4 of 6); "
        "2 without a correct class left out; classes matched in order"
    )
    assert found.matching == (f"in order, as the model has no labels, images to {real} by the numbers in their names")
    assert found.classes.names == ("even", "odd") and found.classes.counts.tolist() == [2, 4]
    assert found.classes.correct.tolist() == [1, 1]
    assert (1, f"class_{ranked[123][0]}", 1) in found.classes.confusions
    assert evaluate(tiny(label_set("imagenet2012")), images, batch_size=8, labels=real).correct == {1: 2, 5: 4}


def test_file_is_read_as_published(tmp_path):
    found = read_real_labels(write(tmp_path / "real.json", {1: [65], 2: [970, 795], 50_000: [0, 999]}))
    assert len(found) == 50_000
    assert [found[n].tolist() for n in (0, 1, 2, 49_999)] == [[65], [970, 795], [], [0, 999]]
    files = ["val/n1/ILSVRC2012_val_00000002.JPEG", "ILSVRC2012_val_00050000_n01.png", "x/ILSVRC2012_val_00000001.jpg"]
    found = right_answers(tmp_path / "real.json", files)
    assert [numbers.tolist() for numbers in found] == [[970, 795], [0, 999], [65]]


@for_each(
    ("content", "message"),
    [
        ("[[1], [2]", "must be JSON"),
        ("[" * 100_000, "must be JSON"),
        ('{"1": [2]}', "must hold a JSON array; got dict"),
        (json.dumps([[1]] * 49_999), "a list of 50,000 lists; .* contains 49,999"),
        (json.dumps([[1]] * 49_999 + [3]), "from 0 to 999 for every image; .* has 3 for image 50000"),
        (json.dumps([[1], [1000]] + [[]] * 49_998), r"has \[1000\] for image 2"),
        (json.dumps([[1], [-1]] + [[]] * 49_998), r"has \[-1\] for image 2"),
        (json.dumps([[1.0]] + [[]] * 49_999), r"has \[1.0\] for image 1"),
        (json.dumps([[True]] + [[]] * 49_999), r"has \[True\] for image 1"),
        (" " * (2**24 + 1), "must not exceed 16777216 bytes; got 16777217"),
    ],
)
def test_another_file_is_refused(tmp_path, content, message):
    (tmp_path / "real.json").write_text(content)
    with pytest.raises(ValueError, match=f"labels .*real.json.*{message}"):
        read_real_labels(tmp_path / "real.json")


@for_each("name", ["ILSVRC2012_val_0000007", "ILSVRC2012_val_00050001", "ILSVRC2012_val_00000000", "7"])
def test_an_image_without_a_number_is_refused(tmp_path, name):
    real = write(tmp_path / "real.json", {7: [1]})
    with pytest.raises(ValueError, match=f"ILSVRC2012_val_00000001 to ILSVRC2012_val_00050000; got val/{name}.png"):
        right_answers(real, ["val/ILSVRC2012_val_00000007.png", f"val/{name}.png"])


def test_other_data_and_models_are_refused(tmp_path, images):
    real = write(tmp_path / "real.json", {7: [1]})
    arrays = from_arrays(IMAGES, np.arange(8))
    dataset = tf.data.Dataset.from_tensors((IMAGES.astype(np.float32), np.arange(8)))
    with pytest.raises(ValueError, match="a source of files"):
        evaluate(tiny(), arrays, labels=real)
    with pytest.raises(ValueError, match="a source of files"):
        evaluate(tiny(), dataset, labels=real)
    with pytest.raises(ValueError, match="class names must match the model's 6 classes, which have no names"):
        evaluate(tiny(classes=6), images, labels=real)
    with pytest.raises(FileNotFoundError):
        evaluate(tiny(), images, labels=tmp_path / "none.json")
    few = from_directory(images).take([0])  # image 2, which has no answer
    with pytest.raises(ValueError, match="data must contain an image with a correct class in .*; none of 1 has one"):
        evaluate(tiny(), few, labels=real)
