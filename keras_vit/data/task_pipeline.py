"""task_pipeline: batches of images with label maps, depths, keypoints, boxes or masks, to train task models."""

import dataclasses
import logging
import math
import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from PIL import Image

from keras_vit import checks
from keras_vit.config import Preprocessing
from keras_vit.data import preprocessing as preparation
from keras_vit.data.answers import TARGETS, VOID, Answer
from keras_vit.data.augment.parse import OPERATIONS as IMAGE_OPERATIONS
from keras_vit.data.augment.parse import parse_all
from keras_vit.data.augment.values import check_number, check_span
from keras_vit.data.batches import read_batches
from keras_vit.data.corrupt import Unreadable, UnusableDataError
from keras_vit.data.order import Order
from keras_vit.data.pipeline import check, check_passes, finished, fold
from keras_vit.data.sources import from_memory
from keras_vit.data.task_sources import TaskSource
from keras_vit.tasks.inputs import Placement, placements, prepare, rendered

_LOG = logging.getLogger("keras_vit.data")
_VARYING = ("nearest", "lower_bound", "shortest", "center_padding")  # sizings whose inputs have several sizes
_ATTEMPTS = 10  # to draw a crop with a target
_OUTSIDE = {"label_map": VOID, "depth": 0, "masks": False}  # of maps, where the input shows no image
_MOST_SCALE = 4.0


