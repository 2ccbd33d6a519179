"""Distiller: both modes against their formulas in NumPy, and a teacher that stays as it was."""

import subprocess
import sys

import keras
import numpy as np
import pytest
from slow_rows import slow_after

import keras_vit
from keras_vit import Distiller
from keras_vit.compat.saved_objects import CrossEntropy
from keras_vit.models.distillation import student_of
from keras_vit.models.encoders import find_encoder

LABELS = np.arange(6) % 5
ALPHA = 0.3
MODES = {"hard": {"mode": "hard"}, "soft": {"mode": "soft", "temperature": 3.0}}

pytestmark = pytest.mark.usefixtures("eagerly_on_tensorflow")


@pytest.fixture(scope="module")
def eagerly_on_tensorflow(request):
    if keras.backend.backend() == "tensorflow":
        request.getfixturevalue("eagerly")


@pytest.fixture(scope="module")
def make_student(make_model):
    return lambda **changes: make_model(**{"num_layers": 1, **changes})


@pytest.fixture(scope="module")
def student(make_student):
    """For tests that do not train it."""
    return make_student()


def numpy(values):
    return keras.ops.convert_to_numpy(values)


def softmax(logits):
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def one_hot(labels):
    return np.eye(5)[labels]


def cross_entropy(targets, logits):
    return -(targets * np.log(softmax(logits))).sum(axis=-1)


def teacher_term(mode, teacher, student):
    """Eqs. 3 and 2 of arXiv 2012.12877 per image, the latter over the number of classes, at temperature 3."""
    if mode == "hard":
        return cross_entropy(one_hot(teacher.argmax(axis=-1)), student)
    teacher, student = softmax(teacher / 3), softmax(student / 3)
    return 9 * (teacher * np.log(teacher / student)).sum(axis=-1) / 5


def make_teacher(activation=None, classes=5, seed=1, **layer):
    """A convolution with BatchNormalization, whose training would change more than gradients do."""
    inputs = keras.Input((16, 16, 3))
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 4, strides=4)(inputs))
    x = keras.layers.Dropout(0.5)(keras.layers.Flatten()(x))
    teacher = keras.Model(inputs, keras.layers.Dense(classes, activation, **layer)(x), name="teacher")
    rng = np.random.default_rng(seed)
    teacher.set_weights([np.abs(rng.normal(size=weight.shape)) / 2 for weight in teacher.weights])
    return teacher


def crossentropy(**arguments):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **arguments)


def compiled(distiller, loss=None, rate=0.1, **arguments):
    distiller.compile(keras.optimizers.SGD(rate), loss or crossentropy(), metrics=["accuracy"], **arguments)
    return distiller


def fitted(distiller, images, labels=LABELS, **arguments):
    """Figures of one step on all images."""
    return {
        name: values[0]
        for name, values in distiller.fit(images, labels, batch_size=6, verbose=0, **arguments).history.items()
    }


@pytest.mark.parametrize(
    ("mode", "distilled"), slow_after(2, [("soft", True), ("hard", False), ("soft", False), ("hard", True)])
)
def test_loss_and_figures_are_those_of_the_formulas(mode, distilled, make_student, images):
    student, teacher = make_student(distilled=distilled), make_teacher()
    heads = student.call_heads(images, training=True)
    first, second = numpy(heads[0]), numpy(heads[-1])
    scores = numpy(teacher(images, training=False))
    found = fitted(compiled(Distiller(student, teacher, alpha=ALPHA, **MODES[mode])), images)
    distillation = teacher_term(mode, scores, second).mean()
    labels = cross_entropy(one_hot(LABELS), first).mean()
    answers = (first + second).argmax(axis=-1)
    assert found == pytest.approx(
        {
            "loss": (1 - ALPHA) * labels + ALPHA * distillation,
            "distillation_loss": distillation,
            "accuracy": (answers == LABELS).mean(),
            "teacher_agreement": (answers == scores.argmax(axis=-1)).mean(),
        },
        rel=1e-5,
    )


