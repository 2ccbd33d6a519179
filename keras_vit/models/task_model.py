"""TaskModel, the base class of the models that answer in pixels: an encoder of this package and a head."""

from collections.abc import Mapping
from typing import Any, ClassVar

import keras

import keras_vit.losses  # noqa: F401 # registers the losses that models are saved with
from keras_vit import checks
from keras_vit.compat.graph import graph_calls
from keras_vit.config import Preprocessing, ViTConfig
from keras_vit.config.base import Check, check_of
from keras_vit.models.base import Model
from keras_vit.models.training_model import PartlyTrained
from keras_vit.models.vit import VisionTransformer


class TaskModel(PartlyTrained, Model):
    """Build one functional model of an encoder and a head.

    A subclass has `_head`, which makes the outputs from the layers of the encoder. Its arguments are checked as those
    of a layer, see `keras_vit.config.base.check_of`. The model shares the layers of the encoder, and so its weights.
    `save` keeps the layers of the encoder that the model uses; others, such as its own head, are new in a loaded model.

    Args:
        encoder: a `VisionTransformer`; its own pooling and head are not used.
        name: name of the Keras model.
        **arguments: the arguments of the head.

    Shapes:
        as in the subclasses

    Attributes:
        origin: what `keras_vit.save_weights` needs of the file of transformers that `keras_vit.load` built the model
            from; None for other models. `save` does not keep it.
        own_checks: as in `keras_vit.layers.base.Layer`.
        weights_source: as in `ImageModel`.

    Raises:
        TypeError: if the encoder is not a `VisionTransformer`.
        ValueError: if an argument is out of range or a choice is unknown.
    """

    own_checks: ClassVar[Mapping[str, Check]] = {"classes": checks.check_integer}
    origin: Any = None
    sizing: str | None = None  # of the preprocessing, if the encoder has no rule for images of other sizes
    weights_source: str | None = None

    def __init__(self, encoder: VisionTransformer, name: str | None = None, **arguments: Any) -> None:
        checks.check_instance("encoder", encoder, VisionTransformer, "a keras_vit.VisionTransformer")
        arguments = {key: check_of(type(self), key)(key, value) for key, value in arguments.items()}
        self._finish(encoder, encoder.inputs[0], self._head(encoder, **arguments), name, arguments)

    def _finish(self, encoder, inputs, outputs, name, arguments):
        """Initialise the functional model with these inputs and outputs."""
        Model.__init__(self, inputs=inputs, outputs=outputs, name=name or type(self).__name__.lower())
        self._reached = frozenset(id(variable) for layer in self.layers for variable in layer.variables)
        # a function, because Keras would track the encoder as a sub-layer with every weight a second time
        self._get_encoder = lambda: encoder
        self._arguments = arguments
        known = encoder.preprocessing
        sizing = known.sizing or (None if known.pad else self.sizing)
        # the answer is for the whole image
        self.preprocessing = known.replace(crop=None, size=known.image_size, sizing=sizing)

    @staticmethod
    def _head(encoder, **arguments):
        """Return the outputs of the model."""
        raise NotImplementedError

    @property
    def encoder(self) -> VisionTransformer:
        """Return the encoder, which shares its weights with this model."""
        return self._get_encoder()

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the head by name."""
        return dict(self._arguments)

    def split(self) -> tuple[keras.Model, Model]:
        """Return a model of the features that the head reads, and one of the head.

        Both share the layers of this model. Where the encoder is frozen and images are not augmented, its features can
        be computed once:
        `features, head = model.split()`, then `head.fit(features.predict(images), targets)` trains `model`.
        """
        inside, own = {id(self.inputs[0])}, set(map(id, self.encoder.layers))
        read: dict[int, Any] = {}
        for call in graph_calls(self):
            tensors = call.input_tensors
            if id(call.operation) in own and all(id(tensor) in inside for tensor in tensors):
                inside.update(map(id, call.outputs))
            else:
                read.update((id(tensor), tensor) for tensor in tensors if id(tensor) in inside)
        features = [*read.values()]
        return keras.Model(self.inputs, features), Model(features, self.output, name=f"{self.name}_head")

    def _untrained(self):  # what the outputs do not depend on, such as a text tower
        return {id(variable) for variable in self.variables} - self._reached

    @property
    def config(self) -> ViTConfig:
        """Return the config of the encoder."""
        return self.encoder.config

    @property
    def preprocessing_source(self) -> str:
        """Return how the preprocessing of the encoder is known, see `ImageModel`."""
        return self.encoder.preprocessing_source

    def get_config(self):
        encoder = keras.saving.serialize_keras_object(self.encoder)
        about = {"preprocessing": self.preprocessing.to_dict(), "labels": self.labels and [*self.labels]}
        about["weights_source"] = self.weights_source
        return {"encoder": encoder, "name": self.name, **self._arguments, "keras_vit": about}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        about, arguments = config["keras_vit"], {key: config[key] for key in config if key != "keras_vit"}
        encoder = keras.saving.deserialize_keras_object(arguments.pop("encoder"), custom_objects)
        model = cls(encoder, **arguments)
        model.labels = about["labels"] and tuple(about["labels"])
        model.preprocessing = Preprocessing.from_dict(about["preprocessing"])
        model.weights_source = about.get("weights_source")
        return model
