"""Distiller: train a student on labels and on a teacher's outputs (DeiT, arXiv 2012.12877)."""

import contextlib
import hashlib
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.compat.graph import keep_beside_graph
from keras_vit.compat.saved_objects import CrossEntropy
from keras_vit.layers.position_grid import resize_matrix
from keras_vit.models.base import Model
from keras_vit.models.encoders import find_encoder, output_activation, preprocessing_of
from keras_vit.models.eomt_training import EoMTTraining
from keras_vit.models.task_model import TaskModel
from keras_vit.models.training_model import TrainingModel
from keras_vit.typing import Tensor

_MODES = ("hard", "soft")
_ACTIVATIONS = ("linear", "softmax")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_SIGMOID_LOSSES = (keras.losses.BinaryCrossentropy, keras.losses.BinaryFocalCrossentropy)
_SIGMOID_FUNCTIONS = (keras.losses.binary_crossentropy, keras.losses.binary_focal_crossentropy)
_TEACHING_METRICS = ("distillation_loss", "teacher_agreement")
_SMALLEST = float(np.finfo("float32").tiny)


@keras.saving.register_keras_serializable(package="keras_vit")
class Distiller(TrainingModel, Model):
    """Train a student on labels and on a teacher's outputs (DeiT, arXiv 2012.12877).

    ```python
    distiller = keras_vit.Distiller(keras_vit.DeiT_Ti16(distilled=True), teacher)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    distiller.compile(optimizer, loss, metrics=["accuracy"])
    distiller.fit(images, labels)
    distiller.student.save("student.keras")
    ```

    The loss is `(1 - alpha) * labels + alpha * teacher` (`losses.py` of facebookresearch/deit). `labels` is the loss
    passed to `compile`, on the class head. `teacher` acts on the distillation head and is one of these:

    - `hard`: the cross-entropy with the teacher's most likely class, without label smoothing (arXiv 2012.12877, Eq. 3);
    - `soft`: T^2 KL(teacher || student), both at temperature T, averaged over images *and classes*, as in that code and
      in the experiments of the paper (issue 61 there). Eq. 2 as printed averages over images only, and is K times as
      large for K classes. `alpha = K a / (1 - a + K a)` gives the two terms the proportions of Eq. 2 with lambda = a.

    A student with `distilled=True` has two heads and returns the mean of their logits in inference. In a student with
    one head, both terms apply to that head. Dropout and stochastic depth apply to the student. The teacher runs in
    inference mode on the same augmented and mixed images, in training only. It gets no gradient, is not part of
    `trainable_variables` and does not change.

    `evaluate` and `predict` run only the student; `evaluate` reports the compiled loss of its output. Training also
    logs `distillation_loss`, the mean of `teacher` without class or sample weights, and `teacher_agreement`, the
    share of images for which student and teacher have the same most likely class. Inside another Keras model, a
    Distiller acts as its student.

    The DeiT recipe, also for distilled models, is `deit/imagenet`. `keras_vit.train(recipe, source, workdir,
    model=distiller)` returns and saves the student. Saving a Distiller saves student and teacher, and `load_model`
    loads both. Pass `distiller.student` to the other functions of this package (`evaluate`, `predict`, `export`).

    Args:
        student: a classifier of this package, or a Keras model around one, that ends in logits or a softmax.
        teacher: any Keras model with one score per class, (batch, classes), in the student's order of classes. The
            scores are logits, or probabilities if a functional model or a `keras.Sequential` ends in a softmax. It must
            share no weight with the student. A teacher of this package, also inside a model that passes its inputs on
            unchanged, gets the images in its own size, mean and std (`preprocessing`), resized linearly with
            antialiasing. Any other teacher gets the student's inputs unchanged. Under a strategy of tf.distribute,
            create both models inside its scope.
        mode: `hard` or `soft`.
        alpha: weight of the teacher in [0, 1]; 0.5 as in the code and in Eq. 3. The paper uses 0.1 (lambda) for `soft`.
        temperature: T of `soft`, above 0; None uses the code's 1. The paper uses 3 (tau).
        name: name of the Keras model; None adds `_distiller` to the student's name.

    Shapes:
        as the student.

    Raises:
        TypeError: if the student neither is nor contains exactly one model of this package, or the teacher is not a
            Keras model.
        ValueError: if the mode is unknown, a number is out of range, `hard` has a temperature, the numbers of classes
            differ, a model ends in a sigmoid or another activation, the models share weights, or the teacher cannot
            take the images.
    """

    _models = ("student", "teacher")

    def __init__(
        self,
        student: keras.Model,
        teacher: keras.Model,
        mode: str = "hard",
        alpha: float = 0.5,
        temperature: float | None = None,
        name: str | None = None,
    ) -> None:
        checks.check_choice("mode", mode, _MODES)
        alpha = checks.check_number("alpha", alpha, "number in [0, 1]", lambda number: 0 <= number <= 1)
        if mode == "hard" and temperature is not None:
            raise ValueError(f"temperature belongs to mode 'soft'; got mode='hard', temperature={temperature!r}")
        temperature = None if temperature is None else checks.check_positive("temperature", temperature)
        _check_student(student)
        _check_teacher(teacher, student)
        inputs = keras.Input(student.input_shape[1:], dtype=student.input.dtype, name="images")
        super().__init__(inputs=inputs, outputs=student(inputs), name=name or f"{student.name}_distiller")
        self.input_spec = None  # the inputs may have images for the teacher
        self.student: keras.Model = student
        self.teacher: keras.Model = teacher
        keep_beside_graph(self, teacher)
        self.mode: str = mode
        self.alpha: float = alpha
        self.temperature: float | None = temperature
        self._is_alone = False  # True while the student runs without its teacher
        self._teaching_metrics = [keras.metrics.Mean(name=name) for name in _TEACHING_METRICS]

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Configure the student for training; also takes `microbatches`.

        Args:
            *args, **kwargs: as in `keras_vit.Model.compile`. `loss` is one softmax cross-entropy on the labels; its
                reduction also applies to the teacher's term.

        Raises:
            ValueError: if there is no loss or more than one, or the loss is a cross-entropy of sigmoids.
        """
        loss = args[1] if len(args) > 1 else kwargs.get("loss")
        _check_loss(loss)
        super().compile(*args, **kwargs)
        reduction = getattr(loss, "reduction", "sum_over_batch_size")  # a loss given as a name or a function has none
        self._distillation_loss = DistillationLoss(self.mode, self.temperature or 1.0, reduction=reduction)

    def call(self, inputs: Tensor, training: bool | None = None, mask: Any = None) -> Tensor:
        """Return the student's output, or `call_both` inside `train_step`."""
        if training and self._in_train_step:
            return self.call_both(inputs)
        inputs = inputs["images"] if isinstance(inputs, dict) else inputs
        return super().call(inputs, training=training, mask=mask)

    def call_both(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs that training compares.

        Args:
            inputs: the student's images, or a dict of them, `images`, and of `teacher_images`, which the teacher gets
                instead; they are prepared for the student and may have another size.

        Returns:
            The outputs of the student's class head and distillation head in training mode (the same output twice for
            a student with one head), and the logits of the teacher in inference mode; each (batch, classes).

        Raises:
            ValueError: if the size of the images for the teacher is unknown.
        """
        student, target = self.student, preprocessing_of(self.teacher)
        images, own = (inputs["teacher_images"], inputs["images"]) if isinstance(inputs, dict) else (inputs, inputs)
        has_heads = hasattr(student, "call_heads")
        heads = student.call_heads(own, training=True) if has_heads else [student(own, training=True)]
        if target is not None and None in images.shape[1:3] and None in student.input_shape[1:3]:
            raise ValueError(
                "inputs must be a dict with teacher_images of one size (keras_vit.data.flexible_patches), because that "
                f"of the images of {student.name} is unknown; got {images.shape}"
            )
        images = images if target is None else convert(images, preprocessing_of(student), target)
        scores = self.teacher(images, training=False)
        logits = to_logits(ops.stop_gradient(scores), output_activation(self.teacher))
        return heads[0], heads[-1], logits

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if not isinstance(y_pred, tuple):
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        class_scores, scores, teacher = y_pred
        labels = super().compute_loss(x, y, class_scores, sample_weight, training)
        distillation = self._distillation_loss(teacher, self._student_logits(scores), sample_weight)
        # `labels` includes the losses that layers add, scaled below by 1 - alpha; alpha * added gives the rest.
        added = sum(ops.sum(loss) for loss in self.losses) / self._replicas
        return (1 - self.alpha) * labels + self.alpha * (distillation + added)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        if not isinstance(y_pred, tuple):
            return super().compute_metrics(x, y, y_pred, sample_weight)
        class_scores, scores, teacher = y_pred
        answer = (class_scores + scores) / 2
        agrees = ops.equal(ops.argmax(answer, axis=-1), ops.argmax(teacher, axis=-1))
        values = (self._distillation_loss.call(teacher, self._student_logits(scores)), ops.cast(agrees, "float32"))
        for metric, value in zip(self._teaching_metrics, values, strict=True):
            metric.update_state(value)
        return super().compute_metrics(x, y, answer, sample_weight)

    def get_metrics_result(self):
        found = super().get_metrics_result()
        return {name: value for name, value in found.items() if not (self._is_alone and name in _TEACHING_METRICS)}

    def evaluate(self, *args, **kwargs):
        with self._student_alone():
            return super().evaluate(*args, **kwargs)

    def test_on_batch(self, *args, **kwargs):
        with self._student_alone():
            return super().test_on_batch(*args, **kwargs)

    @property
    def losses(self):
        of_teacher = set(map(id, self.teacher.losses))
        return [loss for loss in super().losses if id(loss) not in of_teacher]

    def _untrained(self):
        return set(map(id, self.teacher.variables))

    @property
    def settings(self) -> dict[str, Any]:
        """Return a dict of `mode`, `alpha` and `temperature`."""
        return {"mode": self.mode, "alpha": self.alpha, "temperature": self.temperature}

    def identity(self) -> dict[str, Any]:
        """Return the settings that define the training, as JSON values.

        The teacher is represented by a hash."""
        digest = hashlib.sha256()
        for weight in self.teacher.weights:
            digest.update(keras.ops.convert_to_numpy(weight).tobytes())
        return {**self.settings, "teacher": digest.hexdigest()[:16]}

    def _student_logits(self, scores):
        return to_logits(scores, output_activation(self.student))

    @contextlib.contextmanager
    def _student_alone(self):
        self._is_alone, before = True, self._is_alone
        try:
            yield
        finally:
            self._is_alone = before


def student_of(model):
    """Return the model whose variables a run trains: a `Distiller`'s student, or the model itself."""
    return model.student if isinstance(model, Distiller) else model


