"""The features of images in a model whose weights stay as they are: what probes learn from."""

import keras
import numpy as np
from keras import ops

from keras_vit.compat.graph import graph_calls
from keras_vit.compat.inference import inference
from keras_vit.data.preprocessing import check
from keras_vit.evaluation.outputs import check_who_maps
from keras_vit.models import ImageModel, feature_extractor
from keras_vit.models.encoders import find_encoders
from keras_vit.models.input_range import looked_at


class FrozenFeatures:
    """One vector of features per image.

    Args:
        model: a model of this package; a larger keras model with exactly one inside, which is then the one that is
            looked at, on its own inputs; or a keras model without any, of one input.
        layer: name of a layer. None takes what the head reads: `pre_logits` where there is one, else the pooled
            features; of a distilled model the mean of what its two heads read, as with `include_top=False`; of an
            unpooled one its normalised tokens; of a keras model without any of this package its output. Of tokens and
            maps the mean over the patches or positions is taken: class, distillation and register tokens, which not
            every model has, are left out.

    Attributes:
        model: the keras model that is looked at.
        layer: the name of the layer, or the names of the two of a distilled model; `"output"` where the output of a
            model of another package is taken.

    Raises:
        TypeError: if `model` is no keras model.
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
        """Return the `Preprocessing` of images: the one `given`, or for None the model's own.

        Raises:
            ValueError: if there is none, or it gives other images than the model takes.
        """
        preprocessing = getattr(self.model, "preprocessing", None) if given is None else given
        if preprocessing is None:
            raise ValueError(
                f"preprocessing must be given for a model of another package; {self.model.name} does not say how its "
                "images are prepared"
            )
        check(preprocessing)
        shape, taken = (*preprocessing.image_size, preprocessing.channels), tuple(self.model.input_shape[1:])
        if len(taken) != 3 or any(side not in (None, size) for side, size in zip(taken, shape, strict=True)):
            raise ValueError(
                f"preprocessing must give images of shape {taken} for this model; got {shape} from {preprocessing}: "
                "preprocessing.at(image_size) fits it to a size"
            )
        check_who_maps(self.model, preprocessing)
        return preprocessing

    def reader(self, compiled):
        """Return a function of (batches of (inputs, labels), number of batches or None, verbose) that gives the
        features, float32 (images, dim), and labels (images,) of them all; it is for use at once, see `inference`.
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
                f"model must give finite features; {self.model.name} gives NaN or infinity in {self.layer} for some "
                "images: its weights are not finite, or float16 overflows"
            )
        return values


def _looked_at(model):
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a keras model, such as keras_vit.ViT_B16(...); got {type(model).__name__}")
    encoders = find_encoders(model)
    if len(encoders) > 1:
        names = ", ".join(repr(encoder.name) for encoder in encoders)
        raise ValueError(
            f"model must contain one model of keras_vit; {model.name!r} contains {names}: give one of them"
        )
    found = encoders[0] if encoders else model
    if len(getattr(found, "inputs", None) or ()) != 1 or len(found.outputs) != 1:
        raise ValueError(
            "model must contain a model of keras_vit, or be a functional or sequential one of one input and one "
            f"output; got {found.name!r}"
        )
    return found


def _read_by_head(model):
    """Names of the layers whose outputs the heads read; of a model without a head, those that they would read."""
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
        raise ValueError(f"layer must be one of the model's, among {known}; got {names[0]!r}")
    return [model.get_layer(names[0]).output]


def _pooled(outputs):
    """The mean of the outputs, each averaged over its positions, in float32."""
    vectors = []
    for output in outputs:
        if output.shape[0] is not None or output.shape[-1] is None or len(output.shape) < 2:
            raise ValueError(f"layer must give one vector or map per image; got an output of shape {output.shape}")
        output = ops.cast(output, "float32")
        axes = tuple(range(1, len(output.shape) - 1))
        vectors.append(ops.mean(output, axis=axes) if axes else output)
    return sum(vectors[1:], vectors[0]) / len(vectors)
