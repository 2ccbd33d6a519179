"""Rejects training of a plain keras.Model around our layers if Keras would train it wrongly or fail unclearly.

Delete this file with fit.py.
"""

import keras

from keras_vit.compat.fit import DistributedFit
from keras_vit.compat.optimizers import faults_under_replicas


def refuse_plain_trainer(layer):
    """Raise an error if a plain `keras.Model` is being trained wrongly; call it inside `layer.call`.

    Raises:
        ValueError: in training on several replicas of tf.distribute, if the trained model is not a `DistributedFit` and
            was compiled with settings that `keras.Model` handles wrongly there.
    """
    if keras.backend.backend() != "tensorflow":
        return
    context = layer._get_call_context()
    model = context.entry_layer
    if not context.training or not isinstance(model, keras.Model) or isinstance(model, DistributedFit):
        return
    import tensorflow as tf

    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    faults = _faults(model) if replicas > 1 and model.compiled else []
    if faults:
        raise ValueError(
            f"a plain Keras model ({type(model).__name__}) cannot be trained on {replicas} replicas with "
            f"{', '.join(faults)}, which Keras gets wrong: make the model with keras_vit.Model(inputs, outputs)"
        )


def _faults(model):
    steps = model.steps_per_execution
    return faults_under_replicas(model.optimizer) + ([f"steps_per_execution={steps}"] if steps > 1 else [])
