"""SelfDistillation: pre-training without labels by a student that predicts its own average (DINO, arXiv 2104.14294)."""

import math
import warnings
from typing import Any

import keras
from keras import ops

from keras_vit.compat.graph import keep_beside_graph
from keras_vit.config.base import ARGUMENTS
from keras_vit.layers.projection_head import ProjectionHead
from keras_vit.models import self_distillation_loss as losses
from keras_vit.models.base import Model, head_dtype
from keras_vit.models.copies import clone
from keras_vit.models.derived import check_pools, feature_extractor
from keras_vit.models.encoders import read_by_head
from keras_vit.models.scanned import check_unscanned
from keras_vit.models.training_model import TrainingModel
from keras_vit.typing import Tensor

_SETTINGS = (
    *("out_dim", "hidden_dim", "bottleneck_dim", "norm_last_layer", "student_temperature", "teacher_temperature"),
    *("warmup_temperature", "warmup_epochs", "freeze_epochs", "teacher_momentum", "center_momentum"),
)
_METRICS = ("teacher_entropy", "batch_entropy")
_COLLAPSED = 0.02  # nats between the two entropies


@keras.saving.register_keras_serializable(package="keras_vit")
class SelfDistillation(TrainingModel, Model):
    """Pre-train without labels by self-distillation (DINO, arXiv 2104.14294).

    The student sees all crops of an image, the teacher the two global ones. The student learns to predict the teacher's
    distribution over prototypes from other crops. The teacher is the moving average of the student. Its outputs are
    centred by their running mean and sharpened by a low temperature, which together prevent a collapse.

    ```python
    student = keras_vit.resize(keras_vit.ViT_S16(include_top=False), "any")  # images of any size
    model = keras_vit.SelfDistillation(student)
    data = keras_vit.data.multi_crop_pipeline(source, student.preprocessing, 512)
    model.compile(optimizer, epochs=100, steps_per_epoch=data.steps_per_epoch)
    model.fit(data, epochs=100, steps_per_epoch=data.steps_per_epoch)
    model.teacher.save("teacher.keras")
    ```

    `fit` trains `student` in place and updates `teacher`, a model of the same class with the same config; the authors
    evaluate the teacher. Both are ordinary models for `train`, `knn` and so on. A head of the student is not trained.
    `recipe.compile` and `train` take the hyper-parameters from `dino/imagenet`.

    A step updates the student, then the teacher with the momentum of the step. In the first `freeze_epochs`, the last
    layer of the student's head keeps its initial values; its gradients only enter the state of the optimizer. The
    centre uses the mean over all replicas. Everything is saved and resumed with the model.

    The history has `teacher_entropy`, the mean entropy of the teacher's distribution for a crop, and `batch_entropy`,
    the entropy of the mean of these distributions over the batch, in nats. Their difference is the mean KL divergence
    between both. It is near 0 if all images get one distribution: a single prototype (both entropies near 0) or a
    uniform one (both near ln `out_dim`). `fit` warns of a collapse if it is below 0.02 in two epochs in a row after
    `freeze_epochs` (section 5.3 of the paper).

    Args:
        student: a model of this package that takes images and pools its tokens, with or without a head. Its own size
            is the only size of crops that it takes; `keras_vit.resize(student, "any")` takes all sizes.
        out_dim: number of prototypes; 65,536 as published. Use fewer for small data.
        hidden_dim, bottleneck_dim, norm_last_layer: as in `keras_vit.layers.ProjectionHead`.
        student_temperature: temperature of the student's outputs, above 0.
        teacher_temperature: temperature of the teacher's outputs after the warm-up, above 0; the authors advise at most
            0.07.
        warmup_temperature: temperature of the teacher in the first epoch.
        warmup_epochs: epochs in which it rises to `teacher_temperature`, see `temperature_schedule`. The authors'
            default is none, at a temperature of 0.04; the paper uses 30 epochs.
        freeze_epochs: epochs in which the last layer of the head is frozen.
        teacher_momentum: momentum of the moving average in the first step, in [0, 1); it rises to 1, see
            `cosine_schedule`. The authors advise a higher one for smaller batches, 0.9995 for 256 images.
        center_momentum: momentum of the centre, in [0, 1); None does not centre, and training collapses.
        name: name of the Keras model; None adds `_self_distillation` to the student's name.

    Shapes:
        dict of crops, prepared as `student.preprocessing` describes: `global`, (batch, 2, height, width, channels), and
        `local`, (batch, crops, height, width, channels), which may be absent -> dict of `student`, the logits of the
        student (batch, crops, out_dim), and `teacher`, the probabilities of the teacher (batch, 2, out_dim). Images
        (batch, height, width, channels) -> the logits of the student (batch, out_dim)

    Attributes:
        student, teacher: models of this package.
        student_head, teacher_head: their `ProjectionHead`s.
        center: (out_dim,), the centre.
        step: number of steps done.
        settings: dict of the other arguments.

    Raises:
        TypeError: if `student` is not a model of this package.
        ValueError: if a value is out of range, or the student takes sequences of patches, does not pool its tokens or
            has `scan_layers`.
    """

    _models = ("student",)

    def __init__(
        self,
        student: keras.Model,
        out_dim: int = 65536,
        *,
        hidden_dim: int = 2048,
        bottleneck_dim: int = 256,
        norm_last_layer: bool = True,
        student_temperature: float = 0.1,
        teacher_temperature: float = 0.07,
        warmup_temperature: float = 0.04,
        warmup_epochs: int = 30,
        freeze_epochs: int = 1,
        teacher_momentum: float = 0.996,
        center_momentum: float | None = 0.9,
        name: str | None = None,
    ) -> None:
        check_pools(student)
        check_unscanned(student)
        if len(student.inputs) > 1:
            raise ValueError(f"student must take images, not sequences of patches; got {student.name!r}")
        given = locals()
        settings = {key: ARGUMENTS[key](key, given[key]) for key in _SETTINGS}
        dtype, teacher = head_dtype(student.config), clone(student)
        sizes = out_dim, hidden_dim, bottleneck_dim, 3, norm_last_layer
        heads = [ProjectionHead(*sizes, dtype=dtype, name=f"{owner}_head") for owner in ("student", "teacher")]
        bodies = [_features(one) for one in (student, teacher)]
        inputs = keras.Input(student.input_shape[1:], dtype=student.input.dtype, name="images")
        outputs = heads[0](bodies[0](inputs))
        super().__init__(inputs=inputs, outputs=outputs, name=name or f"{student.name}_self_distillation")
        self.input_spec = None  # the inputs may be a dict of crops
        self.student: keras.Model = student
        self.teacher: keras.Model = teacher
        self.student_head, self.teacher_head = heads
        heads[1].build(bodies[1].output.shape)
        heads[1].set_weights(heads[0].get_weights())
        self._bodies, self.settings = bodies, settings
        for layer in (student, teacher, heads[1], bodies[1]):
            keep_beside_graph(self, layer)
        self.center = self.add_weight(name="center", shape=(out_dim,), initializer="zeros", trainable=False)
        self.step = self.add_weight(name="step", shape=(), initializer="zeros", dtype="int32", trainable=False)
        used = {id(variable) for layer in (bodies[0], heads[0]) for variable in layer.variables}
        self._idle = frozenset(id(variable) for variable in self.variables if id(variable) not in used)
        self._entropies = [keras.metrics.Mean(name=name) for name in _METRICS]

    def compile(  # type: ignore[override] # the names are Keras's, the mixin's are *args
        self, optimizer: Any = "rmsprop", loss: Any = None, *, epochs: int, steps_per_epoch: int, **kwargs: Any
    ) -> None:
        """Configure the model for training as `keras_vit.Model.compile` does.

        Args:
            optimizer: as in `keras.Model.compile`. The authors use AdamW and clip the gradient of each weight to a norm
                of 3 (`clipnorm`).
            loss: None uses `SelfDistillationLoss`.
            epochs: epochs of the whole run, for the schedules.
            steps_per_epoch: steps of an epoch.
            **kwargs: as in `keras_vit.Model.compile`, without `microbatches`, because the centre is a mean over the
                whole batch.

        Raises:
            ValueError: as `keras_vit.Model.compile`; if a number is out of range.
        """
        given, counts = self.settings, {"epochs": epochs, "steps_per_epoch": steps_per_epoch}
        self._epochs = {key: ARGUMENTS[key](key, count) for key, count in counts.items()}
        warmup = (given["warmup_temperature"], given["teacher_temperature"], given["warmup_epochs"])
        self._temperatures = losses.temperature_schedule(*warmup, epochs).astype("float32")
        momenta = losses.cosine_schedule(given["teacher_momentum"], 1.0, epochs * steps_per_epoch)
        self._momenta = momenta.astype("float32")
        loss = losses.SelfDistillationLoss(given["student_temperature"]) if loss is None else loss
        super().compile(optimizer=optimizer, loss=loss, **kwargs)

    def get_compile_config(self):
        config = super().get_compile_config()
        return {**config, **self._epochs} if config else config

    def call(self, inputs: Tensor, training: bool | None = None, mask: Any = None) -> Any:
        """Return the logits of images; for crops, the logits of the student and the probabilities of the teacher.

        Args:
            inputs: images, or a dict of crops, see the class. In training, crops also update the centre.
            training: as in a call of any Keras model; the teacher runs in inference mode.
            mask: not used.

        Raises:
            ValueError: if a dict has other keys, not two global crops, or crops of a size that the student does not
                take.
        """
        if not isinstance(inputs, dict):
            return super().call(inputs, training=training, mask=mask)
        crops = self._checked_crops(inputs)
        features = [_per_crop(self._bodies[0], views, training) for views in crops]
        logits = self.student_head(ops.concatenate(features, axis=1))
        taught = ops.stop_gradient(self.teacher_head(_per_crop(self._bodies[1], crops[0], False)))
        probabilities = losses.teacher_probabilities(taught, self.center, self._temperature())
        if training and self.settings["center_momentum"] is not None:
            self.center.assign(losses.moving_average(self.center, _mean(taught), self.settings["center_momentum"]))
        return {"student": logits, "teacher": probabilities}

    def train_step(self, *arguments):
        results = super().train_step(*arguments)
        if len(arguments) == 1:
            self._end_step()
            return results
        logs, (trainable, others, *rest) = results  # Keras's stateless step on JAX
        variables = self.trainable_variables, self.non_trainable_variables
        with keras.StatelessScope(zip(sum(variables, []), [*trainable, *others], strict=True)) as scope:
            self._end_step()
        return logs, (*([scope.get_current_value(one) for one in part] for part in variables), *rest)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if not isinstance(y_pred, dict):
            raise ValueError(
                "x must be a dict of crops, 'global' and 'local', such as of keras_vit.data.multi_crop_pipeline; got "
                f"images of shape {getattr(x, 'shape', None)}"
            )
        return super().compute_loss(x, y_pred["teacher"], y_pred["student"], sample_weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        probabilities = y_pred["teacher"]
        for metric, value in zip(self._entropies, (probabilities, _mean(probabilities)), strict=True):
            metric.update_state(_entropy(value))
        return super().compute_metrics(x, probabilities, y_pred["student"], sample_weight)

    def _untrained(self):
        return self._idle

    def _fit_inside(self, arguments, steps_done):
        callbacks = [*keras.tree.flatten(arguments.get("callbacks") or []), CollapseReport()]
        return super()._fit_inside({**arguments, "callbacks": callbacks}, steps_done)

    def _end_step(self):
        """Restore a frozen last layer, then move the teacher towards the student."""
        is_frozen = self.step < self.settings["freeze_epochs"] * self._epochs["steps_per_epoch"]
        for name in ("kernel", "scale"):  # while it is frozen, it equals the teacher's
            own, others = (getattr(head, name) for head in (self.student_head, self.teacher_head))
            own.assign(ops.where(is_frozen, others.value, own.value))
        momentum = _at(self._momenta, self.step)
        pairs = (self.teacher, self.student), (self.teacher_head, self.student_head)
        for average, value in (pair for two in pairs for pair in zip(*(one.variables for one in two), strict=True)):
            if keras.backend.is_float_dtype(average.dtype):
                average.assign(losses.moving_average(average, value, ops.cast(momentum, average.dtype)))
        self.step.assign(self.step + 1)

    def _temperature(self):
        if not self.compiled:
            return self.settings["teacher_temperature"]
        return _at(self._temperatures, self.step // self._epochs["steps_per_epoch"])

    def _checked_crops(self, inputs):
        shapes = {key: tuple(value.shape)[1:] for key, value in inputs.items()}
        if not set(shapes) <= {"global", "local"} or shapes.get("global", (0,))[0] != 2:
            raise ValueError(f"x must have two 'global' crops of each image, and may have 'local' ones; got {shapes}")
        size = self.student.input_shape[1:3]
        pairs = [pair for shape in shapes.values() for pair in zip(size, shape[1:3], strict=True)]
        if any(own not in (None, side) for own, side in pairs):
            raise ValueError(
                f"student must take {shapes}; {self.student.name} takes {size} (use keras_vit.resize(student, 'any'))"
            )
        return [inputs[key] for key in sorted(shapes)]


class CollapseReport(keras.callbacks.Callback):
    """Warn if the teacher's distribution no longer depends on the image; see `SelfDistillation`."""

    _epochs = 0  # successive ones with a collapsed teacher

    def on_epoch_end(self, epoch, logs=None):
        (own, of_mean), settings = (logs[name] for name in _METRICS), self.model.settings
        is_low = epoch >= settings["freeze_epochs"] and of_mean - own < _COLLAPSED
        self._epochs = self._epochs + 1 if is_low else 0
        if self._epochs != 2:
            return
        warnings.warn(
            f"{self.model.name} has collapsed in epoch {epoch + 1}: the teacher gives every image the same "
            f"distribution (teacher_entropy={own:.3g}, batch_entropy={of_mean:.3g}, of at most "
            f"{math.log(settings['out_dim']):.3g} nats): use centring, a lower teacher_temperature, a "
            "higher teacher_momentum, a longer warm-up or a lower learning rate",
            stacklevel=2,
        )


def _features(model):
    """Return the model from images to the input of the head, (batch, dim); a distilled model has the mean of two."""
    inputs = feature_extractor(model, read_by_head(model), grid=False).outputs
    outputs = inputs[0] if len(inputs) == 1 else keras.layers.Average(dtype=model.config.dtype)(inputs)
    return keras.Model(model.input, outputs, name=f"{model.name}_features")


def _per_crop(body, crops, training):
    """Return the features (batch, crops, dim) of crops (batch, crops, height, width, channels)."""
    features = body(ops.reshape(crops, (-1, *crops.shape[2:])), training=training)
    return ops.reshape(features, (-1, crops.shape[1], features.shape[-1]))


def _mean(values):
    """Return the mean over the batch and the crops, of all replicas of tf.distribute."""
    synchronized = keras.backend.backend() == "tensorflow"  # on JAX, a batch is one array on all devices
    return ops.moments(ops.cast(values, "float32"), axes=(0, 1), synchronized=synchronized)[0]


def _entropy(probabilities):
    """Return the entropies of distributions (..., out_dim), in nats."""
    return -ops.sum(probabilities * ops.log(ops.maximum(probabilities, 1e-30)), axis=-1)


def _at(values, place):
    return ops.take(values, ops.minimum(place, len(values) - 1))
