"""from_coco: what json files state, against rectangles and pycocotools; every error of a wrong file."""

import numpy as np
import pytest
from faults import for_each
from PIL import Image
from pycocotools import mask as tools
from task_sets import PERSON, SIZES, corners, entry, rectangle, write_images, write_json

from keras_vit.data import coco, from_coco

BOXES = [(5, 4, 20, 30), (10, 10, 40, 35), (0, 0, 60, 40)]


def masks_of(shape, size=(40, 60)):
    return coco._mask("here", shape, size, tools)


@pytest.fixture
def images(tmp_path):
    return write_images(tmp_path / "images")


def test_instances(tmp_path, images):
    crowd = {"size": [40, 60], "counts": [0, *[20, 20] * 60]}  # the upper half of each column
    two = [corners((1, 2, 11, 12)), corners((20, 20, 30, 40))]
    annotations = [
        entry(11, 7, BOXES[0]),
        entry(12, 3, BOXES[0], category=5),
        entry(13, 7, BOXES[2], category=5, iscrowd=1, segmentation=crowd, area=7.5),
        entry(14, 7, (1, 2, 30, 40), segmentation=two),
    ]
    source = from_coco(tmp_path / "images", write_json(tmp_path / "a.json", images, annotations))
    assert (source.kind, source.size, source.class_names) == ("instances", 3, ("cat", "dog"))
    assert (source.category_ids, source.image_ids, source.stuff) == ((2, 5), (7, 3, 9), ())
    assert [file[-6:] for file in source.files] == ["/7.png", "/3.png", "/9.png"]
    answer = source.answer(0)
    assert answer.labels.tolist() == [0, 1, 0] and answer.crowd.tolist() == [False, True, False]
    assert answer.areas.tolist() == [15 * 26, 7.5, 29 * 38]
    assert answer.boxes.tolist() == [[*BOXES[0]], [*BOXES[2]], [1, 2, 30, 40]]
    expected = [rectangle((40, 60), box) for box in (BOXES[0], (0, 0, 60, 20), (1, 2, 11, 12))]
    expected[2] |= rectangle((40, 60), (20, 20, 30, 40))
    np.testing.assert_array_equal(answer.masks, expected)
    assert source.answer(1).labels.tolist() == [1] and source.answer(1).masks.shape == (1, 60, 45)
    assert source.answer(2).masks.shape == (0, 30, 30) and source.answer(2).boxes.shape == (0, 4)
    np.testing.assert_array_equal(source.image(1), np.asarray(Image.open(source.files[1])))


def test_masks_are_those_of_pycocotools():
    rng = np.random.default_rng(0)
    for share in (0.0, 0.02, 0.5, 1.0):
        for size in ((1, 1), (40, 60), (7, 900)):
            mask = rng.random(size) < share
            packed = tools.encode(np.asfortranarray(mask.astype("uint8")))
            text = {"size": [*size], "counts": packed["counts"].decode()}
            np.testing.assert_array_equal(masks_of(text, size), mask)
    polygon = rng.uniform(0, 40, 16)
    expected = tools.decode(tools.frPyObjects([polygon], 40, 60))[..., 0]
    np.testing.assert_array_equal(masks_of([polygon]), expected)


def test_boxes_need_no_masks_and_no_pycocotools(tmp_path, images, monkeypatch):
    annotations = [{"id": 1, "image_id": 7, "category_id": 5, "bbox": [1.5, 2, 10, 4], "segmentation": "?"}]
    annotations.append(entry(2, 7, (5, 5, 20, 5)))  # COCO has boxes without height
    path = write_json(tmp_path / "a.json", images, annotations)
    monkeypatch.setitem(__import__("sys").modules, "pycocotools.mask", None)
    source = from_coco(tmp_path / "images", path, "boxes")
    answer = source.answer(0)
    assert answer.masks is None and answer.boxes.tolist() == [[1.5, 2, 11.5, 6], [5, 5, 20, 5]]
    assert answer.areas.tolist() == [40, 0] and answer.crowd.tolist() == [False, False]
    with pytest.raises(ImportError, match=r"masks of polygons need pycocotools: pip install .*\[coco\]"):
        from_coco(tmp_path / "images", path)


def test_keypoints(tmp_path, images):
    values = [1, 2, 2, 10.5, 20, 1, 0, 0, 0]
    annotations = [entry(1, 3, BOXES[0], 1, keypoints=values), entry(2, 3, BOXES[1], 1, keypoints=[0] * 9, iscrowd=1)]
    path = write_json(tmp_path / "a.json", images, annotations, [PERSON])
    source = from_coco(tmp_path / "images", path, "keypoints")
    assert (source.class_names, source.category_ids) == (("nose", "left_eye", "right_eye"), (1,))
    assert source.flip_pairs == ((1, 2),)
    answer = source.answer(1)
    assert answer.keypoints.tolist() == [[[1, 2, 2], [10.5, 20, 1], [0, 0, 0]], [[0] * 3] * 3]
    assert answer.crowd.tolist() == [False, True] and source.answer(0).keypoints.shape == (0, 3, 3)