def task_pipeline(
    source: TaskSource,
    preprocessing: Preprocessing,
    batch_size: int,
    targets: str,
    *,
    seed: int = 0,
    augment: Sequence[str] = (),
    max_objects: int = 100,
    shuffle: bool = True,
    repeat: bool = True,
    drop_remainder: bool = True,
    start_step: int = 0,
    shard: tuple[int, int] = (0, 1),
    max_corrupt: float = 0.01,
) -> tf.data.Dataset:
    """Return batches of images and targets to train a task model on.

    As in `train_pipeline`, batch n depends only on the arguments and n, and unreadable images are replaced, counted and
    logged. An invalid answer raises an error. Images are prepared as `keras_vit.tasks.prepare` does, and answers move
    with them. With `sizing="windows"`, an image gives one window at a random place.

    Args:
        source: a `TaskSource`.
        preprocessing: a `Preprocessing` without `crop` and `max_tokens`, such as `model.preprocessing`, whose inputs
            have one size; with `scale_jitter`, any `sizing` but `box`.
        batch_size: images per batch, over all workers; for keypoints persons.
        targets: `label_map`, `masks`, `boxes`, `keypoints` or `depth`, as the source has them.
        seed: integer, 0 or above.
        augment: strings, see below.
        max_objects: N, the number of objects in a target; of more, the largest are used.
        shuffle, repeat, drop_remainder, start_step, shard, max_corrupt: as in `train_pipeline`.

    Augmentations are drawn in this order, whatever the order in `augment`; only those of colours are in the order
    given:

    - `flip`: mirrors image and answer with probability 1/2; left and right keypoints change places.
    - `scale_jitter(low, high)`: the largest size inside the input is multiplied by a random factor, and the result is
      cut at a random place or padded at the bottom and the right (LSJ; 0.1 to 2 in EoMT). A crop without any target is
      drawn again, up to 10 times.
    - `scale(0.5)` and `rotate(40, 0.6)`, for keypoints: multiplies the box by 1 plus a normal number of this deviation,
      which is clipped to [-0.5, 0.5]; and, with probability 0.6, rotates it by a normal number of degrees of deviation
      40, which is clipped to 80 (ViTPose, without its half bodies).
    - `color_jitter`, `grayscale`, `solarize` and `gaussian_blur` as in `train_pipeline`; they change the padding too.

    Returns:
        `tf.data.Dataset` of (float32 images (batch, height, width, channels), targets), with the attribute
        `steps_per_epoch`. `label_map`: int32 (batch, height, width), 255 has no class. `depth`: float32 (batch, height,
        width), 0 is unknown. `keypoints`: float32 (batch, keypoints, 3), x and y in pixels of the input, and the
        visibility, which is 0 outside the input; each row is a person. `boxes` and `masks`: a dict of `labels`, int32
        (batch, N), -1 is no object; and `boxes`, float32 (batch, N, 4), centre x and y, width and height as shares of
        the input, or `masks`, uint8 (batch, N, height, width) of 0 and 1.

    Raises:
        TypeError: if `source` is not a `TaskSource` or `preprocessing` not a `Preprocessing`.
        ValueError: on an argument out of range, targets that the source does not have, an unknown augmentation, inputs
            of several sizes, or an empty source.
    """
    checks.check_instance("source", source, TaskSource, "a TaskSource, such as keras_vit.data.from_coco(...)")
    checks.check_instance("preprocessing", preprocessing, Preprocessing, "a Preprocessing, such as model.preprocessing")
    checks.check_choice("targets", targets, TARGETS[source.kind])
    checks.check_integer("max_objects", max_objects)
    operations = parse_all("augment", augment, OPERATIONS)
    moves = {one.kind: one.function for one in operations if one.kind != "image"}
    colours = [one for one in operations if one.kind == "image"]
    if len(moves) + len(colours) < len(operations):
        raise ValueError(f"augment must name {', '.join(moves)} once each; got augment={augment!r}")
    size = _input_size(preprocessing, targets, moves)
    rows = _rows(source, targets)
    files = tuple(source.files[position] for position, _ in rows)
    names, labels = [os.fsencode(file) for file in files], np.zeros(len(rows), "int32")
    check_passes(len(rows), batch_size, seed, start_step, shuffle, repeat, drop_remainder)
    images = from_memory(names, tf.io.read_file, labels, ["unlabelled"], files)
    check(images, Preprocessing(), batch_size, shard)
    spec = {
        "fault": tf.TensorSpec((), tf.string),
        "image": tf.TensorSpec((*size, preprocessing.channels), tf.float32),
        "targets": _specs(targets, size, max_objects, len(source.class_names)),
    }
    crowded = set()

    def sample(pixels, row, number):
        """Return the values of `spec`, in the order of `tf.nest.flatten`."""
        position, person = rows[row]
        try:
            answer = source.answer(position).as_targets(targets, person)
            rng = np.random.default_rng((seed, number))
            image, answer = _drawn(pixels, answer, rng, moves, preprocessing, source.flip_pairs)
        except (OSError, ValueError) as error:
            nothing = {name: tf.nest.map_structure(_zeros, part) for name, part in spec.items()}
            fault = " ".join(f"{files[row]}: {error}".split())  # one line, so that data_error finds its end
            return tf.nest.flatten({**nothing, "fault": fault.encode()})
        if answer.labels is not None and len(answer.labels) > max_objects and not crowded:
            crowded.add(row)
            _LOG.warning("%s has %d objects; the largest %d are used", files[row], len(answer.labels), max_objects)
        found = {"fault": b"", "image": image, "targets": _as_arrays(answer, targets, max_objects, size)}
        return tf.nest.flatten(found)

    @tf.autograph.experimental.do_not_convert
    def read(row, contents):
        pixels = preparation.decode(contents, 3)
        dtypes = [one.dtype for one in tf.nest.flatten(spec)]
        flat = tf.numpy_function(sample, [pixels, row["position"], row["number"]], dtypes)
        found = tf.nest.pack_sequence_as(spec, flat)
        image = tf.ensure_shape(found["image"], spec["image"].shape)
        key = tf.stack([tf.constant(seed, tf.int64), row["number"]])
        for place, operation in enumerate(colours):
            image = operation(image, fold(key, place))
        return {**found, "image": preparation.standardise(preprocessing, image)}

    @tf.autograph.experimental.do_not_convert
    def checked(found, labels):
        faults = tf.boolean_mask(found["fault"], found["fault"] != b"")
        stop = tf.cond(tf.size(faults) == 0, tf.no_op, lambda: tf.group(tf.numpy_function(_stop, [faults], [])))
        with tf.control_dependencies([stop]):
            return tf.nest.map_structure(tf.identity, (found["image"], found["targets"]))

    order = Order(images, batch_size, seed, shuffle, repeat, drop_remainder=drop_remainder, shard=shard)
    unreadable = Unreadable(images, preprocessing.channels, max_corrupt, needed=1)
    dataset = finished(read_batches(order, start_step, read, spec, unreadable).map(checked), order, start_step)
    dataset.class_names = source.class_names
    return dataset


def _input_size(preprocessing, targets, moves):
    """Return the (height, width) of all inputs; raise an error if there are several, or if a move does not suit."""
    is_box = preprocessing.sizing == "box"
    if (targets == "keypoints") != is_box:
        raise ValueError(
            f"keypoints, and no other targets, need sizing='box'; got {preprocessing.sizing!r} for {targets}"
        )
    wrong = [name for name in ("scale", "rotate") if name in moves and not is_box]
    wrong += ["scale_jitter"] * ("scale_jitter" in moves and is_box)
    if wrong:
        raise ValueError(f"augment must not contain {wrong[0]} for targets={targets!r}")
    inputs, _ = prepare(np.zeros((8, 8, 3), "uint8"), preprocessing)  # raises on a crop
    if preprocessing.max_tokens or (preprocessing.sizing in _VARYING and "scale_jitter" not in moves):
        raise ValueError(
            f"preprocessing must give inputs of one size; got {preprocessing} (add scale_jitter to augment, or use "
            "preprocessing.at(image_size))"
        )
    return preprocessing.image_size if "scale_jitter" in moves else inputs.shape[1:3]


