"""The model keeps its weights if a step fails on the JAX backend.

Keras's loops take weights, optimizer and metrics out of the model before the first step and put them back after the
last one. After an error, such as an image of the wrong size or an unreadable file, the model had no weights. `fit` also
gave the weights their averages (`use_ema`), which are zeros before the first step. Delete this file when
tests/compat/test_jax_state.py finds that `keras.Model` keeps them.
"""

import keras

# the state that each loop takes out of the model: predict, evaluate, fit
_TAKEN = {
    2: ("trainable_variables", "non_trainable_variables"),
    3: ("trainable_variables", "non_trainable_variables", "metrics_variables"),
    4: ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables"),
}


class KeptState:
    """Mixin for `keras.Model` on the JAX backend."""

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

    def _make_function(self, step_function, **kwargs):
        """Wrap Keras's function of a state and an iterator over batches; restore the state after an error."""
        latest = None

        def step(state, data):
            nonlocal latest
            outputs, latest = step_function(state, data)
            return outputs, latest

        function = super()._make_function(step, **kwargs)

        def run(state, iterator):
            nonlocal latest
            latest = state
            try:
                return function(state, iterator)
            except BaseException:
                if _is_there(latest):
                    self._jax_state = dict(zip(_TAKEN[len(latest)], latest, strict=True))
                    self.jax_state_sync()
                raise
            finally:
                latest = None

        return run


def _is_there(arrays):
    """Return whether the arrays still exist, that is, no failed step has donated them."""
    return not any(array.is_deleted() for array in keras.tree.flatten(arrays))
