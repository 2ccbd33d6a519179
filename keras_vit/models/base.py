"""Model, with a corrected `fit`, and ImageModel, the base class of the models of images."""

import functools
import pathlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras

from keras_vit import checks
from keras_vit.compat.fit import DistributedFit
from keras_vit.config import ImageConfig, Preprocessing
from keras_vit.config.unseen import differences, to_text, whole
from keras_vit.models import weights_files
from keras_vit.models.encoders import Encoder, count_classes, error_of_channels, keep_class_names, shared_graph
from keras_vit.models.layer_states import layer_states, lora_layers, quantize, restart_lora, restore_layer_states
from keras_vit.models.training_warnings import ADVICE, check_losses, images_in, look_at
from keras_vit.typing import PathLike, Tensor
from keras_vit.words import answer

STANDARDISATION = "preprocessing"  # the layer of a model with include_preprocessing


@keras.saving.register_keras_serializable(package="keras_vit")
class Model(weights_files.SavedToH5, DistributedFit, keras.Model):
    """Extend `keras.Model` with a `fit` for several devices that can be resumed.

    Training on several devices, or resumed after an interruption, gives the results of one uninterrupted run on one
    device, except for dropout and batch normalisation on TensorFlow, which depend on the number of devices. The models
    of the package have this class as a base. Use `keras_vit.Model(inputs, outputs)` for a model of the package with a
    new head or inside a larger model. Clipping, gradient accumulation, weight averages, several steps per execution,
    metrics and dropout are correct under every strategy of tf.distribute, with the stock optimizers. `compile` also
    takes `microbatches`, and losses of all outputs, such as `keras_vit.tasks.MaskLoss`. A plain `keras.Model` around a
    model of the package trains as Keras trains it: under several replicas, clipping, gradient accumulation, overwriting
    with averages and several steps per execution are wrong or fail.

    Attributes:
        labels: class names, one per output, or None; `fit` on a pipeline of `keras_vit.data` sets them if they are
            None.
        preprocessing: `Preprocessing` of the images for `keras_vit.predict`, `evaluate` and `export`, or None. None
            uses that of the model of the package whose layers get the images; if other layers get them first, set it.
            `save` keeps both attributes; that of a plain `keras.Model` does not.

    A program that loads a saved model with `keras.models.load_model` must `import keras_vit` first.

    Warns:
        UserWarning: if the first images that `fit`, `evaluate` or `predict` gets are in another range than the model
            expects, such as pixel values from 0 to 255; if `labels` are the class names of the data in another order.
            From `compile` of a model of the package, if it ends in logits and a loss expects probabilities, or if it
            has one class and a loss compares several.

    Raises:
        ValueError: from `compile`, if the model ends in a softmax or a sigmoid and a loss or metric expects logits.
    """

    labels: Any = None  # class names, one per logit
    preprocessing: Any = None  # of the images, if no model of this package inside knows it

    def _look_at(self, method, data, function):
        look_at(self, method, data, self._looks, function)

    _check_losses = check_losses

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except ValueError as error:
            found = error_of_channels(self, args)
            if found is None:
                raise
            raise found from error

    if not TYPE_CHECKING:  # or every name would count as an attribute

        def __getattr__(self, name):
            line = answer("method", name)
            if not line:
                return super().__getattribute__(name)  # raises Python's own error, also that of a property
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{line}")

    def _images_in(self, batch):
        return images_in(self, batch) if getattr(self, "inputs", None) else None

    def _fit_inside(self, arguments, steps_done):
        names = getattr(arguments.get("x"), "class_names", None)
        if names is not None:
            keep_class_names(self, names)
        checks.check_class_weight(arguments.get("class_weight"), count_classes(self))
        return super()._fit_inside(arguments, steps_done)

    def get_config(self):
        config, owner = super().get_config(), shared_graph(self)
        is_known = owner is not None and owner.preprocessing_source != "assumed"
        preprocessing = self.preprocessing or (owner.preprocessing if is_known else None)
        about = {"preprocessing": preprocessing and preprocessing.to_dict(), "labels": self.labels and [*self.labels]}
        return {**config, "keras_vit": about} if "layers" in config and any(about.values()) else config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        about = config.get("keras_vit", {})
        model = super().from_config({key: config[key] for key in config if key != "keras_vit"}, custom_objects)
        model.labels, stated = about.get("labels"), about.get("preprocessing")
        model.preprocessing = stated and Preprocessing.from_dict(stated)
        return model

    def get_compile_config(self):
        # The state of the optimizer is that of A and B, which a file does not have: the loaded model is not compiled.
        return {} if lora_layers(self) else super().get_compile_config()


