"""Runs of task models: the model and its loss by the recipe, the encoder's own rates, and a run that is interrupted."""

import inspect

import keras
import numpy as np
import pytest
from faults import for_each
from PIL import Image

import keras_vit
from keras_vit import LinearSegmentation
from keras_vit.models.eomt import MaskedAttention
from keras_vit.training import RECIPES, Recipe, progress, train
from keras_vit.training.model import model_to_train
from keras_vit.training.recipe_checks import TASKS

CONFIG = keras_vit.ViTConfig(
    name="toy", image_size=32, patch_size=8, hidden_dim=16, num_layers=3, num_heads=2, mlp_dim=16
)
NAMES = ("ground", "square")
PLAIN = {"name": "toy", "source": "test", "optimizer": "adamw", "learning_rate": 1e-3, "batch_size": 4, "epochs": 2}
MASKS = Recipe(
    **PLAIN,
    loss="masks",
    head={"num_queries": 5, "num_blocks": 1},
    pretraining={"num_points": 32},
    schedule="polynomial",
    warmup_steps=1,
    encoder_warmup_steps=1,
    weight_decay=0.05,
    layer_decay=0.8,
    clip_norm=0.1,
    augment=("flip", "scale_jitter(0.5, 2)"),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """8 images of noise with a bright square; the label map has both."""
    folder, rng = tmp_path_factory.mktemp("scenes"), np.random.default_rng(0)
    for kind in ("images", "maps"):
        (folder / kind).mkdir()
    for number in range(8):
        image, labels = rng.integers(0, 128, (40, 48, 3)).astype("uint8"), np.zeros((40, 48), "uint8")
        row, column = rng.integers(0, 20, 2)
        image[row : row + 16, column : column + 16], labels[row : row + 16, column : column + 16] = 250, 1
        Image.fromarray(image).save(folder / "images" / f"{number}.png")
        Image.fromarray(labels).save(folder / "maps" / f"{number}.png")
    return keras_vit.data.from_label_maps(folder / "images", folder / "maps", NAMES)


def test_linear_head_of_a_frozen_encoder(source, tmp_path):
    recipe = Recipe(**PLAIN | {"learning_rate": 0.1, "epochs": 5}, loss="segmentation", frozen=True, augment=("flip",))
    result = train(recipe, source, tmp_path, model=CONFIG, validation=source, verbose=0)
    assert type(result.model) is LinearSegmentation and result.model.labels == NAMES
    assert result.accuracy is None and result.history["val_loss"][-1] < 0.3
    fresh = model_to_train(recipe, NAMES, CONFIG)
    assert {one.path.split("/")[0] for one in fresh.trainable_variables} == {"batch_norm", "class_head"}
    again = train(recipe, source, tmp_path, model=CONFIG, validation=source, verbose=0)  # the finished run
    assert again.history == result.history and again.model.labels == NAMES
    scores = keras_vit.evaluate(result.model, source)
    assert scores.values["mIoU"] == keras_vit.evaluate(again.model, source).values["mIoU"] > 0.4
    with pytest.raises(ValueError, match="holds another run: recipe.seed is 0 there, 1 here"):
        train(recipe.replace(seed=1), source, tmp_path, model=CONFIG, validation=source, verbose=0)


@pytest.mark.slow
def test_an_interrupted_run_ends_as_the_other(source, tmp_path, monkeypatch):
    class Killed(Exception):
        pass

    def end(self, epoch, logs):
        raise Killed

    runs = {"validation": source, "verbose": 0, "model": CONFIG}
    result = train(MASKS, source, tmp_path / "1", **runs)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(progress.BestModel, "on_epoch_end", end)
        train(MASKS, source, tmp_path / "2", **runs)
    again = train(MASKS, source, tmp_path / "2", **runs)
    assert type(again.model) is keras_vit.EoMT and again.model.labels == NAMES
    assert again.history["loss"] == result.history["loss"]
    for ours, theirs in zip(again.model.get_weights(), result.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    saved = keras_vit.load(tmp_path / "2" / "model.keras")
    images = np.zeros((1, 32, 32, 3), "float32")
    np.testing.assert_allclose(saved(images)["mask_logits"], again.model(images)["mask_logits"], atol=1e-5)


def test_encoder_warms_up_after_the_head():
    """The rates of each step against the formula of tue-mps/eomt, and the step of the optimizer against them."""
    steps, head, inside = 20, 4, 6
    recipe = MASKS.replace(warmup_steps=head, encoder_warmup_steps=inside, encoder_rate=0.5, epochs=steps)
    trained = model_to_train(recipe, NAMES, CONFIG, steps=steps)
    recipe.compile(trained, steps=steps)
    windows = [layer.window for layer in trained.layers if isinstance(layer, MaskedAttention)]
    assert windows == [(3, 6)]
    optimizer, variables = trained.optimizer, trained.trainable_variables
    optimizer.build(variables)
    of_encoder = {id(variable) for variable in trained.model.encoder.variables}
    before = [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]
    for step in range(steps):
        waited, warmup = (head, inside), (0, head)
        rates = []
        for start, length in (waited, warmup):
            done = step - start
            rates.append(done / length if done < length else (1 - (done - length) / (steps - start - length)) ** 0.9)
        rates = [1e-3 * max(rate, 0) for rate in rates]
        optimizer.apply_gradients([(keras.ops.ones(variable.shape), variable) for variable in variables])
        after = [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]
        for variable, old, new, factor in zip(variables, before, after, optimizer.rate_factors, strict=True):
            rate = factor * rates[0 if id(variable) in of_encoder else 1]
            decay = 1 - rate * 0.05 * (variable.name == "kernel")
            np.testing.assert_allclose(new, old * decay - rate, rtol=1e-3, atol=2e-6, err_msg=f"{variable.path} {step}")
        before = after
    factors = {variable.path: factor for variable, factor in zip(variables, optimizer.rate_factors, strict=True)}
    blocks = [factors[f"block_0{number}/mlp/dense1/kernel"] for number in range(3)]
    np.testing.assert_allclose(blocks, [0.5 * 0.8**3, 0.5 * 0.8**2, 0.5 * 0.8])
    assert factors["queries/embedding"] == 1
    again = type(optimizer).from_config(optimizer.get_config())
    assert again.of_encoder == optimizer.of_encoder and again.rate_factors == optimizer.rate_factors


@for_each(
    "changes, model, error, message",
    [
        ({}, "folder", TypeError, "source must be a TaskSource, such as keras_vit.data.from_coco"),
        ({"loss": "softmax"}, "source", TypeError, "source must be a folder of class folders or an ImageSource"),
        (
            {"loss": "boxes"},
            LinearSegmentation,
            TypeError,
            "model must be a YOLOS for loss='boxes'; got a Lin",
        ),
        ({"head": {"class_name": "DPT"}}, CONFIG, ValueError, "class_name of head must be one of 'LinearSegmentation'"),
        (
            {},
            lambda encoder, classes: LinearSegmentation(encoder, 5),
            ValueError,
            "the 2 classes of source; got 5",
        ),
    ],
)
def test_refuses(source, changes, model, error, message):
    recipe = Recipe(**{**PLAIN, "loss": "segmentation", **changes})
    with pytest.raises(error, match=message):
        if isinstance(model, str):
            keras_vit.training.images.open_images(recipe, source if model == "source" else "folder", None)
        else:
            if callable(model):
                model = model(keras_vit.VisionTransformer(CONFIG), classes=2)
            model_to_train(recipe, NAMES, model)


def test_published_numbers():
    """FACTS of the authors: COCO panoptic with 12 epochs of 7391 steps, and the rates of ViTPose."""
    eomt = RECIPES["eomt/coco-panoptic/small"]
    assert (eomt.learning_rate, eomt.weight_decay, eomt.layer_decay, eomt.clip_norm) == (1e-4, 0.05, 0.8, 0.01)
    assert (eomt.warmup_steps, eomt.encoder_warmup_steps, eomt.batch_size, eomt.epochs) == (500, 1000, 16, 12)
    pose = RECIPES["vitpose/coco/base"]
    assert (pose.learning_rate, pose.layer_decay, pose.drop_path_rate) == (5e-4, 0.75, 0.3)
    np.testing.assert_allclose(np.multiply(pose.decay_at, 210), [170, 200])
    for name, recipe in RECIPES.items():
        if recipe.loss in TASKS:
            kind = TASKS[recipe.loss].models[0]
            assert set(recipe.head or {}) <= set(inspect.signature(kind).parameters), name
