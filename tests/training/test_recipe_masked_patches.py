"""Recipes that predict masked patches: what they compile, refuse and train, to the fine-tuning of the encoder."""

import csv
import json

import keras
import numpy as np
import pytest
from faults import for_each

import keras_vit
from keras_vit import MaskedPatchPrediction, VisionTransformer, ViTConfig
from keras_vit.data import from_arrays
from keras_vit.training import Recipe, progress, train
from keras_vit.training.progress import draw_curves, merit

CONFIG = ViTConfig(
    name="toy",
    image_size=8,
    patch_size=4,
    hidden_dim=8,
    num_layers=1,
    num_heads=2,
    mlp_dim=8,
    classes=2,
    channels=1,
)
RECIPE = Recipe(
    name="toy",
    source="this test",
    optimizer="adamw",
    learning_rate=1e-2,
    batch_size=8,
    epochs=2,
    weight_decay=0.1,
    seed=3,
    loss="masked_patches",
    model=CONFIG,
)

pytestmark = pytest.mark.usefixtures("eagerly")


@pytest.fixture(scope="module")
def source():
    """Eight noisy images, the dark ones of class "night", the bright ones of class "day"."""
    labels = np.arange(8) % 2
    images = np.random.default_rng(0).integers(0, 60, size=(8, 8, 8, 1)) + 180 * labels[:, None, None, None]
    return from_arrays(images.astype("uint8"), labels, class_names=("night", "day"))


def of_pixels():
    keras.utils.set_random_seed(5)
    return MaskedPatchPrediction(VisionTransformer(CONFIG.replace(classes=7)), "pixels")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return tmp_path_factory.mktemp("train")


@pytest.fixture(scope="module")
def result(eagerly, source, workdir):
    return train(RECIPE, source, workdir, model=of_pixels(), validation=source, verbose=0)


@pytest.mark.slow
def test_pixels_have_no_accuracy_but_a_report(result, workdir):
    report = json.loads((workdir / "history.json").read_text())
    assert result.accuracy is None and report["accuracy"] is None and report["history"] == result.history
    names = {"loss", "mean_absolute_error"}
    assert {*names, *(f"val_{name}" for name in names)} <= set(result.history)
    assert report["run"]["masked_patches"]["target"] == "pixels"
    with open(workdir / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["val_mean_absolute_error"]) for row in rows] == result.history["val_mean_absolute_error"]


@pytest.mark.slow
def test_best_model_is_that_of_the_lowest_loss(result, source, workdir):
    saved = keras.models.load_model(workdir / "best.keras")
    assert type(saved) is MaskedPatchPrediction and saved.target == "pixels"
    assert merit({"val_loss": 0.1}) > merit({"val_loss": 0.2})
    right, sure = {"val_loss": 0.3, "val_accuracy": 0.4}, {"val_loss": 0.1, "val_accuracy": 0.3}
    assert merit(right) > merit(sure) > merit({**sure, "val_loss": 0.2})
    assert merit({"loss": 1.0}) is None


