"""Features that `fit` lacks on JAX: microbatches, weights that remain after a failed step, rows of several processes.

Keras's loops take weights, optimizer and metrics out of the model before the first step and put them back after the
last one. After an error, such as an image of the wrong size or an unreadable file, a `keras.Model` has no weights. With
`use_ema`, its `fit` also replaces the weights by their averages, which are zeros before the first step. Delete the part
that keeps the weights when tests/compat/test_jax_state.py shows that `keras.Model` keeps them.
"""

import itertools

import keras
import numpy as np

from keras_vit.compat.batch_parts import BackendFit, add, count_parts, first_tensor, loss_weight, share, take_part
from keras_vit.compat.labels import check_labels, label_rules

# length of the state that a loop takes out of the model -> its parts; the loops are predict, evaluate and fit
_TAKEN = {
    2: ("trainable_variables", "non_trainable_variables"),
    3: ("trainable_variables", "non_trainable_variables", "metrics_variables"),
    4: ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables"),
}
# path of a variable -> axes of the mesh that shard its sides. The first kernel of an attention or an MLP is sharded by
# columns, the second by rows, so the two products need one exchange between devices (arXiv 1909.08053, section 3).
_LAYOUTS = {
    r".*qkv/kernel": (None, "model"),
    r".*qkv/bias": ("model",),
    r".*proj/kernel": ("model", None),
    r".*mlp/dense1/kernel": (None, "model"),
    r".*mlp/dense1/bias": ("model",),
    r".*mlp/dense2/kernel": ("model", None),
}


class JaxFit(BackendFit):
    """Correct `fit` on JAX; a mixin for `keras.Model`, see fit.py."""

    _can_split = True
    _filled: dict[str, int] = {}  # function -> length of the tuples of its data, if `_shared_out` fills the batches

    def train_step(self, state, data):
        if self._microbatches == 1 or not self.trainable_variables:
            return super().train_step(state, data)
        import jax

        trainable, non_trainable, optimizer_variables, metrics = state
        gradient_of = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        x, _, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        total_rows, total_weight = len(first_tensor(x)), loss_weight(self, x, sample_weight)
        gradients, parts = None, count_parts(data, self._microbatches)
        for part in range(parts):
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(take_part(_after(gradients, data), part, parts))
            batch = {"x": x, "y": y, "sample_weight": sample_weight}
            (_, updates), part_gradients = gradient_of(
                trainable, non_trainable, metrics, **batch, training=True, optimizer_variables=optimizer_variables
            )
            loss, y_pred, non_trainable, metrics = updates
            of_whole = share(loss_weight(self, x, sample_weight), total_weight)
            part_gradients = [keras.ops.cast(of_whole, gradient.dtype) * gradient for gradient in part_gradients]
            gradients = add(gradients, part_gradients)
            rows = len(first_tensor(x))
            with keras.StatelessScope(zip(self.metrics_variables, metrics, strict=True)) as scope:
                # the first metric averages the losses over the rows
                self.metrics[0].update_state(loss * of_whole * total_rows / rows, sample_weight=rows)
                logs = self.compute_metrics(**batch, y_pred=y_pred)
            metrics = [scope.get_current_value(variable) for variable in self.metrics_variables]
        trainable, optimizer_variables = self.optimizer.stateless_apply(optimizer_variables, gradients, trainable)
        return logs, (trainable, non_trainable, optimizer_variables, metrics)

    def fit(self, *args, **kwargs):
        weights = list(self.trainable_variables)
        before = [weight.value for weight in weights]
        try:
            return super().fit(*args, **kwargs)
        except BaseException:
            is_untrained = self.optimizer is not None and int(self.optimizer.iterations) == 0
            if is_untrained and _is_there(before):
                for weight, value in zip(weights, before, strict=True):
                    weight.assign(value)
            raise

    def make_train_function(self, force=False):
        self._make_kept("train_function", super().make_train_function, force)

    def make_test_function(self, force=False):
        self._make_kept("test_function", super().make_test_function, force)

    def make_predict_function(self, force=False):
        self._make_kept("predict_function", super().make_predict_function, force)

    def _make_kept(self, name, make, force):
        """Make Keras's function `name`, and keep the state of the model if a step raises an error."""
        if getattr(self, name) is not None and not force:
            return
        make(force=True)
        function, steps = getattr(self, name), self.steps_per_execution
        # Keras >= 3.16 joins the batches of an execution into one.
        calls = steps if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 16) else 1
        rules = [] if name == "predict_function" else label_rules(self)

        def run(state, iterator):
            found = []
            try:
                for batch in itertools.islice(iterator, calls):
                    batch = self._real_rows(name, batch)
                    check_labels(rules, keras.utils.unpack_x_y_sample_weight(batch)[1])
                    if name in self._looks:
                        self._looks.pop(name)(self._images_in(batch))
                    outputs, state = function(state, iter((batch,)))
                    found.append(outputs)
            except BaseException:
                if _is_there(state):
                    self._jax_state = dict(zip(_TAKEN[len(state)], state, strict=True))
                    self.jax_state_sync()
                raise
            if not found:
                raise StopIteration
            if name == "predict_function":
                found = [keras.tree.map_structure(on_host, outputs) for outputs in found]
                outputs = keras.tree.map_structure(lambda *parts: keras.ops.concatenate(parts), *found)
            return outputs, state

        setattr(self, name, run)

    def _shared_out(self, data, function):
        """Fill up batches of unknown size, as each process must pass equally many rows of a batch.

        The added rows have the weight NaN, and `_real_rows` removes them.
        """
        self._filled = {name: length for name, length in self._filled.items() if name != function}
        import jax

        if jax.process_count() == 1 or keras.distribution.distribution() is None:
            return data
        import tensorflow as tf

        size = getattr(data, "own_rows", None)
        if size is None:
            raise ValueError(
                "data must be from Devices.dataset in several processes, as each reads its own rows; got "
                f"{type(data).__name__}: pass devices.dataset(lambda shard: train_pipeline(..., shard=shard))"
            )
        if first_tensor(data.element_spec).shape[0] is not None:
            return data
        is_tuple = isinstance(data.element_spec, tuple)
        self._filled = {**self._filled, function: len(data.element_spec) if is_tuple else 0}

        @tf.autograph.experimental.do_not_convert
        def filled(*batch):
            x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
            rows = tf.shape(first_tensor(x))[0]

            def fill(tensor, value=0):
                return tf.pad(tensor, [[0, size - rows]] + [[0, 0]] * (len(tensor.shape) - 1), constant_values=value)

            weight = fill(tf.ones([rows]) if weight is None else tf.cast(weight, "float32"), float("nan"))
            return keras.tree.map_structure(fill, x), weight if y is None else keras.tree.map_structure(fill, y), weight

        return data.map(filled)

    def _real_rows(self, function, batch):
        """Return a batch without the rows that `_shared_out` added; a batch with fewer rows is on every device."""
        if function not in self._filled:
            return batch
        import jax

        length, weight = self._filled[function], batch[2]
        is_real = ~np.isnan(on_host(weight))
        batch = batch[: length or 1]
        if not is_real.all():
            everywhere = jax.sharding.NamedSharding(weight.sharding.mesh, jax.sharding.PartitionSpec())
            batch = jax.jit(_take, out_shardings=everywhere)(batch, np.flatnonzero(is_real))
        return batch if length else batch[0]


