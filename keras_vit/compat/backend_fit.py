"""What DistributedFit asks of a backend; a backend without corrections answers thus."""


class BackendFit:
    """Base of the backends' mixins of a `keras.Model`; see fit.py."""

    _can_split = False  # whether train_step knows microbatches
    _replicas = 1  # that each compute a loss of their own

    def _before_compile(self, args, kwargs):
        """Refuses arguments of `compile` that cannot work under the strategy of the model."""

    def _after_compile(self):
        """Corrects what was compiled for the strategy of the model."""

    def _portable(self, config):
        """Returns the arguments of `compile` from a file without what depended on the machine that wrote it."""
        return config

    def _shared_out(self, data):
        """Returns data of which the workers of the strategy each take their rows."""
        return data