def _rows(source, targets):
    """Return a tuple (position, person) for each row of an epoch: an image, or a person with keypoints."""
    if targets != "keypoints":
        return [(position, None) for position in range(source.size)]
    rows = []
    for position, record in enumerate(source.records):
        for person, one in enumerate(record.objects):
            left, top, right, bottom = one.box
            if not one.crowd and left < right and top < bottom and one.shape[:, 2].any():
                rows.append((position, person))
    if not rows:
        raise ValueError("source must have a person with a labelled keypoint; there is none")
    return rows


def _specs(targets, size, most, keypoints):
    """Return the specification of the targets of an image."""
    labels = tf.TensorSpec((most,), tf.int32)
    return {
        "label_map": tf.TensorSpec(size, tf.int32),
        "depth": tf.TensorSpec(size, tf.float32),
        "keypoints": tf.TensorSpec((keypoints, 3), tf.float32),
        "boxes": {"labels": labels, "boxes": tf.TensorSpec((most, 4), tf.float32)},
        "masks": {"labels": labels, "masks": tf.TensorSpec((most, *size), tf.uint8)},
    }[targets]


def _zeros(spec):
    return np.zeros(spec.shape, spec.dtype.as_numpy_dtype)


def _stop(faults):
    raise UnusableDataError(faults[0].decode())


def _as_arrays(answer, targets, most, size):
    """Return the targets of an answer in pixels of an input of a size (height, width)."""
    if targets not in ("boxes", "masks"):
        return answer.keypoints[0] if targets == "keypoints" else getattr(answer, targets)
    if targets == "masks":
        areas, shapes = answer.masks.sum((1, 2)), answer.masks.astype("uint8")
    else:
        low, high = answer.boxes[:, :2], answer.boxes[:, 2:]
        areas = (high - low).prod(1)
        shapes = (np.concatenate([(low + high) / 2, high - low], 1) / (size[::-1] * 2)).astype("float32")
    largest = np.sort(np.argsort(-areas, kind="stable")[:most])
    missing = most - len(largest)
    shapes = np.concatenate([shapes[largest], np.zeros((missing, *shapes.shape[1:]), shapes.dtype)])
    labels = np.concatenate([answer.labels[largest], np.full(missing, -1)]).astype("int32")
    return {"labels": labels, targets: shapes}


def _drawn(pixels, answer, rng, moves, preprocessing, flip_pairs):
    """Return an input, float32 (height, width, channels) on [0, 255], and the answer in its pixels."""
    if "flip" in moves and moves["flip"](rng):
        pixels, answer = _mirrored(pixels, answer, flip_pairs)
    if answer.keypoints is not None:
        return _person(pixels, answer, rng, moves, preprocessing)
    for _ in range(_ATTEMPTS):
        place = _placement(pixels.shape[:2], rng, moves, preprocessing)
        moved = _moved(answer, place)
        is_empty = (
            not len(moved.labels)
            if moved.labels is not None
            else ((moved.label_map == VOID).all() if moved.depth is None else not moved.depth.any())
        )
        if not is_empty or ("scale_jitter" not in moves and preprocessing.sizing != "windows"):
            break
    if "scale_jitter" in moves and preprocessing.sizing == "square":
        preprocessing = preprocessing.replace(sizing="longest")  # without the filter, padded with black too
    return rendered(pixels, [place], preprocessing)[0], moved


def _mirrored(pixels, answer, flip_pairs):
    """Return image and answer mirrored left to right."""
    changed = {name: getattr(answer, name)[..., ::-1] for name in _OUTSIDE if getattr(answer, name) is not None}
    width = pixels.shape[1]
    if answer.keypoints is not None:
        width -= 1  # coordinates from the centre of the first pixel, also those of a person's box
        order = np.arange(answer.keypoints.shape[1])
        for pair in flip_pairs:
            order[[*pair]] = pair[::-1]
        changed["keypoints"] = np.array([width, 0, 0]) + answer.keypoints[:, order] * (-1, 1, 1)
    if answer.boxes is not None:
        changed["boxes"] = np.array([width, 0, width, 0]) + answer.boxes[:, [2, 1, 0, 3]] * (-1, 1, -1, 1)
    return pixels[:, ::-1], dataclasses.replace(answer, **changed)


def _placement(size, rng, moves, preprocessing):
    """Return where an image of a size (height, width) is in its input; crops are drawn."""
    if "scale_jitter" in moves:
        sides = preprocessing.image_size
        factor = moves["scale_jitter"](rng) * min(np.divide(sides, size))
        resized = tuple(max(round(side * factor), 1) for side in size)
    else:
        place = placements(preprocessing, size)[0]
        if preprocessing.sizing != "windows":
            return place
        resized, sides = place.resized, place.size
    top, left = (-float(rng.integers(max(old - new, 0) + 1)) for old, new in zip(resized, sides, strict=True))
    return Placement((resized[1] / size[1], resized[0] / size[0]), (left, top), resized, sides)


