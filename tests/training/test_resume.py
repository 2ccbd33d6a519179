"""Runs of plain `fit` that are broken off anywhere and go on, against the run in one go: equal bit for bit."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest
from faults import for_each
from safetensors import safe_open
from short_runs import STEPS, KillAt, Killed, X, Y, data, end_state, fit, make_model
from slow_rows import slow_after

from keras_vit import Model, VisionTransformer, ViTConfig
from keras_vit.data import from_digits, train_pipeline
from keras_vit.training import CheckpointError, NonFiniteError, Resume, checkpoint_files

RUN = {"recipe": {"seed": 0, "name": "a"}}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return end_state(*fit(tmp_path_factory.mktemp("unbroken")))


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """Folder of a run that ended after step 11, with checkpoints of steps 6 and 10; tests copy it to change it."""
    workdir = tmp_path_factory.mktemp("broken")
    with pytest.raises(Killed):
        fit(workdir, KillAt(11), run=RUN)
    return workdir


@pytest.mark.parametrize(
    ("kind", "calls"),
    slow_after(
        1,
        [
            ("on_train_batch_end", (7, 3, 1, 9)),  # inside epochs, once before the first checkpoint of the start
            ("on_test_batch_end", (1, 1)),  # the epoch has no steps left
            ("on_epoch_end", (2, 1)),
            ("on_train_end", (1,)),
        ],
    ),
)
def test_broken_runs_end_as_the_unbroken_one(tmp_path, unbroken, kind, calls):
    for number in calls:
        with pytest.raises(Killed):
            fit(tmp_path, KillAt(number, kind))
    assert end_state(*fit(tmp_path)) == unbroken


@pytest.mark.slow
def test_train_pipeline_goes_on_at_its_batch(tmp_path):
    source, _ = from_digits()

    def run(workdir, *others):
        keras.utils.set_random_seed(2)
        config = ViTConfig(
            name="toy", image_size=8, patch_size=4, hidden_dim=8, num_layers=1, num_heads=2, mlp_dim=8, classes=10
        )
        model = VisionTransformer(config.replace(channels=1, dropout_rate=0.1))
        model.compile("adam", keras.losses.CategoricalCrossentropy(from_logits=True), run_eagerly=True)
        resume = Resume(tmp_path / workdir, every_steps=1)
        augment, mix = ("shift",), ("mixup(0.2)",)
        batches = train_pipeline(source, model.preprocessing, 16, augment=augment, mix=mix, start_step=resume.step)
        callbacks = [resume, *others]
        return model, model.fit(batches, epochs=1, steps_per_epoch=3, callbacks=callbacks, shuffle=False, verbose=0)

    expected = end_state(*run("whole"))
    with pytest.raises(Killed):
        run("broken", KillAt(2))
    assert end_state(*run("broken")) == expected


@pytest.mark.slow
def test_the_same_on_jax():
    """In a process of its own; the rest of this file passes there as well."""
    pytest.importorskip("jax")
    words = ["-q", "-p", "no:cacheprovider", "-k", "end_as_the_unbroken", "-m", "slow or not slow"]
    command = [sys.executable, "-m", "pytest", __file__, *words]
    done = subprocess.run(command, env={**os.environ, "KERAS_BACKEND": "jax"}, capture_output=True, text=True)
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout


@pytest.mark.slow
def test_several_steps_per_execution(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = end_state(*fit(whole, model=make_model(steps_per_execution=3, run_eagerly=False)))
    with pytest.raises(Killed):
        fit(broken, KillAt(3), model=make_model(steps_per_execution=3, run_eagerly=False))
    assert end_state(*fit(broken, model=make_model(steps_per_execution=3, run_eagerly=False))) == expected


@pytest.mark.slow
def test_callbacks_of_keras_go_on_with_what_they_remember(tmp_path):
    def callbacks():
        return [
            keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=10.0, cooldown=1),
            keras.callbacks.EarlyStopping("val_loss", patience=2, min_delta=10.0, restore_best_weights=True),
            keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.keras"), "loss", save_best_only=True),
        ]

    def run(workdir, *more):
        model = make_model(keras.optimizers.SGD(0.1, momentum=0.9))
        return end_state(*fit(tmp_path / workdir, *callbacks(), *more, model=model, epochs=10))

    expected = run("whole")
    assert 3 <= len(expected[2]) < 10 and len(set(expected[1]["learning_rate"])) > 1
    for number in (8, 2):
        with pytest.raises(Killed):
            run("broken", KillAt(number))
    assert run("broken") == expected


@pytest.mark.slow
def test_a_step_that_is_shown_again_is_not_counted_again(tmp_path):
    def run(workdir, *more):
        path = tmp_path / workdir / "{epoch}-{batch}.weights.h5"
        every_four = keras.callbacks.ModelCheckpoint(str(path), save_freq=4, save_weights_only=True)
        fit(tmp_path / workdir, every_four, *more, epochs=2)
        return sorted(path.name for path in (tmp_path / workdir).glob("*.h5"))

    with pytest.raises(Killed):
        run("broken", KillAt(1, "on_epoch_end"))
    assert run("broken") == run("whole") == ["1-4.weights.h5", "2-2.weights.h5", "2-6.weights.h5"]


def test_steps_and_epochs_are_those_of_the_whole_run(broken, tmp_path):
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: seen.append(f"epoch {epoch}"),
        on_train_batch_end=lambda batch, logs: seen.append(batch),
    )
    workdir = shutil.copytree(broken, tmp_path / "run")
    assert Resume(workdir).step == 10
    _, history = fit(workdir, note, epochs=2, run=RUN)
    assert seen == ["epoch 1", 4, 5] and history.epoch == [0, 1]


def test_a_finished_run_can_be_made_longer(tmp_path, unbroken):
    fit(tmp_path, epochs=2)
    assert Resume(tmp_path).step == 2 * STEPS
    assert end_state(*fit(tmp_path)) == unbroken


def test_when_checkpoints_are_written(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(checkpoint_files.CheckpointFolder, "write", lambda self, step, *_: written.append(step))
    fit(tmp_path, epochs=3)
    assert written == [5, 6, 10, 12, 15, 18]
    written.clear()
    fit(tmp_path, epochs=2, validation=False)
    assert written == [5, 10, 12]


def test_a_step_that_is_shown_again_is_not_saved_again(tmp_path, monkeypatch, unbroken):
    """Orbax refuses to write a checkpoint that exists."""
    written, write = [], checkpoint_files.CheckpointFolder.write
    noted = lambda self, step, *values: (written.append(step), write(self, step, *values))  # noqa: E731
    monkeypatch.setattr(checkpoint_files.CheckpointFolder, "write", noted)
    for number, kind in ((1, "on_test_batch_end"), (1, "on_train_end")):
        with pytest.raises(Killed):
            fit(tmp_path, KillAt(number, kind))
    assert end_state(*fit(tmp_path)) == unbroken
    assert written == [5, 6, 10, 12, 15, 18]


def test_a_full_disk_ends_the_run_at_the_next_step(tmp_path, monkeypatch, unbroken):
    save_file = checkpoint_files.save_file

    def full(arrays, path, metadata):
        if json.loads(metadata["checkpoint"])["step"] == 10:
            raise OSError(28, "No space left on device")
        save_file(arrays, path, metadata)

    with monkeypatch.context() as patched, pytest.raises(CheckpointError) as raised:
        patched.setattr(checkpoint_files, "save_file", full)
        fit(tmp_path)
    assert "step-000000010" in str(raised.value) and "No space left on device" in str(raised.value)
    assert Resume(tmp_path).step == 6
    assert end_state(*fit(tmp_path)) == unbroken


def test_a_damaged_checkpoint_is_not_resumed_from_and_the_one_before_is(tmp_path, broken, unbroken):
    workdir = shutil.copytree(broken, tmp_path / "run")
    path = workdir / "checkpoints" / "step-000000010.safetensors"
    with safe_open(path, "np") as file:
        array = file.get_tensor(next(name for name in file.keys() if name.startswith("optimizer.00003")))  # noqa: SIM118
    content = bytearray(path.read_bytes())
    content[content.index(array.tobytes()) + 1] ^= 4
    path.write_bytes(content)
    model = make_model()
    before = model.get_weights()
    with pytest.raises(
        CheckpointError, match="array optimizer.00003.* delete it, and the same command resumes from step 6$"
    ):
        fit(workdir, model=model, run=RUN)
    for weight, value in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, value)
    path.unlink()
    assert end_state(*fit(workdir, run=RUN)) == unbroken


def test_a_loss_that_is_no_number_ends_the_run(tmp_path):
    poison = keras.callbacks.Callback()  # from the next step on, the loss is none
    poison.on_train_batch_end = lambda batch, logs: batch == 3 and poison.model.layers[-1].bias.assign([np.nan] * 3)
    with pytest.raises(NonFiniteError) as raised:
        fit(tmp_path, poison, every_steps=2)
    assert "infinite or NaN after step 4" in str(raised.value) or "the loss became nan in step 5" in str(raised.value)
    assert Resume(tmp_path).step == 2  # the weights of step 4 were refused
    arrays, _ = checkpoint_files.CheckpointFolder(tmp_path / "checkpoints").read(2)
    assert all(np.isfinite(array).all() for array in arrays.values())


def test_the_step_of_the_loss_is_told(tmp_path):
    model = make_model(keras.optimizers.SGD(1e30), steps_per_execution=2)
    with pytest.raises(NonFiniteError, match=r"the loss became (nan|inf) in steps \d to \d, the last good .* step 0"):
        fit(tmp_path, model=model, every_steps=100)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"epochs": 1}, ValueError, "must be at least 10, the steps done so far; got 6"),
        ({"run": {"recipe": {"seed": 1, "name": "a"}}}, ValueError, "another run: recipe.seed is 0 there, 1 here"),
        ({"model": "classes"}, CheckpointError, r"model.0000\d.kernel .* is \(8, 3\) float32 in it, here \(8, 4\)"),
        ({"model": "optimizer"}, ValueError, "another run: optimizer.class_name is 'AdamW' there, 'SGD' here"),
        ({"model": "rate"}, ValueError, r"optimizer.config.learning_rate.* is 0.01 there, 0.1 here"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(broken, change, error, message):
    models = {
        "classes": lambda: make_model(classes=4),
        "optimizer": lambda: make_model("sgd"),
        "rate": lambda: make_model(rate=0.1),
        None: make_model,
    }
    change = dict(change)
    model = models[change.pop("model", None)]()
    before = [keras.ops.convert_to_numpy(weight) for weight in model.weights]
    with pytest.raises(error, match=message):
        fit(broken, model=model, **{"run": RUN, **change})
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight, value)


@for_each(
    ("arguments", "message"),
    [
        ({}, "fit with Resume requires steps_per_epoch, .* got steps_per_epoch=None"),
        ({"steps_per_epoch": 4, "initial_epoch": 1}, "requires .* no initial_epoch, .* initial_epoch=1"),
        ({"steps_per_epoch": 5}, "must divide steps_per_epoch; got 5"),
        ({"x": X, "y": Y, "steps_per_epoch": 4}, "data x that start at step resume.step, .* x=ndarray, y=ndarray"),
        ({"x": [X], "steps_per_epoch": 4}, "data x that start at step resume.step, .* x=list, y=NoneType"),
    ],
)
def test_arguments_of_fit_are_checked(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        make_model(steps_per_execution=2).fit(**{"x": data(), "callbacks": [Resume(tmp_path)], **arguments})


def test_a_second_fit_needs_another_resume(tmp_path):
    model, resume = make_model(), Resume(tmp_path)
    with pytest.raises(Killed):
        model.fit(data(), steps_per_epoch=STEPS, callbacks=[resume, KillAt(3)], shuffle=False, verbose=0)
    with pytest.raises(ValueError, match="create the Resume and its data again before each fit"):
        model.fit(data(), steps_per_epoch=STEPS, callbacks=[resume], shuffle=False, verbose=0)


def test_the_learning_rate_asked_for_is_that_of_the_run(tmp_path):
    """What a callback has changed since is no other run."""
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    fit(tmp_path, halve, model=make_model(keras.optimizers.SGD(0.1)), epochs=1)
    model, _ = fit(tmp_path, halve, model=make_model(keras.optimizers.SGD(0.1)), epochs=2)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.025)
    with pytest.raises(ValueError, match="optimizer.config.learning_rate is 0.10.* there, 0.00100.* here"):
        fit(tmp_path, model=make_model(keras.optimizers.SGD(0.001)), epochs=3)


def test_another_number_of_steps_per_epoch_is_refused(tmp_path):
    fit(tmp_path, epochs=1)
    with pytest.raises(ValueError, match="another run: steps_per_epoch is 6 there, 5 here"):
        make_model().fit(data(), steps_per_epoch=5, epochs=9, callbacks=[Resume(tmp_path)], shuffle=False)


def _sequential():
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dropout(0.3), keras.layers.Dense(3)]
    )


class _Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(3)

    def call(self, inputs):
        return self.head(inputs)


@for_each(
    ("make", "said"),
    [
        (_sequential, "got Sequential: build one with keras_vit.Model(inputs, outputs), or train keras_vit"),
        (lambda: keras.Model(*[keras.Input((4,))] * 2), "got Functional: build one with keras_vit.Model(inputs, outp"),
        (_Subclassed, "got _Subclassed: build one with keras_vit.Model(inputs, outputs)"),
        (make_model, "must be passed once, in the list callbacks"),
    ],
)
@for_each("arguments", [{"x": X, "y": Y}, {"x": data(), "steps_per_epoch": STEPS}])
def test_a_model_that_cannot_resume_is_told_what_it_needs(tmp_path, make, said, arguments):
    model = make()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    callbacks = [Resume(tmp_path)]
    if make is make_model:
        arguments = {"x": data(), "steps_per_epoch": STEPS}
        callbacks.append(Resume(tmp_path))
    with pytest.raises(TypeError) as raised:
        model.fit(**arguments, callbacks=callbacks, shuffle=False, verbose=0)
    assert said in str(raised.value)
    assert int(model.optimizer.iterations) == 0 and os.listdir(tmp_path) == []


@pytest.mark.slow
def test_a_sequential_model_resumes_as_the_error_says(tmp_path):
    def run(workdir, *others):
        keras.utils.set_random_seed(1)
        sequential = _sequential()
        model = Model(sequential.inputs[0], sequential.outputs[0])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
        model, history = fit(workdir, *others, model=model, epochs=2)
        assert sequential.get_weights()[0].tolist() == model.get_weights()[0].tolist()
        return end_state(model, history)

    expected = run(tmp_path / "whole")
    with pytest.raises(Killed):
        run(tmp_path / "broken", KillAt(8))
    assert run(tmp_path / "broken") == expected


def test_wrong_arguments(tmp_path):
    with pytest.raises(ValueError, match="every_steps must be an integer of at least 1; got every_steps=0"):
        Resume(tmp_path, every_steps=0)
    with pytest.raises(ValueError, match="keep must be an integer of at least 0; got keep=-1"):
        Resume(tmp_path, keep=-1)
    with pytest.raises(ValueError, match="workdir must be a path that is not empty"):
        Resume("")
    assert os.listdir(tmp_path) == []


def test_what_fails_in_fit_is_what_comes_out(tmp_path):
    """Neither the writing thread nor the handler stays behind."""
    threads = threading.active_count()
    with contextlib.suppress(Killed):
        fit(tmp_path, KillAt(4), every_steps=1)
    assert threading.active_count() == threads
