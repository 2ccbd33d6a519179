"""`predict` of task models against their own functions, one image at a time."""

import numpy as np
import pytest
from clip_vocabulary import copy_with_vocabulary
from conftest import TESTS
from faults import for_each

import keras_vit
from keras_vit import tasks

FOLDER = TESTS / "golden_tasks"
RNG = np.random.default_rng(0)
PHOTOS = [RNG.integers(0, 256, (*size, 3), "uint8") for size in ((40, 56), (56, 40), (30, 30), (40, 56))]


def load(case, **preprocessing):
    model = keras_vit.load(FOLDER / case)
    model.preprocessing = model.preprocessing.replace(**preprocessing)
    return model


@pytest.fixture(scope="module")
def eomt():
    return load("eomt_dinov2", sizing="longest")


@pytest.fixture(scope="module")
def sam():
    return load("sam_prompts", pad=True)


@pytest.fixture(scope="module")
def pose():
    return load("vitpose_simple")  # `sizing="box"`, as the file states none


def test_depth_of_images_of_different_sizes():
    model = load("depth_anything_relative", sizing="nearest", size=56, multiple=14)
    found = keras_vit.predict(model, PHOTOS[:2])
    for answer, photo in zip(found, PHOTOS[:2], strict=True):
        (inputs, _) = tasks.prepare(photo, model.preprocessing)
        expected = tasks.depth_map(np.asarray(model(inputs))[0], photo.shape[:2], "disparity")
        np.testing.assert_allclose(answer.values, expected.values, rtol=1e-4, atol=1e-5)
        assert answer.unit == "disparity"
    assert np.asarray(model(tasks.prepare(PHOTOS[1], model.preprocessing)[0])).shape == (1, 56, 42)


def test_units_of_depth_and_classes_of_pixels():
    (found,) = keras_vit.predict(load("dpt_dinov2"), PHOTOS[0])
    assert found.unit == "metres" and found.values.shape == (40, 56)
    model = load("dpt_segmentation")
    (found,) = keras_vit.predict(model, PHOTOS[0])
    assert found.labels.shape == (40, 56) and str(found).count("%") == len(np.unique(found.labels))


def test_boxes_are_the_best_ones():
    model = load("yolos_mid", sizing="shortest", size=48, longest=64, multiple=16)
    every = keras_vit.predict(model, PHOTOS[0], threshold=0.0)[0]
    best = keras_vit.predict(model, [PHOTOS[0]], top=2, threshold=0.0)[0]
    assert len(every.scores) == model.arguments["num_detection_tokens"] and len(best.scores) == 2
    assert best.scores.tolist() == sorted(every.scores, reverse=True)[:2]


@pytest.mark.parametrize("kind", ["panoptic", "instances", "semantic"])
def test_segments(kind, eomt):
    (found,) = keras_vit.predict(eomt, PHOTOS[1], segments=kind, **({} if kind == "semantic" else {"threshold": 0.0}))
    assert isinstance(found, tasks.LabelMap if kind == "semantic" else tasks.Segments)
    assert (found.labels if kind == "semantic" else found.ids).shape == (56, 40)


def test_windows_give_a_label_map(eomt):
    model = load("eomt_dinov2", sizing="windows")
    outputs = keras_vit.predict(model, PHOTOS[:2])
    inputs, places = tasks.prepare(PHOTOS[0], model.preprocessing)
    found = {name: np.asarray(value) for name, value in model(inputs).items()}
    scores = tasks.semantic_scores(found["mask_logits"], found["class_logits"], places)
    assert len(places) == 2 and (outputs[0].labels == tasks.label_map(scores, (40, 56)).labels).all()


def test_persons_of_each_image(pose):
    boxes = [[[3, 3, 20, 30], [10, 0, 40, 39]], [], [[0, 0, 30, 30]], [[5, 5, 9, 9]]]
    found = keras_vit.predict(pose, PHOTOS, boxes=[*boxes[:3], tasks.Boxes(boxes[3], [0.5], [0])])
    assert [len(one.scores) for one in found] == [2, 0, 1, 1]
    whole = keras_vit.predict(pose, PHOTOS[2])[0]
    np.testing.assert_allclose(found[2].xy, whole.xy, atol=1e-3)
    alone = keras_vit.predict(pose, PHOTOS[0], boxes=boxes[0][1:])[0]
    np.testing.assert_allclose(found[0].xy[1:], alone.xy, atol=0.02)
    assert (keras_vit.predict(pose, PHOTOS[0], boxes=[])[0].xy.shape) == (0, whole.xy.shape[1], 2)