def on_host(array):
    """Return the NumPy array of a JAX array, whose parts may be in other processes; all of them must call this."""
    from jax.experimental import multihost_utils

    is_here = array.is_fully_addressable or array.is_fully_replicated
    return np.asarray(array if is_here else multihost_utils.process_allgather(array, tiled=True))


def rows_of_process(distribution):
    """Return (index, count): this process has rows [index * B / count, (index + 1) * B / count) of a batch of B.

    Raises:
        ValueError: if the parts of the batch on the devices of this process do not follow each other.
    """
    replicas = distribution.num_model_replicas
    layout = distribution.get_data_layout((replicas,)).backend_layout
    slices = layout.addressable_devices_indices_map((replicas,)).values()
    parts = sorted({rows.indices(replicas)[0] for (rows,) in slices})
    size = len(parts)
    if not parts or replicas % size or parts[0] % size or parts[-1] - parts[0] != size - 1:
        raise ValueError(
            "devices and mesh must give every process the same number of consecutive parts of the batch; "
            f"got the parts {parts} of {replicas} in this process (leave out devices)"
        )
    return parts[0] // size, replicas // size


class ViTModelParallel(keras.distribution.ModelParallel):
    """`ModelParallel` that replicates a variable if it cannot be split evenly.

    Keras selects a layout only by the path of a variable, and fails if the number of devices along "model" does not
    divide the sharded side.

    Args:
        mesh: `keras.distribution.DeviceMesh` with the axes "data" and "model".
    """

    def __init__(self, mesh):
        layouts = keras.distribution.LayoutMap(mesh)
        layouts.update(_LAYOUTS)
        super().__init__(layout_map=layouts, batch_dim_name="data", auto_shard_dataset=False)

    def get_variable_layout(self, variable):
        layout = super().get_variable_layout(variable)
        parts = dict(zip(self.device_mesh.axis_names, self.device_mesh.shape, strict=True))
        fits = all(side % parts.get(axis, 1) == 0 for side, axis in zip(variable.shape, layout.axes, strict=True))
        return layout if fits else keras.distribution.TensorLayout([None] * len(variable.shape), self.device_mesh)


def _after(gradients, data):
    import jax

    return data if gradients is None else jax.lax.optimization_barrier((gradients, data))[1]


def _take(batch, rows):
    return keras.tree.map_structure(lambda tensor: tensor[rows], batch)


def _is_there(arrays):
    """Return whether the arrays still exist, that is, no failed step has donated them."""
    return not any(array.is_deleted() for array in keras.tree.flatten(arrays))
