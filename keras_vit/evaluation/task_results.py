"""The scores of a task model on images with answers, and its predictions in the formats of the official servers."""

import dataclasses
import io
import json
import os
import pathlib
import shutil
import urllib.parse
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from keras_vit import checks, files
from keras_vit.data.answers import VOID
from keras_vit.data.images import as_images
from keras_vit.data.task_sources import TaskSource
from keras_vit.evaluation import task_scores
from keras_vit.evaluation.class_matching import match_classes
from keras_vit.evaluation.coco_precision import COCO_KEYPOINTS, coco_scores, crowd_of, object_rows, truth_rows
from keras_vit.models import DPT, YOLOS, DPTSegmentation, EoMT, LinearSegmentation, ViTPose
from keras_vit.progress import progress
from keras_vit.tasks.answers import predict_task
from keras_vit.tasks.segments import ranked_instances
from keras_vit.typing import PathLike

_BATCH_SIZE = 8
_TOP = 100  # boxes of an image, as in COCO's metrics
_SEEN = 0.2  # keypoints with lower scores are left out of the score of a person, as in ViTPose's code
_KITTI = 256  # of a depth in metres in a 16-bit PNG file
_NUMBERS = ("abs_rel", "rmse")  # values that are no shares
_PARTIAL = ".partial-results-"


