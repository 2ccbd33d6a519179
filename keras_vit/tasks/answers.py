"""What each kind of task model answers for an image, in pixels of the image: `keras_vit.predict` of a task model."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit import checks
from keras_vit.models import (
    DPT,
    OWL,
    SAM,
    YOLOS,
    CLIPSeg,
    DPTSegmentation,
    EoMT,
    LinearSegmentation,
    TaskModel,
    ViTPose,
)
from keras_vit.tasks.boxes import Boxes, detected_boxes, example_boxes
from keras_vit.tasks.depth import depth_map
from keras_vit.tasks.drawing import check_array, sigmoid, softmax
from keras_vit.tasks.inputs import prepare
from keras_vit.tasks.keypoints import keypoints
from keras_vit.tasks.masks import Masks, masks_in_image
from keras_vit.tasks.segments import instances, label_map, panoptic, semantic_scores

_PROMPTS = 32  # of an image that SAM decodes at a time
_OF_IMAGE = ("boxes", "points", "labels")  # options of which each image has its own value


def predict_task(
    model: TaskModel,
    readers: Sequence[Callable[[int], Any]],
    is_list: bool,
    options: dict[str, Any],
    answer: Callable[..., Any] | None = None,
    chunk: int = 8,
) -> list[Any]:
    """Return the answer of a task model for each image.

    Args:
        model: a task model.
        readers: for each image a function of the number of channels to its upright pixels (height, width, channels),
            values from 0 to 255.
        is_list: whether the images were given as a list, and so `boxes`, `points` and `labels`.
        options: the options of its kind, see `keras_vit.predict`.
        answer: replaces the second function of its kind in `KINDS`.
        chunk: number of images in memory at a time.

    Raises:
        TypeError: on an option that its kind does not have.
        ValueError: if an option is out of range or does not fit the images.
    """
    kind = next(kind for kind in KINDS if isinstance(model, kind))
    run, answer = KINDS[kind][0], answer or KINDS[kind][1]
    known = [*inspect.signature(answer).parameters][4:]
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None:
        has = ", ".join(known) or "none"
        raise TypeError(f"{unknown} is no option of predict for a {kind.__name__}, which has {has}")
    of_image = {name: _of_images(name, options[name], len(readers), is_list) for name in _OF_IMAGE if name in options}
    shared, answers = {name: value for name, value in options.items() if name not in _OF_IMAGE}, []
    for start in range(0, len(readers), chunk):
        stop = min(start + chunk, len(readers))
        images = [_as_bytes(read(model.preprocessing.channels)) for read in readers[start:stop]]
        own = [{name: values[index] for name, values in of_image.items()} for index in range(start, stop)]
        # the inputs of ViTPose depend on the boxes
        boxes = [more.get("boxes") if kind is ViTPose else None for more in own]
        pairs = zip(images, boxes, strict=True)
        prepared = [prepare(image, model.preprocessing, _persons(image, edges)) for image, edges in pairs]
        found = _outputs(run(model), [inputs for inputs, _ in prepared])
        for image, (_, places), outputs, more in zip(images, prepared, found, own, strict=True):
            answers.append(answer(model, outputs, places, image.shape[:2], **shared, **more))
    return answers


def _of_images(name, value, count, is_list):
    """Return the value of an option for each image."""
    values = value if is_list else [value]
    if not isinstance(values, (list, tuple)) or len(values) != count:
        got = f"{len(values)}" if isinstance(values, (list, tuple)) else f"a {type(values).__name__}"
        raise ValueError(f"{name} must be a list with one value for each of the {count} images; got {got}")
    return values


def _as_bytes(pixels):
    return np.rint(np.clip(pixels, 0, 255)).astype("uint8")


def _persons(image, boxes):
    """Return the boxes of an image, or None; raise an error if one is outside."""
    boxes, (height, width) = boxes.boxes if isinstance(boxes, Boxes) else boxes, image.shape[:2]
    for box in [] if boxes is None else boxes:
        if len(box) == 4 and not (box[0] < width and box[1] < height and box[2] > 0 and box[3] > 0):
            raise ValueError(f"boxes must be inside the image, {width} x {height} pixels, at least in part; got {box}")
    return boxes


def _outputs(run, inputs):
    """Return the outputs for the inputs of each image; inputs of one size are computed together."""
    found: list[Any] = [None] * len(inputs)
    of_size: dict[Any, list[int]] = {}
    for index, one in enumerate(inputs):
        of_size.setdefault(one.shape[1:], []).append(index)
    for size, indices in of_size.items():
        joined = np.concatenate([inputs[index] for index in indices])
        joined = joined if len(joined) else np.zeros((1, *size), "float32")  # no person in any image
        outputs, stop = keras.tree.map_structure(_to_numpy, run(joined)), 0
        for index in indices:
            start, stop = stop, stop + len(inputs[index])
            found[index] = keras.tree.map_structure(lambda x, part=slice(start, stop): x[part], outputs)
    return found


def _to_numpy(x):
    return np.asarray(keras.ops.convert_to_numpy(x), "float32")


def _depth(model, outputs, places, size):
    # DPT on DINOv2, which alone has a projection, was trained on metres without a largest depth
    is_metric = model.arguments["max_depth"] is not None or model.arguments["projected"]
    return depth_map(outputs[0], size, "metres" if is_metric else "disparity")


def _classes(model, outputs, places, size):
    return label_map(outputs["logits"][0], size, model.labels)


def _segments(model, outputs, places, size, segments=None, stuff=(), threshold=0.8, overlap=0.8):
    has_windows = model.preprocessing.sizing == "windows"
    kind = segments or ("semantic" if has_windows else "panoptic")
    checks.check_choice("segments", kind, ("semantic",) if has_windows else ("panoptic", "instances", "semantic"))
    masks, classes, labels = outputs["mask_logits"], outputs["class_logits"], model.labels
    if kind == "semantic":
        return label_map(semantic_scores(masks, classes, places), size, labels)
    if kind == "instances":
        return instances(masks[0], classes[0], places[0], size, threshold, labels)
    return panoptic(masks[0], classes[0], places[0], size, stuff, threshold, overlap, labels)


def _boxes(model, outputs, places, size, threshold=0.5, top=None):
    scores = softmax(outputs["logits"][0])[:, :-1]
    return detected_boxes(scores, outputs["boxes"][0], places[0], threshold, model.labels).best(top)


def _found(model, outputs, places, size, text=None, examples=None, threshold=None, overlap=0.3, top=None):
    if (text is None) == (examples is None):
        raise ValueError("text or examples must be given, and not both: what to find, as strings or as images")
    place, boxes = places[0], outputs["boxes"]
    if text is not None:
        texts = [text] if isinstance(text, str) else text
        scores = sigmoid(_to_numpy(model.classify(outputs, model.embed_text(texts)))[0])
        return detected_boxes(scores, boxes[0], place, 0.1 if threshold is None else threshold, texts).best(top)
    if not len(examples):
        raise ValueError("examples must hold at least one image; got none")
    images = np.concatenate([prepare(image, model.preprocessing)[0] for image in examples])
    queries = model.embed_examples(images)["queries"][:, 0]
    scores = sigmoid(_to_numpy(model.classify(outputs, queries))[0])
    return example_boxes(scores, boxes[0], place, threshold or 0.0, overlap).best(top)


def _keypoints(model, outputs, places, size, boxes=None, blur="authors"):
    return keypoints(outputs, places, blur, model.labels)


def _masks(model, outputs, places, size, points=None, labels=None, boxes=None, multimask=True):
    if points is None and boxes is None:
        raise ValueError("points or boxes must be given: what to segment, in pixels (x, y) of the image")
    if points is None and labels is not None:
        raise ValueError("labels must be None without points")
    place, prompts = places[0], {}
    if points is not None:
        points = _in_image("points", points, size, 2)
        points = points if points.ndim == 3 else points[None]
        labels = np.ones(points.shape[:2]) if labels is None else np.asarray(labels)
        if 2 * labels.size != points.size or not np.isin(labels, (0, 1)).all():
            got = f"{checks.quoted(labels.tolist())}"
            raise ValueError(f"labels must be 0 or 1 for each point, of shape {points.shape[:2]}; got {got}")
        prompts["points"] = place.to_input(points).astype("float32")
        prompts["labels"] = labels.reshape(points.shape[:2]).astype("int32")
    if boxes is not None:
        if isinstance(boxes, Boxes):  # a detector may find edges outside the image
            boxes = np.clip(boxes.boxes, 0, [size[1], size[0]] * 2)
        if not len(boxes):
            return Masks(np.zeros((0, *size), bool), np.zeros(0))
        prompts["boxes"] = place.to_input(_in_image("boxes", boxes, size, 4)).astype("float32")
    parts = []
    for start in range(0, len(next(iter(prompts.values()))), _PROMPTS):
        part = {name: value[None, start : start + _PROMPTS] for name, value in prompts.items()}
        found = keras.tree.map_structure(_to_numpy, model.decode(outputs, **part, multimask=multimask))
        best = found["iou"][0].argmax(-1)
        rows = np.arange(len(best))
        parts.append(masks_in_image(found["masks"][0][rows, best], found["iou"][0][rows, best], place, size))
    return Masks(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("masks", "scores")))


def _in_image(name, coordinates, size, width):
    """Return points or boxes as an array; raise an error if one is outside the image."""
    values = check_array(name, coordinates, ("objects", *["points"] * (np.ndim(coordinates) == 3), width))
    height, columns = size
    if values.min() < 0 or (values > np.tile([columns, height], width // 2)).any():
        got = checks.quoted(values.tolist())
        raise ValueError(f"{name} must be inside the image, {columns} x {height} pixels; got {got}")
    if width == 4 and not (values[:, :2] < values[:, 2:]).all():
        raise ValueError(f"{name} must have left < right and top < bottom; got {checks.quoted(values.tolist())}")
    return values.astype("float64")


def _text_masks(model, outputs, places, size, text=None, threshold=0.5):
    if text is None:
        raise ValueError("text must be given: what to segment, a string or a list of strings")
    threshold, texts = checks.check_rate("threshold", threshold), [text] if isinstance(text, str) else text
    logits = np.concatenate([_to_numpy(model.segment(outputs, one[None])) for one in model.embed_text(texts)])
    limit = np.log(threshold) - np.log1p(-threshold) if threshold else np.finfo("float32").min
    return masks_in_image(logits, sigmoid(logits.max((-2, -1))), places[0], size, limit, texts)


def _forward(model):
    return model.predict_on_batch


# kind -> function of the model to what runs on its inputs; function of the model, outputs, placements, size and options
KINDS: dict[type, tuple[Callable[..., Any], Callable[..., Any]]] = {
    CLIPSeg: (lambda model: lambda inputs: inputs, _text_masks),
    DPT: (_forward, _depth),
    DPTSegmentation: (_forward, _classes),
    EoMT: (_forward, _segments),
    LinearSegmentation: (_forward, _classes),
    OWL: (_forward, _found),
    SAM: (lambda model: model.encode, _masks),
    ViTPose: (_forward, _keypoints),
    YOLOS: (_forward, _boxes),
}
