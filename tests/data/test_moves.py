"""Images and answers move together, to where Pillow, NumPy and `prepare` say."""

import numpy as np
import pytest
from PIL import Image
from task_sets import rectangle

from keras_vit import Preprocessing
from keras_vit.data import VOID, Answer
from keras_vit.data.augment.parse import parse_all
from keras_vit.data.moves import OF_IMAGES, OF_PERSONS, moved
from keras_vit.tasks.inputs import placements, prepare, rendered

RULES = {
    "stretch": {"size": (32, 48), "sizing": "stretch"},
    "longest": {"size": 32, "sizing": "longest"},
    "square": {"size": 32, "sizing": "square"},
    "pad": {"size": 32, "pad": True},
}
PLAIN = {"mean": (0.5, 0.4, 0.3), "interpolation": "bilinear_antialias"}
SIZES = ((40, 60), (61, 47), (30, 30))
SHOWN = Preprocessing(size=48, sizing="longest", interpolation="nearest")
PEOPLE = Preprocessing(size=(64, 48), sizing="box", **PLAIN)


def draw(pixels, answer, preprocessing, augment=(), seed=0, **more):
    table = OF_PERSONS if preprocessing.sizing == "box" else OF_IMAGES
    moves = {one.kind: one.function for one in parse_all("augment", augment, table)}
    return moved(pixels, answer, np.random.default_rng(seed), moves, preprocessing, **more)


def noise(size, high=256, shape=()):
    return np.random.default_rng(size).integers(0, high, (*size, *shape), "uint8")


@pytest.mark.parametrize("rule", RULES)
def test_maps_are_where_the_image_is(rule):
    preprocessing = Preprocessing(**RULES[rule], **PLAIN)
    for size in SIZES:
        pixels, values = noise(size, shape=(3,)), noise(size, 4)
        values[values == 3] = VOID
        (place,) = placements(preprocessing, size)
        for name, nothing in (("label_map", VOID), ("depth", 0)):
            known = values.astype("int32" if name == "label_map" else "float32")
            image, found = draw(pixels, Answer(**{name: known}), preprocessing)
            np.testing.assert_array_equal(image, rendered(pixels, [place], preprocessing)[0])
            sides = max(size), max(size)
            resized = place.size if rule == "square" else place.resized
            whole = np.full(sides if rule == "square" else size, nothing, "float32")
            whole[: size[0], : size[1]] = known
            expected = np.full(place.size, nothing, "float32")
            nearest = Image.fromarray(whole).resize(resized[::-1], Image.Resampling.NEAREST)
            expected[: resized[0], : resized[1]] = nearest
            assert getattr(found, name).dtype == known.dtype
            np.testing.assert_array_equal(getattr(found, name), expected)


def test_a_window_is_a_part_of_the_resized_image():
    preprocessing, size = Preprocessing(size=24, sizing="windows", **PLAIN), (40, 60)
    pixels, values = noise(size, shape=(3,)), noise(size, 4).astype("int32")
    resized = placements(preprocessing, size)[0].resized
    wide = np.asarray(Image.fromarray(pixels).resize(resized[::-1], Image.Resampling.BILINEAR))
    expected = np.asarray(Image.fromarray(values).resize(resized[::-1], Image.Resampling.NEAREST))
    offsets = set()
    for seed in range(12):
        image, found = draw(pixels, Answer(label_map=values), preprocessing, seed=seed)
        (left,) = [x for x in range(13) if np.array_equal(wide[:, x : x + 24], image)]
        np.testing.assert_array_equal(found.label_map, expected[:, left : left + 24])
        offsets.add(left)
    assert len(offsets) > 4


def test_masks_and_boxes():
    boxes, size = [(5, 4, 20, 30), (10, 10, 40, 35)], (40, 60)
    preprocessing = Preprocessing(size=32, sizing="longest", **PLAIN)
    labels, pixels = np.array([4, 2], "int32"), np.zeros((*size, 3), "uint8")
    _, found = draw(pixels, Answer(labels=labels, boxes=np.array(boxes, "float32")), preprocessing)
    assert found.labels.tolist() == [4, 2]
    scale = np.array([32 / 60, 21 / 40] * 2) / 32
    for box, (x, y, width, height) in zip(boxes, found.boxes, strict=True):
        np.testing.assert_allclose((x - width / 2, y - height / 2, x + width / 2, y + height / 2), box * scale)
    np.testing.assert_allclose(found.areas, found.boxes[:, 2:].prod(1))
    masks = np.array([rectangle(size, box) for box in boxes])
    _, found = draw(pixels, Answer(labels=labels, masks=masks), preprocessing)
    for mask, before in zip(found.masks, masks, strict=True):
        expected = np.zeros((32, 32), bool)
        expected[:21] = Image.fromarray(before.astype("uint8")).resize((32, 21), Image.Resampling.NEAREST)
        np.testing.assert_array_equal(mask, expected)