@pytest.mark.parametrize("mode", MODES)
def test_each_head_gets_the_gradient_of_its_term(mode, make_student, images):
    """Of the biases, from a step of gradient descent at rate 1."""
    student, teacher = make_student(distilled=True), make_teacher()
    first, second = map(numpy, student.call_heads(images, training=True))
    scores = numpy(teacher(images, training=False))
    before = {name: numpy(student.get_layer(name).bias) for name in ("head", "head_dist")}
    fitted(compiled(Distiller(student, teacher, alpha=ALPHA, **MODES[mode]), rate=1.0), images)
    if mode == "hard":
        gradient = softmax(second) - one_hot(scores.argmax(axis=-1))
    else:  # T^2 / K times the derivative by logits that are divided by T
        gradient = 3 * (softmax(second / 3) - softmax(scores / 3)) / 5
    expected = {"head": (1 - ALPHA) * (softmax(first) - one_hot(LABELS)), "head_dist": ALPHA * gradient}
    for name, gradients in expected.items():
        change = before[name] - numpy(student.get_layer(name).bias)
        np.testing.assert_allclose(change, gradients.mean(axis=0), atol=1e-6)


@pytest.mark.parametrize(("alpha", "name"), [(0, "labels"), (1, "teacher")])
def test_alpha_ranges_from_the_labels_to_the_teacher(alpha, name, student, images):
    teacher = make_teacher()
    logits, scores = numpy(student(images)), numpy(teacher(images))
    terms = {"labels": cross_entropy(one_hot(LABELS), logits), "teacher": teacher_term("soft", scores, logits)}
    distiller = compiled(Distiller(student, teacher, alpha=alpha, **MODES["soft"]), rate=0.0)
    assert fitted(distiller, images)["loss"] == pytest.approx(terms[name].mean(), rel=1e-5)


