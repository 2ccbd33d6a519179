import csv
import dataclasses
import json
import re
import shutil

import keras
import numpy as np
import pytest
from image_sets import encode, write_folder
from slow_rows import slow_after

from keras_vit import Model, VisionTransformer, ViTConfig, files
from keras_vit.data import eval_pipeline, from_arrays, from_directory
from keras_vit.training import RECIPES, CheckpointError, NonFiniteError, Recipe, progress, train

NUMBERS = {"patch_size": 4, "hidden_dim": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 16}
CONFIG = ViTConfig(name="toy", image_size=8, classes=2, channels=1, **NUMBERS)
SETTINGS = {"optimizer": "adamw", "learning_rate": 1e-2, "batch_size": 8, "epochs": 3, "warmup_steps": 2, "seed": 3}
RECIPE = Recipe(name="toy", source="this test", model=CONFIG, **SETTINGS)
ONE_STEP = RECIPE.replace(epochs=1, warmup_steps=0)  # of the images of `batch`

pytestmark = pytest.mark.usefixtures("eagerly")  # killed_runs.py has the compiled ones


@pytest.fixture(scope="module")
def source():
    """Forty noisy images, the dark ones of class "night", the bright ones of class "day"."""
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 2
    images = rng.integers(0, 60, size=(40, 8, 8, 1)) + 180 * labels[:, None, None, None]
    return from_arrays(images.astype("uint8"), labels, class_names=("night", "day"))


@pytest.fixture(scope="module")
def batch(source):
    return source.take(range(RECIPE.batch_size))


@pytest.fixture(scope="module")
def one_epoch(eagerly, source, tmp_path_factory):
    """The history of a run of one epoch."""
    workdir = tmp_path_factory.mktemp("one_epoch")
    return train(RECIPE.replace(epochs=1), source, workdir, validation=source, verbose=0).history


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return tmp_path_factory.mktemp("train") / "new" / "run"


@pytest.fixture(scope="module")
def result(eagerly, source, workdir):
    return train(RECIPE, source, workdir, validation=source, verbose=0)


def test_trains(result):
    assert result.accuracy == 1.0
    assert result.model.labels == ("night", "day")
    assert len(result.history["loss"]) == 3 and result.history["loss"][-1] < result.history["loss"][0]
    assert int(result.model.optimizer.iterations) == 15  # 3 epochs of 40 // 8 steps


def test_saves_and_reports(result, workdir):
    assert {"history.json", "model.keras", "best.keras", "recipe.json"} <= {path.name for path in workdir.iterdir()}
    assert Recipe.from_dict(json.loads((workdir / "recipe.json").read_text())) == RECIPE
    report = json.loads((workdir / "history.json").read_text())
    assert report["accuracy"] == 1.0 and report["history"] == result.history
    assert all(len(f"{loss}") < 12 for loss in report["history"]["val_loss"])  # digits of float32
    assert Recipe.from_dict(report["recipe"]) == RECIPE
    again = keras.models.load_model(workdir / "model.keras")
    images = np.stack([np.full((8, 8, 1), -0.9, "float32"), np.full((8, 8, 1), 0.6, "float32")])
    assert again.labels == ("night", "day")
    assert list(np.argmax(again.predict(images, verbose=0), -1)) == [0, 1]


@pytest.mark.slow
def test_the_seed_decides_the_run(one_epoch, source, tmp_path):
    """That the same seed gives the same run is seen in `test_the_same_call_goes_on`."""
    other = train(RECIPE.replace(seed=4, epochs=1), source, tmp_path, verbose=0).history
    assert abs(other["loss"][0] - one_epoch["loss"][0]) > 1e-3


def test_a_recipe_of_steps_trains_a_given_model(batch, tmp_path):
    model = VisionTransformer(CONFIG.replace(hidden_dim=8))
    recipe = ONE_STEP.replace(epochs=None, steps=3, model=None)
    result = train(recipe, batch, tmp_path, model=model, verbose=0)
    assert result.model is model and model.labels == ("night", "day")
    assert int(model.optimizer.iterations) == 3
    assert result.accuracy is None
    assert set(result.history) == {"accuracy", "loss", "learning_rate", "images_per_second"}


