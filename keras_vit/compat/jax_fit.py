"""Training in microbatches on the JAX backend, whose `fit` needs no other correction."""

from keras_vit.compat.backend_fit import BackendFit
from keras_vit.compat.jax_state import KeptState
from keras_vit.compat.loss_shares import first_tensor, loss_weight, share
from keras_vit.compat.microbatches import add, count_parts, take_part


class JaxFit(KeptState, BackendFit):
    """Mixin for `keras.Model`; see fit.py."""

    _can_split = True

    def train_step(self, state, data):
        if self._microbatches == 1 or not self.trainable_variables:
            return super().train_step(state, data)
        import jax
        import keras

        trainable, non_trainable, optimizer_variables, metrics = state
        gradient_of = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        x, _, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        total_rows, total_weight = len(first_tensor(x)), loss_weight(self, x, sample_weight)
        gradients, parts = None, count_parts(data, self._microbatches)
        for part in range(parts):
            rows = take_part(_after(gradients, data), part, parts)
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(rows)
            (_, updates), part_gradients = gradient_of(
                trainable,
                non_trainable,
                metrics,
                x,
                y,
                sample_weight,
                training=True,
                optimizer_variables=optimizer_variables,
            )
            loss, y_pred, non_trainable, metrics = updates
            of_whole = share(loss_weight(self, x, sample_weight), total_weight)
            part_gradients = [keras.ops.cast(of_whole, gradient.dtype) * gradient for gradient in part_gradients]
            gradients = add(gradients, part_gradients)
            loss *= of_whole * total_rows / len(first_tensor(x))  # for a metric that averages over the rows
            logs, metrics = self._update_metrics_variables(metrics, loss, x, y, y_pred, sample_weight)
        trainable, optimizer_variables = self.optimizer.stateless_apply(optimizer_variables, gradients, trainable)
        return logs, (trainable, non_trainable, optimizer_variables, metrics)


def _after(gradients, data):
    import jax

    return data if gradients is None else jax.lax.optimization_barrier((gradients, data))[1]