def result_of(model):
    """Return the model that a run returns and saves: that of a `Distiller` or `EoMTTraining`, or the model itself."""
    return model.trained_model() if isinstance(model, (Distiller, EoMTTraining)) else model


def labelled_in_training(model):
    """Return the model that has the labels and the preprocessing of a run: the task model, or the encoder inside."""
    return result_of(model) if isinstance(result_of(model), TaskModel) else find_encoder(model)


class DistillationLoss(keras.losses.Loss):
    """Measure the difference between teacher and student, one number per image.

    `hard` is the teacher's term of Eq. 3: the cross-entropy of the student with the teacher's most likely class,
    without label smoothing. `soft` is the teacher's term of Eq. 2, T^2 KL(teacher || student) of the probabilities at
    temperature T, divided by the number of classes, as in `losses.py` of facebookresearch/deit; `Distiller` explains
    the difference.

    Args:
        mode: `hard` or `soft`.
        temperature: T of `soft`.
        **kwargs: arguments of `keras.losses.Loss`, such as `reduction`.

    Shapes:
        logits of the teacher and of the student (batch, classes) -> (batch,) before the reduction.
    """

    def __init__(self, mode, temperature=1.0, **kwargs):
        super().__init__(**kwargs)
        self.mode = mode
        self.temperature = temperature

    def call(self, y_true, y_pred):
        if self.mode == "hard":
            return ops.sparse_categorical_crossentropy(ops.argmax(y_true, axis=-1), y_pred, from_logits=True)
        teacher, student = (ops.log_softmax(logits / self.temperature, axis=-1) for logits in (y_true, y_pred))
        return self.temperature**2 * ops.mean(ops.exp(teacher) * (teacher - student), axis=-1)