class ImageModel(Encoder, Model):
    """Add a config, image preprocessing and class labels to a functional Keras model.

    `weights_source` names the file that the weights were last loaded from, or is None; training does not change it.
    `weights_path` is its path, or None; it is not saved with the model.

    A family of models is a subclass with `config_class` and `_steps`, which lists its layers; it needs a
    constructor of its own only if they do not form a chain.

    Args:
        config: a config of the class `config_class`.
        preprocessing: `Preprocessing` of its images; None uses the official one at the config's image size.
        labels: sequence of class names, one per logit, or None.
        name: name of the Keras model; None uses the config's name as letters, digits and underscores.

    `model.save("model.keras")` saves the whole model; `keras_vit.load`, or Keras after `import keras_vit`, loads it.

    A saved model loads with its frozen and quantised layers (int8, int4, float8). LoRA is the exception: Keras merges
    it into the kernels of the file, so the loaded model gives the same outputs without LoRA. Layers that trained
    nothing but LoRA are frozen in it, and it is not compiled.

    Shapes:
        (batch, height, width, channels), float, prepared as `preprocessing` describes -> see the subclass.

    Warns:
        UserWarning: if called with integers, such as pixel values from 0 to 255, which are not prepared.
    """

    config_class: Any = None  # a subclass of `ImageConfig`
    _config: Any
    _preprocessing: Preprocessing | None  # None until it is asked for: the official one

    def __init__(
        self,
        config: ImageConfig,
        *,
        preprocessing: Preprocessing | None = None,
        labels: Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        config, inputs, outputs = self._start(config)
        for step in self._steps(config):
            outputs = step(outputs)
        self._finish(config, inputs, outputs, preprocessing, labels, name)

    @staticmethod
    def _steps(config):
        """Yield the layers, or functions of maps, that lead from the normalised images to the outputs."""
        raise NotImplementedError

    @staticmethod
    def _make_inputs(config):
        return keras.Input((*(config.fixed_size or (None, None)), config.channels), name="images")

    def _start(self, config):
        """Return the config with its defaults filled in, the input, and the images that the first layer gets.

        With `include_preprocessing`, these images are normalised by the model.

        Raises:
            TypeError: for the config of another architecture.
        """
        checks.check_instance("config", config, self.config_class, f"a keras_vit.{self.config_class.__name__}")
        policy = keras.dtype_policies.get(config.dtype or keras.config.dtype_policy())
        config = config.resolve(dtype=policy.name)
        inputs = images = self._make_inputs(config)
        if config.include_preprocessing:
            # Setting `preprocessing` sets scale and offset. bfloat16 would lose precision of the normalised values.
            images = keras.layers.Rescaling(1.0, dtype=head_dtype(config), name=STANDARDISATION)(inputs)
        return config, inputs, images

    def _finish(self, config, inputs, outputs, preprocessing, labels, name):
        """Initialise the functional model with these inputs and outputs."""
        name = name or config.name.replace("_", "").replace("-", "_").replace("+", "_").lower()  # r50_vit_b16
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        self.quantize = functools.partial(quantize, self.quantize)  # around Keras's wrapper of the method
        for tensor in self.inputs:
            tensor.image_model = self  # so that a model with these layers and a new head has its images
        self._config = config
        self.preprocessing = preprocessing
        self.labels = labels
        self.weights_source = None
        self.weights_path: pathlib.Path | None = None  # not saved: the file may move
        self.names_prefix: tuple[str, str] | None = None  # (marker of a layout, start of the names in its file)
        self.table_method: str | None = None  # method of resizing the position tables of the file
        self.max_tokens: int | None = None  # that the file states for images in their own aspect ratios

    @property
    def config(self) -> ImageConfig:
        """Return the frozen config of the model, with all defaults filled in."""
        return self._config

    @property
    def preprocessing(self) -> Preprocessing:
        """Return or set the `Preprocessing` of the images; None sets the official one.

        Its size is the model's image size; a model for images of any size accepts every size. With
        `include_preprocessing`, its `in_model` is True, and setting it changes the mean and std of the layer
        `preprocessing`.
        """
        if self._preprocessing is None:
            self._preprocessing = self._official_preprocessing()
        return self._preprocessing

    @preprocessing.setter
    def preprocessing(self, value: Preprocessing | None) -> None:
        self._preprocessing = None if value is None else self._checked_preprocessing(value)
        self._preprocessing_source = "default" if value is None else "stated"
        if self._config.include_preprocessing:
            layer, (scale, offset) = self.get_layer(STANDARDISATION), standardisation(self.preprocessing)
            if (layer.scale, layer.offset) != (scale, offset):
                layer.scale, layer.offset = scale, offset
                # Compiled functions hold the old values.
                self.train_function = self.test_function = self.predict_function = None

    def _official_preprocessing(self):
        config, half = self._config, (0.5,) * self._config.channels
        value = Preprocessing(size=config.fixed_size or config.usual_size, mean=half, std=half)
        value = value if self._cut_size is None else value.native(self._cut_size)
        return value.replace(in_model=config.include_preprocessing)

    def _checked_preprocessing(self, value):
        if not isinstance(value, Preprocessing):
            raise TypeError(f"preprocessing must be a keras_vit.Preprocessing or None; got {value!r}")
        wanted = self._config.fixed_size or value.image_size, self._config.channels, self._cut_size
        if (value.image_size, value.channels, value.patch_size) != wanted:
            raise ValueError(
                f"preprocessing must give images of the model's image_size {self._config.image_size} and {wanted[1]} "
                f"channels, and patch_size={wanted[2]}; got {value.image_size}, {value.channels} and "
                f"{value.patch_size} (Preprocessing.at and Preprocessing.native change them)"
            )
        return value.replace(in_model=self._config.include_preprocessing)

    @property
    def _cut_size(self):
        """Return the size of patches that are cut before they reach the model, None if the model cuts them."""
        config = self._config
        return config.field("patch_size") if config.field("embedding.images_per_sequence") else None

    @property
    def preprocessing_source(self) -> str:
        """Return how `preprocessing` is known: `"stated"`, `"default"` or `"assumed"`.

        It is `"stated"` if the weights or the user set it, and `"assumed"` if the weights file does not state it and
        comes from a library whose models use different preprocessings. Otherwise it is `"default"`.
        """
        return self._preprocessing_source

    def assume_preprocessing(self) -> None:
        """Mark the preprocessing as assumed: it may not be the one the weights need."""
        self._preprocessing_source = "assumed"

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Return or set the class names, one per logit, as a tuple, or None."""
        return self._labels

    @labels.setter
    def labels(self, value: Sequence[str] | None) -> None:
        if value is not None:
            is_sequence = isinstance(value, Iterable) and not isinstance(value, (str, set, frozenset, Mapping))
            if not is_sequence or not all(isinstance(label, str) for label in value):
                raise TypeError(f"labels must be a sequence of strings or None; got {value!r}")
            value = tuple(value)
            if len(value) != self._config.classes:
                raise ValueError(f"labels must name each of the {self._config.classes} classes; got {len(value)} names")
        self._labels = value

    def call(self, inputs: Tensor, training: bool | None = None, mask: Any = None) -> Tensor:
        # Inputs may be lists and dicts; a dict of coordinates and patches is sorted.
        dtype = keras.backend.standardize_dtype(keras.tree.flatten(inputs)[-1].dtype)
        if "int" in dtype and not self._config.include_preprocessing:
            warnings.warn(f"{self.name} expects prepared images; got {dtype}: {ADVICE}", stacklevel=2)
        return super().call(inputs, training=training, mask=mask)

    def call_heads(self, inputs: Tensor, training: bool | None = None) -> list[Tensor]:
        """Return the outputs of all heads as a list; a distilled model has two.

        Args:
            inputs: (batch, height, width, channels), prepared as `preprocessing` describes.
            training: as in a call of any Keras model.
        """
        return [self(inputs, training=training)]

    def load_weights(self, filepath: PathLike, skip_mismatch: bool = False, **kwargs: Any) -> Any:
        """Load a `.weights.h5` file as `keras.Model.load_weights` does.

        If the file has another image size, the position tables are resized. Their optimizer slots cannot be resized: if
        the file has an optimizer for another image size, this model keeps its current optimizer state and raises a
        warning. A `.weights.h5` file has no matrices of LoRA. Its kernels contain the LoRA of the saved model, and A
        and B of this model start anew.

        Raises:
            ValueError: if the file states another architecture, such as another number of heads.

        Warns:
            UserWarning: if the file states a GELU or epsilon other than the model's.
        """
        for difference in differences(weights_files.stated(filepath), self._config):
            if difference.is_close:
                warnings.warn(f"{filepath}: {difference}", stacklevel=2)
            elif not difference.about.resized:
                raise ValueError(f"{filepath} does not fit {self.name}: {difference}")
        optimizer = getattr(self, "optimizer", None)
        is_other = optimizer is not None and optimizer.built and weights_files.has_other_slots(filepath, self)
        if is_other:
            text = f"{filepath} holds the optimizer state of another image size; only the weights are loaded"
            warnings.warn(text, stacklevel=2)
        try:
            self.optimizer = None if is_other else optimizer
            loaded = super().load_weights(filepath, skip_mismatch=skip_mismatch, **kwargs)
        finally:
            self.optimizer = optimizer
        restart_lora(self)
        return loaded

    def save_weights(self, filepath: PathLike, *args: Any, **kwargs: Any) -> None:
        """Write a `.weights.h5` file as `keras.Model.save_weights` does, with metadata.

        The metadata states what the weights do not show, such as the number of heads.

        Args:
            filepath: path of the file.
            *args, **kwargs: as in `keras.Model.save_weights`.
        """
        super().save_weights(filepath, *args, **kwargs)
        is_known = self._preprocessing_source != "assumed"
        weights_files.state(
            filepath, to_text(self._config, self.preprocessing if is_known else None, model=whole(self._config))
        )

    def get_config(self):
        return {
            "config": self._config.to_dict(),
            "preprocessing": self.preprocessing.to_dict(),
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
            **cls._other_arguments(config),
        )
        restore_layer_states(model, config["layer_states"])
        model._preprocessing_source = config["preprocessing_source"]
        model.weights_source = config["weights_source"]
        return model

    @classmethod
    def _other_arguments(cls, config):
        """Return the constructor's arguments other than the config, from `get_config`."""
        return {}


def standardisation(preprocessing):
    """Return scale and offset for `Rescaling`, from pixel values in [0, 255] to (x / 255 - mean) / std."""
    mean, std = preprocessing.mean, preprocessing.std
    # Of rank 3, because Keras reshapes vectors under image_data_format="channels_first".
    scale, offset = [1 / (255 * s) for s in std], [-m / s for m, s in zip(mean, std, strict=True)]
    return [[scale]], [[offset]]


def make_head(config, name="head", kernel_initializer="zeros"):
    """Return the dense layer that gives the logits."""
    return keras.layers.Dense(
        config.classes,
        activation=config.classifier_activation,
        use_bias=config.head.bias if hasattr(config, "head") else True,
        kernel_initializer=kernel_initializer,
        dtype=head_dtype(config),
        name=name,
    )


def head_dtype(config):
    """Return the dtype of the head: float32 under mixed policies, so logits and softmax keep their precision."""
    return "float64" if config.dtype == "float64" else "float32"
