"""task_pipeline: batches of inputs and targets, in an order that depends on their number only; and its errors."""

import dataclasses
import functools
import logging

import numpy as np
import pytest
import tensorflow as tf
from faults import for_each
from image_sets import assert_equal
from PIL import Image
from task_sets import PERSON, SIZES, entry, rectangle, write_images, write_json

from keras_vit import Preprocessing
from keras_vit.data import VOID, UnusableDataError, data_error, from_coco, from_depth_maps, from_label_maps
from keras_vit.data.moves import moved
from keras_vit.data.task_batches import task_pipeline
from keras_vit.tasks.inputs import placements, prepare

PLAIN = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4), "interpolation": "bilinear_antialias"}
LONGEST = Preprocessing(size=32, sizing="longest", **PLAIN)
PEOPLE = Preprocessing(size=(64, 48), sizing="box", **PLAIN)


def rows(dataset, count):
    """Return the rows of the first batches, as (image, targets) of NumPy arrays."""
    found = []
    for images, targets in dataset.take(count).as_numpy_iterator():
        found += [(images[n], tf.nest.map_structure(lambda x, n=n: x[n], targets)) for n in range(len(images))]
    return found


def in_order(source, preprocessing, targets, **options):
    return rows(task_pipeline(source, preprocessing, 1, targets, shuffle=False, repeat=False, **options), -1)


@pytest.fixture
def maps(tmp_path):
    """Return a source of label maps, and one of depths."""
    write_images(tmp_path / "images")
    for name in ("maps", "depths"):
        (tmp_path / name).mkdir()
    for number, size in SIZES.items():
        values = np.random.default_rng(number).integers(0, 4, size, "uint8")
        Image.fromarray(np.where(values == 3, VOID, values).astype("uint8")).save(tmp_path / "maps" / f"{number}.png")
        np.save(tmp_path / "depths" / f"{number}.npy", values * 0.5)
    labelled = from_label_maps(tmp_path / "images", tmp_path / "maps", ["a", "b", "c"])
    return labelled, from_depth_maps(tmp_path / "images", tmp_path / "depths", 1)


def coco(folder, annotations, kind="instances", sizes=SIZES, pixels=None):
    images = write_images(folder / "images", sizes, pixels)
    categories = {"categories": [PERSON]} if kind == "keypoints" else {}
    return from_coco(folder / "images", write_json(folder / "a.json", images, annotations, **categories), kind)


def test_label_maps_depths_and_masks(maps):
    grey = LONGEST.replace(mean=(0.5,), std=(0.25,))
    labelled, depths = maps
    label_maps = in_order(labelled, LONGEST, "label_map")
    cases = (labelled, "label_map", LONGEST, label_maps), (depths, "depth", grey, in_order(depths, grey, "depth"))
    for source, targets, preprocessing, made in cases:
        for position, (image, found) in enumerate(made):
            pixels = source.image(position)
            np.testing.assert_allclose(image, prepare(pixels, preprocessing)[0][0], atol=2e-6)
            _, expected = moved(pixels, source.answer(position), np.random.default_rng(0), {}, preprocessing)
            np.testing.assert_array_equal(found, getattr(expected, targets))
    for (_, label_map), (_, found) in zip(label_maps, in_order(labelled, LONGEST, "masks", max_objects=4), strict=True):
        assert found["labels"].tolist() == [0, 1, 2, -1] and found["masks"].dtype == np.uint8
        expected = [*(label_map == n for n in range(3)), np.zeros((32, 32))]
        np.testing.assert_array_equal(found["masks"], expected)


