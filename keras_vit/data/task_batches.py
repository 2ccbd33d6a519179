"""task_pipeline: batches of images with label maps, depths, keypoints, boxes or masks, to train task models."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_vit import checks
from keras_vit.config import Preprocessing
from keras_vit.data import preprocessing as preparation
from keras_vit.data.answers import TARGETS, VOID
from keras_vit.data.augment.parse import OPERATIONS, parse_all
from keras_vit.data.batches import read_batches
from keras_vit.data.corrupt import Unreadable
from keras_vit.data.local import read_when_needed
from keras_vit.data.moves import OF_IMAGES, OF_PERSONS, moved
from keras_vit.data.order import Order
from keras_vit.data.pipeline import check, check_passes, finished, fold
from keras_vit.data.task_sources import TaskSource
from keras_vit.tasks.inputs import prepare

_VARYING = ("nearest", "lower_bound", "shortest", "center_padding")  # sizings whose inputs have several sizes
_COLOURS = {name: OPERATIONS[name] for name in ("color_jitter", "grayscale", "solarize", "gaussian_blur")}


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
        max_objects: N, the number of objects in a target; of more, the largest are used. Masks take N bytes per pixel.
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
    if targets == "label_map" and len(source.class_names) > VOID:
        raise ValueError(f"source must have at most {VOID} classes for label maps; got {len(source.class_names)}")
    is_person = targets == "keypoints"
    if is_person != (preprocessing.sizing == "box"):
        got = f"{preprocessing.sizing!r} for {targets}"
        raise ValueError(f"preprocessing must have sizing='box' for keypoints, and only for them; got {got}")
    operations = parse_task_augment(augment, targets)
    moves = {one.kind: one.function for one in operations if one.kind != "image"}
    colours = [one for one in operations if one.kind == "image"]
    if len(moves) + len(colours) < len(operations):
        raise ValueError(f"augment must name {', '.join(moves)} once each; got augment={augment!r}")
    size = prepare(np.zeros((8, 8, 3), "uint8"), preprocessing)[0].shape[1:3]  # raises an error on a crop
    if "scale_jitter" in moves:
        size = preprocessing.image_size
    elif preprocessing.max_tokens or preprocessing.sizing in _VARYING:
        way = "add scale_jitter to augment, or use preprocessing.at(image_size)"
        raise ValueError(f"preprocessing must give inputs of one size; got {preprocessing} ({way})")
    rows = rows_of(source, targets)
    files = tuple(source.files[position] for position, _ in rows)
    check_passes(len(rows), batch_size, seed, start_step, shuffle, repeat, drop_remainder)
    images = read_when_needed(files, np.zeros(len(files), "int32"), ["unlabelled"])
    check(images, Preprocessing(), batch_size, shard)
    spec = tf.TensorSpec((*size, preprocessing.channels), tf.float32), _spec(targets, size, max_objects, source)
    unreadable = Unreadable(images, preprocessing.channels, max_corrupt, needed=1)

    def sample(pixels, row, number):
        """Return the values of `spec`, in the order of `tf.nest.flatten`."""
        position, person = rows[row]
        try:
            answer = source.answer(position, pixels.shape[:2]).as_targets(targets, person)
            rng = np.random.default_rng((seed, number))
            image, answer = moved(pixels, answer, rng, moves, preprocessing, source.flip_pairs)
        except (OSError, ValueError) as error:
            unreadable.faults[row] = f"{files[row]}: {error}"
            raise
        return tf.nest.flatten((image, _as_arrays(answer, targets, max_objects)))

    @tf.autograph.experimental.do_not_convert
    def read(row, contents):
        inputs = preparation.decode(contents, 3), row["position"], row["number"]
        found = tf.numpy_function(sample, inputs, [one.dtype for one in tf.nest.flatten(spec)])
        image, found = tf.nest.pack_sequence_as(spec, found)
        image, key = tf.ensure_shape(image, spec[0].shape), tf.stack([tf.constant(seed, tf.int64), row["number"]])
        for place, operation in enumerate(colours):
            image = operation(image, fold(key, place))
        return preparation.standardise(preprocessing, image), found

    order = Order(images, batch_size, seed, shuffle, repeat, drop_remainder=drop_remainder, shard=shard)
    dataset = read_batches(order, start_step, read, spec, unreadable).map(lambda found, labels: found)
    dataset = finished(dataset, order, start_step)
    dataset.class_names = source.class_names or None  # of depth
    return dataset


def parse_task_augment(texts, targets):
    """Return the operations of strings such as `"scale_jitter(0.1, 2)"`, see `task_pipeline`."""
    return parse_all("augment", texts, {**(OF_PERSONS if targets == "keypoints" else OF_IMAGES), **_COLOURS})


def rows_of(source, targets):
    """Return a tuple (position, person) for each row of an epoch: an image, or a person with keypoints."""
    if targets != "keypoints":
        return [(position, None) for position in range(source.size)]
    rows = []
    for position, answer in enumerate(record.answer for record in source.records):
        has_box = (answer.boxes[:, 2:] > answer.boxes[:, :2]).all(1)
        is_person = has_box & ~answer.crowd & answer.keypoints[..., 2].any(1)
        rows += [(position, person) for person in np.flatnonzero(is_person).tolist()]
    if not rows:
        raise ValueError("source must have a person with a labelled keypoint; there is none")
    return rows


def _spec(targets, size, most, source):
    """Return the specification of the targets of an image."""
    labels = tf.TensorSpec((most,), tf.int32)
    return {
        "label_map": tf.TensorSpec(size, tf.int32),
        "depth": tf.TensorSpec(size, tf.float32),
        "keypoints": tf.TensorSpec((len(source.class_names), 3), tf.float32),
        "boxes": {"labels": labels, "boxes": tf.TensorSpec((most, 4), tf.float32)},
        "masks": {"labels": labels, "masks": tf.TensorSpec((most, *size), tf.uint8)},
    }[targets]


def _as_arrays(answer, targets, most):
    """Return the targets of an answer in pixels of an input."""
    shapes = getattr(answer, targets)
    if targets not in ("boxes", "masks"):
        return shapes[0] if targets == "keypoints" else shapes
    largest = np.sort(np.argsort(-answer.areas, kind="stable")[:most])
    filled = np.zeros((most, *shapes.shape[1:]), "uint8" if targets == "masks" else "float32")
    labels = np.full(most, -1, "int32")
    filled[: len(largest)], labels[: len(largest)] = shapes[largest], answer.labels[largest]
    return {"labels": labels, targets: filled}
