"""`evaluate` of task models: tiny ones of each kind end to end, against `predict` and the files that `save` writes."""

import contextlib
import dataclasses
import io
import json
import sys
from unittest import mock

import numpy as np
import PIL.Image
import pytest
from conftest import TESTS
from faults import for_each

import keras_vit
from keras_vit import tasks
from keras_vit.data import Answer, TaskSource
from keras_vit.evaluation import TaskScores, task_scores
from keras_vit.tasks.segments import ranked_instances

pytestmark = pytest.mark.usefixtures("eagerly")
RNG = np.random.default_rng(0)
SIZES = ((40, 56),) * 3  # JAX compiles for each size
PHOTOS = [RNG.integers(0, 256, (*size, 3), "uint8") for size in SIZES]
LABELS = tuple(f"LABEL_{n}" for n in range(5))
# in another order than the model's, one of its classes is not in the data
NAMES, IDS = ("LABEL_3", "LABEL_0", "LABEL_2", "LABEL_1"), (40, 10, 30, 20)
FILES, FOLDER = ("a/007.png", "a/003.png", "b/012.png"), None


def load(case, **preprocessing):
    model = keras_vit.load(TESTS / "golden_tasks" / case)
    model.preprocessing = model.preprocessing.replace(**preprocessing)
    model.labels = LABELS[: model.arguments.get("classes", 5)]
    return model


@pytest.fixture(scope="module")
def eomt():
    return load("eomt_dinov2", sizing="longest")


@pytest.fixture(scope="module")
def depth():
    return load("depth_anything_relative", sizing="nearest", size=56, multiple=14)


@pytest.fixture(scope="module", autouse=True)
def photos(tmp_path_factory):
    """The folder of the images of every source."""
    folder = tmp_path_factory.mktemp("photos")
    for name, pixels in zip(FILES, PHOTOS, strict=True):
        (folder / name).parent.mkdir(exist_ok=True)
        PIL.Image.fromarray(pixels).save(folder / name)
    with mock.patch.object(sys.modules[__name__], "FOLDER", folder):
        yield folder


def source_of(kind, answers, class_names=NAMES, category_ids=IDS, stuff=(), image_ids=(7, 3, 12)):
    files = tuple(str(FOLDER / name) for name in FILES[: len(image_ids)])
    return TaskSource(kind, files, class_names, category_ids, stuff, image_ids, (), answers, lambda known, size: known)


