"""`linear_probe`: a linear classifier on frozen features, and the model that uses it as its head.

`few_shot` uses the same features, the same draw of training images and the same ridge regression in closed form.
"""

import dataclasses
import functools

import keras
import numpy as np
import numpy.typing as npt
from keras import ops

from keras_vit import checks
from keras_vit.compat.inference import inference
from keras_vit.config import Preprocessing
from keras_vit.data.sources import LabelledData, numbered_names
from keras_vit.evaluation.labelled import check_labels, open_labelled
from keras_vit.evaluation.outputs import run_batches
from keras_vit.models import ImageModel, check_pools, feature_extractor, with_head
from keras_vit.models.encoders import find_encoders, read_by_head

DEFAULT_L2 = 2.0**10
EPSILON = 1e-5  # added to the standard deviations
CONSTANT = 100.0  # the last feature of every image; it is large, so the bias is hardly regularised


@dataclasses.dataclass(frozen=True, eq=False)
class Ridge:
    """Hold the result of `fit_ridge`; all arrays are float64.

    Attributes:
        mean: (dim,), mean of the training features.
        std: (dim,), their population standard deviation plus 1e-5.
        weights: (dim + 1, classes), for the standardised features followed by the constant 100.
    """

    mean: np.ndarray
    std: np.ndarray
    weights: np.ndarray

    def scores(self, features: npt.ArrayLike) -> np.ndarray:
        """Return the scores (images, classes), about 1 for the class and -1 for others.

        Args:
            features: (images, dim).
        """
        return _standardised(features, self.mean, self.std) @ self.weights

    def predict(self, features: npt.ArrayLike) -> np.ndarray:
        """Return the class (images,) with the highest score; the first of equal scores.

        Args:
            features: (images, dim).
        """
        return self.scores(features).argmax(axis=-1)

    def folded(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (kernel (dim, classes), bias (classes,)) for raw features.

        They compute the same scores without standardisation.
        """
        kernel = self.weights[:-1] / self.std[:, None]
        return kernel, CONSTANT * self.weights[-1] - self.mean @ kernel


@dataclasses.dataclass(frozen=True, eq=False)
class LinearProbe:
    """Hold the result of `linear_probe`.

    Attributes:
        model: the model of this package that returned the features.
        ridge: the `Ridge` with the weights.
        class_names: names of the classes; None for a dataset, which has none.
        count: number of training images.
        layer: name of the layer that returned the features.
        preprocessing: `Preprocessing` of the training images; None for a dataset.
    """

    model: ImageModel
    ridge: Ridge
    class_names: tuple[str, ...] | None
    count: int
    layer: str
    preprocessing: Preprocessing | None

    def as_model(self) -> ImageModel:
        """Return a copy of the model with the probe as its head.

        The head is float32, and its logits are the scores of the ridge; the standardisation and the constant are folded
        into kernel and bias. `labels` are the class names, and `preprocessing` is that of the images. Class, config and
        all other weights are copied from `model`; nothing is shared. Both heads of a distilled model become the probe,
        so their mean equals the probe on the mean of their features.
        """
        return with_head(self.model, *self.ridge.folded(), self.class_names, self.preprocessing)


def linear_probe(
    model: keras.Model,
    train: LabelledData,
    shots: int | None = None,
    seed: int = 0,
    l2: float = DEFAULT_L2,
    batch_size: int = 32,
    preprocessing: Preprocessing | None = None,
    verbose: bool = False,
) -> LinearProbe:
    """Fit a linear head on frozen features by ridge regression in closed form.

    The features are the input of the model's head, see `FrozenFeatures`; see `fit_ridge` for the formula. The model is
    not changed.

    Args:
        model: a model of this package that pools its tokens, with or without a head, or a keras model that contains
            exactly one, which then gets the head.
        train: a folder of class folders, an `ImageSource`, or a batched `tf.data.Dataset` of (model inputs, integer
            labels).
        shots: training images per class, drawn as in `draw_shots`; None uses all images.
        seed: seed of the draw, integer, 0 or above.
        l2: lambda of the regression, above 0.
        batch_size: images per batch; ignored for a dataset that is used completely.
        preprocessing: replaces `model.preprocessing` for a folder or source.
        verbose: whether to show a progress bar.

    Returns:
        A `LinearProbe`; its `as_model()` predicts, evaluates, trains, saves and exports like any other model.

    Raises:
        TypeError: if the model neither is nor contains a model of this package.
        ValueError: if it does not pool its tokens, there are fewer than two classes, a class has fewer images than
            shots, an image cannot be read, or the features are not finite.
    """
    checks.check_integer("seed", seed, minimum=0)
    checks.check_positive("l2", l2)
    checks.check_flag("verbose", verbose)
    frozen = FrozenFeatures(model)
    check_pools(frozen.model)
    [train] = open_labelled({"train": train}, frozen.model, preprocessing, batch_size)
    positions = None
    if shots is not None:
        names = train.class_names or numbered_names(int(train.labels.max()))
        positions = np.sort(draw_shots(train.labels, names, checks.check_integer("shots", shots), seed), axis=None)
    x, y = frozen.read(train, positions, verbose=verbose)
    check_labels("train", y, train.class_names and len(train.class_names))
    classes = len(train.class_names or numbered_names(int(y.max())))
    if classes < 2:
        raise ValueError(f"train must have at least two classes; it has {classes}")
    ridge = fit_ridge(x, y, classes, l2)
    return LinearProbe(frozen.model, ridge, train.class_names, len(y), frozen.layer, train.preprocessing)


class FrozenFeatures:
    """One feature vector per image.

    Args:
        model: a model of this package; a keras model that contains exactly one, which is then used alone, without the
            layers around it; or another keras model with one input.
        layer: name of a layer. None uses the input of the head: `pre_logits` if it exists, else the pooled features;
            for a distilled model, the mean of the inputs of its two heads, as with `include_top=False`; for a model
            without pooling, its normalised tokens; for a model of another package, its output. Tokens and maps are
            averaged over the patches or positions; class, distillation and register tokens are left out, because not
            every model has them.

    Attributes:
        model: the keras model that is used.
        layer: the name of the layer, or of both layers of a distilled model; `"output"` for the output of a model of
            another package.
        graph: the keras model from the inputs of `model` to the features.

    Raises:
        TypeError: if `model` is not a keras model.
        ValueError: if it contains several models of this package, has no layer of that name, or has several inputs.
    """

    def __init__(self, model, layer=None):
        self.model = _measured_model(model)
        if isinstance(self.model, ImageModel):
            names = read_by_head(self.model) if layer is None else [layer]
            tensors = feature_extractor(self.model, names, grid=True).outputs
        elif layer is None:
            names, tensors = ["output"], self.model.outputs
        else:
            checks.check_choice("layer", layer, [known.name for known in self.model.layers])
            names, tensors = [layer], [self.model.get_layer(layer).output]
        self.layer = ", ".join(names)
        self.graph = keras.Model(self.model.inputs[0], _pooled(tensors))

    @functools.cached_property
    def _compiled(self):
        return inference(self.graph)

    def read(self, opened, positions=None, *, verbose):
        """Return the features, float32 (images, dim), and the labels (images,) of labelled images.

        Do not change the weights of the model between two calls.

        Args:
            opened: one of the results of `open_labelled`.
            positions: ascending positions of the images, or None for all.
            verbose: whether to show a progress bar.
        """
        batches, steps = opened.batches(positions)
        forward = inference(self.graph, compiled=False) if steps == 1 else self._compiled
        found = run_batches(forward, self.model, "features", f"features of {self.layer}", batches, steps, verbose)
        return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))


def fit_ridge(features: npt.ArrayLike, labels: npt.ArrayLike, classes: int, l2: float = DEFAULT_L2) -> Ridge:
    """Fit a ridge regression from features to classes.

    See arXiv 2010.11929, section 4.1.

    The targets are 1 for the class and -1 for others. Settings that the paper does not state follow the authors' later
    code (big_vision, `fewshot_lsr`): features are standardised by their own mean and deviation, the constant 100 is
    appended, and lambda is 2^10. With these features as X and the targets as Y, the weights are (X^T X + lambda I)^-1
    X^T Y, or, for fewer images than features, the equivalent X^T (X X^T + lambda I)^-1 Y. The smaller of the two Gram
    matrices is diagonalised in float64. Eigenvalues that rounding made negative are set to 0, so no divisor is below
    lambda.

    Args:
        features: (images, dim), finite, at least one image.
        labels: integers (images,), from 0 to classes - 1.
        classes: number of classes.
        l2: lambda, above 0.

    Returns:
        A `Ridge`.

    Raises:
        ValueError: on other shapes or values.
    """
    checks.check_integer("classes", classes)
    checks.check_positive("l2", l2)
    features, labels = np.asarray(features, np.float64), np.asarray(labels)
    if features.ndim != 2 or not features.size or not np.isfinite(features).all():
        raise ValueError(f"features must be a finite array (images, dim), not empty; got shape {features.shape}")
    if len(check_labels("labels", labels, classes)) != len(features):
        raise ValueError(f"labels must be one per image; got {len(labels)} for {len(features)} images")
    mean, std = features.mean(axis=0), features.std(axis=0) + EPSILON
    x = _standardised(features, mean, std)
    y = np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)
    is_primal = len(x) >= x.shape[1]
    values, vectors = np.linalg.eigh(x.T @ x if is_primal else x @ x.T)
    right = x.T @ y if is_primal else y
    solved = vectors @ (vectors.T @ right / (np.maximum(values, 0.0) + l2)[:, None])
    return Ridge(mean, std, solved if is_primal else x.T @ solved)


def draw_shots(labels, class_names, shots, seed):
    """Draw images of each class at random.

    One generator per seed shuffles the images of each class, class after class, and the first ones are used, as in
    big_vision's `fewshot_lsr`. The draw of 5 shots therefore contains that of 1, and another seed gives another draw.

    Args:
        labels: integers (images,), the class of each image.
        class_names: name of each class.
        shots: images per class.
        seed: integer, 0 or above.

    Returns:
        Positions in `labels`, int64 (classes, shots): the first n columns are the draw of n shots.

    Raises:
        ValueError: if a class has fewer images; the message names it.
    """
    rng = np.random.default_rng(seed)
    drawn = [rng.permutation(np.flatnonzero(labels == number))[:shots] for number in range(len(class_names))]
    short = [number for number, positions in enumerate(drawn) if len(positions) < shots]
    if short:
        raise ValueError(
            f"shots must not exceed the images of any class; got shots={shots}, and train has {len(drawn[short[0]])} "
            f"of class {class_names[short[0]]!r}; {len(short)} of {len(drawn)} classes have too few"
        )
    return np.stack(drawn)


def _measured_model(model):
    checks.check_instance("model", model, keras.Model, "a keras model, such as keras_vit.ViT_B16(...)")
    encoders = find_encoders(model)
    if len(encoders) > 1:
        names = ", ".join(repr(encoder.name) for encoder in encoders)
        raise ValueError(f"model must contain one model of keras_vit; {model.name!r} has {names}: pass one of them")
    found = encoders[0] if encoders else model
    if len(getattr(found, "inputs", None) or ()) != 1 or len(found.outputs) != 1:
        raise ValueError(f"model must contain a keras_vit model, or have one input and one output; got {found.name!r}")
    return found


def _pooled(tensors):
    """Return the mean of the tensors, each averaged over its positions, in float32."""
    vectors = []
    for tensor in tensors:
        if tensor.shape[0] is not None or tensor.shape[-1] is None or len(tensor.shape) < 2:
            raise ValueError(f"layer must return one vector or map per image; got an output of shape {tensor.shape}")
        axes = tuple(range(1, len(tensor.shape) - 1))
        tensor = ops.cast(tensor, "float32")
        vectors.append(ops.mean(tensor, axis=axes) if axes else tensor)
    return sum(vectors[1:], vectors[0]) / len(vectors)


def _standardised(features, mean, std):
    return np.column_stack([(features - mean) / std, np.full(len(features), CONSTANT)])