def test_own_model_takes_the_classes_of_the_source_and_the_rates_of_the_recipe(batch, tmp_path):
    recipe = ONE_STEP.replace(model=CONFIG.replace(classes=7), dropout_rate=0.2)
    model = train(recipe, batch, tmp_path, verbose=0).model
    assert (model.config.classes, model.config.dropout_rate) == (2, 0.2)


def test_tables(result, workdir):
    with open(workdir / "steps.csv", newline="") as file:
        steps = list(csv.DictReader(file))
    with open(workdir / "history.csv", newline="") as file:
        epochs = list(csv.DictReader(file))
    assert [int(row["step"]) for row in steps] == list(range(1, 16))
    assert [(row["epoch"], row["step"]) for row in epochs] == [("1", "5"), ("2", "10"), ("3", "15")]
    for name in ("loss", "accuracy", "learning_rate"):
        assert [float(row[name]) for row in epochs] == result.history[name]
        assert [float(row[name]) for row in steps[4::5]] == result.history[name]
    # Linear warm-up over two steps, then half a cosine over the other thirteen.
    rates = [0, 0.005, *(0.005 * (1 + np.cos(np.pi * np.arange(13) / 13)))]
    np.testing.assert_allclose([float(row["learning_rate"]) for row in steps], rates, rtol=1e-5)


def test_a_finished_run_returns_its_result_at_once(result, source, workdir, monkeypatch, caplog, capsys):
    monkeypatch.setattr(Model, "fit", None)
    again = train(RECIPE, source, workdir, validation=source, verbose=0)
    assert caplog.messages == []
    train(RECIPE, source, workdir, validation=source)
    assert caplog.messages == [f"the run in {workdir} is already finished"] and capsys.readouterr() == ("", "")
    assert (again.history, again.accuracy) == (result.history, result.accuracy)
    assert again.model.compiled and result.model.compiled
    for ours, theirs in zip(again.model.get_weights(), result.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_folder_of_another_run_is_refused(result, source, workdir):
    with pytest.raises(ValueError, match="run: recipe.learning_rate is 0.01 there, 0.02 here; use another workdir"):
        train(RECIPE.replace(learning_rate=0.02), source, workdir, validation=source)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("history.json", b"garbage"),
        ("model.keras", None),
        *slow_after(0, [("model.keras", b"garbage"), *(("history.json", bad) for bad in (b"\xff\x00", b"[]", b"{}"))]),
    ],
)
def test_a_finished_run_with_a_damaged_file_is_finished_again(result, source, workdir, tmp_path, name, content):
    damaged = shutil.copytree(workdir, tmp_path / "run")
    if content is None:
        (damaged / name).unlink()
    else:
        (damaged / name).write_bytes(content)
    with pytest.raises(
        ValueError, match=f"{damaged / name} must be the file that .* delete {damaged / 'history.json'}, and"
    ):
        train(RECIPE, source, damaged, validation=source, verbose=0)
    (damaged / "history.json").unlink()
    if content == b"{}":
        again = train(RECIPE, source, damaged, validation=source, verbose=0)
        assert again.history["val_loss"] == result.history["val_loss"] and again.accuracy == result.accuracy
        assert json.loads((damaged / "history.json").read_text())["history"] == again.history


def _pixels(source):
    elements = list(source.dataset.as_numpy_iterator())
    return np.stack([e["image"] for e in elements]), np.array([e["label"] for e in elements])


