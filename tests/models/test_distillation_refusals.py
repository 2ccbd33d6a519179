"""What a Distiller refuses, and in which words."""

import keras
import pytest
from faults import for_each

import keras_vit
from keras_vit import Distiller
from keras_vit.compat.saved_objects import CrossEntropy
from keras_vit.models.derived import of_pixels


@pytest.fixture(scope="module")
def student(make_model):
    return make_model(num_layers=1)


def make_teacher(activation=None, classes=5):
    head = keras.layers.Dense(classes, activation)
    return keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten(), head], name="teacher")


@for_each(
    ("arguments", "message"),
    [
        ({"mode": "firm"}, "mode must be one of 'hard', 'soft'; got mode='firm'"),
        ({"alpha": 1.5}, r"alpha must be a number in \[0, 1\]; got alpha=1.5"),
        ({"alpha": True}, "alpha must be a number"),
        ({"temperature": 2.0}, "temperature belongs to mode 'soft'; got mode='hard', temperature=2.0"),
        ({"mode": "soft", "temperature": 0}, "temperature must be a finite number above 0"),
    ],
)
def test_refusal_of_arguments(student, arguments, message):
    with pytest.raises(ValueError, match=message):
        Distiller(student, make_teacher(), **arguments)


@for_each(
    ("teacher", "message"),
    [
        (lambda _: make_teacher(classes=4), "teacher must have the student's 5 classes; 'teacher' has 4"),
        (lambda _: make_teacher("sigmoid"), "teacher must give logits or softmax; 'teacher' ends in sigmoid"),
        (lambda student: student, "teacher must share no weights with the student; 'tiny' does"),
        (lambda student: of_pixels(keras_vit.clone(student)), "'tiny_of_pixels' takes uint8 of"),
        (
            lambda _: keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten()]),
            r"takes .* \(None, 8, 8, 3\)",
        ),
        (lambda _: keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Dense(5)]), r"scores \(batch, classes\)"),
        (lambda _: keras.Sequential([keras.layers.Dense(5)]), "must be built and have trained weights"),
    ],
)
def test_refusal_of_teachers(student, teacher, message):
    with pytest.raises(ValueError, match=message):
        Distiller(student, teacher(student))


def test_refusal_of_students(student, make_model):
    with pytest.raises(TypeError, match="teacher must be a keras model; got Dense"):
        Distiller(student, keras.layers.Dense(5))
    with pytest.raises(TypeError, match="student must be, or contain, one classifier of keras_vit; got Sequential"):
        Distiller(make_teacher(), student)
    with pytest.raises(ValueError, match="student must give logits or softmax; 'tiny' ends in sigmoid"):
        Distiller(make_model(classifier_activation="sigmoid"), make_teacher())
    rescaled, other = of_pixels(student), make_model(channels=1)
    with pytest.raises(ValueError, match="'tiny_of_pixels' changes them first"):
        Distiller(rescaled, keras_vit.clone(student))
    with pytest.raises(ValueError, match=r"of shape \(None, 16, 16, 1\); 'tiny' takes float32 of .* 16, 3\)"):
        Distiller(other, student)


@for_each("loss", ["binary_crossentropy", keras.losses.BinaryCrossentropy(), CrossEntropy("sigmoid")])
def test_refusal_of_sigmoid_losses(student, loss):
    with pytest.raises(ValueError, match="loss must be a softmax cross-entropy"):
        Distiller(student, make_teacher()).compile("sgd", loss)


@for_each("loss", [None, ["mse", "mse"], {"head": "mse"}])
def test_refusal_of_what_is_no_loss(student, loss):
    with pytest.raises(ValueError, match="loss must be one cross-entropy on the labels; got loss="):
        Distiller(student, make_teacher()).compile("sgd", loss=loss)
