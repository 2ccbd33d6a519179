"""Losses that compare all outputs of a model with all objects of an image, or all its pixels: `needs_all_outputs`.

A mean over the objects or pixels of a batch is a mean over those of all replicas, so that training on several devices
is training on one.
"""

from typing import Any

import keras
from keras import ops

from keras_vit import checks
from keras_vit.layers.resizing import resize_maps
from keras_vit.losses.matching import assign
from keras_vit.typing import Tensor

VOID = 255  # in label maps: a pixel without a class
_TINY = 1e-7
_UNCERTAIN = 0.75  # share of the points of a mask where its logit is nearest to 0


class _OfAllOutputs(keras.losses.Loss):
    """A loss that gets the targets and the outputs of a model as a whole, see `compute_loss` in compat/fit.py.

    A subclass defines `_of_images`, a function of both that returns the loss of each image, (batch,).
    """

    needs_all_outputs = True
    _of_images: Any

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Tensor | None = None) -> Tensor:
        values = self._of_images(y_true, y_pred)  # before Keras, which would convert masks to floats
        return super().__call__(values, values, sample_weight)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return y_pred


@keras.saving.register_keras_serializable(package="keras_vit")
class SegmentationLoss(_OfAllOutputs):
    """Compare the logits of the classes at each pixel with a label map.

    The loss is the mean cross-entropy of the pixels. The logits are resized to the label map bilinearly. It is the loss
    of the linear heads of DINOv2 and of `DPTSegmentation`.

    Args:
        auxiliary_weight: factor of the loss of the auxiliary logits, if the model has them; 0.4 as in DPT.
        ignore: label of pixels without a class.
        **kwargs: arguments of `keras.losses.Loss`, such as `reduction`.

    Shapes:
        integers (batch, height, width) and a dict of `logits`, and maybe `auxiliary_logits`, (batch, rows, columns,
        classes) -> (batch,) before the reduction

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(self, auxiliary_weight: float = 0.4, ignore: int = VOID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.auxiliary_weight = checks.check_number("auxiliary_weight", auxiliary_weight, "number", lambda x: x >= 0)
        self.ignore = checks.check_integer("ignore", ignore, minimum=-1)

    def _of_images(self, y_true: Any, y_pred: Any) -> Tensor:
        labels = ops.cast(y_true, "int32")
        is_known = ops.not_equal(labels, self.ignore)
        classes, loss = ops.where(is_known, labels, 0), 0.0
        for name, weight in (("logits", 1.0), ("auxiliary_logits", self.auxiliary_weight)):
            if name in y_pred:
                logits = resize_maps(ops.cast(y_pred[name], "float32"), ops.shape(labels)[1:], align_corners=False)
                entropy = ops.sparse_categorical_crossentropy(classes, logits, from_logits=True)
                loss = loss + weight * ops.sum(ops.where(is_known, entropy, 0.0), axis=(1, 2))
        return _over(loss, ops.sum(ops.cast(is_known, "float32"), axis=(1, 2)))

    def get_config(self):
        return {**super().get_config(), "auxiliary_weight": self.auxiliary_weight, "ignore": self.ignore}


class _OfSets(_OfAllOutputs):
    """A loss that assigns a query to each object; the others learn to be no object."""

    class_weight: float
    no_object_weight: float

    def _class_costs(self, labels, class_logits):
        """Return the costs (batch, objects, queries) of the classes of `labels`, integers (batch, objects)."""
        chances = ops.transpose(ops.softmax(class_logits), (0, 2, 1))
        return -self.class_weight * _rows(chances, ops.maximum(labels, 0))

    def _of_classes(self, labels, class_logits, queries, is_matched):
        """Return the cross-entropy of the queries, in which those of no object count less."""
        places = ops.one_hot(queries, class_logits.shape[1], dtype="float32")
        places = places * ops.cast(is_matched, "float32")[..., None]  # (batch, objects, queries)
        none = class_logits.shape[-1] - 1
        of_objects = ops.einsum("bn,bnq->bq", ops.cast(labels - none, "float32"), places)
        classes = ops.cast(of_objects + none, "int32")
        weights = ops.where(classes == none, self.no_object_weight, 1.0)
        entropy = ops.sparse_categorical_crossentropy(classes, class_logits, from_logits=True)
        return self.class_weight * _over(ops.sum(weights * entropy, -1), ops.sum(weights, -1))

    def get_config(self):
        return {**super().get_config(), **{name: getattr(self, name) for name in self._weights}}

    _weights: tuple[str, ...] = ()

    def _configure(self, **weights):
        self._weights = tuple(weights)
        for name, weight in weights.items():
            setattr(self, name, checks.check_number(name, weight, "number of at least 0", lambda x: x >= 0))


@keras.saving.register_keras_serializable(package="keras_vit")
class DetectionLoss(_OfSets):
    """Compare boxes and classes with the objects of an image.

    This is the loss of DETR (arXiv 2005.12872), and of YOLOS. Each object is assigned a query of its own so that the
    sum of the costs is the least (Eq. 1); a cost is `class_weight` * -(probability of the class) + `box_weight` * (L1
    distance) + `giou_weight` * -(generalized IoU). The loss is the cross-entropy of the classes, a mean in which
    queries without an object have the weight `no_object_weight`, plus `box_weight` times the L1 distance and
    `giou_weight` times 1 - generalized IoU of the boxes that are assigned, each as a sum divided by the number of
    objects in the batch, at least 1 (Eq. 2 and appendix A).

    Args:
        class_weight, box_weight, giou_weight, no_object_weight: see above, at least 0.
        **kwargs: arguments of `keras.losses.Loss`, such as `reduction`.

    Shapes:
        a dict of `labels`, integers (batch, objects), -1 for none, and `boxes` (batch, objects, 4): centre x, centre y,
        width and height as shares of the input; and the outputs of a `YOLOS` -> (batch,) before the reduction

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        class_weight: float = 1.0,
        box_weight: float = 5.0,
        giou_weight: float = 2.0,
        no_object_weight: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._configure(
            class_weight=class_weight, box_weight=box_weight, giou_weight=giou_weight, no_object_weight=no_object_weight
        )

    def _of_images(self, y_true: Any, y_pred: Any) -> Tensor:
        labels, boxes = ops.cast(y_true["labels"], "int32"), ops.cast(y_true["boxes"], "float32")
        logits, found = (ops.cast(y_pred[name], "float32") for name in ("logits", "boxes"))
        pairs = boxes[:, :, None], found[:, None]
        costs = self.box_weight * _distance(*pairs) - self.giou_weight * generalized_iou(*pairs)
        queries, is_matched = _assigned(costs + self._class_costs(labels, logits), labels)
        pairs = boxes, _rows(found, queries)
        errors = self.box_weight * _distance(*pairs) + self.giou_weight * (1 - generalized_iou(*pairs))
        errors = ops.sum(ops.where(is_matched, errors, 0.0), -1)
        count = ops.sum(ops.cast(labels >= 0, "float32"), -1)
        return self._of_classes(labels, logits, queries, is_matched) + _over(errors, count)


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskLoss(_OfSets):
    """Compare masks and classes with those of an image.

    This is the loss of Mask2Former (arXiv 2112.01527), and of EoMT. Each object is assigned a query of its own so that
    the sum of the costs is the least; a cost is `class_weight` * -(probability of the class) + `mask_weight` * (binary
    cross-entropy) + `dice_weight` * (dice loss), both at random points of the image. The loss has the cross-entropy of
    the classes, a mean in which queries without an object have the weight `no_object_weight`, and the binary
    cross-entropy and the dice loss of the masks that are assigned, as sums divided by the number of masks in the batch,
    at least 1. These are computed at as many points of each mask: of three times as many random ones, the 75 % whose
    logits are nearest to 0, and 25 % anywhere (section 3.3 there). The loss is the sum over the predictions of an
    `EoMTTraining`, which draws the points: all masks of an image have the same ones.

    Args:
        class_weight, mask_weight, dice_weight, no_object_weight: see above, at least 0.
        **kwargs: arguments of `keras.losses.Loss`, such as `reduction`.

    Shapes:
        a dict of `labels`, integers (batch, objects), -1 for none, and `masks` (batch, objects, height, width), 0 or 1;
        and the outputs of an `EoMTTraining` -> (batch,) before the reduction

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        class_weight: float = 2.0,
        mask_weight: float = 5.0,
        dice_weight: float = 5.0,
        no_object_weight: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._configure(
            class_weight=class_weight,
            mask_weight=mask_weight,
            dice_weight=dice_weight,
            no_object_weight=no_object_weight,
        )

    def _of_images(self, y_true: Any, y_pred: Any) -> Tensor:
        labels, masks = ops.cast(y_true["labels"], "int32"), ops.transpose(y_true["masks"], (0, 2, 3, 1))
        points, candidates = y_pred["points"], y_pred["candidates"]
        chosen = int(_UNCERTAIN * points.shape[1])
        candidates = ops.concatenate([candidates, points[:, chosen:]], axis=1)
        true = [_channels_first(at_points(masks, places)) for places in (points, candidates)]
        predictions = [
            (ops.cast(classes, "float32"), ops.cast(maps, "float32"))
            for classes, maps in zip(y_pred["class_logits"], y_pred["mask_logits"], strict=True)
        ]
        # one assignment for all predictions, as its steps follow one another
        costs = ops.concatenate([self._costs(labels, true[0], *one, points) for one in predictions])
        queries, is_matched = _assigned(costs, ops.concatenate([labels] * len(predictions)))
        parts = [ops.split(values, len(predictions)) for values in (queries, is_matched)]
        losses = []
        for (classes, maps), query, is_found in zip(predictions, *parts, strict=True):
            losses.append(self._of_classes(labels, classes, query, is_found))
            losses.append(self._of_masks(true[1], maps, query, is_found, candidates, chosen, points.shape[1]))
        return sum(losses)

    def _costs(self, labels, true, class_logits, mask_logits, points):
        """Return the costs (batch, objects, queries) of a prediction; `true` has the masks at the points."""
        found = _channels_first(at_points(ops.stop_gradient(mask_logits), points))
        costs = self.mask_weight * _pairwise_entropy(true, found) + self.dice_weight * _pairwise_dice(true, found)
        return costs + self._class_costs(labels, class_logits)

    def _of_masks(self, true, mask_logits, queries, is_matched, candidates, chosen, count):
        """Return the loss of the masks of a prediction; `true` has the masks at the candidates."""
        found = _channels_first(at_points(_chosen_channels(mask_logits, queries), candidates))
        expected, logits = _most_uncertain(true, found, chosen, count)
        entropy = ops.mean(ops.softplus(logits) - expected * logits, -1)
        chance = ops.sigmoid(logits)
        dice = 1 - (2 * ops.sum(chance * expected, -1) + 1) / (ops.sum(chance, -1) + ops.sum(expected, -1) + 1)
        errors = ops.where(is_matched, self.mask_weight * entropy + self.dice_weight * dice, 0.0)
        return _over(ops.sum(errors, -1), ops.sum(ops.cast(is_matched, "float32"), -1))


def _assigned(costs, labels):
    """Return the query of each object (batch, objects), 0 without one, and whether it has one."""
    queries = assign(costs, labels >= 0)
    return ops.maximum(queries, 0), queries >= 0


def at_points(maps: Tensor, points: Tensor) -> Tensor:
    """Return maps at points: bilinear, with half-pixel centres, and 0 around the map.

    Args:
        maps: (batch, rows, columns, channels).
        points: (batch, points, 2), x and y as shares of the sides.

    Returns:
        float32 (batch, points, channels)
    """
    _, rows, columns, channels = ops.shape(maps)
    flat, total = ops.reshape(maps, (-1, rows * columns, channels)), 0.0
    x, y = (points[..., axis] * ops.cast(side, "float32") - 0.5 for axis, side in ((0, columns), (1, rows)))
    for right in (0, 1):
        for below in (0, 1):
            column, row = ops.floor(x) + right, ops.floor(y) + below
            weight = (1 - ops.abs(x - column)) * (1 - ops.abs(y - row))
            column, row = ops.cast(column, "int32"), ops.cast(row, "int32")
            is_inside = (column >= 0) & (column < columns) & (row >= 0) & (row < rows)
            place = ops.clip(row, 0, rows - 1) * columns + ops.clip(column, 0, columns - 1)
            total = total + ops.where(is_inside, weight, 0.0)[..., None] * ops.cast(_rows(flat, place), "float32")
    return total


def generalized_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the generalized intersection over union of pairs of boxes (arXiv 1902.09630), in [-1, 1].

    Args:
        boxes, others: (..., 4): centre x, centre y, width and height; the shapes are broadcast.
    """
    (low, high), (other_low, other_high) = (
        (one[..., :2] - one[..., 2:] / 2, one[..., :2] + one[..., 2:] / 2) for one in (boxes, others)
    )
    shared = _area(ops.minimum(high, other_high) - ops.maximum(low, other_low))
    union = _area(high - low) + _area(other_high - other_low) - shared
    around = _area(ops.maximum(high, other_high) - ops.minimum(low, other_low))
    return shared / ops.maximum(union, _TINY) - (around - union) / ops.maximum(around, _TINY)


