"""Features of images in a frozen model, for probes."""

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.compat.graph import graph_calls
from keras_vit.evaluation import outputs
from keras_vit.models import ImageModel, feature_extractor
from keras_vit.models.encoders import find_encoders


class FrozenFeatures:
    """One feature vector per image.

    Args:
        model: a model of this package; a keras model that contains exactly one, which is then used on its own inputs;
            or another keras model with one input.
        layer: name of a layer. None uses the input of the head: `pre_logits` if it exists, else the pooled features;
            for a distilled model the mean of the inputs of its two heads, as with `include_top=False`; for a model
            without pooling its normalised tokens; for a model of another package its output. Tokens and maps are
            averaged over the patches or positions; class, distillation and register tokens are left out, because not
            every model has them.

    Attributes:
        model: the keras model that is used.
        layer: the name of the layer, or of both layers of a distilled model; `"output"` for the output of a model of
            another package.

    Raises:
        TypeError: if `model` is not a keras model.
        ValueError: if it contains several models of this package, has no layer of that name, or has several inputs.
    """

    def __init__(self, model, layer=None):
        self.model = _measured_model(model)
        if isinstance(self.model, ImageModel):
            names = _read_by_head(self.model) if layer is None else [layer]
            tensors = feature_extractor(self.model, names, grid=True).outputs
        elif layer is None:
            names, tensors = ["output"], self.model.outputs
        else:
            checks.check_choice("layer", layer, [known.name for known in self.model.layers])
            names, tensors = [layer], [self.model.get_layer(layer).output]
        self.layer = ", ".join(names)
        self._graph = keras.Model(self.model.inputs[0], _pooled(tensors))

    def reader(self, compiled):
        """Return a function of (batches of (inputs, labels), number of batches or None, verbose).

        The function returns the features, float32 (images, dim), and the labels (images,) of all batches. Use it at
        once, see `inference`.
        """
        run = outputs.runner(self.model, f"features of {self.layer}", compiled, self._graph)
        nothing = np.zeros((0, self._graph.output_shape[-1]), np.float32), np.zeros(0, int)

        def read(batches, steps, verbose):
            found = list(outputs.each_batch(run, self.model, "features", batches, steps, verbose)) or [nothing]
            return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))

        return read


def _measured_model(model):
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a keras model, such as keras_vit.ViT_B16(...); got {type(model).__name__}")
    encoders = find_encoders(model)
    if len(encoders) > 1:
        names = ", ".join(repr(encoder.name) for encoder in encoders)
        raise ValueError(
            f"model must contain one model of keras_vit; {model.name!r} contains {names}: pass one of them"
        )
    found = encoders[0] if encoders else model
    if len(getattr(found, "inputs", None) or ()) != 1 or len(found.outputs) != 1:
        raise ValueError(
            "model must contain a model of keras_vit, or be functional or sequential with one input and one "
            f"output; got {found.name!r}"
        )
    return found


def _read_by_head(model):
    """Return the layers whose outputs the heads read; for a model without a head, those that they would read."""
    calls = graph_calls(model)
    made_by = {id(tensor): call.operation.name for call in calls for tensor in call.outputs}
    readers = [call for call in calls if call.operation.name in ("head", "head_dist")]
    readers = readers or [call for call in calls if call.operation.name == "average"]  # distilled, include_top=False
    read = [tensor for call in readers for tensor in call.input_tensors] or [model.output]
    return [made_by[id(tensor)] for tensor in read]


def _pooled(tensors):
    """Return the mean of the tensors, each averaged over its positions, in float32."""
    vectors = []
    for tensor in tensors:
        if tensor.shape[0] is not None or tensor.shape[-1] is None or len(tensor.shape) < 2:
            raise ValueError(f"layer must return one vector or map per image; got an output of shape {tensor.shape}")
        axes = tuple(range(1, len(tensor.shape) - 1))
        tensor = ops.cast(tensor, "float32")
        vectors.append(ops.mean(tensor, axis=axes) if axes else tensor)
    return sum(vectors[1:], vectors[0]) / len(vectors)