def _moved(answer, place):
    """Return an answer in pixels of an input; objects outside it are left out."""
    changed = {}
    for name, fill in _OUTSIDE.items():
        if getattr(answer, name) is not None:
            changed[name] = _sampled(getattr(answer, name), place, fill)
    kept = changed["masks"].any((1, 2)) if "masks" in changed else None
    if answer.boxes is not None:
        height, width = place.size
        edges = np.clip(place.to_input(answer.boxes), 0, (width, height, width, height))
        changed["boxes"], kept = edges, (edges[:, :2] < edges[:, 2:]).all(1)
    if kept is not None:
        changed = {name: value[kept] for name, value in {**changed, "labels": answer.labels}.items()}
    return Answer(**changed)


def _sampled(maps, place, fill):
    """Return maps (..., height, width) in pixels of an input: nearest neighbour, with half-pixel centres."""
    chosen, spans = [], []
    for side, offset, scale, old in zip(
        place.size, place.offset[::-1], place.scale[::-1], maps.shape[-2:], strict=True
    ):
        places = np.floor((np.arange(side) + 0.5 - offset) / scale).astype(int)
        inside = np.flatnonzero((places >= 0) & (places < old))
        chosen.append(places[inside])
        spans.append(slice(inside[0], inside[-1] + 1) if len(inside) else slice(0, 0))
    found = np.full((*maps.shape[:-2], *place.size), fill, maps.dtype)
    found[..., spans[0], spans[1]] = maps[..., chosen[0], :][..., chosen[1]]
    return found


def _person(pixels, answer, rng, moves, preprocessing):
    """Return the input around a person, and its keypoints in it."""
    box, points = answer.boxes[0].astype("float64"), answer.keypoints[0]
    centre = (box[:2] + box[2:]) / 2
    if "scale" in moves:
        box = np.tile(centre, 2) + (box - np.tile(centre, 2)) * moves["scale"](rng)
    angle = math.radians(moves["rotate"](rng)) if "rotate" in moves else 0.0
    place = placements(preprocessing, pixels.shape[:2], [box])[0]
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    if angle:
        shown = _turned(pixels, place, turn, centre, preprocessing.channels)
    else:
        shown = rendered(pixels, [place], preprocessing)[0]
    xy = place.to_input((points[:, :2] - centre) @ turn.T + centre)
    is_inside = ((xy >= -0.5) & (xy < np.array(place.size[::-1]) - 0.5)).all(1)
    visible = (points[:, 2] * is_inside)[:, None]
    return shown, Answer(keypoints=np.concatenate([xy * (visible > 0), visible], 1).astype("float32")[None])


def _turned(pixels, place, turn, centre, channels):
    """Return the input of an image that is rotated about `centre` by the matrix `turn`."""
    scale, offset = np.array(place.scale), np.array(place.offset)
    back = turn.T / scale  # from an input to the image, between centres of pixels
    shift = centre - turn.T @ (offset / scale + centre)
    shift += 0.5 - back @ (0.5, 0.5)  # Pillow's coordinates are from the corners of the first pixels
    matrix = (*back[0], shift[0], *back[1], shift[1])
    image = Image.fromarray(np.ascontiguousarray(pixels)).convert("RGB" if channels == 3 else "L")
    shown = image.transform(place.size[::-1], Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    return np.asarray(shown, "float32").reshape(*place.size, channels)


def _flip():
    return lambda rng: rng.random() < 0.5


def _scale_jitter(low, high):
    low, high = check_span("low", low, "high", high, _MOST_SCALE)
    return lambda rng: rng.uniform(low, high)


def _scale(deviation):
    deviation = check_number("deviation", deviation, 0.0, 0.9)
    return lambda rng: 1 + np.clip(deviation * rng.standard_normal(), -deviation, deviation)


def _rotate(degrees, probability=0.6):
    degrees = check_number("degrees", degrees, 0.0, 90.0)
    probability = check_number("probability", probability, 0.0, 1.0)

    def draw(rng):
        is_turned, angle = rng.random() < probability, degrees * rng.standard_normal()
        return float(np.clip(angle, -2 * degrees, 2 * degrees)) * is_turned

    return draw


# as `augment.OPERATIONS`, but for the moves, whose functions draw a number from a NumPy generator
OPERATIONS = {
    "flip": ("flip", _flip),
    "scale_jitter": ("scale_jitter", _scale_jitter),
    "scale": ("scale", _scale),
    "rotate": ("rotate", _rotate),
    **{name: IMAGE_OPERATIONS[name] for name in ("color_jitter", "grayscale", "solarize", "gaussian_blur")},
}
