"""The few-shot protocol of the paper in NumPy: the draw of training images, and ridge regression in closed form."""

import dataclasses

import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.evaluation.labelled import check_labels

DEFAULT_L2 = 2.0**10
_EPSILON = 1e-5  # added to the standard deviations
_CONSTANT = 100.0  # the last feature of every image; it is large, so the bias is hardly regularised


@dataclasses.dataclass(frozen=True, eq=False)
class Ridge:
    """Result of `fit_ridge`; all arrays are float64.

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
        """Return the class (images,) with the highest score; of equal scores the first.

        Args:
            features: (images, dim).
        """
        return self.scores(features).argmax(axis=-1)

    def folded(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (kernel (dim, classes), bias (classes,)) for raw features.

        They compute the same scores without standardisation.
        """
        kernel = self.weights[:-1] / self.std[:, None]
        return kernel, _CONSTANT * self.weights[-1] - self.mean @ kernel


def fit_ridge(features: npt.ArrayLike, labels: npt.ArrayLike, classes: int, l2: float = DEFAULT_L2) -> Ridge:
    """Fit a ridge regression from features to classes.

    See arXiv 2010.11929, section 4.1.

    The targets are 1 for the class and -1 for others. Settings that the paper does not state follow the authors' later
    code (big_vision, `fewshot_lsr`): features are standardised by their own mean and deviation, the constant 100 is
    appended, and lambda is 2^10. With these features as X and the targets as Y, the weights are
    (X^T X + lambda I)^-1 X^T Y, or, for fewer images than features, the equal X^T (X X^T + lambda I)^-1 Y. The smaller
    of the two Gram matrices is diagonalised in float64. Eigenvalues that rounding made negative are set to 0, so no
    divisor is below lambda.

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
    mean, std = features.mean(axis=0), features.std(axis=0) + _EPSILON
    x = _standardised(features, mean, std)
    y = np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)
    is_primal = len(x) >= x.shape[1]
    values, vectors = np.linalg.eigh(x.T @ x if is_primal else x @ x.T)
    right = x.T @ y if is_primal else y
    solved = vectors @ (vectors.T @ right / (np.maximum(values, 0.0) + l2)[:, None])
    return Ridge(mean, std, solved if is_primal else x.T @ solved)


def _standardised(features, mean, std):
    x = np.empty((len(features), len(mean) + 1))
    x[:, :-1] = (features - mean) / std
    x[:, -1] = _CONSTANT
    return x


def draw_shots(labels, class_names, shots, seed):
    """Draw images of each class at random.

    One generator per seed shuffles the images of each class, class after class, and the first ones are used, as in
    big_vision's `fewshot_lsr`. The draw of 5 shots therefore contains that of 1, and another seed is another draw.

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