@dataclasses.dataclass(frozen=True, eq=False)
class TaskScores:
    """Hold the result of `evaluate` for a task model.

    Attributes:
        task: kind of the source: `semantic`, `panoptic`, `instances`, `boxes`, `keypoints` or `depth`.
        count: number of images.
        values: scores by name, the main one first: shares in [0, 1]; `abs_rel`, and `rmse` in metres.
        classes: scores of each class (or keypoint) that has any, by its name.
        results: the files that `save` writes: a PNG file as bytes, or the contents of a JSON file, by name. PNG files
            take about 20 kB of memory per label map, and 300 kB per depth map.
    """

    task: str
    count: int
    values: dict[str, float]
    classes: dict[str, dict[str, float]]
    results: dict[str, Any] = dataclasses.field(repr=False)

    def __str__(self) -> str:
        shown = [f"{name} {_text(name, value)}" for name, value in self.values.items()]
        return f"{', '.join(shown[:6])} ({self.count} images)"

    def report(self, classes: int = 20) -> str:
        """Return all values and a table of the worst classes as a string.

        Args:
            classes: number of classes in the table, 1 or above; all classes if there are fewer.

        Raises:
            ValueError: if `classes` is not an integer above 0.
        """
        checks.check_integer("classes", classes)
        values = [(name, _text(name, value)) for name, value in self.values.items()]
        lines = [f"{self.count} images", files.aligned(values, left=(0,))]
        if self.classes:
            names = [*dict.fromkeys(name for row in self.classes.values() for name in row)]
            worst = sorted(self.classes.items(), key=lambda item: item[1][names[0]])[:classes]
            rows = [(title, *(_text(name, row.get(name)) for name in names)) for title, row in worst]
            shown = f"The {len(worst)} worst of {len(self.classes)} classes:"
            lines += ["", "Classes, worst first:" if len(worst) == len(self.classes) else shown]
            lines.append(files.aligned([("class", *names), *rows], left=(0,)))
        return "\n".join(lines)

    def save(self, folder: PathLike) -> None:
        """Write the predictions as the official servers take them.

        The folder is complete, or is not written. Its contents depend on the task:

        - `boxes`, `instances`, `keypoints`: `results.json` of COCO; masks in its compressed run lengths.
        - `panoptic`: `panoptic.json` of COCO, and the folder `panoptic` of PNG files, named by the ids of the images.
        - `semantic`: a PNG file per image. Its values are the `category_ids` of the source, so 1 to 150 for ADE20K and
          `labelIds` for Cityscapes. No class is 0, or 255 if 0 is a class, or 65535 if both are.
        - `depth`: a 16-bit PNG file per image, 256 times the metres (KITTI). Those of relative models are aligned; an
          image without a known depth has none.

        Args:
            folder: folder that does not exist yet.

        Raises:
            FileExistsError: if it exists.
            OSError: if a file cannot be written.
        """
        folder = check_new_folder("folder", folder)
        files.remove_abandoned(folder.parent, _PARTIAL)
        partial = folder.parent / files.partial_name(_PARTIAL)
        try:
            partial.mkdir(parents=True)
            for name, content in self.results.items():
                path = partial / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
            os.replace(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def check_new_folder(name: str, folder: PathLike) -> pathlib.Path:
    """Return the path of a folder; raise an error if it exists."""
    path = checks.check_path(name, folder)
    if path.exists():
        raise FileExistsError(f"{name} must not exist yet; got {str(path)!r}")
    return path


def _text(name, value):
    return "" if value is None else f"{value:.4f}" if name in _NUMBERS else f"{100 * value:.2f} %"


def evaluate_task(model, source, batch_size, verbose, options):
    """Return the `TaskScores` of a task model on the images of a `TaskSource`, see `keras_vit.evaluate`.

    Args:
        model: a `TaskModel`.
        source: a `TaskSource`.
        batch_size: images in memory at a time; None is 8.
        verbose: whether to show a progress bar.
        options: options of the kind of the source.

    Raises:
        TypeError: on an option that the kind of the source does not have, or on another source.
        ValueError: if the source does not fit the model, is empty, has an image twice, or has nothing to measure.
    """
    checks.check_instance("data", source, TaskSource, "a TaskSource for a task model, such as of data.from_coco")
    step = checks.check_integer("batch_size", _BATCH_SIZE if batch_size is None else batch_size)
    kinds = [name for name, kind in _KINDS.items() if isinstance(model, kind.models)]
    if source.kind not in kinds:
        fits = f"be of kind {' or '.join(kinds)}" if kinds else "be for another model: none can be measured"
        raise ValueError(f"data must {fits} for a {type(model).__name__}; got a source of kind {source.kind}")
    if not 0 < source.size == len({*source.image_ids}):
        raise ValueError(f"data must contain images, each once; got the ids {checks.quoted(source.image_ids)}")
    kind = _KINDS[source.kind]
    for name in [name for name in options if name not in kind.options]:
        has = ", ".join(kind.options) or "none"
        raise TypeError(f"{name} is no option of evaluate for data of kind {source.kind}, which has {has}")
    run, total, starts = _Run(model, source, options), 0, range(0, source.size, step)
    for start in progress(starts, len(starts), "batch", verbose):
        positions = range(start, min(start + step, source.size))
        truths, images = [source.answer(n) for n in positions], as_images([source.files[n] for n in positions])
        answers = predict_task(model, images, True, kind.asks(run, truths), kind.answer, step)
        for position, truth, answer in zip(positions, truths, answers, strict=True):
            total = total + kind.add(run, source.image_ids[position], truth, answer)
    if not np.any(total):
        raise ValueError("data must contain a pixel, an object or a keypoint that can be measured; it has none")
    values, columns = kind.scores(run, total)
    classes = {}
    for n, title in enumerate(source.class_names):
        row = {name: float(column[n]) for name, column in columns.items() if not np.isnan(column[n])}
        classes |= {title: row} if row else {}
    shown = {name: float(value) for name, value in values.items()}
    return TaskScores(source.kind, source.size, shown, classes, run.files)


class _Run:
    """Hold what the functions of `_KINDS` need and collect.

    Attributes:
        model, source, options: as in `evaluate_task`.
        logits: the class of the model of each class of the source.
        classes: the class of the source of each class of the model, -1 for none; a last -1, so that -1 has none.
        objects: the annotations in the format of COCO.
        files: as `TaskScores.results`.
    """

    def __init__(self, model, source, options):
        count, labels = model.arguments.get("classes", model.arguments.get("num_keypoints", 0)), model.labels
        if isinstance(model, ViTPose) and labels is not None:  # transformers writes L_Eye, COCO left_eye
            labels = [name.replace("L_", "left_").replace("R_", "right_") for name in labels]
        self.logits, _ = match_classes(source.class_names, labels, count)
        self.classes = np.full(count + 1, -1)
        self.classes[[*self.logits]] = range(len(self.logits))
        self.model, self.source, self.options, self.objects, self.files = model, source, options, [], {}


def _add_label_map(run, number, truth, found):
    labels, ids = run.classes[found.labels], run.source.category_ids
    values = [*ids, min({0, VOID, 2**16 - 1} - {*ids})]  # the last is that of -1, no class
    run.files[f"{number}.png"] = _png(np.array(values, "uint8" if max(values) <= VOID else "uint16")[labels])
    return task_scores.pixel_counts(truth.label_map, labels, len(ids))


def _add_segments(run, number, truth, found):
    labels, true = run.classes[found.labels], np.full(found.ids.shape, -1)
    for n, mask in enumerate(truth.masks):
        true[mask] = n
    predicted = np.where(np.append(labels, -1)[found.ids] < 0, -1, found.ids)  # without classes that are not in data
    present = np.unique(predicted[predicted >= 0]).tolist()
    rows = [{"id": n + 1, "category_id": run.source.category_ids[labels[n]]} for n in present]
    name = f"{urllib.parse.quote(str(number), safe='')}.png"  # an id can be any string
    content = run.files.setdefault("panoptic.json", {"annotations": []})
    content["annotations"].append({"image_id": number, "file_name": name, "segments_info": rows})
    colours = (predicted[..., None] + 1) // (1, 256, 65536) % 256  # id = red + 256 * green + 65536 * blue
    run.files[f"panoptic/{name}"] = _png(colours.astype("uint8"))
    return task_scores.segment_counts(true, truth.labels, crowd_of(truth), predicted, labels, len(run.logits))


def _add_boxes(run, number, truth, found):
    return _add_objects(run, number, truth, run.classes[found.labels], found.scores, found.boxes)


def _add_instances(run, number, truth, found):
    labels, scores, masks = found
    return _add_objects(run, number, truth, run.classes[labels], scores, masks)


def _add_objects(run, number, truth, labels, scores, shapes):
    """Collect COCO's annotations and results of an image, without the label -1; return the number of true objects."""
    kind, ids, kept = run.source.kind, run.source.category_ids, labels >= 0
    run.objects += truth_rows(kind, number, ids, truth)
    rows = object_rows(kind, number, ids, labels[kept], shapes[kept])
    results = run.files.setdefault("results.json", [])
    results += [row | {"score": float(score)} for row, score in zip(rows, scores[kept], strict=True)]
    return np.count_nonzero(~crowd_of(truth))


def _precision(run, total):
    source = run.source
    return coco_scores(source.kind, source.category_ids, source.image_ids, run.objects, run.files["results.json"])


def _ranked(model, outputs, places, size):
    return ranked_instances(outputs["mask_logits"][0], outputs["class_logits"][0], places[0], size, _TOP)


def _add_persons(run, number, truth, found):
    persons, xy, scores = _persons(truth), found.xy[:, run.logits], found.scores[:, run.logits]
    if len(run.logits) == COCO_KEYPOINTS:
        seen = scores > _SEEN
        means = (scores * seen).sum(1) / np.maximum(seen.sum(1), 1)
        _add_objects(run, number, truth, truth.labels[persons], means, np.concatenate([xy, scores[..., None]], -1))
    return task_scores.keypoint_counts(truth.keypoints[persons], truth.boxes[persons], xy)


def _persons(truth):
    """Return which objects are persons with a labelled keypoint and a box: those that ViTPose is measured on."""
    has_box = (truth.boxes[:, 2:] > truth.boxes[:, :2]).all(1)
    return has_box & ~crowd_of(truth) & (truth.keypoints[..., 2] > 0).any(1)


def _keypoint_scores(run, total):
    values, columns = task_scores.keypoint_scores(total)
    return (_precision(run, total)[0] if run.objects else {}) | values, columns


def _add_depth(run, number, truth, found):
    metres, limit = found.values, run.options.get("max_depth")
    if found.unit == "disparity" and limit is None:
        raise ValueError("max_depth must be given for a relative model, such as 80 (KITTI) or 10 (NYU); got None")
    limit = np.inf if limit is None else checks.check_positive("max_depth", limit)
    known = (truth.depth >= task_scores.MIN_DEPTH) & (truth.depth <= limit)
    if found.unit == "disparity" and known.any():
        metres = task_scores.aligned_depth(metres, truth.depth, known, limit)
    if found.unit == "metres" or known.any():
        run.files[f"{number}.png"] = _png(np.rint(np.clip(_KITTI * metres, 1, 65535)).astype("uint16"))
    return task_scores.depth_counts(truth.depth[known], metres[known], limit) if known.any() else 0


def _png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


class _Kind(NamedTuple):
    """Describe how the answers of a kind are measured.

    Args:
        models: kinds of models that answer it.
        add: function of `_Run`, the id of an image, its `Answer` and what the model answered, to what is counted.
        scores: function of `_Run` and the sum of the counts, to the scores by name and to columns with a number for
            each class, by name, NaN for none.
        asks: function of `_Run` and the `Answer` of each image to the options of `predict`.
        options: names of the options of `evaluate`.
        answer: as in `predict_task`.
    """

    models: tuple[Any, ...]
    add: Callable[..., Any]
    scores: Callable[..., Any]
    asks: Callable[..., Any] = lambda run, truths: {}
    options: tuple[str, ...] = ()
    answer: Callable[..., Any] | None = None


_KINDS = {
    "semantic": _Kind(
        (EoMT, DPTSegmentation, LinearSegmentation),
        _add_label_map,
        lambda run, total: task_scores.pixel_scores(total),
        lambda run, truths: {"segments": "semantic"} if isinstance(run.model, EoMT) else {},
    ),
    "panoptic": _Kind(
        (EoMT,),
        _add_segments,
        lambda run, total: task_scores.segment_scores(total, run.source.stuff),
        lambda run, truths: {"segments": "panoptic", "stuff": [run.logits[n] for n in run.source.stuff], **run.options},
        ("threshold", "overlap"),
    ),
    "instances": _Kind((EoMT,), _add_instances, _precision, answer=_ranked),
    "boxes": _Kind((YOLOS,), _add_boxes, _precision, lambda run, truths: {"threshold": 0.0, "top": _TOP}),
    "keypoints": _Kind(
        (ViTPose,),
        _add_persons,
        _keypoint_scores,
        lambda run, truths: {"boxes": [truth.boxes[_persons(truth)] for truth in truths]},
    ),
    "depth": _Kind((DPT,), _add_depth, lambda run, total: task_scores.depth_scores(total), options=("max_depth",)),
}
