"""Model, with the corrected fit; ImageModel: what every model of the package shares."""

import collections.abc
import warnings
from collections.abc import Sequence
from typing import Any

import keras

from keras_vit.compat.fit import DistributedFit
from keras_vit.compat.resumable_fit import ResumableFit
from keras_vit.config import ImageConfig, Preprocessing
from keras_vit.config.unseen import RESIZED, differences, to_text
from keras_vit.models import weights_files
from keras_vit.models.layer_states import layer_states, restore_layer_states
from keras_vit.models.loss_warnings import warn_of_loss
from keras_vit.typing import PathLike, Tensor

ADVICE = (
    "prepare them as keras_vit.preprocess does, (x / 255 - mean) / std, or build the model with "
    "include_preprocessing=True, which takes pixel values from 0 to 255"
)
_STANDARDISATION = "preprocessing"  # the layer of a model with include_preprocessing


@keras.saving.register_keras_serializable(package="keras_vit")
class Model(ResumableFit, DistributedFit, keras.Model):
    """`keras.Model` whose `fit` gives on several devices, and resumed after a kill, what it gives on one in one go.

    For a model of the package with a new head, or inside a larger model: `keras_vit.Model(inputs, outputs)`. The models
    of the package are of this kind already. Clipping, gradient accumulation, averages, several steps per execution,
    metrics and dropout are right under every strategy of tf.distribute, with the stock optimizers; `compile` takes
    `microbatches` besides.

    Warns:
        UserWarning: where the first images that `fit`, `evaluate` or `predict` gets are in another range than the model
            of this package takes, such as pixel values from 0 to 255.
    """

    def _checked(self, method, args, kwargs):
        from keras_vit.models.input_range import looked_at  # which is about what this module defines

        arguments = super()._checked(method, args, kwargs)
        for name in ("x", "validation_data"):
            data = arguments.get(name)
            if arguments.get("_use_cached_eval_dataset") or data is None:
                continue
            if name == "validation_data" and isinstance(data, tuple):
                arguments[name] = (looked_at(self, method, data[0]), *data[1:])
            else:
                arguments[name] = looked_at(self, method, data)
        return arguments


