"""Parts of a batch (microbatches, and the rows of one replica) and their shares of the loss.

Keras averages the loss over each part and weights all parts equally. When tests/compat/test_optimizers.py shows that
`keras.Model` trains correctly on several replicas, only the code for microbatches is still needed.
"""

import keras
from keras import ops

from keras_vit.compat import private_names

LOOKED_AT = 32  # images of a first batch that are inspected
_REDUCTIONS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "sum")


def count_parts(data, parts):
    """Return the number of parts of a batch: `parts`, or the number of rows if it is known to be smaller."""
    rows = first_tensor(data).shape[0]
    return parts if rows is None else max(1, min(parts, rows))


def take_part(data, part, parts):
    """Return part number `part` of a batch: every `parts`-th row from row `part`.

    With strided rows, a batch that is distributed over devices stays distributed.

    Args:
        data: structure of tensors (batch, ...) and None.
        part: 0 to `parts` - 1.
        parts: number of parts; 1 returns `data` itself.
    """
    if parts == 1:
        return data
    return keras.tree.map_structure(lambda tensor: tensor if tensor is None else tensor[part::parts], data)


def add(total, gradients):
    """Add two lists of gradients, which have None for unused variables; `total` may be None."""
    if total is None:
        return gradients
    return [more if sum_ is None else sum_ + more for sum_, more in zip(total, gradients, strict=True)]


def first_tensor(x):
    """Return the first tensor of a structure; its first axis is the batch."""
    return next(tensor for tensor in keras.tree.flatten(x) if tensor is not None)


def loss_weight(model, x, sample_weight):
    """Return the weight of these rows in the mean loss of the batch; None if the loss is a sum.

    Raises:
        ValueError: if the losses of a model have different reductions, or if the loss is an average over sample weights
            and several outputs have their own.
    """
    reduction = _reduction(model)
    if reduction == "sum":
        return None
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        if keras.tree.is_nested(sample_weight):
            raise ValueError("sample_weight must be one tensor for training in parts with 'mean_with_sample_weight'")
        return ops.sum(ops.cast(sample_weight, "float32"))
    return ops.cast(ops.shape(first_tensor(x))[0], "float32")


def share(part, whole):
    """Return the factor of a part's loss, given the weights of the part and the batch; 0 if the batch has weight 0."""
    return 1.0 if part is None else ops.divide_no_nan(part, whole)


def check_parts(model, y_pred, microbatches):
    """Reject losses that cannot be combined from parts; called inside `compute_loss`.

    Raises:
        ValueError: if outputs are masked, because Keras averages over the unmasked values of each part; or if
            there are several microbatches, the loss is a sum over the rows and layers add losses, because the added
            losses would count once per part.
    """
    get_mask = private_names.find("keras.src.backend.common.masking.get_keras_mask")
    if any(get_mask(output) is not None for output in keras.tree.flatten(y_pred)):
        raise ValueError("outputs must have no mask to be trained in parts (microbatches, replicas); got masked ones")
    if microbatches > 1 and model.losses and _reduction(model) == "sum":
        raise ValueError("loss must be a mean, not a sum, for microbatches of a model that adds losses")


def of_all_replicas(values):
    """Return values (rows, ...) of all replicas of tf.distribute in their order; on JAX, a batch is one array.

    Gradients flow to the rows of each replica. All replicas must call it equally often.
    """
    if keras.backend.backend() != "tensorflow":
        return values
    import tensorflow as tf

    context = tf.distribute.get_replica_context()  # None while Keras builds a model
    is_alone = context is None or context.num_replicas_in_sync == 1
    return values if is_alone else context.all_gather(values, axis=0)


def _reduction(model):
    losses = [loss for loss in keras.tree.flatten(model.loss) if loss is not None]
    # Keras averages a loss that is given by name or as a function.
    reductions = sorted({getattr(loss, "reduction", "sum_over_batch_size") for loss in losses} or {"mean"})
    if len(reductions) > 1 or reductions[0] not in _REDUCTIONS:
        known = ", ".join(_REDUCTIONS)
        raise ValueError(f"microbatches and replicas need one reduction of all losses, of {known}; got {reductions}")
    return reductions[0]


class BackendFit:
    """Define what DistributedFit needs from a backend; the defaults change nothing."""

    _can_split = False  # whether train_step supports microbatches
    _replicas = 1  # number of replicas that compute separate losses
    _compares_rows = False  # whether losses compare the images of all replicas, so that no other image may be added

    @property
    def _looks(self):
        """Functions of the first images, to be called once: by `train_function`, `test_function`, `predict_function`.

        They get what `_images_in` returns for the first batch. TensorFlow and JAX call them."""
        return vars(self).setdefault("_pending_looks", {})  # not through Keras, which tracks dicts

    def _images_in(self, batch):
        """Return the images of a batch, None if it has none that can be inspected."""

    def _portable(self, config):
        """Return the arguments of `compile` from a file, without the settings that suit only the saving machine."""
        return config

    def _shared_out(self, data, function):
        """Return the data for `train_function`, `test_function` or `predict_function`, each worker's with its rows."""
        return data