def _area(sides):
    return ops.prod(ops.maximum(sides, 0.0), axis=-1)


def _distance(boxes, others):
    return ops.sum(ops.abs(boxes - others), axis=-1)


def _pairwise_entropy(true, logits):
    """Return the binary cross-entropy of each mask (batch, objects, points) and each query (batch, queries, points)."""
    both = ops.einsum("bnp,bqp->bnq", true, logits)
    return (ops.sum(ops.softplus(logits), -1)[:, None] - both) / true.shape[-1]


def _pairwise_dice(true, logits):
    chance = ops.sigmoid(logits)
    total = ops.sum(true, -1)[:, :, None] + ops.sum(chance, -1)[:, None]
    return 1 - (2 * ops.einsum("bnp,bqp->bnq", true, chance) + 1) / (total + 1)


def _most_uncertain(true, logits, chosen, count):
    """Return masks and logits (batch, objects, count): those nearest to 0 of the candidates, and the last points."""
    uncertain, last = -ops.abs(logits[..., : chosen - count]), chosen - count
    _, places = ops.top_k(ops.stop_gradient(uncertain), chosen)
    return (
        ops.concatenate([ops.take_along_axis(one[..., :last], places, axis=-1), one[..., last:]], -1)
        for one in (true, logits)
    )


def _over(values, counts):
    """Return values (batch,) such that their mean is the sum of values / the sum of counts, over all replicas."""
    # On JAX, a batch is one array on all devices.
    mean, _ = ops.moments(counts, axes=(0,), synchronized=keras.backend.backend() == "tensorflow")
    return values / ops.where(mean > 0, mean, 1.0)


def _rows(values, indices):
    """Return values (batch, n, ...) at indices (batch, m) -> (batch, m, ...)."""
    return ops.vectorized_map(lambda pair: ops.take(pair[0], pair[1], axis=0), (values, indices))


def _chosen_channels(maps, indices):
    """Return maps (batch, rows, columns, n) of the channels (batch, m) -> (batch, rows, columns, m)."""
    return ops.vectorized_map(lambda pair: ops.take(pair[0], pair[1], axis=-1), (maps, indices))


def _channels_first(values):
    return ops.transpose(values, (0, 2, 1))
