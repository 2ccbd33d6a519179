"""The losses of self-distillation (DINO, DINOv2, DINOv3), its targets and its schedules, as functions.

Sources: arXiv 2104.14294 (DINO), 2304.07193 (DINOv2) and 2508.10104 (DINOv3); the epsilons are those of
facebookresearch/dinov2.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.compat.batch_parts import of_all_replicas
from keras_vit.layers.position_grid import resize_matrix
from keras_vit.typing import Tensor

_EXCLUDED = -1e30  # logits of rows that do not count; finite, as infinities give NaN where no row counts


def cosine_schedule(initial: float, final: float, steps: int, warmup_steps: int = 0, start: float = 0.0) -> np.ndarray:
    """Return the values of a cosine schedule, one per step, as facebookresearch/dino computes them.

    The first `warmup_steps` values rise linearly from `start` to `initial`, both included. Value i of the n
    others is `final + (initial - final) * (1 + cos(pi i / n)) / 2`, so `final` itself is not reached.

    Args:
        initial: first value after the warm-up.
        final: limit of the last values.
        steps: number of values.
        warmup_steps: number of values in the warm-up, from 0 to `steps`.
        start: first value of the warm-up.

    Returns:
        float64 (steps,).

    Raises:
        ValueError: if `steps` or `warmup_steps` is out of range.
    """
    rest = checks.check_integer("steps", steps) - checks.check_integer("warmup_steps", warmup_steps, 0)
    if rest < 0:
        raise ValueError(f"warmup_steps must not exceed steps; got warmup_steps={warmup_steps}, steps={steps}")
    falling = final + (initial - final) / 2 * (1 + np.cos(math.pi * np.arange(rest) / max(rest, 1)))
    return np.concatenate([np.linspace(start, initial, warmup_steps), falling])


def temperature_schedule(initial: float, final: float, warmup_epochs: int, epochs: int) -> np.ndarray:
    """Return the temperatures of the teacher, one per epoch (DINO), or per step if all numbers are steps (DINOv2).

    They rise linearly from `initial` to `final` in `warmup_epochs` values, both included, and then stay. A run of fewer
    epochs ends within the warm-up.

    Args:
        initial: temperature of the first epoch.
        final: temperature after the warm-up.
        warmup_epochs: number of epochs of the warm-up, 0 or above.
        epochs: number of values.

    Returns:
        float64 (epochs,).

    Raises:
        ValueError: if `epochs` or `warmup_epochs` is out of range.
    """
    checks.check_integer("warmup_epochs", warmup_epochs, 0)
    rest = max(checks.check_integer("epochs", epochs) - warmup_epochs, 0)
    return np.concatenate([np.linspace(initial, final, warmup_epochs), np.full(rest, float(final))])[:epochs]


def teacher_probabilities(logits: Tensor, center: Tensor, temperature: float) -> Tensor:
    """Return softmax((logits - center) / temperature), the centred and sharpened targets, in float32.

    Args:
        logits: of the teacher, (..., out_dim).
        center: broadcast to the logits.
        temperature: of the teacher, above 0.
    """
    return ops.softmax((ops.cast(logits, "float32") - center) / temperature, axis=-1)


def sinkhorn_knopp(logits: Tensor, temperature: float, iterations: int = 3, weights: Tensor | None = None) -> Tensor:
    """Return the targets of Sinkhorn-Knopp centring (arXiv 2304.07193, section 4), in float32.

    exp(logits / temperature) is normalised in turn over the samples, so that all prototypes are used equally, and over
    the prototypes, so that each sample has a distribution. The samples are those of all replicas. The computation is in
    log space: no sample may be shifted by itself, because that changes the targets.

    Args:
        logits: of the teacher, (samples, out_dim).
        temperature: of the teacher, above 0.
        iterations: number of rounds, at least 1.
        weights: (samples,), above 0 for the samples that count; None counts all.

    Returns:
        float32 (samples, out_dim); zeros for samples that do not count.
    """
    counts = ops.ones_like(logits[:, :1], dtype="bool") if weights is None else weights[:, None] > 0
    scores = ops.cast(logits, "float32") / temperature
    for _ in range(iterations):
        here = ops.logsumexp(ops.where(counts, scores, _EXCLUDED), axis=0, keepdims=True)
        scores = ops.log_softmax(scores - ops.logsumexp(of_all_replicas(here), axis=0), axis=-1)
    return ops.where(counts, ops.exp(scores), 0.0)


def mean_of_patches(logits: Tensor, weights: Tensor, center: Tensor) -> Tensor:
    """Return the mean of the patches that count, the value for the moving average of their centre.

    As in the official code, it is the mean over the replicas of their means. A replica without such a patch gives
    `center`, so that a step without masked patches does not change it.

    Args:
        logits: of the teacher, (patches, out_dim).
        weights: (patches,), above 0 for the patches that count.
        center: (out_dim,), the centre.

    Returns:
        float32 (out_dim,).
    """
    counts = ops.cast(weights > 0, "float32")
    total, number = ops.matmul(counts, ops.cast(logits, "float32")), ops.sum(counts)
    mean = ops.where(number > 0, total / ops.maximum(number, 1.0), center)
    return ops.mean(of_all_replicas(mean[None]), axis=0)


def masked_patch_loss(
    probabilities: Tensor, logits: Tensor, weights: Tensor, temperature: float, images: int | Tensor
) -> Tensor:
    """Return iBOT's loss (arXiv 2111.07832, Eq. 2), the cross-entropy of masked patches.

    Args:
        probabilities: of the teacher, (patches, out_dim).
        logits: of the student, (patches, out_dim).
        weights: (patches,), 1 / masked patches of the image, 0 for patches that do not count; see
            `keras_vit.models.block_masks.masked_places`.
        temperature: of the student, above 0.
        images: number of all images, also of those without masked patches.

    Returns:
        float32 ().
    """
    scores = ops.log_softmax(ops.cast(logits, "float32") / temperature, axis=-1)
    return -ops.sum(weights * ops.sum(probabilities * scores, axis=-1)) / ops.cast(images, "float32")


def koleo(features: Tensor) -> Tensor:
    """Return the KoLeo regulariser of each image, which spreads the images evenly (arXiv 1806.03198, section 3).

    It is -log of the distance to the nearest neighbour among the images of all replicas, after L2 normalisation. The
    official code of DINOv2 searches only the images of the same replica.

    Args:
        features: of one crop of each image, (batch, dim).

    Returns:
        float32 (images of all replicas,). Each replica has the same values; their mean is the loss.
    """
    features = _normalized(of_all_replicas(ops.cast(features, "float32")), 1e-8)
    similarities = ops.matmul(features, ops.transpose(features))
    is_self = ops.eye(ops.shape(features)[0], dtype="bool")
    nearest = ops.argmax(ops.where(is_self, -1.0, similarities), axis=-1)
    difference = features - ops.take(features, nearest, axis=0) + 1e-8
    return -ops.log(ops.sqrt(ops.sum(ops.square(difference), axis=-1)) + 1e-8)


def gram_losses(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the loss of Gram anchoring for each crop (arXiv 2508.10104, section 4).

    It is the mean squared difference between the cosine similarities of all pairs of patches. The paper states the sum
    instead of the mean; its weight of 2 fits the mean. A larger map of the teacher is first resized as by
    `reduced_map`.

    Args:
        student: patch features after the final norm, (crops, rows, columns, dim).
        teacher: those of the Gram teacher, (crops, its rows, its columns, dim).

    Returns:
        float32 (crops,).
    """
    maps = student, reduced_map(teacher, student.shape[1:3])
    own, wanted = (_similarities(one) for one in maps)
    return ops.mean(ops.square(own - wanted), axis=(1, 2))