def test_jitter_and_flips_move_image_and_answer_together():
    size, box = (41, 61), (5, 4, 40, 20)  # sides for which no pixel of an input is between two of the image
    pixels = np.full((*size, 3), (0, 0, 255), "uint8")
    pixels[rectangle(size, box)] = 255, 0, 0
    known = Answer(labels=np.zeros(1, "int32"), masks=rectangle(size, box)[None])
    edges = Answer(labels=np.zeros(1, "int32"), boxes=np.array([box], "float32"))
    mirrored, widths, counts = 0, set(), []
    for seed in range(60):
        image, found = draw(pixels, known, SHOWN, ["scale_jitter(0.5, 3.0)", "flip"], seed)
        same, boxed = draw(pixels, edges, SHOWN, ["scale_jitter(0.5, 3.0)", "flip"], seed)
        np.testing.assert_array_equal(image, same)
        red, blue = image[..., 0] > 0, np.nonzero(image[..., 2])[1]
        np.testing.assert_array_equal(found.masks[0], red)
        y, x = np.nonzero(red)
        middle, half = boxed.boxes[0, :2] * 48, boxed.boxes[0, 2:] * 24
        seen = x.min(), y.min(), x.max() + 1, y.max() + 1
        np.testing.assert_allclose(np.concatenate([middle - half, middle + half]), seen, atol=1.01)
        mirrored += blue.max() - x.max() < x.min() - blue.min()
        widths.add((image.max(-1) > 0).any(0).sum())
        counts.append(len(x))
    assert 15 < mirrored < 45 and len(widths) > 5 and max(counts) > 4 * min(counts)


def test_crops_without_an_object_are_drawn_again():
    edges = Answer(labels=np.zeros(1, "int32"), boxes=np.array([(0, 0, 8, 8)], "float32"))
    pixels = np.zeros((30, 30, 3), "uint8")
    found = [draw(pixels, edges, SHOWN, ["scale_jitter(2.0, 2.0)"], seed)[1] for seed in range(40)]
    assert 30 < sum(len(one.labels) for one in found)  # of 40; the first draw has one in 4


def dots(size, places):
    """Return an image with a dot of 5 x 5 pixels in one channel for each (x, y)."""
    pixels = np.zeros((*size, 3), "uint8")
    for channel, (x, y) in enumerate(places):
        pixels[y - 2 : y + 3, x - 2 : x + 3, channel] = 255
    return pixels


def centre(channel):
    y, x = np.mgrid[: channel.shape[0], : channel.shape[1]]
    return np.array([(channel * axis).sum() for axis in (x, y)]) / channel.sum()


def person(box):
    places = [(60, 40), (50, 70), (75, 68)]
    points = np.array([[[*place, 2 - n % 2] for n, place in enumerate(places)]], "float32")
    answer = Answer(labels=np.zeros(1, "int32"), boxes=np.array([box], "float32"), keypoints=points)
    return dots((120, 130), places), answer, np.array(places, float)


def test_keypoints_are_where_prepare_says():
    for box, visible in (((40, 30, 90, 90), [2, 1, 2]), ((62, 30, 98, 90), [2, 0, 2])):
        pixels, answer, places = person(box)
        inputs, (place,) = prepare(pixels, PEOPLE.replace(mean=(0.0,) * 3, std=(1.0,) * 3), [box])
        image, found = draw(pixels, answer, PEOPLE)
        np.testing.assert_allclose(image, inputs[0] * 255, atol=1e-4)
        points = found.keypoints[0]
        assert points[:, 2].tolist() == visible
        expected = np.where(np.array(visible)[:, None] > 0, place.to_input(places), 0)
        np.testing.assert_allclose(points[:, :2], expected, atol=1e-4)


def test_keypoints_move_with_the_image():
    pixels, answer, _ = person((40, 30, 90, 90))
    sides, spans, angles = set(), [], []
    for seed in range(60):
        augment = ["flip", "scale(0.5)", "rotate(40)"]
        image, found = draw(pixels, answer, PEOPLE, augment, seed, flip_pairs=[(1, 2)])
        points = found.keypoints[0]
        if (points[:, 2] > 0).all() and (points[:, :2] > 4).all() and (points[:, :2] < (43, 59)).all():
            centres = np.array([centre(image[..., n]) for n in range(3)])
            pair = min([[0, 1, 2], [0, 2, 1]], key=lambda pair: np.abs(centres[pair] - points[:, :2]).max())
            np.testing.assert_allclose(points[:, :2], centres[pair], atol=0.35)
            assert points[:, 2].tolist() == [[2, 1, 2][n] for n in pair]
            across = points[2, :2] - points[1, :2]
            sides.add(pair[1])
            spans.append(np.linalg.norm(across))
            angles.append(np.degrees(np.arctan2(across[1], across[0])))
    assert sides == {1, 2} and len(spans) > 20 and max(spans) > 1.8 * min(spans) and np.ptp(angles) > 60
    assert np.isclose(angles, -4.6, atol=0.5).sum() + np.isclose(angles, 4.6, atol=0.5).sum() > 5  # not rotated


def test_a_mirrored_person_has_the_mirrored_input():
    pixels, answer, _ = person((40, 30, 90, 90))
    image, found = draw(pixels, answer, PEOPLE, flip_pairs=[(1, 2)])
    seed = next(n for n in range(9) if np.random.default_rng(n).random() < 0.5)
    mirrored, other = draw(pixels, answer, PEOPLE, ["flip"], seed, flip_pairs=[(1, 2)])
    np.testing.assert_allclose(mirrored, image[:, ::-1], atol=1)  # in whole bytes
    expected = found.keypoints[0][[0, 2, 1]] * (-1, 1, 1) + (47, 0, 0)
    np.testing.assert_allclose(other.keypoints[0], expected, atol=1e-4)


def test_one_channel():
    grey = {"mean": (0.5,), "std": (0.5,)}
    for preprocessing in (SHOWN.replace(**grey), PEOPLE.replace(**grey)):
        pixels, answer, _ = person((40, 30, 90, 90))
        if preprocessing.sizing != "box":
            answer = Answer(label_map=np.zeros((120, 130), "int32"))
        augment = ["rotate(40, 1.0)"] if preprocessing.sizing == "box" else ["scale_jitter(1, 2)"]
        assert draw(pixels, answer, preprocessing, augment)[0].shape == (*preprocessing.image_size, 1)
