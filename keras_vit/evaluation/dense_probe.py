"""`dense_probe`: a linear classifier of pixels on frozen patch tokens, and its mean intersection over union."""

import dataclasses
from collections.abc import Iterable

import keras
import numpy as np

from keras_vit import checks
from keras_vit.compat.inference import inference
from keras_vit.evaluation.linear_probe import CONSTANT, DEFAULT_L2, EPSILON, Ridge
from keras_vit.evaluation.outputs import run_batches
from keras_vit.layers.feature_pyramid import Enlarge
from keras_vit.models import ImageModel, feature_extractor


@dataclasses.dataclass(frozen=True, eq=False)
class DenseProbe:
    """Hold the result of `dense_probe`.

    Attributes:
        model: a keras model from images (batch, height, width, channels) to the scores of each pixel, float32 (batch,
            height, width, classes), about 1 for its class and -1 for others. Height and width are those of the patches:
            pixels at the bottom and at the right that fill no patch have no scores and are not measured.
        ridge: the `Ridge` of the patches.
        confusion: int64 (classes, classes), the test pixels by their class (rows) and the predicted one (columns).
    """

    model: keras.Model
    ridge: Ridge
    confusion: np.ndarray

    @property
    def iou(self) -> np.ndarray:
        """Return the intersection over union of each class, in [0, 1].

        It is NaN for a class that is neither present nor predicted."""
        hits = np.diag(self.confusion)
        union = self.confusion.sum(axis=0) + self.confusion.sum(axis=1) - hits
        return np.where(union > 0, hits / np.maximum(union, 1), np.nan)

    @property
    def mean_iou(self) -> float:
        """Return the mean of `iou` over the classes that are present or predicted."""
        return float(np.nanmean(self.iou))

    @property
    def accuracy(self) -> float:
        """Return the share of the test pixels whose class was predicted."""
        return float(np.trace(self.confusion) / self.confusion.sum())


def dense_probe(
    model: keras.Model,
    train: Iterable,
    test: Iterable,
    classes: int,
    layer: str | None = None,
    l2: float = DEFAULT_L2,
    ignore: int = 255,
    verbose: bool = False,
) -> DenseProbe:
    """Measure frozen patch features by linear segmentation.

    DINOv2's authors measure them in this way (arXiv 2304.07193, section 7.4), but train the linear layer with gradient
    descent. Here, a ridge regression from the tokens of the patches to the classes of their pixels is fitted in closed
    form. Each pixel has the target 1 for its class and -1 for the others, and the target of a patch is the mean over
    its pixels. The scores of test patches are resized bilinearly to the pixels, and each pixel gets the class with the
    highest one. The features are standardised as in `fit_ridge`. Memory does not grow with the number of images.

    Args:
        model: a model of this package, also one for images of any size, or a keras model from images to one map (batch,
            rows, columns, dim).
        train: iterable, such as a `tf.data.Dataset`, of batches (inputs of the model (batch, height, width, channels),
            masks (batch, height, width), integers from 0 to classes - 1). The images of a batch have one size.
        test: the same, to measure on.
        classes: number of classes, at least 2.
        layer: for a model of this package, the name of the layer that returns the features; None uses `encoder_norm`,
            or the last block of a model without norm before the pooling.
        l2: lambda of the regression, above 0; its samples are the patches.
        ignore: value of the pixels in the masks that have no class.
        verbose: whether to show progress bars.

    Returns:
        A `DenseProbe`.

    Raises:
        TypeError: if `model` is not a keras model.
        ValueError: if a value is out of range, a mask has another shape or class, no pixel has a class, or the
            features are not finite.
    """
    checks.check_integer("classes", classes, minimum=2)
    checks.check_positive("l2", l2)
    checks.check_flag("verbose", verbose)
    if checks.check_integer("ignore", ignore, minimum=-1) in range(classes):
        raise ValueError(f"ignore must not be one of the {classes} classes; got {ignore}")
    graph, strides = _features(model, layer)
    train, test = (_batches(name, data, classes, ignore) for name, data in (("train", train), ("test", test)))
    sums = 0.0  # of the products of features, targets and 1
    for features, masks in run_batches(inference(graph), graph, None, "features", train, verbose=verbose):
        shares = _shares(masks, features.shape, strides, classes)
        row = np.hstack([features.reshape(len(shares), -1), 2 * shares - 1, np.ones((len(shares), 1))])
        row = row[shares.any(axis=1)]
        sums = sums + row.T @ row
    ridge = _solved(np.atleast_2d(sums), classes, l2)
    scores, confusion = _scores(graph, ridge, strides), np.zeros((classes, classes), np.int64)
    for found, masks in run_batches(inference(scores), graph, None, "scores", test, verbose=verbose):
        found = found[:, : masks.shape[1], : masks.shape[2]].argmax(axis=-1)  # padding of the images is cut off
        masks = masks[:, : found.shape[1], : found.shape[2]]
        pairs = (masks * classes + found)[masks != ignore]
        confusion += np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
    if not confusion.any():
        raise ValueError("test must have at least one pixel with a class; it has none")
    return DenseProbe(scores, ridge, confusion)