def test_prompts_of_each_image(sam):
    points = [[[10, 20], [30, 30]], [[5, 5]], [[1, 1]], [[40, 20]]]
    found = keras_vit.predict(sam, PHOTOS, points=points, labels=[[1, 0], [1], [1], [1]])
    assert [one.masks.shape for one in found] == [(1, *photo.shape[:2]) for photo in PHOTOS]
    (inputs, (place,)) = tasks.prepare(PHOTOS[0], sam.preprocessing)
    prompts = place.to_input(np.array([[points[0]]], "float32")).astype("float32")
    decoded = sam.decode(sam.encode(inputs), points=prompts, labels=np.array([[[1, 0]]]))
    iou, masks = (np.asarray(decoded[name])[0, 0] for name in ("iou", "masks"))
    expected = tasks.masks_in_image(masks[[iou.argmax()]], iou[[iou.argmax()]], place, (40, 56))
    assert (found[0].masks == expected.masks).mean() > 0.999
    np.testing.assert_allclose(found[0].scores, expected.scores, rtol=1e-4)


def test_many_boxes_are_decoded_in_parts(sam):
    corners = RNG.integers(0, 20, (40, 2))
    boxes = np.concatenate([corners, corners + 10], -1)
    found = keras_vit.predict(sam, PHOTOS[0], boxes=boxes, multimask=False)[0]
    assert found.masks.shape == (40, 40, 56)
    alone = keras_vit.predict(sam, PHOTOS[0], boxes=boxes[35:36], multimask=False)[0]
    np.testing.assert_allclose(found.scores[35], alone.scores[0], rtol=1e-4)
    outside = tasks.Boxes([[-5, -5, 70, 70]], [0.5], [0])
    assert keras_vit.predict(sam, PHOTOS[0], boxes=outside)[0].masks.shape == (1, 40, 56)
    assert keras_vit.predict(sam, PHOTOS[0], boxes=[])[0].masks.shape == (0, 40, 56)


def test_texts_name_what_they_find(tmp_path):
    pytest.importorskip("tokenizers", reason="needs the extra [text]")
    for case, of_class in (("owlv2", tasks.Boxes), ("clipseg_text", tasks.Masks)):
        model, one = keras_vit.load(copy_with_vocabulary(case, tmp_path / case)), "a cat"
        many = [one, "dog", "cat dog"]
        (found,), (alone,) = (keras_vit.predict(model, PHOTOS[0], text=text, threshold=0) for text in (many, one))
        assert isinstance(found, of_class) and set(alone.names) == {one} and set(found.names) <= {*many}
        if case == "owlv2":
            assert found.names == tuple(many[label] for label in found.labels) and len(found.boxes) == 16
            assert (found.scores >= alone.scores - 1e-6).all()
        else:
            assert found.names == tuple(many) and (found.masks[0] == alone.masks[0]).all()
        model.tokenizer = None
        with pytest.raises(ValueError, match=r"texts must be token ids.*not loaded from a folder with its tokenizer"):
            keras_vit.predict(model, PHOTOS[0], text="dog")


@for_each(
    "options, error, message",
    [
        ({"classes": 3}, TypeError, "classes is no option of predict for a SAM, which has points, labels, boxes, "),
        ({}, ValueError, "points or boxes must be given"),
        ({"labels": [1], "boxes": [[3, 3, 9, 9]]}, ValueError, "labels must be None without points"),
        ({"points": [[60, 3]]}, ValueError, "points must be inside the image, 56 x 40 pixels; got .*60"),
        ({"points": [[3, -1]]}, ValueError, "points must be inside the image"),
        ({"points": []}, ValueError, "points must be numbers of shape"),
        ({"points": [[3, 3]], "labels": [2]}, ValueError, r"labels must be 0 or 1 for each point, of shape \(1, 1\)"),
        ({"boxes": [[3, 3, 9]]}, ValueError, "boxes must be numbers of shape"),
        ({"boxes": [[9, 3, 3, 9]]}, ValueError, "boxes must have left < right and top < bottom; got .*9"),
    ],
)
def test_errors_of_prompts(options, error, message, sam):
    with pytest.raises(error, match=message):
        keras_vit.predict(sam, PHOTOS[0], **options)


def test_errors(eomt, pose):
    with pytest.raises(ValueError, match="boxes must be a list with one value for each of the 4 images; got 1"):
        keras_vit.predict(pose, PHOTOS, boxes=[[3, 3, 9, 9]])
    with pytest.raises(ValueError, match="inside the image, 56 x 40 pixels, at least in part; got .*60"):
        keras_vit.predict(pose, PHOTOS[0], boxes=[[60, 3, 90, 9]])
    with pytest.raises(ValueError, match="segments must be one of 'panoptic', 'instances', 'semantic'"):
        keras_vit.predict(eomt, PHOTOS[0], segments="masks")
    with pytest.raises(ValueError, match=r"stuff must be indices of 5 classes; got \(5,\)"):
        keras_vit.predict(eomt, PHOTOS[0], stuff=[5])
    with pytest.raises(ValueError, match="examples must hold at least one image"):
        keras_vit.predict(load("owlv2"), PHOTOS[0], examples=[])
    with pytest.raises(TypeError, match="text is an option of task models; got a VisionTransformer"):
        keras_vit.predict(keras_vit.ViT_Ti16(image_size=32), PHOTOS[0], text=["cat"])
    with pytest.raises(ValueError, match=r"sizing=None; got 'longest' of a task model \(use keras_vit.predict"):
        keras_vit.preprocess(PHOTOS[0], eomt.preprocessing)
