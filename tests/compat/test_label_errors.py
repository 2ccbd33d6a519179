"""Labels beyond the classes are told of in one sentence, whatever else goes wrong as it is."""

import keras
import numpy as np
import pytest
from families import FAMILIES

from keras_vit.compat.fit import labels_in_words

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="JAX gives such labels no loss and says nothing")
@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_labels_beyond_the_classes(method):
    model = FAMILIES["plain"].build()
    model.compile("sgd", LOSS, jit_compile=False)
    inputs, classes = np.zeros((2, *model.input_shape[1:]), "float32"), model.config.classes
    wanted = f"labels must be from 0 to {classes - 1}, as the model has {classes} classes; a batch has {classes}"
    with pytest.raises(ValueError, match=f"^{wanted}$"):
        getattr(model, method)(inputs, np.array([0, classes]), verbose=0)


def test_a_single_class():
    with pytest.raises(ValueError, match="labels must be 0, the only class; a batch has 1"), labels_in_words():
        raise RuntimeError("Received a label value of 1 which is outside the valid range of [0, 1).  Label values: 0 1")


def test_other_errors_pass():
    error = RuntimeError("another")
    with pytest.raises(RuntimeError) as caught, labels_in_words():
        raise error
    assert caught.value is error