def to_logits(scores, activation):
    """Return scores as float32 logits; the logits of a `softmax` are the logarithms of its probabilities."""
    scores = ops.cast(scores, "float32")
    return ops.log(ops.maximum(scores, _SMALLEST)) if activation == "softmax" else scores


def convert(images, source, target):
    """Convert standardised images to the size, mean and std of another `Preprocessing`.

    The resize is linear with antialiasing, as Pillow's bilinear filter without its rounding. It uses matrix products,
    because TPUs and XLA have no antialiased resize.

    Args:
        images: (batch, height, width, channels), prepared as `source` describes.
        source, target: `Preprocessing` with the same number of channels.
    """
    sides = zip(images.shape[1:3], source.image_size, target.image_size, strict=True)
    sizes = [(old or usual, new) for old, usual, new in sides]
    if any(old != new for old, new in sizes):
        vertical, horizontal = (resize_matrix("bilinear_antialias", *pair).astype("float32") for pair in sizes)
        images = ops.cast(images, "float32")
        images = ops.einsum("yr,brcd->bycd", vertical, images)
        images = ops.einsum("xc,bycd->byxd", horizontal, images)
    if source.statistics != target.statistics:
        (old_mean, old_std), (mean, std) = source.statistics, target.statistics
        scale = np.divide(old_std, std)
        offset = np.subtract(old_mean, mean) / np.asarray(std)
        images = ops.cast(images, "float32") * scale.astype("float32") + offset.astype("float32")
    return images