def objects(seed, count=4):
    """An answer for each image with masks that do not overlap, boxes, keypoints and a crowd."""
    rng, made = np.random.default_rng(seed), []
    for height, width in SIZES:
        owner = np.kron(rng.integers(-1, count, (5, 2)), np.ones((-(-height // 5), width // 2), int))[:height]
        masks = owner == np.arange(count)[:, None, None]
        corners = rng.uniform(0, (width - 12, height - 12), (count, 2))
        boxes = np.concatenate([corners, corners + rng.uniform(6, 12, (count, 2))], -1).astype("float32")
        points = rng.uniform(0, 30, (count, 4, 3)).astype("float32")
        points[..., 2] = rng.integers(0, 3, (count, 4))
        points[1, :, 2], crowd = 0, np.arange(count) == 2
        labels = rng.integers(0, len(NAMES), count).astype("int32")
        areas = masks.sum((1, 2)).astype(float)
        made.append(Answer(labels=labels, masks=masks, boxes=boxes, keypoints=points, crowd=crowd, areas=areas))
    return made


def png(path):
    with PIL.Image.open(path) as image:
        return np.asarray(image)


def truth_of_coco(source, key, folder, mask):
    """Annotations in COCO's format, for COCOeval on the file of results."""
    rows = []
    for number, known in zip(source.image_ids, source.records, strict=True):
        for n, label in enumerate(known.labels):
            left, top, right, bottom = known.boxes[n].astype(float)
            row = {"id": len(rows) + 1, "image_id": number, "category_id": source.category_ids[label]}
            row |= {"bbox": [round(x, 2) for x in (left, top, right - left, bottom - top)]}
            row |= {"iscrowd": int(known.crowd[n]), "area": known.areas[n]}
            if key == "segmentation":
                runs = mask.encode(np.asfortranarray(known.masks[n].astype("uint8")))
                row["segmentation"] = {"size": runs["size"], "counts": runs["counts"].decode()}
            elif key == "keypoints":
                row["keypoints"] = np.round(known.keypoints[n].astype(float), 2).ravel().tolist()
                row["num_keypoints"] = int((known.keypoints[n][:, 2] > 0).sum())
            rows.append(row)
    images = [{"id": n, "height": size[0], "width": size[1]} for n, size in zip(source.image_ids, SIZES, strict=True)]
    content = {"images": images, "annotations": rows, "categories": [{"id": n} for n in source.category_ids]}
    (folder / "truth.json").write_text(json.dumps(content))


def official(source, key, kind, found, folder):
    """The numbers of COCOeval for what `found.save` writes."""
    mask, coco, cocoeval = (pytest.importorskip(f"pycocotools.{name}") for name in ("mask", "coco", "cocoeval"))
    truth_of_coco(source, key, folder, mask)
    found.save(folder / "results")
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco.COCO(folder / "truth.json")
        measured = cocoeval.COCOeval(truth, truth.loadRes(str(folder / "results" / "results.json")), kind)
        measured.evaluate()
        measured.accumulate()
        measured.summarize()
    return [x for x in measured.stats if x >= 0]


def linear():
    config = keras_vit.ViTConfig(
        name="tiny",
        image_size=32,
        patch_size=8,
        hidden_dim=12,
        num_layers=1,
        num_heads=2,
        mlp_dim=16,
        include_top=False,
    )
    model = keras_vit.LinearSegmentation(keras_vit.VisionTransformer(config), classes=5)
    model.labels = LABELS
    return model


@pytest.mark.parametrize("case", ["eomt_dinov2", "dpt_segmentation", "linear"])
def test_classes_of_pixels(case, eomt, tmp_path):
    model = eomt if case == "eomt_dinov2" else linear() if case == "linear" else load(case)
    count = model.arguments["classes"]
    names, ids = (NAMES, IDS) if count == 5 else (("LABEL_2", "LABEL_0"), (255, 0))
    truths = [RNG.integers(0, len(names), size).astype("int32") for size in SIZES]
    for truth in truths:
        truth[:5] = 255
    source = source_of("semantic", [Answer(label_map=truth) for truth in truths], names, ids, (), ("x/a", "x/b", "c"))
    found = keras_vit.evaluate(model, source)
    options = {"segments": "semantic"} if case == "eomt_dinov2" else {}
    maps = keras_vit.predict(model, PHOTOS, **options)
    truth, answered = np.ravel(truths), np.array(LABELS)[np.ravel([one.labels for one in maps])]
    answered, truth = answered[truth != 255], np.array([*names])[truth[truth != 255]]
    ious = {n: ((truth == n) & (answered == n)).sum() / ((truth == n) | (answered == n)).sum() for n in names}
    assert found.values["mIoU"] == pytest.approx(np.mean([*ious.values()]))
    assert {n: row["IoU"] for n, row in found.classes.items()} == pytest.approx(ious)
    found.save(tmp_path / "maps")
    written = png(tmp_path / "maps" / "x" / "b.png")
    id_of, none = dict(zip(names, ids, strict=True)), 0 if count == 5 else 65535  # the first number that is no class
    expected = [id_of.get(model.labels[n], none) for n in maps[1].labels.ravel()]
    assert written.ravel().tolist() == expected and written.shape == SIZES[1]


def test_panoptic(eomt, tmp_path):
    source = source_of("panoptic", objects(1), stuff=(1, 2), image_ids=(7, 3, "../x"))
    answers = keras_vit.predict(eomt, PHOTOS, stuff=(0, 2), threshold=0.0, overlap=0.0)
    predicted = answers[0]
    first = next(n for n, name in enumerate(predicted.names) if name in NAMES)
    known = source.records[0]
    source.records[0] = Answer(  # its first object is found
        labels=np.array([NAMES.index(predicted.names[first]), *known.labels[1:]]),
        masks=np.concatenate([[predicted.ids == first], known.masks[1:] & (predicted.ids != first)]),
        crowd=known.crowd,
    )
    found = keras_vit.evaluate(eomt, source, threshold=0.0, overlap=0.0)
    expected = 0
    found.save(tmp_path / "results")
    content = json.loads((tmp_path / "results" / "panoptic.json").read_text())
    assert [one["image_id"] for one in content["annotations"]] == [7, 3, "../x"]
    for n, (row, truth) in enumerate(zip(content["annotations"], source.records, strict=True)):
        pixels = png(tmp_path / "results" / "panoptic" / row["file_name"]).astype(int)
        ids = pixels[..., 0] + 256 * pixels[..., 1] + 65536 * pixels[..., 2] - 1
        assert row["file_name"] == ("7.png", "3.png", "..%2Fx.png")[n]
        segments = {one["id"] - 1: IDS.index(one["category_id"]) for one in row["segments_info"]}
        assert {*np.unique(ids)} - {-1} == segments.keys()
        for number, name in enumerate(answers[n].names):
            where = answers[n].ids == number
            assert {*ids[where]} <= {number if name in NAMES else -1}
            assert name not in NAMES or number not in segments or NAMES[segments[number]] == name
        labels = [segments.get(number, -1) for number in range(len(answers[n].labels))]
        owner = np.where(truth.masks.any(0), truth.masks.argmax(0), -1)
        expected = expected + task_scores.segment_counts(owner, truth.labels, truth.crowd, ids, np.array(labels), 4)
    assert found.values == task_scores.segment_scores(expected, (1, 2))[0]
    assert 0 < found.values["PQ"] < 1 and "PQ_stuff" in found.values


def test_instances(eomt, tmp_path):
    pytest.importorskip("pycocotools", reason="needs the extra [coco]")
    source = source_of("instances", objects(2))
    (labels, _, masks) = best = ranked(eomt, PHOTOS)
    source.records[0].masks[0] = masks[0]
    source.records[0].labels[0] = NAMES.index(LABELS[labels[0]]) if LABELS[labels[0]] in NAMES else 0
    found = keras_vit.evaluate(eomt, source)
    rows = [row for row in found.results["results.json"] if row["image_id"] == 7]
    expected = [(IDS[NAMES.index(LABELS[n])], s) for n, s, _ in zip(*best, strict=True) if LABELS[n] in NAMES]
    assert [row["category_id"] for row in rows] == [n for n, _ in expected]
    assert [row["score"] for row in rows] == pytest.approx([s for _, s in expected], abs=1e-4)
    assert [*found.values.values()] == official(source, "segmentation", "segm", found, tmp_path)
    assert found.values["AP"] > 0


def ranked(model, photos):
    """The best pairs of the first photo."""
    inputs, places = zip(*(tasks.prepare(photo, model.preprocessing) for photo in photos), strict=True)
    outputs = {name: value[0] for name, value in model.predict_on_batch(np.concatenate(inputs)).items()}
    return ranked_instances(outputs["mask_logits"], outputs["class_logits"], places[0][0], photos[0].shape[:2], 100)


def test_boxes(tmp_path):
    pytest.importorskip("pycocotools", reason="needs the extra [coco]")
    model = load("yolos_mid", sizing="shortest", size=48, longest=64, multiple=16)
    source = source_of("boxes", objects(3))
    answers = keras_vit.predict(model, PHOTOS, threshold=0.0, top=100)
    source.records[1].boxes[0] = answers[1].boxes[0]
    source.records[1].labels[0] = NAMES.index(LABELS[answers[1].labels[0]])
    source.records[2] = Answer(labels=np.zeros(0, int), boxes=np.zeros((0, 4)), crowd=np.zeros(0, bool), areas=[])
    found = keras_vit.evaluate(model, source, verbose=False)
    scores = [row["score"] for row in found.results["results.json"] if row["image_id"] == 3]
    assert scores == pytest.approx(answers[1].scores.tolist(), abs=1e-5)
    assert [*found.values.values()] == official(source, "bbox", "bbox", found, tmp_path)
    assert found.values["AP"] > 0 and [*found.values][:3] == ["AP", "AP50", "AP75"]


def keypoint_source(names):
    """Persons 1 have no keypoints, and persons 2 are crowds."""
    source, rng = source_of("keypoints", objects(4), names, (1,)), np.random.default_rng(0)
    for n, known in enumerate(source.records):
        points = rng.uniform(0, 30, (4, len(names), 3)).astype("float32")
        points[..., 2] = rng.integers(0, 3, points.shape[:2])
        points[1, :, 2], points[[0, 3], 0, 2] = 0, 2
        source.records[n] = dataclasses.replace(
            known, labels=known.labels * 0, keypoints=points, areas=known.areas + 900
        )
    return source


def test_keypoints():
    model, order = load("vitpose_simple"), [3, 0, 2, 1]  # 4 of the model's 5 keypoints
    model.labels = ("Nose", "L_Eye", "R_Eye", "L_Ear", "R_Ear")  # the names in transformers
    source = keypoint_source(("left_ear", "nose", "right_eye", "left_eye"))
    answers = keras_vit.predict(model, PHOTOS, boxes=[known.boxes[[0, 3]] for known in source.records])
    source.records[0].keypoints[0, :, :2] = answers[0].xy[0][order] + 0.1
    found = keras_vit.evaluate(model, source, batch_size=2)
    near = labelled = 0
    for known, answered in zip(source.records, answers, strict=True):
        for person, xy in zip((0, 3), answered.xy, strict=True):
            left, top, right, bottom = known.boxes[person]
            for (x, y, visible), (its_x, its_y) in zip(known.keypoints[person], xy[order], strict=True):
                labelled += visible > 0
                near += visible > 0 and np.hypot(x - its_x, y - its_y) <= 0.2 * max(right - left, bottom - top)
    assert found.values == {"pck": near / labelled} and near and not found.results  # not COCO's keypoints


def test_keypoints_of_coco(tmp_path):
    pytest.importorskip("pycocotools", reason="needs the extra [coco]")
    model = keras_vit.ViTPose(load("vitpose_simple").encoder, num_keypoints=17)
    source = keypoint_source([f"{n}" for n in range(17)])
    answers = keras_vit.predict(model, PHOTOS, boxes=[known.boxes[[0, 3]] for known in source.records])
    source.records[0].keypoints[0, :, :2] = answers[0].xy[0] + 0.1
    found = keras_vit.evaluate(model, source)
    rows = found.results["results.json"]
    seen = [[s for s in scores if s > 0.2] for one in answers for scores in one.scores]
    assert [row["score"] for row in rows] == pytest.approx([np.mean(s) if s else 0.0 for s in seen], abs=1e-4)
    assert len(rows) == 6 and len(rows[0]["keypoints"]) == 51
    assert [*found.values][:3] == ["AP", "AP50", "AP75"] and found.values["AP"] > 0 and "pck" in found.values
    del found.values["pck"]
    assert [*found.values.values()] == official(source, "keypoints", "keypoints", found, tmp_path)


def test_depth(depth, tmp_path):
    known = [RNG.uniform(1, 9, size).astype("float32") for size in SIZES]
    known[0][:9], known[1][:] = 0, 0
    source = source_of("depth", [Answer(depth=one) for one in known], (), (), (), ("x/a", "x/b", "c"))
    found = keras_vit.evaluate(depth, source, max_depth=8)
    rows, answers = [], keras_vit.predict(depth, PHOTOS)
    for n in (0, 2):
        true, values = known[n], answers[n].values
        where = (true > 0) & (true <= 8)
        columns = np.stack([values[where], np.ones(where.sum())], -1)
        scale, shift = np.linalg.lstsq(columns, 1 / true[where], rcond=None)[0]
        metres = 1 / np.maximum(scale * values + shift, 1 / 8)
        rows.append(np.mean(np.abs(metres - true)[where] / true[where]))
    assert found.values["abs_rel"] == pytest.approx(np.mean(rows), rel=1e-3) and found.classes == {}
    found.save(tmp_path / "new" / "maps")
    assert sorted(path.name for path in (tmp_path / "new" / "maps").rglob("*.png")) == ["a.png", "c.png"]
    written = png(tmp_path / "new" / "maps" / "c.png")
    assert written.dtype == np.uint16 and np.abs(written / 256 - metres).max() < 0.003
    metric = load("dpt_dinov2", size=56)
    absolute, answers = keras_vit.evaluate(metric, source), keras_vit.predict(metric, PHOTOS)
    errors = [(answers[n].values - known[n])[known[n] > 0] for n in (0, 2)]
    assert absolute.values["rmse"] == pytest.approx(np.mean([np.sqrt(np.mean(one**2)) for one in errors]), rel=1e-3)
    assert len(absolute.results) == 3


def test_text_and_files(tmp_path):
    rows = {"dog": {"PQ": 0.25}, "cat": {"PQ": 0.5, "SQ": 1.0}, "eel": {"PQ": 0.75, "SQ": 0.8}}
    scores = TaskScores("panoptic", 12, {"PQ": 0.5, "rmse": 0.25}, rows, {"a/b.json": [1], "c.png": b"2"})
    assert str(scores) == "PQ 50.00 %, rmse 0.2500 (12 images)"
    lines = scores.report(2).splitlines()
    assert [line.split() for line in lines[-4:]] == [
        ["The", "2", "worst", "of", "3", "classes:"],
        ["class", "PQ", "SQ"],
        ["dog", "25.00", "%"],
        ["cat", "50.00", "%", "100.00", "%"],
    ]
    assert "Classes, worst first:" in scores.report() and "12 images" in scores.report()
    scores.save(tmp_path / "new")
    assert (tmp_path / "new/a/b.json").read_text() == "[1]" and (tmp_path / "new/c.png").read_bytes() == b"2"
    with pytest.raises(FileExistsError, match="folder must not exist yet"):
        scores.save(tmp_path / "new")
    broken = dataclasses.replace(scores, results={"a": [1], "b": {1, 2}})
    with pytest.raises(TypeError):
        broken.save(tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@for_each(
    "kind, changes, options, error, text",
    [
        ("boxes", {}, {}, ValueError, "data must be of kind semantic or panoptic or instances for a EoMT"),
        ("semantic", {"image_ids": (1, 1, 2)}, {}, ValueError, "each once"),
        ("semantic", {"image_ids": ()}, {}, ValueError, "must contain images"),
        ("semantic", {}, {"threshold": 0.5}, TypeError, "threshold is no option of evaluate for data of kind semantic"),
        ("panoptic", {}, {"top": 5}, TypeError, "top is no option of evaluate .* which has threshold, overlap"),
        ("semantic", {"class_names": ("cat", "dog")}, {}, ValueError, "class names must match"),
        ("semantic", {}, {"batch_size": 0}, ValueError, "batch_size"),
    ],
)
def test_refusals(kind, changes, options, error, text, eomt):
    with pytest.raises(error, match=text):
        keras_vit.evaluate(eomt, source_of(kind, objects(0), **changes), **options)


def test_refusals_of_other_models(depth):
    with pytest.raises(ValueError, match="max_depth must be given for a relative model"):
        keras_vit.evaluate(depth, source_of("depth", [Answer(depth=np.ones(size)) for size in SIZES], (), ()))
    with pytest.raises(ValueError, match="a pixel, an object or a keypoint that can be measured"):
        nothing = [Answer(depth=np.zeros(size)) for size in SIZES]
        keras_vit.evaluate(depth, source_of("depth", nothing, (), ()), max_depth=8)
    with pytest.raises(ValueError, match="none can be measured"):
        keras_vit.evaluate(mock.Mock(spec=keras_vit.SAM), source_of("instances", objects(0)))