@pytest.mark.parametrize(
    ("change", "sentence"),
    slow_after(
        1,
        [
            ("permuted labels", "the labels of the training images differ"),
            ("mapped images", "the contents of the training images differ"),
            ("other validation", "the contents of the validation images differ"),
            ("frozen layers", "the layers of the model, or which of them are trained, differ"),
            ("inverted images", "the contents of the training images differ"),
            ("fewer images", "data.images is 40 there, 39 here"),
            ("no validation", "it was trained with validation images, this run has no validation images"),
            ("other standardisation", "preprocessing.mean is"),
        ],
    ),
)
def test_other_data_in_the_folder_of_a_finished_run_are_refused(result, source, workdir, change, sentence):
    images, labels = _pixels(source)
    arguments = {"source": source, "validation": source}
    if change in ("frozen layers", "other standardisation"):
        arguments["model"] = VisionTransformer(CONFIG)
    match change:
        case "permuted labels":
            arguments["source"] = from_arrays(images, np.roll(labels, 1), class_names=source.class_names)
        case "inverted images":
            arguments["source"] = from_arrays(255 - images, labels, class_names=source.class_names)
        case "mapped images":
            arguments["source"] = source.map_images(lambda image: 255 - image)
        case "fewer images":
            arguments["source"] = source.take(range(39))
        case "other validation":
            arguments["validation"] = from_arrays(images[::-1], labels, class_names=source.class_names)
        case "no validation":
            arguments["validation"] = None
        case "frozen layers":
            arguments["model"].get_layer("block_00").trainable = False
        case _:
            arguments["model"].preprocessing = arguments["model"].preprocessing.replace(mean=(0.4,))
    with pytest.raises(ValueError, match=f"holds another run: {sentence}"):
        train(RECIPE, workdir=workdir, verbose=0, **arguments)
    built = VisionTransformer(CONFIG)
    assert train(RECIPE, source, workdir, model=built, validation=source, verbose=0).history == result.history


@pytest.mark.slow
def test_another_file_of_weights_of_the_same_name_is_another_run(batch, tmp_path):
    def run(seed):
        model = VisionTransformer(CONFIG)
        model.get_layer("head").kernel.assign(np.full((16, 2), seed + 1))
        model.save_weights(tmp_path / "start.weights.h5")
        return train(ONE_STEP, batch, tmp_path / "run", weights=tmp_path / "start.weights.h5", verbose=0)

    run(0)
    with pytest.raises(ValueError, match="another run: the contents of the weights file differ"):
        run(1)


@pytest.mark.slow
def test_the_same_call_goes_on(result, source, tmp_path, monkeypatch, caplog, capsys):
    class Killed(Exception):
        pass

    def end(self, epoch, logs):
        if epoch == 1:
            raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(progress.BestModel, "on_epoch_end", end)
        train(RECIPE, source, tmp_path, validation=source, verbose=0)
    assert not (tmp_path / "model.keras").exists()
    capsys.readouterr()
    monkeypatch.setattr(progress, "_WAIT", 0)
    monkeypatch.setattr(progress, "_WORTH_TELLING", 0)
    again = train(RECIPE, source, tmp_path, validation=source)  # into a pipe: no bar is drawn
    assert again.history["loss"] == result.history["loss"]
    drawn = capsys.readouterr().out  # by Keras
    assert "Epoch 1/3" not in drawn and "Epoch 2/3" in drawn and not set("\b\r") & set(drawn)
    plan, left, table = caplog.messages
    assert plan == ("15 steps of 8 images, 3 x 40 images of 8 x 8 pixels; resumes from the checkpoint of step 10")
    assert re.fullmatch(r"about 0 minutes left at [\d,]+ images per second, not counting validation", left)
    table = table.splitlines()
    assert table[-1].startswith(f"Saved in {tmp_path}") and not [said for said in caplog.messages if said in drawn]
    assert table[0].split() == ["epoch", "step", "loss", "accuracy", "val_loss", "val_accuracy"]
    assert table[2].split()[:4] == ["last", "3", "15", f"{result.history['loss'][-1]:.4f}"]


