"""Features of images in a frozen model, for probes."""

import keras
import numpy as np
from keras import ops

from keras_vit.compat.graph import graph_calls
from keras_vit.compat.inference import inference
from keras_vit.data.preprocessing import check
from keras_vit.evaluation.outputs import check_who_maps
from keras_vit.models import ImageModel, feature_extractor
from keras_vit.models.encoders import find_encoders
from keras_vit.models.training_warnings import looked_at


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
        self.model = _looked_at(model)
        if layer is None and not isinstance(self.model, ImageModel):
            self.layer, outputs = "output", self.model.outputs
        else:
            names = _read_by_head(self.model) if layer is None else [layer]
            self.layer, outputs = ", ".join(names), _outputs(self.model, names)
        self._features = keras.Model(self.model.inputs[0], _pooled(outputs))

    def preprocessing(self, given):
        """Return `given`, or the model's own `Preprocessing` if it is None.

        Raises:
            ValueError: if there is none, or its images do not fit the model.
        """
        preprocessing = getattr(self.model, "preprocessing", None) if given is None else given
        if preprocessing is None:
            raise ValueError(
                f"preprocessing must be given for a model of another package; {self.model.name} does not define "
                "one"
            )
        check(preprocessing)
        shape, taken = (*preprocessing.image_size, preprocessing.channels), tuple(self.model.input_shape[1:])
        if len(taken) != 3 or any(side not in (None, size) for side, size in zip(taken, shape, strict=True)):
            raise ValueError(
                f"preprocessing must produce images of shape {taken} for this model; got {shape} from "
                f"{preprocessing}: use preprocessing.at(image_size)"
            )
        check_who_maps(self.model, preprocessing)
        return preprocessing

    def reader(self, compiled):
        """Return a function of (batches of (inputs, labels), number of batches or None, verbose).

        The function returns the features, float32 (images, dim), and the labels (images,) of all batches. Use it at
        once, see `inference`.
        """
        run = inference(self._features, compiled)

        def read(batches, steps, verbose):
            bar = keras.utils.Progbar(steps, unit_name="batch", verbose=int(verbose))
            found, labels, step = [], [], 0
            for step, (inputs, numbers) in enumerate(batches, start=1):
                inputs = looked_at(self.model, "features", inputs) if step == 1 else inputs
                found.append(self._checked(run(inputs)))
                labels.append(numbers)
                bar.update(step, finalize=False)
            if found:
                bar.update(step, finalize=True)
            width = self._features.output_shape[-1]
            return np.concatenate([np.zeros((0, width), np.float32), *found]), np.concatenate([[], *labels]).astype(int)

        return read

    def _checked(self, values):
        if not np.isfinite(values).all():
            raise ValueError(
                f"model must return finite features; {self.model.name} returns NaN or infinity in {self.layer} for "
                "some images: its weights are not finite, or float16 overflows"
            )
        return values


def _looked_at(model):
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
    readers = [call for call in calls if call.operation.name in ("head", "head_dist")]
    readers = readers or [call for call in calls if call.operation.name == "average"]  # distilled, include_top=False
    read = [tensor for call in readers for tensor in call.input_tensors] or [model.output]
    return [_name_of(tensor, calls) for tensor in read]


def _name_of(tensor, calls):
    return next(call.operation.name for call in calls if any(output is tensor for output in call.outputs))


def _outputs(model, names):
    if isinstance(model, ImageModel):
        return feature_extractor(model, names, grid=True).outputs
    known = [layer.name for layer in model.layers]
    if names[0] not in known:
        raise ValueError(f"layer must be a layer of the model, one of {known}; got {names[0]!r}")
    return [model.get_layer(names[0]).output]


def _pooled(outputs):
    """Return the mean of the outputs, each averaged over its positions, in float32."""
    vectors = []
    for output in outputs:
        if output.shape[0] is not None or output.shape[-1] is None or len(output.shape) < 2:
            raise ValueError(f"layer must return one vector or map per image; got an output of shape {output.shape}")
        output = ops.cast(output, "float32")
        axes = tuple(range(1, len(output.shape) - 1))
        vectors.append(ops.mean(output, axis=axes) if axes else output)
    return sum(vectors[1:], vectors[0]) / len(vectors)
