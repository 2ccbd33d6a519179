"""The interface that DistributedFit needs from a backend; the defaults correct nothing."""


class BackendFit:
    """Base class of the backends' mixins for `keras.Model`; see fit.py."""

    _can_split = False  # whether train_step supports microbatches
    _replicas = 1  # number of replicas that compute separate losses

    def _before_compile(self, args, kwargs):
        """Reject arguments of `compile` that the strategy of the model does not support."""

    def _after_compile(self):
        """Adapt compiled objects to the strategy of the model."""

    def _portable(self, config):
        """Return the arguments of `compile` from a file, without settings of the machine that wrote it."""
        return config

    def _shared_out(self, data):
        """Return the data such that each worker of the strategy gets its own rows."""
        return data