@pytest.mark.slow
def test_averaged_weights_are_validated_and_saved(source, tmp_path):
    recipe = RECIPE.replace(ema_momentum=0.9, epochs=2)
    result = train(recipe, source, tmp_path, validation=source, verbose=0)
    saved = keras.models.load_model(tmp_path / "model.keras")
    saved.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    loss = saved.evaluate(eval_pipeline(source, saved.preprocessing, 8), verbose=0, return_dict=True)["loss"]
    np.testing.assert_allclose(loss, result.history["val_loss"][-1], rtol=1e-5)
    plain = train(recipe.replace(ema_momentum=None), source, tmp_path / "plain", validation=source, verbose=0)
    np.testing.assert_allclose(plain.history["loss"], result.history["loss"], rtol=1e-5)  # Keras's swap rounds
    assert abs(plain.history["val_loss"][-1] - loss) > 1e-3


@pytest.mark.slow
def test_pixels_are_rescaled_in_the_model(one_epoch, source, tmp_path):
    recipe = RECIPE.replace(epochs=1, input_dtype="uint8")
    history = train(recipe, source, tmp_path, validation=source, verbose=0).history
    np.testing.assert_allclose(history["loss"], one_epoch["loss"], rtol=1e-3)
    assert keras.models.load_model(tmp_path / "best.keras").input_shape == (None, 8, 8, 1)


@pytest.mark.slow
@pytest.mark.parametrize("input_dtype", ["uint8", "float32"])
def test_a_model_that_includes_its_preprocessing_is_given_pixels(input_dtype, one_epoch, source, tmp_path):
    recipe, config = RECIPE.replace(epochs=1, input_dtype=input_dtype), CONFIG.replace(include_preprocessing=True)
    run = train(recipe, source, tmp_path, model=config, validation=source, verbose=0)
    np.testing.assert_allclose(run.history["loss"], one_epoch["loss"], rtol=1e-3)
    np.testing.assert_allclose(run.history["val_loss"], one_epoch["val_loss"], rtol=2e-3)


def test_a_loss_that_is_no_number_ends_the_run(batch, tmp_path):
    model = VisionTransformer(CONFIG)
    model.layers[-1].bias.assign([np.nan, 0.0])
    with pytest.raises(NonFiniteError, match="the loss became nan in step 1, the last good checkpoint is .* step 0"):
        train(ONE_STEP, batch, tmp_path, model=model, verbose=0)


@pytest.mark.slow
def test_a_full_disk_at_the_end_of_an_epoch(batch, tmp_path, monkeypatch):
    bring_to_disk = files._bring_to_disk

    def full(path):
        if path.name == "history.csv":
            raise OSError(28, "No space left on device")
        bring_to_disk(path)

    monkeypatch.setattr(files, "_bring_to_disk", full)
    with pytest.raises(CheckpointError, match="history.csv could not be written: .*No space left"):
        train(ONE_STEP, batch, tmp_path, validation=batch, verbose=0)


@pytest.mark.slow
def test_max_corrupt_is_that_of_both_pipelines(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (8, 8, 8), "uint8")
    contents = [encode(image[..., None]) for image in noise]
    contents[3] = contents[3][:-14]
    source = from_directory(write_folder(tmp_path / "images", contents, np.arange(8) % 2))
    recipe = RECIPE.replace(epochs=1, batch_size=4, warmup_steps=0)
    result = train(recipe, source, tmp_path / "run", validation=source, max_corrupt=0.2, verbose=0)
    assert np.isfinite(result.history["val_loss"]).all()


@pytest.mark.slow
def test_a_full_disk_at_the_end(batch, tmp_path, monkeypatch):
    def full(self, path):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with (
        monkeypatch.context() as patched,
        pytest.raises(CheckpointError, match="model.keras could not be written: .*No sp"),
    ):
        patched.setattr(VisionTransformer, "save", full)
        train(ONE_STEP, batch, tmp_path, verbose=0)
    assert not list(tmp_path.glob("model*"))
    train(ONE_STEP, batch, tmp_path, verbose=0)
    assert (tmp_path / "model.keras").exists()