CATEGORIES = ({"id": 4, "name": "sky", "isthing": 0}, {"id": 1, "name": "cat", "isthing": 1})


def panoptic(tmp_path, ids=(300, 70_000), listed=(300, 70_000), images=None, **more):
    """Write a file with one image whose left and right half are two segments; the first row has no class."""
    folder = tmp_path / "a"
    folder.mkdir()
    images = images or write_images(tmp_path / "images", {7: (10, 8)})
    pixels = np.repeat(np.array(ids), 4)[None].repeat(10, 0)
    pixels[0] = 0
    Image.fromarray(np.stack([pixels % 256, pixels // 256 % 256, pixels // 65536], -1).astype("uint8")).save(
        folder / "7.png"
    )
    segments = [
        {"id": one, "category_id": category, "bbox": [0, 1, 4, 9], "iscrowd": 0, "area": 36}
        for one, category in zip(listed, (1, 4), strict=False)
    ]
    annotations = [{"image_id": 7, "file_name": "7.png", "segments_info": segments, **more}]
    return write_json(tmp_path / "a.json", images, annotations, CATEGORIES)


def test_panoptic(tmp_path):
    source = from_coco(tmp_path / "images", panoptic(tmp_path), "panoptic")
    assert (source.class_names, source.stuff, source.category_ids) == (("cat", "sky"), (1,), (1, 4))
    answer = source.answer(0)
    assert answer.labels.tolist() == [0, 1] and answer.areas.tolist() == [36, 36]
    np.testing.assert_array_equal(answer.masks, [rectangle((10, 8), (x, 1, x + 4, 10)) for x in (0, 4)])
    assert answer.boxes.tolist() == [[0, 1, 4, 10], [4, 1, 8, 10]]
    assert source.take([0]).answer(0).labels.tolist() == [0, 1]
    moved = tmp_path / "moved"
    (tmp_path / "a").rename(moved)
    assert from_coco(tmp_path / "images", tmp_path / "a.json", "panoptic", segments=moved).size == 1


@for_each(
    "options, message",
    [
        ({"listed": (300,)}, r"a/7.png must have the segments .* segment 70000 is in the PNG file but not in the json"),
        ({"ids": (300, 300)}, r"a/7.png must have .* segment 70000 is in the json file but not in the PNG file"),
        ({"listed": (0, 300)}, r"image 7, annotation 0 must have id, a number of three bytes above 0; got 0"),
        ({"segments_info": None}, r"image 7 must have segments_info, a list; got None"),
        ({"segments_info": [5]}, r"image 7, annotation 5 must have category_id, a category of the file; got None"),
        ({"image_id": 8}, r"a.json, annotation must have image_id, the id of an image of the file; got 8"),
    ],
)
def test_panoptic_errors(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        from_coco(tmp_path / "images", panoptic(tmp_path, **options), "panoptic").answer(0)


def test_more_panoptic_errors(tmp_path):
    path = panoptic(tmp_path, images=write_images(tmp_path / "images", {7: (10, 9)}))
    with pytest.raises(ValueError, match=r"7.png must have .* of its upright image, \(10, 9, 3\); got \(10, 8, 3\)"):
        from_coco(tmp_path / "images", path, "panoptic").answer(0)
    Image.fromarray(np.zeros((10, 9), "uint8")).save(tmp_path / "a" / "7.png")
    with pytest.raises(ValueError, match=r"7.png must have .* of its upright image, \(10, 9, 3\); got \(10, 9\)"):
        from_coco(tmp_path / "images", path, "panoptic").answer(0)
    (tmp_path / "a" / "7.png").write_bytes(b"no PNG")
    with pytest.raises(ValueError, match="7.png must be a whole PNG or .npy file"):
        from_coco(tmp_path / "images", path, "panoptic").answer(0)
    path = write_json(path, write_images(tmp_path / "images"), [], CATEGORIES)
    with pytest.raises(ValueError, match="a.json, image 7 must have one annotation; got 0"):
        from_coco(tmp_path / "images", path, "panoptic")


@for_each(
    "kind, change, message",
    [
        (
            "boxes",
            {"category_id": 3},
            "a.json, image 7, annotation 11 must have category_id, a category of the file; got 3",
        ),
        ("boxes", {"image_id": 8}, "annotation must have image_id, the id of an image of the file; got 8"),
        *(
            ("boxes", {"bbox": box}, r"annotation 11 must have bbox, left, .* inside its image, 60 x 40 pixels; got")
            for box in ([50, 4, 12, 3], [5, 4, -1, 3], [5, 4, float("nan"), 3], [5, 4, 3], None, "1234")
        ),
        ("boxes", {"iscrowd": 2}, "annotation 11 must have iscrowd, 0, 1 or nothing; got 2"),
        ("boxes", {"area": "9"}, "annotation 11 must have area, a number or nothing; got '9'"),
        *(
            ("keypoints", {"keypoints": points}, r"annotation 11 must have keypoints, .* of 3 points inside .*; got")
            for points in ([1, 2, 2], [62, 2, 2] * 3, [2, 2, 3] * 3, ["a"] * 9, None)
        ),
        *(
            ("instances", {"segmentation": shape}, r"annotation 11 must have segmentation, .* 3 points .* \[40, 60\]")
            for shape in (
                [],
                None,
                [[1, 2, 3, 4]],
                [[1, 2, 3, 4, 5, 6, 7]],
                [["a"] * 6],
                [[1, 2, 3, 4, 99, 5]],
                {"size": [60, 40], "counts": [2400]},
                {"size": [40, 60], "counts": [2401, -1]},
                {"size": [40, 60], "counts": [2401]},
                {"size": [40, 60], "counts": "o" * 99},
                {"size": [40, 60], "counts": "oooooooooooooo0"},
                {"size": [40, 60]},
            )
        ),
    ],
)
def test_errors_of_an_annotation(tmp_path, kind, change, message):
    images = write_images(tmp_path / "images", {7: SIZES[7]})
    categories = [PERSON] if kind == "keypoints" else [{"id": 1, "name": "cat"}]
    path = write_json(tmp_path / "a.json", images, [{**entry(11, 7, BOXES[0], 1), **change}], categories)
    with pytest.raises(ValueError, match=message):
        from_coco(tmp_path / "images", path, kind).answer(0)


@for_each(
    "images, annotations, categories, message",
    [
        ([], [], [PERSON], "a.json, images must have distinct ids; got 0, 0 of them"),
        ([{"id": 7}] * 2, [], [PERSON], "a.json, images must have distinct ids; got 2, 1 of them"),
        ([{"id": 7}], [], [], "a.json, categories must have distinct ids; got 0, 0 of them"),
        ([{"id": 7}], [], [{"id": 1.5}], "a.json, categories must have id, an integer or a string; got 1.5"),
        ([{"id": 7}], [], [PERSON, {"id": 2, "name": "cat"}], "a.json must have one category, with keypoints; got 2"),
        ([{"id": 7}], [], [{"id": 1, "name": "cat"}], "category cat must have keypoints, a list of names; got None"),
        ([{"id": 7}], [], [PERSON], "image 7 must have file_name, a string; got None"),
        ([{"id": 7, "file_name": "../a.json"}], [], [PERSON], "image 7: file_name must be a path inside .*; got"),
        ([{"id": 7, "file_name": "a.json"}], [], [PERSON], "a.json, image 7 must have height, an integer; got None"),
        ([{"id": 7}], [7], [PERSON], "a.json, annotation must have image_id, the id of an image of the file; got None"),
        (None, [], [], "a.json must have the lists images, annotations, categories"),
    ],
)
def test_errors_of_a_file(tmp_path, images, annotations, categories, message):
    with pytest.raises(ValueError, match=message):
        from_coco(tmp_path, write_json(tmp_path / "a.json", images, annotations, categories), "keypoints")


def test_errors_of_files_that_are_missing_or_turned(tmp_path, images):
    path = write_json(tmp_path / "a.json", images, [])
    (tmp_path / "images" / "3.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"a.json, image 3: there is no file .*3.png"):
        from_coco(tmp_path / "images", path, "boxes")
    with pytest.raises(FileNotFoundError, match="b.json"):
        from_coco(tmp_path, tmp_path / "b.json")
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(ValueError, match="b.json must be JSON"):
        from_coco(tmp_path, tmp_path / "b.json")
    with pytest.raises(ValueError, match="segments must be None for kind='boxes'"):
        from_coco(tmp_path, path, "boxes", segments=tmp_path)
    with pytest.raises(ValueError, match="kind must be one of"):
        from_coco(tmp_path, path, "semantic")


def test_an_orientation_is_applied(tmp_path):
    images = write_images(tmp_path / "images", {7: (40, 60)})
    exif = Image.Exif()
    exif[274] = 6
    with Image.open(tmp_path / "images" / "7.png") as image:
        image.save(tmp_path / "images" / "7.png", exif=exif)
    path = write_json(tmp_path / "a.json", images, [entry(1, 7, BOXES[0])])
    with pytest.raises(ValueError, match=r"image 7 must have .* of its upright image, \(60, 40\); got \(40, 60\)"):
        from_coco(tmp_path / "images", path).answer(0)
    images[0] |= {"height": 60, "width": 40}
    upright = from_coco(tmp_path / "images", write_json(path, images, [entry(1, 7, BOXES[0])]))
    assert upright.image(0).shape == (60, 40, 3) and upright.answer(0).masks.shape == (1, 60, 40)