def reduced_map(features: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize maps by bicubic interpolation with a = -0.75 and without antialiasing, as torch does, in float32.

    Args:
        features: (crops, rows, columns, dim).
        size: (rows, columns) wanted.

    Returns:
        float32 (crops, *size, dim).
    """
    sides = zip(features.shape[1:3], size, strict=True)
    rows, columns = (resize_matrix("bicubic", *both).astype("float32") for both in sides)
    return ops.einsum("yr,xc,brcd->byxd", rows, columns, ops.cast(features, "float32"))


def pair_losses(probabilities: Tensor, logits: Tensor, temperature: float) -> Tensor:
    """Return the cross-entropy of each pair of a teacher's and a student's view.

    Args:
        probabilities: of the teacher, (batch, teacher views, out_dim).
        logits: of the student, (batch, student views, out_dim).
        temperature: of the student, above 0.

    Returns:
        float32 (batch, teacher views, student views).
    """
    scores = ops.log_softmax(ops.cast(logits, "float32") / temperature, axis=-1)
    return -ops.einsum("btk,bsk->bts", probabilities, scores)


def moving_average(average: Tensor, value: Tensor, momentum: float) -> Tensor:
    """Return `momentum * average + (1 - momentum) * value`; exactly `average` if both are equal.

    Args:
        average: the earlier average.
        value: the new value, of the same shape.
        momentum: in [0, 1].
    """
    return average + (1 - momentum) * (value - average)


@keras.saving.register_keras_serializable(package="keras_vit")
class SelfDistillationLoss(keras.losses.Loss):
    """Average the cross-entropies of all pairs of different views (arXiv 2104.14294, Eq. 3), one number per image.

    View t of the teacher and view t of the student are the same image, and that pair is left out.

    Args:
        temperature: of the student, above 0.
        least_pairs: least number that the sum over the pairs is divided by. The official code of DINOv2 divides by 3
            where there are no local crops, although there are 2 pairs.
        **kwargs: arguments of `keras.losses.Loss`, such as `reduction`.

    Shapes:
        probabilities of the teacher (batch, teacher views, out_dim) and logits of the student (batch, student views,
        out_dim), whose first views are the teacher's -> (batch,) before the reduction
    """

    def __init__(self, temperature=0.1, least_pairs=1, **kwargs):
        super().__init__(**kwargs)
        self.temperature, self.least_pairs = temperature, least_pairs

    def call(self, y_true, y_pred):
        is_pair = 1 - np.eye(y_true.shape[1], y_pred.shape[1], dtype="float32")
        total = ops.sum(pair_losses(y_true, y_pred, self.temperature) * is_pair, axis=(1, 2))
        return total / max(is_pair.sum(), self.least_pairs)

    def get_config(self):
        return {**super().get_config(), "temperature": self.temperature, "least_pairs": self.least_pairs}


def _normalized(features, epsilon):
    """Divide features (..., dim) by max(norm, epsilon)."""
    squares = ops.sum(ops.square(features), axis=-1, keepdims=True)
    return features * ops.rsqrt(ops.maximum(squares, epsilon**2))


def _similarities(maps):
    """Return the cosine similarities (crops, patches, patches) of maps (crops, rows, columns, dim)."""
    patches = ops.reshape(maps, (-1, maps.shape[1] * maps.shape[2], maps.shape[3]))
    patches = _normalized(ops.cast(patches, "float32"), 1e-12)
    return ops.matmul(patches, ops.transpose(patches, (0, 2, 1)))