def test_teacher_stays_bit_for_bit_as_it_was(make_student, images):
    student = make_student(distilled=True)
    teacher = make_teacher(kernel_regularizer="l2", activity_regularizer="l2")
    before = [weight.copy() for weight in teacher.get_weights()]
    flags = [layer.trainable for layer in teacher.layers]
    distiller = Distiller(student, teacher)
    distiller.compile(keras.optimizers.AdamW(0.1, weight_decay=0.1), crossentropy())
    class_head, dist_head = map(numpy, student.call_heads(images, training=True))
    found = fitted(distiller, images)
    hard = one_hot(numpy(teacher(images)).argmax(axis=-1))
    terms = cross_entropy(one_hot(LABELS), class_head), cross_entropy(hard, dist_head)
    assert found["loss"] == pytest.approx(np.mean(terms), rel=1e-5)  # without what the teacher's layers add
    for ours, theirs in zip(before, teacher.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert flags == [layer.trainable for layer in teacher.layers] and teacher.trainable


def test_teacher_is_no_part_of_what_is_trained(make_student):
    student, teacher = make_student(distilled=True), make_teacher()
    distiller = compiled(Distiller(student, teacher))
    ids = lambda variables: [id(variable) for variable in variables]  # noqa: E731
    assert ids(distiller.trainable_variables) == ids(student.trainable_variables)
    assert ids(distiller.trainable_weights) == ids(student.trainable_weights)
    assert set(ids(teacher.variables)) <= set(ids(distiller.non_trainable_variables))
    assert set(ids(teacher.weights)) <= set(ids(distiller.non_trainable_weights))
    assert len(distiller.weights) == len(distiller.trainable_weights) + len(distiller.non_trainable_weights)
    student.get_layer("patch_encoder").trainable = False
    assert ids(distiller.trainable_variables) == ids(student.trainable_variables)
    assert len(teacher.trainable_variables) == 6
    distiller.trainable = False
    assert distiller.trainable_variables == [] and len(distiller.non_trainable_weights) == len(distiller.weights)


def test_teacher_is_run_as_in_inference_and_student_as_in_training(make_student, images):
    student, teacher = make_student(distilled=True, dropout_rate=0.5, remat="block"), make_teacher()
    distiller = Distiller(student, teacher)
    first, second = (distiller.call_both(images) for _ in range(2))
    for outputs in (first, second):
        np.testing.assert_allclose(numpy(outputs[2]), numpy(teacher(images, training=False)), atol=1e-6)
    for head in range(2):
        assert np.abs(numpy(first[head]) - numpy(second[head])).max() > 1e-3
    np.testing.assert_array_equal(numpy(distiller(images)), numpy(student(images)))


def test_probabilities_of_teacher_and_student_count_as_their_logits(make_student, images):
    student, teacher = make_student(classifier_activation="softmax"), make_teacher("softmax")
    probabilities, scores = numpy(student(images)), numpy(teacher(images))
    distiller = compiled(Distiller(student, teacher, **MODES["soft"]), keras.losses.SparseCategoricalCrossentropy())
    expected = teacher_term("soft", np.log(scores), np.log(probabilities)).mean()
    assert fitted(distiller, images)["distillation_loss"] == pytest.approx(expected, rel=1e-4)


def test_a_teacher_of_the_package_gets_its_own_images(make_student, images):
    preprocessing = keras_vit.Preprocessing(size=8, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    teacher = make_student(image_size=8, preprocessing=preprocessing)
    around = keras.Sequential([keras.Input((8, 8, 3)), teacher, keras.layers.Softmax()])
    # Halving a side by a triangle of two pixels: 1/8, 3/8, 3/8, 1/8, at the edges without what lies outside.
    halves = np.zeros((8, 16))
    for row in range(8):
        for offset, weight in zip(range(-1, 3), (1, 3, 3, 1), strict=True):
            if 0 <= 2 * row + offset < 16:
                halves[row, 2 * row + offset] = weight
    halves /= halves.sum(axis=1, keepdims=True)
    levels = np.einsum("yr,xc,brcd->byxd", halves, halves, images * 0.5 + 0.5)
    expected = numpy(teacher(((levels - preprocessing.mean) / preprocessing.std).astype("float32")))
    for model in (teacher, around):
        distiller = Distiller(make_student(), model)
        logits = numpy(distiller.call_both(images)[2])
        np.testing.assert_allclose(softmax(logits), softmax(expected), atol=1e-4)
        assert find_encoder(distiller) is distiller.student


def test_evaluate_and_predict_are_those_of_the_student(make_student, images):
    student = make_student(distilled=True)
    distiller = compiled(Distiller(student, make_teacher()))
    logits = numpy(student(images))
    expected = {
        "loss": cross_entropy(one_hot(LABELS), logits).mean(),
        "accuracy": (logits.argmax(axis=-1) == LABELS).mean(),
    }
    assert distiller.evaluate(images, LABELS, verbose=0, return_dict=True) == pytest.approx(expected, rel=1e-5)
    assert distiller.test_on_batch(images, LABELS, return_dict=True) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(distiller.predict(images, verbose=0), logits, atol=1e-5)
    found = fitted(distiller, images, validation_data=(images, LABELS))
    teaching = {"distillation_loss", "teacher_agreement"}
    assert set(found) == {"loss", "accuracy", "val_loss", "val_accuracy"} | teaching


def test_mixed_and_smoothed_labels(make_student, images):
    """The labels of MixUp; smoothing is for them and not for those of the teacher."""
    labels = (0.7 * one_hot(LABELS) + 0.3 * one_hot(LABELS[::-1])).astype("float32")
    student, teacher = make_student(distilled=True), make_teacher()
    first, second = map(numpy, student.call_heads(images, training=True))
    distiller = compiled(Distiller(student, teacher), CrossEntropy(label_smoothing=0.1))
    terms = cross_entropy(0.9 * labels + 0.02, first), teacher_term("hard", numpy(teacher(images)), second)
    assert fitted(distiller, images, labels)["loss"] == pytest.approx(np.mean(terms), rel=1e-5)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"])
def test_teacher_is_weighted_and_reduced_as_the_labels_are(reduction, student, images):
    weights = np.linspace(0.5, 2, 6).astype("float32")
    teacher = make_teacher()
    logits = numpy(student(images))
    rows = (cross_entropy(one_hot(LABELS), logits) + teacher_term("hard", numpy(teacher(images)), logits)) / 2
    total = {"sum_over_batch_size": 6, "sum": 1, "mean_with_sample_weight": weights.sum()}[reduction]
    distiller = compiled(Distiller(student, teacher), crossentropy(reduction=reduction), rate=0.0)
    found = fitted(distiller, images, sample_weight=weights)["loss"]
    assert found == pytest.approx((weights * rows).sum() / total, rel=1e-5)


def with_regularised_head(encoder):
    inputs = keras.Input((16, 16, 3))
    head = keras.layers.Dense(5, kernel_regularizer="l2", activity_regularizer="l2")
    return keras_vit.Model(inputs, head(encoder(inputs)))


def test_what_layers_of_the_student_add_counts_once(make_student, images):
    student = with_regularised_head(make_student(include_top=False))
    plain, taught = (
        fitted(compiled(model, rate=0.0), images)["loss"]
        for model in (student, Distiller(student, make_teacher(), alpha=0.9))
    )
    logits = numpy(student(images))
    hard = cross_entropy(one_hot(numpy(make_teacher()(images)).argmax(axis=-1)), logits).mean()
    labels = cross_entropy(one_hot(LABELS), logits).mean()
    assert taught - (0.1 * labels + 0.9 * hard) == pytest.approx(plain - labels, rel=1e-4) and plain > labels + 1e-3


@pytest.mark.slow
def test_microbatches_train_and_log_as_the_whole_batch(make_student, images):
    trained = []
    for parts in (1, 4):  # of 2, 2, 1 and 1 rows
        student = make_student(distilled=True)
        distiller = compiled(Distiller(student, make_teacher(), alpha=0.6, **MODES["soft"]), microbatches=parts)
        trained.append((fitted(distiller, images), student.get_weights()))
    (whole, weights), (parts, others) = trained
    assert parts == pytest.approx(whole, rel=1e-5)
    for ours, theirs in zip(weights, others, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_mixed_precision(make_student, images):
    student, teacher = make_student(distilled=True, dtype="mixed_bfloat16"), make_teacher(dtype="bfloat16")
    exact = make_student(distilled=True)
    first, second = map(numpy, exact.call_heads(images, training=True))
    terms = cross_entropy(one_hot(LABELS), first), teacher_term("soft", numpy(make_teacher()(images)), second)
    distiller = compiled(Distiller(student, teacher, **MODES["soft"]))
    assert {keras.backend.standardize_dtype(x.dtype) for x in distiller.call_both(images)} == {"float32"}
    assert fitted(distiller, images)["loss"] == pytest.approx(np.mean(terms), rel=0.05)


def test_saved_and_loaded(make_student, images, tmp_path):
    distiller = compiled(Distiller(make_student(distilled=True), make_teacher(), "soft", ALPHA, 3.0, name="both"))
    distiller.save(tmp_path / "both.keras")
    again = keras.models.load_model(tmp_path / "both.keras")
    assert type(again) is Distiller and type(again.student) is keras_vit.VisionTransformer
    assert (again.name, again.mode, again.alpha, again.temperature) == ("both", "soft", ALPHA, 3.0)
    assert again.identity() == distiller.identity()
    for ours, theirs in zip(distiller.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert fitted(again, images) == pytest.approx(fitted(distiller, images), rel=1e-5)


_OPEN = """
import sys, keras, numpy, keras_vit
distiller = keras.models.load_model(sys.argv[1])
numpy.save(sys.argv[2], distiller.call_both(numpy.load(sys.argv[3]))[2])
"""


@pytest.mark.slow
def test_opens_in_a_fresh_process(make_student, images, tmp_path):
    distiller = compiled(Distiller(make_student(distilled=True), make_teacher()))
    distiller.save(tmp_path / "both.keras")
    np.save(tmp_path / "images.npy", images)
    files = [tmp_path / name for name in ("both.keras", "teacher.npy", "images.npy")]
    subprocess.run([sys.executable, "-c", _OPEN, *files], check=True, capture_output=True)
    np.testing.assert_allclose(np.load(files[1]), numpy(distiller.teacher(images)), atol=1e-6)


def test_identity_tells_teachers_apart(student):
    same, other, softer = (
        Distiller(student, make_teacher(seed=seed), **MODES[mode]).identity()
        for seed, mode in ((1, "hard"), (2, "hard"), (1, "soft"))
    )
    assert same == Distiller(student, make_teacher()).identity()
    assert same["teacher"] != other["teacher"] and same["teacher"] == softer["teacher"] and same != softer


def test_a_distiller_is_its_student_elsewhere(make_student, images):
    student, own = make_student(distilled=True), make_student()
    distiller = Distiller(student, own)
    assert student_of(distiller) is student and student_of(student) is student
    assert find_encoder(distiller) is student
    assert keras_vit.freeze(distiller, student.name) == [student.name]
    outer = keras.Model(distiller.input, keras.layers.Softmax()(distiller(distiller.input)))
    np.testing.assert_allclose(numpy(outer(images, training=True)), softmax(numpy(student(images))), atol=1e-5)
    pupil = Distiller(make_student(), distiller, "soft")
    np.testing.assert_allclose(numpy(pupil.call_both(images)[2]), numpy(student(images)), atol=1e-5)


def test_a_teacher_that_is_not_functional(student, images):
    class Mine(keras.Model):
        def __init__(self):
            super().__init__()
            self.head = keras.layers.Dense(5)

        def call(self, inputs):
            return self.head(keras.ops.mean(inputs, axis=(1, 2)))

    teacher = Mine()
    scores = numpy(teacher(images))
    np.testing.assert_allclose(numpy(Distiller(student, teacher).call_both(images)[2]), scores, atol=1e-6)