class ImageModel(Model):
    """A functional keras model that knows its config, the preprocessing of its images and its labels.

    `weights_source` names the file that its weights were last loaded from, None without one; training leaves it.

    Subclasses name their `config_class` and build inputs and outputs from a config.

    A saved model opens as it was, layers frozen or quantised (int8, int4, float8) included, but for LoRA: Keras adds it
    to the kernels in the file, so that the opened model gives the same outputs and has none.

    Shapes:
        (batch, height, width, channels), float, values as `preprocessing` gives them -> what the subclass says.

    Warns:
        UserWarning: when called with integers, such as pixel values from 0 to 255, which are not prepared.
    """

    config_class: Any = None  # a subclass of `ImageConfig`

    def _check_config(self, config):
        """Returns the config with every default stated; raises `TypeError` if it is of another architecture."""
        if not isinstance(config, self.config_class):
            raise TypeError(f"config must be a keras_vit.{self.config_class.__name__}; got {type(config).__name__}")
        policy = keras.dtype_policies.get(config.dtype or keras.config.dtype_policy())
        return config.resolve().replace(dtype=policy.name)

    def _describe(self, config, preprocessing, labels):
        """Attaches the description; called once, after the functional model exists."""
        self._config = config
        self.preprocessing = preprocessing
        self.labels = labels
        self.weights_source = None

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Configures the model for training, see `keras_vit.Model`.

        Args:
            *args, **kwargs: as of `keras_vit.Model.compile`.

        Raises:
            ValueError: as `keras_vit.Model.compile`.

        Warns:
            UserWarning: where the model ends in logits and a loss takes what it gets for probabilities, and where it
                has one class and a loss compares several.
        """
        super().compile(*args, **kwargs)
        warn_of_loss(self.loss, self._config)

    @property
    def config(self) -> ImageConfig:
        """The frozen config this model was built from; every default in it is stated."""
        return self._config

    @property
    def preprocessing(self) -> Preprocessing:
        """`Preprocessing` of the images; its size is the model's. Setting None takes the official one.

        Of a model with `include_preprocessing`, its `in_model` is True, and a new mean and std are those of the layer.
        """
        return self._preprocessing

    @preprocessing.setter
    def preprocessing(self, value: Preprocessing | None) -> None:
        config = self._config
        source = "default" if value is None else "stated"
        if value is None:
            channels = _image_channels(config)
            value = Preprocessing(size=config.image_size, mean=(0.5,) * channels, std=(0.5,) * channels)
        if not isinstance(value, Preprocessing):
            raise TypeError(f"preprocessing must be a keras_vit.Preprocessing or None; got {value!r}")
        if value.image_size != config.image_size:
            raise ValueError(
                f"preprocessing must give images of the model's image_size {config.image_size}; "
                f"got {value.image_size} (Preprocessing.at(image_size) changes it)"
            )
        if value.channels != _image_channels(config):
            raise ValueError(
                f"preprocessing must give images of the model's {_image_channels(config)} channels; "
                f"got {value.channels}"
            )
        self._preprocessing = value.replace(in_model=config.include_preprocessing)
        self._preprocessing_source = source
        if config.include_preprocessing:
            layer, (scale, offset) = self.get_layer(_STANDARDISATION), standardisation(value)
            if (layer.scale, layer.offset) != (scale, offset):
                layer.scale, layer.offset = scale, offset
                # Compiled functions hold the old values.
                self.train_function = self.test_function = self.predict_function = None

    @property
    def preprocessing_source(self) -> str:
        """How `preprocessing` is known: `"stated"`, by the weights or by who set it, `"default"`, or `"assumed"`, where
        the weights came without it from a library that trains with several."""
        return self._preprocessing_source

    def assume_preprocessing(self) -> None:
        """Notes that nobody knows whether the preprocessing is that of the weights."""
        self._preprocessing_source = "assumed"

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Tuple of names, one per logit, or None."""
        return self._labels

    @labels.setter
    def labels(self, value: Sequence[str] | None) -> None:
        if value is not None:
            is_sequence = isinstance(value, collections.abc.Iterable) and not isinstance(value, str)
            if not is_sequence or not all(isinstance(label, str) for label in value):
                raise TypeError(f"labels must be a sequence of strings or None; got {value!r}")
            value = tuple(value)
            if len(value) != self._config.classes:
                raise ValueError(f"labels must name each of the {self._config.classes} classes; got {len(value)} names")
        self._labels = value

    def call(self, inputs: Tensor, training: bool | None = None, mask: Any = None) -> Tensor:
        dtype = keras.backend.standardize_dtype(keras.tree.flatten(inputs)[0].dtype)  # Keras takes lists and dicts, too
        if "int" in dtype and not self._config.include_preprocessing:
            warnings.warn(f"{self.name} takes images that are prepared; got {dtype}: {ADVICE}", stacklevel=2)
        return super().call(inputs, training=training, mask=mask)

    def call_heads(self, inputs: Tensor, training: bool | None = None) -> list[Tensor]:
        """Returns the list of what its heads give: one output, or the two of a distilled model, before their mean.

        Args:
            inputs: (batch, height, width, channels), values as `preprocessing` gives them.
            training: as of a call of any keras model.
        """
        return [self(inputs, training=training)]

    def load_weights(self, filepath: PathLike, skip_mismatch: bool = False, **kwargs: Any) -> Any:
        """Loads a `.weights.h5` file as `keras.Model.load_weights` does, also one of another image size.

        The position table is resized. The optimizer's slots of that table cannot be: where the file holds an
        optimizer for another image size, this model keeps the optimizer state it has, with a warning.

        Raises:
            ValueError: if the file states another architecture, such as another number of heads.

        Warns:
            UserWarning: if the file states another GELU or epsilon than the model has.
        """
        for difference in differences(weights_files.stated(filepath), self._config):
            if difference.is_close:
                warnings.warn(f"{filepath}: {difference}", stacklevel=2)
            elif difference.name not in RESIZED:
                raise ValueError(f"{filepath} does not fit {self.name}: {difference}")
        optimizer = getattr(self, "optimizer", None)
        if optimizer is None or not optimizer.built or not weights_files.has_other_slots(filepath, self):
            return super().load_weights(filepath, skip_mismatch=skip_mismatch, **kwargs)
        warnings.warn(
            f"{filepath} holds the optimizer of another image size; the weights are loaded, its slots are not",
            stacklevel=2,
        )
        try:
            self.optimizer = None
            return super().load_weights(filepath, skip_mismatch=skip_mismatch, **kwargs)
        finally:
            self.optimizer = optimizer

    def save_weights(self, filepath: PathLike, *args: Any, **kwargs: Any) -> None:
        """Writes a `.weights.h5` file as `keras.Model.save_weights` does, and states in it what no array shows.

        Args:
            filepath: path of the file.
            *args, **kwargs: as of `keras.Model.save_weights`.
        """
        super().save_weights(filepath, *args, **kwargs)
        is_known = self._preprocessing_source != "assumed"
        weights_files.state(filepath, to_text(self._config, self._preprocessing if is_known else None))

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        """Quantise the dense layers as `keras.Model.quantize` does, without a warning for each other layer.

        Args:
            *args, **kwargs: as of `keras.Model.quantize`, such as `"int8"`.
        """
        with warnings.catch_warnings():  # Keras warns of each layer that has nothing to quantise
            warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method", UserWarning)
            super().quantize(*args, **kwargs)

    def get_config(self):
        return {
            "config": self._config.to_dict(),
            "preprocessing": self._preprocessing.to_dict(),
            "preprocessing_source": self._preprocessing_source,
            "labels": None if self._labels is None else list(self._labels),
            "weights_source": self.weights_source,
            "name": self.name,
            "layer_states": layer_states(self),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        model = cls(
            cls.config_class.from_dict(config["config"]),
            preprocessing=Preprocessing.from_dict(config["preprocessing"]),
            labels=config["labels"],
            name=config["name"],
            **cls._parts(config),
        )
        restore_layer_states(model, config["layer_states"])
        model._preprocessing_source = config.get("preprocessing_source", "stated")
        model.weights_source = config.get("weights_source")
        return model

    @classmethod
    def _parts(cls, config):
        """Arguments of the constructor, other than its config, that `get_config` has written down."""
        return {}


def model_name(variant):
    """Folds a variant's name to an identifier: `"R50+ViT-B_16"` -> `"r50_vit_b16"`."""
    return variant.replace("_", "").replace("-", "_").replace("+", "_").lower()


def with_standardisation(images, config):
    """Returns what the first layers of a config's model get: the images, or what the layer `preprocessing` gives."""
    if not config.include_preprocessing:
        return images
    # The values follow `ImageModel.preprocessing`. In bfloat16 the pixel values above 128 would come in twos.
    return keras.layers.Rescaling(1.0, dtype=head_dtype(config), name=_STANDARDISATION)(images)


def standardisation(preprocessing):
    """Returns scale and offset from pixel values on [0, 255] to (x / 255 - mean) / std, as `Rescaling` takes them."""
    mean, std = preprocessing.mean, preprocessing.std
    # Of rank 3, which Keras leaves as they are under image_data_format="channels_first".
    scale, offset = [1 / (255 * s) for s in std], [-m / s for m, s in zip(mean, std, strict=True)]
    return [[scale]], [[offset]]


def make_head(config, name="head", kernel_initializer="zeros"):
    """Returns the dense layer that gives the logits of a config."""
    return keras.layers.Dense(
        config.classes,
        activation=config.classifier_activation,
        kernel_initializer=kernel_initializer,
        dtype=head_dtype(config),
        name=name,
    )


def head_dtype(config):
    """The head computes in float32 under the mixed policies, so that neither logits nor softmax lose digits."""
    return "float64" if config.dtype == "float64" else "float32"


def _image_channels(config):
    return 1 if config.channels == 1 else 3


def check_model(model):
    """Returns `model` if it is one of this package; raises `TypeError` otherwise."""
    if not isinstance(model, ImageModel):
        raise TypeError(f"model must be a model of keras_vit; got {described(model)}")
    return model


def described(model):
    """Returns what a message calls an object that is no model of this package, and what to give where that is known."""
    layers = model.layers if isinstance(model, keras.Model) else ()
    name = type(model).__name__
    inside = [layer.name for layer in layers if isinstance(layer, ImageModel)]
    if inside:
        return f"{name} around one (give model.get_layer({inside[0]!r}))"
    if any(type(layer).__module__.startswith("keras_vit.layers") for layer in layers):
        return f"{name} with its layers, as keras.models.clone_model gives (keras_vit.clone(model) copies a model)"
    return name
