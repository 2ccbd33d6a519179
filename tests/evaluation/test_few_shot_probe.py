"""FewShotProbe inside fits: what it logs and keeps, and that it changes nothing."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from faults import for_each

import keras_vit
from keras_vit import VisionTransformer, ViTConfig
from keras_vit.evaluation import FewShotProbe, few_shot
from keras_vit.models.derived import of_pixels

CONFIG = ViTConfig(
    name="tiny", image_size=16, patch_size=8, hidden_dim=12, num_layers=1, num_heads=2, mlp_dim=16, classes=3
)
LABELS = np.arange(12) % 3
INPUTS = (np.random.default_rng(0).normal(0, 1, (12, 16, 16, 3)) + LABELS[:, None, None, None]).astype(np.float32)
DATA = tf.data.Dataset.from_tensor_slices((INPUTS, LABELS)).batch(12)
OPTIONS = {"shots": (1, 3), "seeds": (0, 1)}

pytestmark = pytest.mark.usefixtures("eagerly")


def tiny(seed=0, **changes):
    keras.utils.set_random_seed(seed)
    return VisionTransformer(CONFIG.replace(**changes))


def fit(model, *callbacks, inputs=INPUTS, epochs=2, **options):
    model.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    keras.utils.set_random_seed(1)
    options = {"batch_size": 4, "verbose": 0, **options}
    return model.fit(inputs, LABELS, epochs=epochs, callbacks=list(callbacks), **options).history


@pytest.mark.slow
def test_history_has_the_accuracy_of_every_epoch():
    probe, model = FewShotProbe(DATA, DATA, **OPTIONS), tiny()
    history = fit(model, probe)
    for shots in (1, 3):
        assert history[f"fewshot_{shots}"] == [made.result.mean[shots] for made in probe.measurements]
        assert history[f"fewshot_{shots}_std"] == [made.result.std[shots] for made in probe.measurements]
    assert [(made.epoch, made.step) for made in probe.measurements] == [(0, 3), (1, 6)]
    assert probe.measurements[1].result == few_shot(model, DATA, DATA, **OPTIONS)
    row = {"epoch": 1, "step": 6} | {name: history[name][1] for name in history if name.startswith("fewshot")}
    assert probe.rows[1] == row and list(row)[2:4] == ["fewshot_1", "fewshot_1_std"]


@pytest.mark.slow
def test_training_is_that_without_it():
    with_probe, without = tiny(dropout_rate=0.3), tiny(dropout_rate=0.3)
    probe = FewShotProbe(DATA, DATA, every_steps=2, **OPTIONS)
    losses = [fit(with_probe, probe)["loss"], fit(without)["loss"]]
    assert losses[0] == losses[1] and len(probe.measurements) == 3
    for one, other in zip(with_probe.weights, without.weights, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(other))


@pytest.mark.parametrize(
    ("options", "steps", "epochs"),
    [
        pytest.param({"every_epochs": 2}, [6, 12], [1, 3], marks=pytest.mark.slow),
        pytest.param({"every_steps": 4, "every_epochs": 2}, [4, 6, 8, 12], [1, 2, 3], marks=pytest.mark.slow),
    ],
)
def test_epochs_and_steps(options, steps, epochs):
    probe, logged = FewShotProbe(DATA, DATA, shots=2, seeds=0, **options), []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: logged.append(epoch) if "fewshot_2" in logs else None
    )
    history = fit(tiny(), probe, note, epochs=4)
    assert [made.step for made in probe.measurements] == steps and logged == epochs
    assert len(history["fewshot_2"]) == len(epochs)


@pytest.mark.slow
def test_another_callback_can_watch_it(tmp_path):
    probe = FewShotProbe(DATA, DATA, **OPTIONS)
    best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", "fewshot_3", mode="max", save_best_only=True)
    model = tiny()
    fit(model, probe, best)
    assert best.best == max(made.result.mean[3] for made in probe.measurements)
    assert keras.models.load_model(tmp_path / "best.keras").config == model.config


@pytest.mark.slow
def test_of_a_model_around_one_it_measures_that_one():
    model = tiny()
    wrapper = of_pixels(model, "float32")
    probe = FewShotProbe(DATA, DATA, **OPTIONS)
    history = fit(wrapper, probe, inputs=INPUTS * 127.5 + 127.5, epochs=1)
    assert history["fewshot_3"] == [few_shot(model, DATA, DATA, **OPTIONS).mean[3]]


@pytest.mark.slow
def test_another_model_can_be_named():
    student, teacher = tiny(), tiny(seed=5)
    teacher = VisionTransformer(teacher.config, name="teacher")
    images = keras.Input((16, 16, 3))
    both = keras_vit.Model(images, student(images) + teacher(images))
    with pytest.raises(ValueError, match="has 'tiny', 'teacher': pass one of them"):
        few_shot(both, DATA, DATA, **OPTIONS)
    probe = FewShotProbe(DATA, DATA, model=student, **OPTIONS)
    fit(both, probe, epochs=1)
    assert probe.measurements[0].result == few_shot(student, DATA, DATA, **OPTIONS)


@pytest.mark.slow
def test_several_steps_per_execution():
    model = tiny()
    model.compile(
        keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True), steps_per_execution=3
    )
    probe = FewShotProbe(DATA, DATA, every_steps=4, **OPTIONS)
    model.fit(INPUTS, LABELS, batch_size=2, epochs=2, verbose=0, callbacks=[probe])
    assert [made.step for made in probe.measurements] == [6, 9, 12]


@pytest.mark.slow
def test_labels_are_read_once():
    starts = []

    def images():
        starts.append(1)
        yield from zip(INPUTS, LABELS, strict=True)

    spec = tf.TensorSpec((16, 16, 3)), tf.TensorSpec((), tf.int64)
    counted = tf.data.Dataset.from_generator(images, output_signature=spec).batch(5)
    fit(tiny(), FewShotProbe(counted, DATA, **OPTIONS), epochs=3)
    assert len(starts) == 4  # labels, then the images of each epoch


@for_each("option", ["every_epochs", "every_steps", "shots", "l2"])
def test_refusals(option):
    with pytest.raises(ValueError, match=f"{option} must be an? .*; got {option}=0"):
        FewShotProbe(DATA, DATA, **{option: 0})