def test_images_may_be_folders(tmp_path):
    for part, classes in (("learn", [0, 1]), ("measure", [0, 2])):
        write_folder(tmp_path / part, [encode(image) for image in np.zeros((2, 8, 8, 1), "uint8")], classes)
    with pytest.raises(ValueError, match=r"classes \['000', '001'\]; got \['000', '002'\]"):
        train(RECIPE.replace(batch_size=2), tmp_path / "learn", tmp_path / "run", validation=str(tmp_path / "measure"))


@pytest.mark.slow
def test_quickstart_by_name_brings_images_and_model(tmp_path, monkeypatch):
    monkeypatch.setitem(RECIPES, "quickstart", RECIPES["quickstart"].replace(epochs=1))
    result = train("quickstart", None, tmp_path, verbose=0)
    assert result.model.labels == tuple("0123456789")
    assert result.model.config == VisionTransformer(RECIPES["quickstart"].model).config
    assert result.accuracy == result.history["val_accuracy"][-1] > 0.15


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"recipe": "slowstart"}, ValueError, "recipe must be one of "),
        ({"source": None}, ValueError, "source must be given: recipe 'toy' has no images of its own"),
        (
            {"workdir": ""},
            ValueError,
            "workdir must be a path that is not empty ('.' is the current folder); got workdir=",
        ),
        ({"workdir": None}, TypeError, "workdir must be a path; got NoneType"),
        ({"workdir": __file__}, ValueError, "workdir must be a folder, or not exist yet; "),
        ({"weights": ""}, ValueError, "weights must be a path that is not empty"),
        ({"source": ""}, ValueError, "source must be a path that is not empty"),
        ({"validation": ""}, ValueError, "validation must be a path that is not empty"),
        ({"checkpoint_every": 0}, ValueError, "checkpoint_every must be an integer of at least 1; got"),
        ({"strategy": "bogus"}, ValueError, "strategy must be one of 'auto', 'one', 'mirrored', "),
        ({"strategy": 2}, ValueError, "got strategy=2"),
        ({"verbose": 3}, ValueError, "verbose must be one of 'auto', 0, 1, 2; got verbose=3"),
        ({"max_corrupt": 2}, ValueError, "max_corrupt must be a number in [0, 1]; got max_corrupt=2"),
        (
            {"recipe": RECIPE.replace(model=None)},
            ValueError,
            "model must be given: recipe 'toy' does not define one",
        ),
        (
            {"recipe": RECIPE.replace(batch_size=41)},
            ValueError,
            "batch_size must be at most 40, the images; got 41",
        ),
        ({"source": "empty"}, ValueError, "source must have images; got none"),
        ({"source": "nowhere"}, FileNotFoundError, "nowhere does not exist"),
        ({"validation": [1]}, TypeError, "validation must be a folder of class folders or an ImageSource"),
        (
            {"model": keras.Sequential()},
            TypeError,
            "model must be a model of keras_vit, a config, a name or None; got Sequential",
        ),
        (
            {"model": VisionTransformer(CONFIG.replace(classes=3))},
            ValueError,
            "model must have the 2 classes of source; got 3",
        ),
        (
            {"validation": from_arrays(np.zeros((2, 8, 8), "uint8"), np.array([0, 1]), class_names=("day", "night"))},
            ValueError,
            "classes ['night', 'day']; got ['day', 'night']",
        ),
    ],
)
def test_refuses_before_it_touches_the_disk(source, tmp_path, arguments, error, message):
    arguments = {"recipe": RECIPE, "source": source, "workdir": tmp_path / "run", "verbose": 0, **arguments}
    if arguments["source"] == "empty":
        arguments["source"] = dataclasses.replace(source, size=0)
    with pytest.raises(error) as raised:
        train(**arguments)
    assert message in str(raised.value)
    assert not (tmp_path / "run").exists()