def _features(model, layer):
    """Return the graph from images to a map of features, and the height and width of its cells in pixels."""
    checks.check_instance("model", model, keras.Model, "a keras model, such as keras_vit.DINOv2_B14(...)")
    is_ours = isinstance(model, ImageModel)
    if layer is not None and not is_ours:
        raise ValueError(f"layer is for models of keras_vit; got layer={layer!r} and {model.name!r}")
    if is_ours and layer is None:
        has_norm = getattr(model.config, "norm_position", "before_pooling") == "before_pooling"
        layer = "encoder_norm" if has_norm else f"block_{model.config.num_layers - 1:02d}"
    graph = feature_extractor(model, layer) if is_ours else model
    taken, given = getattr(graph, "input_shape", None), getattr(graph, "output_shape", None)
    if not all(isinstance(shape, tuple) and len(shape) == 4 for shape in (taken, given)):
        raise ValueError(f"model must return one map (batch, rows, columns, dim) of images; got {taken} -> {given}")
    if is_ours and hasattr(model.config, "table_grid") and model.config.stem is None:
        return graph, model.config.patch_size
    if None in (*taken[1:3], *given[1:3]) or any(taken[axis] % given[axis] for axis in (1, 2)):
        raise ValueError(f"model must have a map whose rows and columns divide the image size; got {taken} -> {given}")
    return graph, tuple(taken[axis] // given[axis] for axis in (1, 2))


def _batches(name, data, classes, ignore):
    """Yield the batches (images, masks) of a dataset after checking the masks."""
    for batch in data:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise ValueError(f"{name} must contain batches (inputs, masks); it contains {type(batch).__name__}")
        images, masks = map(np.asarray, batch)
        is_integer = masks.shape == images.shape[:3] and masks.dtype.kind in "iu"
        if not is_integer or not ((masks == ignore) | ((masks >= 0) & (masks < classes))).all():
            found = f"{masks.dtype} {masks.shape} from {np.min(masks, initial=0)} to {np.max(masks, initial=0)}"
            wanted = f"masks of shape {images.shape[:3]}, with integers from 0 to {classes - 1} or ignore={ignore}"
            raise ValueError(f"{name} must have {wanted}; got {found}")
        yield images, masks.astype(np.int64)


def _shares(masks, shape, strides, classes):
    """Return the share of each class in the pixels of each patch that have one, (patches, classes), 0 without any."""
    images, rows, columns, _ = shape
    masks = masks[:, : rows * strides[0], : columns * strides[1]]
    y, x = (np.arange(side) // step for side, step in zip(masks.shape[1:], strides, strict=True))
    patches = (np.arange(images)[:, None, None] * rows + y[:, None]) * columns + x
    is_known = (masks >= 0) & (masks < classes)
    counts = np.bincount((patches * classes + masks)[is_known], minlength=images * rows * columns * classes)
    counts = counts.reshape(-1, classes)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def _solved(sums, classes, l2):
    """Return the `Ridge` of `fit_ridge` from the sums of all products of [features, targets, 1]."""
    count, dim = sums[-1, -1], len(sums) - classes - 1
    if not count:
        raise ValueError("train must have at least one pixel with a class; it has none")
    mean, targets = sums[-1, :dim] / count, sums[-1, dim:-1]
    spread = sums[:dim, :dim] - count * np.outer(mean, mean)
    std = np.sqrt(np.maximum(np.diag(spread), 0) / count) + EPSILON
    # standardised features have the mean 0, and therefore no product with the constant
    gram = np.diag([l2] * dim + [count * CONSTANT**2 + l2])
    gram[:dim, :dim] += spread / np.outer(std, std)
    right = np.vstack([(sums[:dim, dim:-1] - np.outer(mean, targets)) / std[:, None], CONSTANT * targets])
    return Ridge(mean, std, np.linalg.solve(gram, right))


def _scores(graph, ridge, strides):
    """Return the model from images to the scores of their pixels."""
    kernel, bias = ridge.folded()
    dense = keras.layers.Dense(len(bias), dtype="float32", name="probe")
    scores = Enlarge(strides, dtype="float32", name="pixels")(dense(graph.output))
    dense.set_weights([kernel, bias])
    return keras.Model(graph.input, scores, name="dense_probe")