def test_objects_and_batches_that_depend_on_their_number_only(tmp_path):
    sizes, box = {n: (30 + n, 40) for n in range(8)}, (2, 3, 20, 20)
    annotations = [entry(n, n, box) for n in sizes if n] + [entry(9, 0, box, iscrowd=1)]
    source = coco(tmp_path, annotations, sizes=sizes)
    plain = in_order(source, LONGEST, "boxes", max_objects=2)
    assert [found["labels"].tolist() for _, found in plain] == [[-1, -1], *[[0, -1]] * 7]
    for position, (_, found) in enumerate(plain[1:], start=1):
        edges = placements(LONGEST, sizes[position])[0].to_input(np.array(box)) / 32
        middle, half = found["boxes"][0, :2], found["boxes"][0, 2:] / 2
        np.testing.assert_allclose([*(middle - half), *(middle + half)], edges, atol=1e-6)
        assert not found["boxes"][1].any()
    augment = ["flip", "scale_jitter(0.5, 2.0)", "grayscale(0.5)"]
    make = functools.partial(task_pipeline, source, LONGEST, 4, "boxes", seed=3, augment=augment)

    def flat(dataset, count):
        return [(x, y["boxes"], y["labels"]) for x, y in dataset.take(count).as_numpy_iterator()]

    dataset = make()
    whole = flat(dataset, 4)
    assert dataset.steps_per_epoch == 2 and dataset.class_names == ("cat", "dog")
    assert dataset.element_spec[0].shape == (4, 32, 32, 3) and dataset.element_spec[1]["boxes"].shape == (4, 100, 4)
    assert not np.array_equal(whole[0][1], whole[2][1])
    grey = [
        np.allclose(np.ptp(image * PLAIN["std"] + PLAIN["mean"], -1), 0, atol=1e-5) for x, *_ in whole for image in x
    ]
    assert 2 < sum(grey) < 14
    second = [tuple(values[2:] for values in batch) for batch in whole[2:]]
    assert_equal(flat(make(start_step=2, shard=(1, 2)), 2), second)


def test_keypoints_have_a_row_per_person(tmp_path):
    values = [20, 10, 2, 15, 22, 1, 28, 23, 2]
    box = (10, 5, 35, 30)
    annotations = [
        entry(1, 7, box, 1, keypoints=values),
        entry(2, 7, box, 1, keypoints=values, iscrowd=1),
        entry(3, 3, box, 1, keypoints=[0] * 9),
        entry(4, 3, (5, 5, 40, 60), 1, keypoints=values),
        entry(5, 3, (5, 5, 40, 5), 1, keypoints=values),
    ]
    source = coco(tmp_path, annotations, "keypoints")
    found = in_order(source, PEOPLE, "keypoints")
    assert len(found) == 2  # no crowd, and nobody without a keypoint or an area
    for (image, points), (position, person) in zip(found, ((0, 0), (1, 1)), strict=True):
        answer = source.answer(position)
        inputs, (place,) = prepare(source.image(position), PEOPLE, answer.boxes[[person]])
        np.testing.assert_allclose(image, inputs[0], atol=2e-6)
        np.testing.assert_allclose(points[:, :2], place.to_input(answer.keypoints[person, :, :2]), atol=1e-4)
        assert points[:, 2].tolist() == [2, 1, 2]


def test_of_many_objects_the_largest_are_used(tmp_path):
    boxes = [(0, 0, 4, 4), (0, 0, 20, 20), (5, 5, 8, 8), (0, 0, 10, 10)]
    source = coco(tmp_path, [entry(n, 7, box, (2, 5)[n % 2]) for n, box in enumerate(boxes)], sizes={7: (40, 60)})
    found = rows(task_pipeline(source, LONGEST, 2, "masks", max_objects=2), 2)
    for _, targets in found:
        assert targets["labels"].tolist() == [1, 1]
        for mask, box in zip(targets["masks"], boxes[1::2], strict=True):
            drawn = Image.fromarray(rectangle((40, 60), box).astype("uint8"))
            np.testing.assert_array_equal(mask[:21], drawn.resize((32, 21), Image.Resampling.NEAREST))
            assert not mask[21:].any()


