"""`linear_probe`: a linear classifier on frozen features, and the model that uses it as its head."""

import dataclasses

import keras
import numpy as np

from keras_vit import checks
from keras_vit.config import Preprocessing
from keras_vit.data.sources import LabelledData
from keras_vit.evaluation.frozen_features import FrozenFeatures
from keras_vit.evaluation.labelled import check_labels, numbered_names, open_labelled
from keras_vit.evaluation.ridge import DEFAULT_L2, Ridge, draw_shots, fit_ridge
from keras_vit.models import ImageModel, check_pools, with_head


@dataclasses.dataclass(frozen=True, eq=False)
class LinearProbe:
    """Result of `linear_probe`.

    Attributes:
        model: the model of this package that returned the features.
        ridge: the `Ridge` with the weights.
        class_names: names of the classes; None for a dataset, which has none.
        count: number of training images.
        layer: name of the layer that returned the features.
        preprocessing: `Preprocessing` of these images; None for a dataset.
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
        seed: of the draw, integer, 0 or above.
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
        names = train.class_names or numbered_names(train.labels)
        positions = np.sort(draw_shots(train.labels, names, checks.check_integer("shots", shots), seed), axis=None)
    batches, steps = train.batches(positions)
    x, y = frozen.reader(compiled=steps != 1)(batches, steps, verbose)
    check_labels("train", y, train.class_names and len(train.class_names))
    classes = int(y.max()) + 1 if train.class_names is None else len(train.class_names)
    if classes < 2:
        raise ValueError(f"train must have at least two classes; it has {classes}")
    ridge = fit_ridge(x, y, classes, l2)
    return LinearProbe(frozen.model, ridge, train.class_names, len(y), frozen.layer, train.preprocessing)
