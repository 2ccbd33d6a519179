"""Runs of a Distiller: by `recipe.compile` and by `train`, which saves the student and goes on after a kill."""

import keras
import numpy as np
import pytest

from keras_vit import Distiller, VisionTransformer, ViTConfig
from keras_vit.data import from_arrays
from keras_vit.training import Recipe, progress, train
from keras_vit.training.state import read_state

CONFIG = ViTConfig(
    name="toy",
    image_size=8,
    patch_size=4,
    hidden_dim=16,
    num_layers=1,
    num_heads=2,
    mlp_dim=16,
    classes=2,
    channels=1,
    distilled=True,
)
RECIPE = Recipe(
    name="toy",
    source="this test",
    optimizer="adamw",
    learning_rate=1e-2,
    batch_size=8,
    epochs=2,
    mix=("mixup(0.2)",),
    label_smoothing=0.1,
)

pytestmark = pytest.mark.usefixtures("eagerly")


@pytest.fixture(scope="module")
def source():
    """Sixteen noisy images, the dark ones of class "night", the bright ones of class "day"."""
    rng = np.random.default_rng(0)
    labels = np.arange(16) % 2
    images = rng.integers(0, 60, size=(16, 8, 8, 1)) + 180 * labels[:, None, None, None]
    return from_arrays(images.astype("uint8"), labels, class_names=("night", "day"))


def distiller(sign=1.0, **arguments):
    """A fresh student, with a teacher that looks at the brightness alone."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 1))
    head = keras.layers.Dense(2, activation="softmax", name="scores")
    teacher = keras.Model(inputs, head(keras.layers.BatchNormalization()(keras.layers.Flatten()(inputs))))
    head.kernel.assign(sign * np.repeat([[-0.1, 0.1]], 64, axis=0))
    return Distiller(VisionTransformer(CONFIG), teacher, **arguments)


class Killed(Exception):
    pass


def end_after_the_first_epoch(self, epoch, logs):
    if epoch == 0:
        raise Killed


@pytest.fixture(scope="module")
def unbroken(eagerly, source, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("unbroken")
    model = distiller()
    before = model.teacher.get_weights()
    result = train(RECIPE, source, workdir, model=model, validation=source, verbose=0)
    for ours, theirs in zip(before, model.teacher.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    return result, workdir, model


@pytest.mark.slow
def test_the_student_is_trained_saved_and_returned(unbroken):
    result, workdir, model = unbroken
    assert result.model is model.student and result.model.labels == ("night", "day")
    assert result.accuracy == result.history["val_accuracy"][-1]
    assert {"distillation_loss", "teacher_agreement", "val_accuracy"} <= set(result.history)
    assert "val_distillation_loss" not in result.history
    for name in ("best.keras", "model.keras"):
        saved = keras.models.load_model(workdir / name)
        assert type(saved) is VisionTransformer and saved.labels == ("night", "day")
    for ours, theirs in zip(result.model.get_weights(), saved.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_a_finished_run_returns_the_student(unbroken, source, monkeypatch):
    result, workdir, _ = unbroken
    monkeypatch.setattr(Distiller, "fit", None)
    again = train(RECIPE, source, workdir, model=distiller(), validation=source, verbose=0)
    assert again.history == result.history
    for ours, theirs in zip(result.model.get_weights(), again.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_same_teacher_alone(unbroken, source, tmp_path, monkeypatch):
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(progress.BestModel, "on_epoch_end", end_after_the_first_epoch)
        train(RECIPE, source, tmp_path, model=distiller(), validation=source, verbose=0)
    with pytest.raises(ValueError, match="run: distillation.teacher is .* there, .* here; use another workdir"):
        train(RECIPE, source, tmp_path, model=distiller(-1.0), validation=source, verbose=0)
    again = train(RECIPE, source, tmp_path, model=distiller(), validation=source, verbose=0)
    assert again.history["loss"] == unbroken[0].history["loss"]
    for ours, theirs in zip(unbroken[0].model.get_weights(), again.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_compiled_by_a_recipe():
    model = distiller()
    assert RECIPE.replace(layer_decay=0.5, microbatches=2).compile(model, steps=10) is model
    assert len(model.optimizer.rate_factors) == len(model.student.trainable_variables)
    assert model.loss.label_smoothing == 0.1 and model.get_compile_config()["microbatches"] == 2
    saved = [name for name in read_state(model) if name.startswith("model.")]
    assert len(saved) == len(model.student.variables) < len(model.variables)  # no checkpoint holds the teacher


def test_what_a_distiller_cannot_be_trained_with(source, tmp_path):
    with pytest.raises(ValueError, match="input_dtype must be 'float32' for a Distiller"):
        train(RECIPE.replace(input_dtype="uint8"), source, tmp_path, model=distiller(), verbose=0)
    with pytest.raises(ValueError, match="loss must be a softmax cross-entropy"):
        RECIPE.replace(loss="sigmoid").compile(distiller(), steps=10)
