"""What follows from an answer, against results that are written by hand."""

import dataclasses

import numpy as np
import pytest
from task_sets import rectangle

from keras_vit.data import VOID, Answer
from keras_vit.data.answers import boxes_of

SIZE = (6, 8)
BOXES = [(0, 0, 6, 5), (2, 1, 4, 3), (4, 2, 8, 6)]


@pytest.fixture
def objects():
    """Three objects, of which the second is on top of the first, and the last is a crowd."""
    masks = np.array([rectangle(SIZE, box) for box in BOXES])
    return Answer(labels=np.array([3, 1, 2], "int32"), masks=masks, crowd=np.array([False, False, True]))


def test_objects_become_masks_boxes_and_a_label_map_without_crowds(objects):
    masks = objects.as_targets("masks")
    assert masks.labels.tolist() == [3, 1] and masks.boxes is None and masks.crowd is None
    np.testing.assert_array_equal(masks.masks, objects.masks[:2])
    boxed = dataclasses.replace(objects, boxes=np.array(BOXES, "float32")).as_targets("boxes")
    assert boxed.labels.tolist() == [3, 1] and boxed.masks is None
    assert boxed.boxes.tolist() == [[*box] for box in BOXES[:2]]
    expected = np.full(SIZE, VOID)
    expected[0:5, 0:6] = 3
    expected[1:3, 2:4] = 1
    label_map = objects.as_targets("label_map").label_map
    assert label_map.dtype == np.int32
    np.testing.assert_array_equal(label_map, expected)


def test_a_label_map_becomes_a_mask_per_class():
    label_map = np.array([[4, 4, VOID], [0, 4, 0]], "int32")
    found = Answer(label_map=label_map).as_targets("masks")
    assert found.labels.tolist() == [0, 4] and found.labels.dtype == np.int32
    assert found.masks.tolist() == [[[0, 0, 0], [1, 0, 1]], [[1, 1, 0], [0, 1, 0]]]
    assert Answer(label_map=np.full(SIZE, VOID, "int32")).as_targets("masks").masks.shape == (0, *SIZE)
    assert Answer(label_map=label_map).as_targets("label_map").label_map is label_map


def test_one_person_and_depth():
    points, boxes = np.arange(18, dtype="float32").reshape(2, 3, 3), np.ones((2, 4), "float32")
    people = Answer(labels=np.zeros(2, "int32"), boxes=boxes, keypoints=points, crowd=np.array([True, False]))
    np.testing.assert_array_equal(people.as_targets("keypoints").keypoints, points[1:])
    one = people.as_targets("keypoints", person=0)
    np.testing.assert_array_equal(one.keypoints, points[:1])
    assert one.boxes.shape == (1, 4)
    depth = np.ones(SIZE, "float32")
    assert Answer(depth=depth).as_targets("depth").depth is depth


def test_boxes_around_masks():
    masks = np.array([rectangle(SIZE, box) for box in BOXES] + [np.zeros(SIZE, bool), np.ones(SIZE, bool)])
    assert boxes_of(masks).tolist() == [*map(list, BOXES), [0, 0, 0, 0], [0, 0, 8, 6]]


def test_errors(objects):
    for answer, targets, message in (
        (objects, "depth", "targets must follow from what this answer has; got targets='depth'"),
        (objects, "keypoints", "targets must follow from .*; got targets='keypoints'"),
        (Answer(label_map=np.zeros(SIZE, "int32")), "boxes", "targets must follow from .*; got targets='boxes'"),
        (objects, "mask", "targets must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            answer.as_targets(targets)
