"""The share of a batch's loss that belongs to a part of it: a microbatch, or the rows of a replica.

Keras averages the loss over the part and weights all parts equally. Delete this file with fit.py.
"""

import keras
from keras import ops
from keras.src.backend import get_keras_mask

_REDUCTIONS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "sum")


def loss_weight(model, x, sample_weight):
    """Return the weight of some rows' mean loss in the mean loss of all rows; None if the loss is a sum.

    Raises:
        ValueError: if the losses of a model have different reductions, or average over weights of several outputs.
    """
    reduction = _reduction(model)
    if reduction == "sum":
        return None
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        if keras.tree.is_nested(sample_weight):
            raise ValueError(
                "sample_weight must be one tensor to be trained in parts with the reduction 'mean_with_sample_weight'"
            )
        return ops.sum(ops.cast(sample_weight, "float32"))
    return ops.cast(ops.shape(first_tensor(x))[0], "float32")


def share(part, whole):
    """Return the factor of a part's loss in that of the whole, from their weights; 0 if the whole has weight 0."""
    return 1.0 if part is None else ops.divide_no_nan(part, whole)


def check_parts(model, y_pred, microbatches):
    """Reject losses that cannot be combined from parts; called inside `compute_loss`.

    Raises:
        ValueError: if outputs are masked, because Keras averages over the unmasked values of each part; or with
            `microbatches` if layers add losses to a sum over the rows, because they would count once per part.
    """
    if any(get_keras_mask(output) is not None for output in keras.tree.flatten(y_pred)):
        raise ValueError("outputs must have no mask to be trained in parts (microbatches, replicas); got masked ones")
    if microbatches > 1 and model.losses and _reduction(model) == "sum":
        raise ValueError("loss must be a mean, not a sum, for microbatches of a model that adds losses")


def first_tensor(x):
    """Return the first tensor of a structure; its first axis is the batch."""
    return next(tensor for tensor in keras.tree.flatten(x) if tensor is not None)


def _reduction(model):
    losses = [loss for loss in keras.tree.flatten(model.loss) if loss is not None]
    # A loss given by name or as a function is averaged.
    reductions = sorted({getattr(loss, "reduction", "sum_over_batch_size") for loss in losses} or {"mean"})
    if len(reductions) > 1 or reductions[0] not in _REDUCTIONS:
        raise ValueError(
            "loss must have one reduction for all outputs to be trained in parts (microbatches, replicas), of "
            f"{list(_REDUCTIONS)}; got {reductions}"
        )
    return reductions[0]