@pytest.mark.slow
def test_the_same_call_goes_on_and_shows_its_table(result, source, tmp_path, monkeypatch, caplog):
    class Killed(Exception):
        pass

    def end(self, epoch, logs):
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(progress.BestModel, "on_epoch_end", end)
        train(RECIPE, source, tmp_path, model=of_pixels(), validation=source, verbose=0)
    again = train(RECIPE, source, tmp_path, model=of_pixels(), validation=source, verbose=2)
    for name in ("loss", "val_loss", "mean_absolute_error"):
        assert again.history[name] == result.history[name]
    for ours, theirs in zip(again.model.get_weights(), result.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    table = next(said for said in caplog.messages if said.startswith("      epoch")).splitlines()
    expected = ["epoch", "step", "loss", "mean_absolute_error", "val_loss", "val_mean_absolute_error"]
    assert table[0].split() == expected and table[1].split()[0] == "best"


@pytest.mark.slow
def test_a_finished_run_returns_its_result_at_once(result, source, workdir, monkeypatch):
    monkeypatch.setattr(keras_vit.Model, "fit", None)
    again = train(RECIPE, source, workdir, model=of_pixels(), validation=source, verbose=0)
    assert again.history == result.history
    for ours, theirs in zip(again.model.get_weights(), result.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    other = MaskedPatchPrediction(VisionTransformer(CONFIG.replace(classes=7)), "mean_color")
    with pytest.raises(ValueError, match="masked_patches.target is 'pixels' there, 'mean_color' here"):
        train(RECIPE, source, workdir, model=other)


@pytest.mark.slow
def test_own_model_is_wrapped_and_its_encoder_is_fine_tuned(source, tmp_path):
    recipe = RECIPE.replace(epochs=1, dropout_rate=0.1)
    result = train(recipe, source, tmp_path / "1", validation=source, verbose=0)
    model, encoder = result.model, result.model.encoder
    assert type(model) is MaskedPatchPrediction and model.target == "mean_color"
    assert encoder.config.dropout_rate == 0.1 and encoder.labels == ("night", "day")
    assert result.accuracy == result.history["val_accuracy"][-1]
    before = encoder.get_layer("patch_encoder").projection.kernel.numpy()
    tuned = train(recipe.replace(loss="softmax"), source, tmp_path / "2", model=encoder, verbose=0)
    assert tuned.model is encoder and np.any(encoder.get_layer("patch_encoder").projection.kernel.numpy() != before)
    saved = keras.models.load_model(tmp_path / "1" / "model.keras")
    np.testing.assert_array_equal(saved.encoder.get_layer("patch_encoder").projection.kernel, before)


def test_recipe_decides_optimizer_and_schedule():
    model = of_pixels()
    recipe = RECIPE.replace(steps=10, layer_decay=0.5, microbatches=2, ema_momentum=0.9, clip_norm=1.0)
    assert recipe.compile(model) is model
    assert isinstance(model.loss, keras.losses.MeanSquaredError) and model.optimizer.use_ema
    assert len(model.optimizer.get_config()["rate_factors"]) == len(model.trainable_variables)


@pytest.mark.parametrize("kind", ["classifier", "model that predicts patches"])
def test_refuses_a_model_that_the_loss_is_not_for(source, tmp_path, kind):
    model, loss = (VisionTransformer(CONFIG), "masked_patches") if kind == "classifier" else (of_pixels(), "softmax")
    for run in (
        lambda: RECIPE.replace(steps=5, loss=loss).compile(model),
        lambda: train(RECIPE.replace(loss=loss), source, tmp_path / "run", model=model),
    ):
        with pytest.raises(ValueError, match="for a keras_vit.MaskedPatchPrediction, and for no other model; got .*"):
            run()
    assert not (tmp_path / "run").exists()


@for_each(
    ("changes", "message"),
    [
        ({"label_smoothing": 0.1}, "label_smoothing requires loss 'softmax' or 'sigmoid'"),
        ({"mix": ("mixup(0.2)",)}, r"mix requires loss 'softmax' or 'sigmoid'; got mix=.*, loss='masked_patches'"),
        ({"head_bias": -10}, "head_bias requires loss 'sigmoid'"),
        ({"input_dtype": "uint8"}, "input_dtype requires loss 'softmax' or 'sigmoid'; got input_dtype='uint8'"),
    ],
)
def test_refuses_contradictions(changes, message):
    with pytest.raises(ValueError, match=message):
        RECIPE.replace(**changes)


def test_curves_of_errors(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [{"step": step, "loss": 1 / step, "mean_absolute_error": 0.5} for step in (1, 2)]
    assert draw_curves(rows, tmp_path / "curves.png") and (tmp_path / "curves.png").stat().st_size > 1000