def test_unreadable_images_are_replaced_and_wrong_answers_are_errors(maps, tmp_path, caplog):
    labelled, depths = maps
    with open(labelled.files[1], "r+b") as file:
        file.truncate(60)
    with caplog.at_level(logging.WARNING, "keras_vit.data"):
        found = in_order(labelled, LONGEST, "label_map", max_corrupt=0.5)
    np.testing.assert_array_equal(found[1][1], found[2][1])
    assert "Image skipped" in caplog.text
    np.save(depths.records[2], np.zeros((3, 3)))
    with pytest.raises(tf.errors.OpError) as caught:
        in_order(depths, LONGEST, "depth", max_corrupt=0.4)
    error = data_error(caught.value)
    assert isinstance(error, UnusableDataError)
    assert "9.png: " in str(error) and "9.npy must have the height and width of its upright image" in str(error)


@for_each(
    "targets, options, preprocessing, message",
    [
        ("boxes", {}, LONGEST, "targets must be one of 'label_map', 'masks'; got"),
        ("label_map", {"augment": ["inception_crop"]}, LONGEST, "augment must be one of 'flip', 'scale_jitter', .*got"),
        ("label_map", {"augment": ["rotate(40)"]}, LONGEST, "augment must be one of .*; got augment='rotate'"),
        ("label_map", {"augment": ["keras_cv.RandomHue(0.5)"]}, LONGEST, "not a layer of keras_cv; got 'keras_cv"),
        ("label_map", {"augment": ["flip", "flip"]}, LONGEST, "augment must name flip once each"),
        ("label_map", {"augment": ["scale_jitter(2, 1)"]}, LONGEST, "low and high must satisfy 0 < low <= high <= 4"),
        ("label_map", {"augment": "flip"}, LONGEST, "augment must be a sequence of strings"),
        ("label_map", {}, PEOPLE, "must have sizing='box' for keypoints, and only for them; got 'box' for label_map"),
        ("label_map", {}, LONGEST.replace(sizing="nearest"), "must give inputs of one size; got .*scale_jitter"),
        ("label_map", {}, Preprocessing(size=9, crop=8), "preprocessing must have no crop"),
        ("label_map", {}, LONGEST.replace(interpolation="area"), "interpolation must be bilinear or one of"),
        ("label_map", {"max_objects": 0}, LONGEST, "max_objects must be an integer of at least 1"),
        ("label_map", {"seed": -1}, LONGEST, "seed must be an integer of at least 0"),
        ("label_map", {"repeat": False, "batch_size": 4}, LONGEST, "batch_size must be at most 3, the images"),
        ("label_map", {"shard": (2, 2)}, LONGEST, "shard must be integers"),
        ("label_map", {"max_corrupt": 2}, LONGEST, "max_corrupt must be a number in"),
    ],
)
def test_errors(tmp_path, targets, options, preprocessing, message):
    write_images(tmp_path / "images")
    write_images(tmp_path / "maps")  # of three channels, but nothing is read
    source = from_label_maps(tmp_path / "images", tmp_path / "maps", ["a"])
    with pytest.raises(ValueError, match=message):
        task_pipeline(source, preprocessing, options.pop("batch_size", 2), targets, **options)


def test_more_errors(tmp_path, maps):
    with pytest.raises(TypeError, match="source must be a TaskSource"):
        task_pipeline(tmp_path, LONGEST, 2, "boxes")
    with pytest.raises(TypeError, match="preprocessing must be a Preprocessing"):
        task_pipeline(maps[0], 32, 2, "label_map")
    many = dataclasses.replace(maps[0], class_names=("a",) * 256)
    with pytest.raises(ValueError, match="source must have at most 255 classes for label maps; got 256"):
        task_pipeline(many, LONGEST, 2, "label_map")
    nobody = coco(tmp_path, [entry(1, 7, (0, 0, 9, 9), 1, keypoints=[0] * 9)], "keypoints")
    with pytest.raises(ValueError, match="source must have a person with a labelled keypoint; there is none"):
        task_pipeline(nobody, PEOPLE, 2, "keypoints")
