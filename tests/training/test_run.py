import json

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.data import from_arrays
from keras_vit.training import RECIPES, Recipe, train
from keras_vit.training.run import _write

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
)
RECIPE = Recipe(
    name="toy",
    source="this test",
    optimizer="adamw",
    learning_rate=1e-2,
    batch_size=8,
    epochs=3,
    warmup_steps=2,
    seed=3,
    model=CONFIG,
)


@pytest.fixture(scope="module")
def source():
    """Forty noisy pictures, the dark ones of class "night", the bright ones of class "day"."""
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 2
    images = rng.integers(0, 60, size=(40, 8, 8, 1)) + 180 * labels[:, None, None, None]
    return from_arrays(images.astype("uint8"), labels, class_names=("night", "day"))


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return tmp_path_factory.mktemp("train") / "new" / "run"


@pytest.fixture(scope="module")
def result(source, workdir):
    return train(RECIPE, source, workdir, validation=source, verbose=0)


def test_trains(result):
    assert result.accuracy == 1.0
    assert result.model.labels == ("night", "day")
    assert len(result.history["loss"]) == 3 and result.history["loss"][-1] < result.history["loss"][0]
    assert int(result.model.optimizer.iterations) == 15  # 3 epochs of 40 // 8 steps


def test_saves_and_reports(result, workdir):
    assert sorted(path.name for path in workdir.iterdir()) == ["history.json", "model.keras"]
    report = json.loads((workdir / "history.json").read_text())
    assert report["accuracy"] == 1.0 and report["history"] == result.history
    assert Recipe.from_dict(report["recipe"]) == RECIPE
    again = keras.models.load_model(workdir / "model.keras")
    images = np.stack([np.full((8, 8, 1), -0.9, "float32"), np.full((8, 8, 1), 0.6, "float32")])
    assert again.labels == ("night", "day")
    assert list(np.argmax(again.predict(images, verbose=0), -1)) == [0, 1]


def test_the_seed_decides_the_run(result, source, tmp_path):
    same, other = (train(RECIPE.replace(seed=seed), source, tmp_path, verbose=0).history for seed in (3, 4))
    np.testing.assert_allclose(same["loss"], result.history["loss"], rtol=1e-4)
    assert abs(other["loss"][0] - same["loss"][0]) > 1e-3


def test_a_recipe_of_steps_trains_a_given_model(source, tmp_path):
    model = VisionTransformer(CONFIG.replace(hidden_dim=8))
    recipe = RECIPE.replace(epochs=None, steps=7, model=None)
    result = train(recipe, source, tmp_path, model=model, verbose=0)
    assert result.model is model and model.labels == ("night", "day")
    assert int(model.optimizer.iterations) == 7
    assert result.accuracy is None and set(result.history) == {"accuracy", "loss"}


def test_own_model_takes_the_classes_of_the_source_and_the_rates_of_the_recipe(source, tmp_path):
    recipe = RECIPE.replace(epochs=1, model=CONFIG.replace(classes=7), dropout_rate=0.2)
    model = train(recipe, source, tmp_path, verbose=0).model
    assert (model.config.classes, model.config.dropout_rate) == (2, 0.2)


def test_a_failed_save_leaves_the_earlier_file_and_no_other(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("whole")

    def half_a_file(partial):
        partial.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        _write(path, half_a_file)
    assert path.read_text() == "whole" and list(tmp_path.iterdir()) == [path]
    _write(path, lambda partial: partial.write_text("new"))
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_quickstart_by_name_brings_pictures_and_model(tmp_path, monkeypatch):
    monkeypatch.setitem(RECIPES, "quickstart", RECIPES["quickstart"].replace(epochs=1))
    result = train("quickstart", None, tmp_path, verbose=0)
    assert result.model.labels == tuple("0123456789")
    assert result.model.config == VisionTransformer(RECIPES["quickstart"].model).config
    assert result.accuracy == result.history["val_accuracy"][-1] > 0.15


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"recipe": "slowstart"}, ValueError, "recipe must be one of 'quickstart'; got recipe='slowstart'"),
        ({"source": None}, ValueError, "source must be given: recipe 'toy' has no pictures of its own"),
        (
            {"recipe": RECIPE.replace(model=None)},
            ValueError,
            "model must be given: recipe 'toy' has none of its own",
        ),
        (
            {"recipe": RECIPE.replace(batch_size=41)},
            ValueError,
            "batch_size must not exceed the number of pictures; got batch_size=41, 40 pictures",
        ),
        (
            {"model": keras.Sequential()},
            TypeError,
            "model must be a model of keras_vit or None; got Sequential",
        ),
        (
            {"model": VisionTransformer(CONFIG.replace(classes=3))},
            ValueError,
            "one class per class of source; got 3 classes in the model, 2 in source",
        ),
        (
            {
                "validation": from_arrays(
                    np.zeros((2, 8, 8), "uint8"), np.array([0, 1]), class_names=("day", "night")
                )
            },
            ValueError,
            "got ['day', 'night'] in validation, ['night', 'day'] in source",
        ),
    ],
)
def test_refuses_before_it_touches_the_disk(source, tmp_path, arguments, error, message):
    arguments = {"recipe": RECIPE, "source": source, "workdir": tmp_path / "run", "verbose": 0, **arguments}
    with pytest.raises(error) as raised:
        train(**arguments)
    assert message in str(raised.value)
    assert not (tmp_path / "run").exists()