def _check_student(student):
    if len(getattr(student, "inputs", None) or ()) > 1:
        raise ValueError(f"student must take images, not sequences of patches; got {student.name!r}")
    if not isinstance(student, keras.Model) or find_encoder(student) is None or not hasattr(student, "input_shape"):
        raise TypeError(f"student must be, or contain, one classifier of keras_vit; got {type(student).__name__}")
    _check_scores("student", student, student.output_shape)


def _check_teacher(teacher, student):
    checks.check_instance("teacher", teacher, keras.Model, "a keras model")
    if not teacher.built:
        raise ValueError(f"teacher must be built and have trained weights; {teacher.name!r} is not built")
    if {id(variable) for variable in teacher.variables} & {id(variable) for variable in student.variables}:
        raise ValueError(f"teacher must share no weights with the student; {teacher.name!r} does (see keras_vit.clone)")
    source, target = preprocessing_of(student), preprocessing_of(teacher)
    if target is not None and source is None:
        raise ValueError(
            "student must pass its images unchanged to its keras_vit model, because the teacher "
            f"{teacher.name!r} is a keras_vit model too; {student.name!r} changes them first"
        )
    shape = student.input_shape if target is None else (None, *target.image_size, student.input_shape[-1])
    wanted, dtype = getattr(teacher, "input_shape", shape), getattr(getattr(teacher, "input", None), "dtype", None)
    is_other = len(wanted) != len(shape) or any(a not in (None, b) for a, b in zip(wanted, shape, strict=True))
    if is_other or dtype not in (None, *_FLOATS):
        raise ValueError(
            f"teacher must take the student's inputs, float images of shape {shape}; {teacher.name!r} takes "
            f"{dtype or 'inputs'} of shape {tuple(wanted)}"
        )
    scores = teacher.compute_output_spec(keras.KerasTensor(shape))
    classes = _check_scores("teacher", teacher, getattr(scores, "shape", None))
    if classes != student.output_shape[-1]:
        raise ValueError(
            f"teacher must have the student's {student.output_shape[-1]} classes; {teacher.name!r} has {classes}"
        )


def _check_scores(name, model, shape):
    """Return the number of classes of a model with one score per class."""
    if not isinstance(shape, tuple) or len(shape) != 2 or not isinstance(shape[-1], int):
        raise ValueError(f"{name} must give scores (batch, classes); {model.name!r} gives {shape or 'several outputs'}")
    activation = output_activation(model)
    if activation not in _ACTIVATIONS:
        raise ValueError(f"{name} must give logits or softmax; {model.name!r} ends in {activation}")
    return shape[-1]


def _check_loss(loss):
    if loss is None or isinstance(loss, (dict, list, tuple)):
        raise ValueError(f"loss must be one cross-entropy on the labels; got loss={loss!r}")
    loss = keras.losses.get(loss)
    is_sigmoid = isinstance(loss, _SIGMOID_LOSSES) or loss in _SIGMOID_FUNCTIONS
    if is_sigmoid or (isinstance(loss, CrossEntropy) and loss.kind == "sigmoid"):
        raise ValueError(f"loss must be a softmax cross-entropy, to distil; got {getattr(loss, 'name', loss)!r}")
