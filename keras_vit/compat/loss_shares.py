"""What share of the loss of a whole batch belongs to a part of it: a microbatch, or the rows of a replica.

Keras averages the loss over the part and counts all parts as equal. Delete this file with fit.py.
"""

import keras
from keras import ops
from keras.src.backend import get_keras_mask

_REDUCTIONS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "sum")


def loss_weight(model, x, sample_weight):
    """Returns the scalar by which the mean loss of some rows counts in the mean loss of all rows; None if it is a sum.

    Raises:
        ValueError: if the losses of a model are reduced in different ways, or over weights of several outputs.
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
    """Returns the number by which the loss of a part counts in that of the whole, from their weights; 0 of nothing."""
    return 1.0 if part is None else ops.divide_no_nan(part, whole)


def check_parts(model, y_pred, microbatches):
    """Refuses losses that cannot be put together from those of parts; inside `compute_loss`.

    Raises:
        ValueError: if outputs are masked, of which Keras averages over what the mask leaves in each part, or with
            `microbatches` if losses are added to a sum over the rows, as they would count once for each part.
    """
    if any(get_keras_mask(output) is not None for output in keras.tree.flatten(y_pred)):
        raise ValueError("outputs must have no mask to be trained in parts (microbatches, replicas); got masked ones")
    if microbatches > 1 and model.losses and _reduction(model) == "sum":
        raise ValueError("loss must be a mean, not a sum, for microbatches of a model that adds losses")


def added_loss(model):
    """Returns what layers add to the loss of a model, as `keras.Model.compute_loss` counts it."""
    return sum(model._aggregate_additional_loss(loss) for loss in model.losses)


def first_tensor(x):
    """Returns the first tensor of a structure, whose first axis is the batch."""
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
