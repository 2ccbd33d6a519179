"""The scores of a task model on images with answers, and its predictions in the formats of the official servers."""

import dataclasses
import inspect
import io
import json
import os
import pathlib
import shutil
from typing import Any

import numpy as np
from PIL import Image

from keras_vit import checks, files
from keras_vit.data.answers import VOID
from keras_vit.data.images import as_images
from keras_vit.data.task_sources import TaskSource
from keras_vit.evaluation.class_matching import match_classes
from keras_vit.evaluation.coco_precision import CocoPrecision
from keras_vit.evaluation.task_scores import ClassIoU, DepthErrors, KeypointAccuracy, PanopticQuality, align_disparity
from keras_vit.models import DPT, YOLOS, DPTSegmentation, EoMT, LinearSegmentation, ViTPose
from keras_vit.progress import progress
from keras_vit.tasks.answers import predict_task
from keras_vit.tasks.segments import ranked_instances
from keras_vit.typing import PathLike

_BATCH_SIZE = 8
_TOP = 100  # boxes and masks of an image, as in COCO's metrics
_SEEN = 0.2  # keypoints with lower scores are left out of the score of a person, as in ViTPose's code
_COCO_KEYPOINTS = 17
_KITTI = 256  # of a depth in metres in a 16-bit PNG file
_NUMBERS = ("abs_rel", "rmse")  # values that are no shares
_SHOWN = 6  # values in one line
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
        shown = ", ".join(f"{name} {_text(name, value)}" for name, value in [*self.values.items()][:_SHOWN])
        return f"{shown} ({self.count} images)"

    def report(self, classes: int = 20) -> str:
        """Return all values and a table of the worst classes as a string.

        Args:
            classes: number of classes in the table, 1 or above; all classes if there are fewer.

        Raises:
            ValueError: if `classes` is not an integer above 0.
        """
        checks.check_integer("classes", classes)
        lines = [files.aligned([(name, _text(name, value)) for name, value in self.values.items()], left=(0,))]
        if self.classes:
            names = [*dict.fromkeys(name for row in self.classes.values() for name in row)]
            worst = sorted(self.classes.items(), key=lambda item: item[1][names[0]])[:classes]
            rows = [(title, *(_text(n, row[n]) if n in row else "" for n in names)) for title, row in worst]
            shown = f"The {len(worst)} worst of {len(self.classes)} classes:"
            lines += ["", "Classes, worst first:" if len(worst) == len(self.classes) else shown]
            lines.append(files.aligned([("class", *names), *rows], left=(0,)))
        return "\n".join([f"{self.count} images", *lines])

    def save(self, folder: PathLike) -> None:
        """Write the predictions as the official servers take them.

        The folder is complete, or is not written. Its contents depend on the task:

        - `boxes`, `instances`, `keypoints`: `results.json` of COCO; masks in its compressed run lengths.
        - `panoptic`: `panoptic.json` of COCO, and the folder `panoptic` of PNG files.
        - `semantic`: a PNG file per image. Its values are the `category_ids` of the source, so 1 to 150 for ADE20K and
          `labelIds` for Cityscapes. No class is 0, or 255 if 0 is a class.
        - `depth`: a 16-bit PNG file per image, 256 times the metres (KITTI). Those of relative models are aligned.

        Args:
            folder: folder that does not exist or is empty; its parent must exist.

        Raises:
            FileExistsError, FileNotFoundError: if the folder has files, or its parent does not exist.
            OSError: if a file cannot be written.
        """
        folder = check_new_folder("folder", folder)
        files.remove_abandoned(folder.parent, _PARTIAL)
        partial = folder.parent / files.partial_name(_PARTIAL)
        try:
            partial.mkdir()
            for name, content in self.results.items():
                path = partial / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
            os.replace(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def check_new_folder(name: str, folder: PathLike) -> pathlib.Path:
    """Return the path of a folder that can be written; raise an error if it has files, or no folder to be in."""
    path = checks.check_path(name, folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(f"{name} must not exist yet, or be an empty folder; got {str(path)!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{name} must be in a folder that exists; got {str(path)!r}")
    return path


def _text(name, value):
    return f"{value:.4f}" if name in _NUMBERS else f"{100 * value:.2f} %"


def evaluate_task(
    model: Any, source: Any, batch_size: int | None, verbose: bool, options: dict[str, Any]
) -> TaskScores:
    """Return the scores of a task model on the images of a `TaskSource`, see `keras_vit.evaluate`.

    Args:
        model: a `TaskModel`.
        source: a `TaskSource`.
        batch_size: images in memory at a time; None is 8.
        verbose: whether to show a progress bar.
        options: options of the kind of the source.

    Raises:
        TypeError: on an option that the kind of the source does not have, or on another source.
        ValueError: if the source does not fit the model, is empty, or has the same image twice.
    """
    checks.check_instance("data", source, TaskSource, "a TaskSource for a task model, such as of data.from_coco")
    step = checks.check_integer("batch_size", _BATCH_SIZE if batch_size is None else batch_size)
    kinds = [kind for kind, measure in _MEASURES.items() if isinstance(model, measure.models)]
    if source.kind not in kinds:
        fits = f"be of kind {' or '.join(kinds)}" if kinds else "be for another model: none can be measured"
        raise ValueError(f"data must {fits} for a {type(model).__name__}; got a source of kind {source.kind}")
    if not 0 < source.size == len({*source.image_ids}):
        raise ValueError(
            f"data must contain images, each once; got {source.size}, {len({*source.image_ids})} of them new"
        )
    known = [*inspect.signature(_MEASURES[source.kind]).parameters][2:]
    for name in [name for name in options if name not in known]:
        has = ", ".join(known) or "none"
        raise TypeError(f"{name} is no option of evaluate for data of kind {source.kind}, which has {has}")
    measure = _MEASURES[source.kind](model, source, **options)
    starts = range(0, source.size, step)
    for start in progress(starts, len(starts), "batch", verbose):
        positions = range(start, min(start + step, source.size))
        truths, images = [source.answer(n) for n in positions], [source.image(n) for n in positions]
        about = measure.options(truths)
        found = predict_task(model, as_images(images), True, about, answer=measure.answer, chunk=step)
        for position, truth, answer in zip(positions, truths, found, strict=True):
            number = source.image_ids[position]
            name = number if isinstance(number, str) else pathlib.Path(source.files[position]).stem
            measure.add(number, f"{name}.png", truth, answer)
    values = measure.values()
    rows = measure.score.per_class().items() if source.class_names else ()
    classes = {source.class_names[n]: row for n, row in rows}
    return TaskScores(source.kind, source.size, values, classes, measure.files)


class _Measure:
    """Compare the answers of a model for images with the truth.

    Attributes:
        models: kinds of models that answer it.
        answer: as in `predict_task`.
        score: an object with `values` and `per_class`.
        fixed: options of `predict`.
        files: as `TaskScores.results`.
        logits: the class of the model of each class of the source.
        classes: the class of the source of each class of the model, -1 for none; a last -1, so that -1 has none.
    """

    models: Any = ()
    answer: Any = None
    score: Any

    def __init__(self, model, source):
        count = model.arguments.get("classes", model.arguments.get("num_keypoints"))
        labels = model.labels
        if isinstance(model, ViTPose) and labels is not None:  # transformers writes L_Eye, COCO left_eye
            labels = [name.replace("L_", "left_").replace("R_", "right_") for name in labels]
        self.logits, _ = match_classes(source.class_names, labels, count)
        self.classes = np.full(count + 1, -1)
        self.classes[[*self.logits]] = range(len(self.logits))
        self.source, self.fixed, self.files = source, {}, {}

    def options(self, truths):
        """Return the options of `predict` for images."""
        return self.fixed

    def add(self, number, name, truth, found):
        """Add an image by its id, the name of its PNG file, its `Answer`, and what the model answered."""
        raise NotImplementedError

    def values(self):
        return self.score.values()


class _Semantic(_Measure):
    models = (EoMT, DPTSegmentation, LinearSegmentation)

    def __init__(self, model, source):
        super().__init__(model, source)
        self.score, self.fixed = ClassIoU(len(self.logits)), {"segments": "semantic"} if isinstance(model, EoMT) else {}
        ids = source.category_ids
        self._ids = np.array([*ids, VOID if 0 in ids else 0], "uint8" if max(ids) < 256 else "uint16")  # last: no class

    def add(self, number, name, truth, found):
        labels = self.classes[found.labels]
        self.score.add(truth.label_map, labels)
        self.files[name] = _png(self._ids[labels])


class _Panoptic(_Measure):
    models = (EoMT,)

    def __init__(self, model, source, threshold=0.8, overlap=0.8):
        super().__init__(model, source)
        self.score, stuff = PanopticQuality(len(self.logits), source.stuff), tuple(self.logits[n] for n in source.stuff)
        self.fixed = {"segments": "panoptic", "stuff": stuff, "threshold": threshold, "overlap": overlap}
        self.files["panoptic.json"] = {"annotations": []}

    def add(self, number, name, truth, found):
        labels, ids = self.classes[found.labels], np.full(found.ids.shape, -1)
        for n, mask in enumerate(truth.masks):
            ids[mask] = n
        predicted = np.where(
            np.append(labels, -1)[found.ids] < 0, -1, found.ids
        )  # without classes that are not in data
        self.score.add(ids, truth.labels, predicted, labels, truth.crowd)
        present = np.unique(predicted[predicted >= 0]).tolist()
        rows = [{"id": n + 1, "category_id": self.source.category_ids[labels[n]]} for n in present]
        about = {"image_id": number, "file_name": name, "segments_info": rows}
        self.files["panoptic.json"]["annotations"].append(about)
        colours = (predicted[..., None] + 1) // (1, 256, 65536) % 256  # id = red + 256 * green + 65536 * blue
        self.files[f"panoptic/{name}"] = _png(colours.astype("uint8"))


class _Boxes(_Measure):
    models: Any = (YOLOS,)

    def __init__(self, model, source):
        super().__init__(model, source)
        self.score, self.fixed = CocoPrecision(source.kind, source.category_ids), {"threshold": 0.0, "top": _TOP}
        self.files["results.json"] = self.score.results

    def add(self, number, name, truth, found):
        self.add_objects(number, truth, found.labels, found.scores, found.boxes)

    def add_objects(self, number, truth, labels, scores, shapes):
        labels = self.classes[labels]
        kept = labels >= 0
        self.score.add(number, truth, labels[kept], scores[kept], shapes[kept])


class _Instances(_Boxes):
    models = (EoMT,)

    @staticmethod
    def answer(model, outputs, places, size):
        return ranked_instances(outputs["mask_logits"][0], outputs["class_logits"][0], places[0], size, _TOP)

    def options(self, truths):
        return {}

    def add(self, number, name, truth, found):
        self.add_objects(number, truth, *found)


class _Keypoints(_Measure):
    models = (ViTPose,)

    def __init__(self, model, source, sigmas=None):
        super().__init__(model, source)
        self.score, self._coco = KeypointAccuracy(len(self.logits)), None
        if sigmas is not None or len(self.logits) == _COCO_KEYPOINTS:
            self._coco = CocoPrecision("keypoints", source.category_ids, sigmas)
            self.files["results.json"] = self._coco.results

    def options(self, truths):
        return {"boxes": [truth.boxes[_persons(truth)] for truth in truths]}

    def add(self, number, name, truth, found):
        persons, xy, scores = _persons(truth), found.xy[:, self.logits], found.scores[:, self.logits]
        self.score.add(truth.keypoints[persons], truth.boxes[persons], xy)
        seen = scores > _SEEN
        means = (scores * seen).sum(1) / np.maximum(seen.sum(1), 1)
        if self._coco is not None:
            self._coco.add(number, truth, truth.labels[persons], means, np.concatenate([xy, scores[..., None]], -1))

    def values(self):
        precision = {} if self._coco is None else self._coco.values()
        share = self.score.values()
        return {"AP": precision["AP"], **share, **precision} if precision else share


def _persons(truth):
    """Return which objects are persons with a labelled keypoint and a box: those that ViTPose is measured on."""
    has_box = (truth.boxes[:, 2:] > truth.boxes[:, :2]).all(1)
    is_one = np.ones(len(has_box), bool) if truth.crowd is None else ~truth.crowd
    return has_box & is_one & (truth.keypoints[..., 2] > 0).any(1)


class _Depth(_Measure):
    models = (DPT,)

    def __init__(self, model, source, min_depth=1e-3, max_depth=None):
        self.score, self.fixed, self.files = DepthErrors(min_depth, max_depth), {}, {}

    def add(self, number, name, truth, found):
        metres, known = found.values, self.score.known(truth.depth)
        if found.unit == "disparity" and not np.isfinite(self.score.max_depth):
            raise ValueError("max_depth must be given for a relative model, such as 80 (KITTI) or 10 (NYU); got None")
        if found.unit == "disparity" and known.any():
            metres = align_disparity(metres, truth.depth, known, self.score.max_depth)
        if found.unit == "metres" or known.any():
            self.score.add(truth.depth, metres)
            self.files[name] = _png(np.rint(np.clip(_KITTI * metres, 1, 65535)).astype("uint16"))


def _png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


_MEASURES: dict[str, type[_Measure]] = {
    "semantic": _Semantic,
    "panoptic": _Panoptic,
    "instances": _Instances,
    "boxes": _Boxes,
    "keypoints": _Keypoints,
    "depth": _Depth,
}
