"""MaskedPatchPrediction: its graph against the encoder's own, its loss in NumPy, what it trains, saves and draws."""

import subprocess
import sys

import keras
import numpy as np
import pytest
from faults import for_each
from keras import ops
from replica_process import run_cases
from slow_rows import slow_after

import keras_vit
from keras_vit import MaskedPatchPrediction, Preprocessing, ResNetConfig, VisionTransformer
from keras_vit.layers.patches import cut_patches
from keras_vit.models.encoders import find_encoder
from keras_vit.models.masked_patches import TARGETS
from keras_vit.training.compile import layer_rates

HYBRID = {"patch_size": 2, "stem": ResNetConfig(stage_sizes=(), width_factor=0.5)}
# changes of the tiny config -> rows and columns of its grid, (height, width) of a patch
ENCODERS = {
    "plain": ({}, (4, 4), (4, 4)),
    "not square": ({"image_size": (8, 24), "patch_size": (4, 8)}, (2, 3), (4, 8)),
    "registers": ({"num_registers": 2, "pooling": "map"}, (4, 4), (4, 4)),
    "distilled": ({"distilled": True}, (4, 4), (4, 4)),
    "no class token": ({"pooling": "gap", "representation_size": 6}, (4, 4), (4, 4)),
    "norm after the pooling": ({"norm_position": "after_pooling", "pooling": "gap"}, (4, 4), (4, 4)),
    "relative positions": ({"position_embedding": "relative", "position_placement": "shared"}, (4, 4), (4, 4)),
    "the same positions": ({"position_placement": "shared"}, (4, 4), (4, 4)),
    "axial": ({"attention": "axial", "pooling": "gap"}, (4, 4), (4, 4)),
    "hybrid": ({"image_size": (32, 16), **HYBRID}, (4, 2), (8, 8)),
    "grey": ({"channels": 1, "include_top": False}, (4, 4), (4, 4)),
}
# in the slow tests
LATER = ("registers", "no class token", "relative positions", "the same positions", "distilled", "hybrid", "grey")
UNCHANGED = {"corruption_rate": 1.0, "shares": (0, 0, 1)}


def numpy(tensor):
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


@pytest.fixture
def build(make_model):
    """Function from a target, arguments of the model and changes of the tiny config to a model without zeros."""

    def make(target="mean_color", arguments=None, **changes):
        model = MaskedPatchPrediction(make_model(**changes), target, **(arguments or {}))
        rng = np.random.default_rng(8)
        projection = model.get_layer("patch_prediction").projection
        projection.set_weights([rng.normal(0, 0.3, weight.shape) for weight in projection.get_weights()])
        return model

    return make


def prefix_of(model):
    return model.encoder.config.num_prefix_tokens


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * (x in LATER)) for x in ENCODERS])
def test_predicts_from_what_the_encoder_gives(build, make_images, run, name):
    """Where nothing is changed, the tokens are those of the encoder."""
    changes, grid, patch = ENCODERS[name]
    model = build("pixels", UNCHANGED, **changes)
    encoder, last = model.encoder, "block_01" if name == "norm after the pooling" else "encoder_norm"
    images = make_images(encoder)
    tokens = run(keras_vit.feature_extractor(encoder, last, grid=False), images)[:, prefix_of(model) :]
    kernel, bias = model.get_layer("patch_prediction").projection.get_weights()
    found = run(model, images)
    assert found["places"].tolist() == [list(range(grid[0] * grid[1]))] * 3
    np.testing.assert_allclose(found["predictions"], tokens @ kernel + bias, rtol=1e-4, atol=1e-4)
    assert found["predictions"].shape[2] == patch[0] * patch[1] * encoder.config.channels
    assert model.reconstruct(images).mask.shape == (3, *grid)


def cross_entropy(logits, classes):
    logits = logits.astype("float64")
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.take_along_axis(log_p, classes[..., None].astype(int), -1)[..., 0]


@pytest.mark.parametrize("target", TARGETS)
def test_loss_and_metric_are_those_of_the_corrupted_patches(build, target):
    model = build(target)
    mean, std = np.array([0.5, 0.4, 0.3]), np.array([0.2, 0.3, 0.25])
    model.encoder.preprocessing = Preprocessing(size=16, mean=tuple(mean), std=tuple(std))
    levels = np.random.default_rng(0).uniform(size=(4, 16, 16, 3)).astype("float32")
    images = ((levels - mean) / std).astype("float32")
    model.compile("sgd")
    y_pred = model(images)
    places, predictions = (ops.convert_to_numpy(y_pred[name]) for name in ("places", "predictions"))
    targets = ops.convert_to_numpy(TARGETS[target].of(cut_patches(levels, (4, 4))))  # see test_patch_targets.py
    targets = np.stack([row[at] for row, at in zip(targets, places, strict=True)])
    assert places.shape == (4, 8)
    if target == "pixels":
        losses, metric = (predictions - targets) ** 2, np.abs(predictions - targets).mean()
    else:
        losses, metric = cross_entropy(predictions, targets), (predictions.argmax(-1) == targets).mean()
    losses = losses.reshape(4, -1).mean(-1)
    for weights in (None, np.array([0.5, 2.0, 0.0, 1.0], "float32")):
        expected = (losses if weights is None else losses * weights).mean()
        found = model.compute_loss(images, None, y_pred, weights)
        np.testing.assert_allclose(numpy(found), expected, rtol=2e-4)
    logs = model.compute_metrics(images, None, y_pred)
    name = "mean_absolute_error" if target == "pixels" else "accuracy"
    np.testing.assert_allclose(float(logs[name]), metric, rtol=1e-3)


def test_starts_at_the_loss_of_chance(make_model, images):
    model = MaskedPatchPrediction(make_model())
    model.compile("sgd", run_eagerly=keras.backend.backend() == "tensorflow")
    assert model.evaluate(images, verbose=0, return_dict=True)["loss"] == pytest.approx(np.log(512), rel=1e-5)


def step(model, images, **compile_arguments):
    """Trains one step; returns the paths of the weights that changed."""
    eagerly = {"run_eagerly": True} if keras.backend.backend() == "tensorflow" else {}
    model.compile(keras.optimizers.SGD(0.1), **eagerly, **compile_arguments)
    before = [numpy(weight) for weight in model.weights]
    model.fit(images, verbose=0)
    return {w.path for w, value in zip(model.weights, before, strict=True) if np.any(numpy(w) != value)}


@pytest.mark.parametrize(
    "name",
    [
        "distilled",
        "norm after the pooling",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("registers", "hybrid")),
    ],
)
def test_trains_what_leads_to_the_patches_and_nothing_else(build, make_images, name):
    model = build(**ENCODERS[name][0])
    trained = {weight.path for weight in model.trainable_weights}
    assert step(model, make_images(model.encoder)) == trained
    rest = {weight.path.split("/")[0] for weight in model.weights if weight.path not in trained}
    expected = {
        "distilled": {"head", "head_dist"},
        "norm after the pooling": {"encoder_norm", "head"},
        "registers": {"pooling", "head"},
        "hybrid": {"head"},
    }
    assert rest == expected[name]
    assert "corruption/mask_embedding" in {path.removeprefix(f"{model.name}/") for path in trained}
    assert {id(weight) for weight in model.encoder.weights} <= {id(weight) for weight in model.weights}


@pytest.mark.slow
def test_remat_dropout_and_microbatches(build, images):
    model = build(remat="block", dropout_rate=0.1, drop_path_rate=0.1)
    changed = step(model, images, microbatches=2)
    assert changed == {weight.path for weight in model.trainable_weights}


def test_frozen_layers_stay(build, images):
    model = build()
    keras_vit.freeze(model.encoder, "block_00")
    assert not any(path.startswith("block_00") for path in step(model, images))


def test_bfloat16(build, make_model, images, run):
    model = build("downsampled", UNCHANGED)
    half = MaskedPatchPrediction(make_model(dtype="mixed_bfloat16"), "downsampled", **UNCHANGED)
    for new, old in zip(half.weights, model.weights, strict=True):
        new.assign(old)
    assert keras.backend.standardize_dtype(half(images)["predictions"].dtype) == "float32"
    found, expected = (run(each, images)["predictions"] for each in (half, model))
    assert 0 < np.abs(found - expected).max() < 0.1 * np.abs(expected).max()


@pytest.mark.slow
@pytest.mark.parametrize("target", slow_after(1, TARGETS))
def test_learns(make_config, target):
    """Grey images of one value each, of four: well below the marginal distribution of the targets, ln 4 = 1.39."""
    levels = np.random.default_rng(1).choice([0.05, 0.35, 0.6, 0.95], size=(32, 1, 1, 1))
    images = np.broadcast_to(2 * levels - 1, (32, 8, 8, 1)).astype("float32")
    model = MaskedPatchPrediction(VisionTransformer(make_config(image_size=8, channels=1, num_layers=1)), target)
    eagerly = {"run_eagerly": True} if keras.backend.backend() == "tensorflow" else {}
    model.compile(keras.optimizers.Adam(3e-2), **eagerly)
    losses = model.fit(images, batch_size=32, epochs=7, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * (np.var(levels) if target == "pixels" else np.log(4)), losses


def test_a_loss_of_your_own(build, images):
    model = build("pixels")
    model.compile("sgd", keras.losses.MeanAbsoluteError(), metrics=[])
    y_pred = model(images)
    logs = model.compute_metrics(images, None, y_pred)
    assert "mean_absolute_error" not in logs
    build_again = build("pixels")
    build_again.compile("sgd")
    expected = build_again.compute_metrics(images, None, y_pred)["mean_absolute_error"]
    np.testing.assert_allclose(numpy(model.compute_loss(images, None, y_pred)), float(expected), rtol=1e-5)


@pytest.mark.slow
def test_validation_changes_nothing_in_the_training(build, images):
    def losses(**fit):
        keras.utils.set_random_seed(3)
        model = build(arguments={"seed": 4})
        eagerly = {"run_eagerly": True} if keras.backend.backend() == "tensorflow" else {}
        model.compile("sgd", **eagerly)
        return model.fit(images, epochs=2, verbose=0, shuffle=False, **fit).history["loss"]

    assert losses() == losses(validation_data=(images, None))


class TestReconstruct:
    def test_shows_what_was_corrupted(self, build, make_images):
        model = build(arguments={"shares": (0.4, 0.4, 0.2)}, channels=1)
        images = (2 * np.random.default_rng(0).uniform(size=(8, 16, 16, 1)) - 1).astype("float32")
        shown = model.reconstruct(images, seed=5)
        np.testing.assert_allclose(shown.images, (images + 1) / 2, atol=1e-6)
        assert shown.mask.sum((1, 2)).tolist() == [8] * 8
        cells = [numpy(cut_patches(each, (4, 4))) for each in (shown.images, shown.corrupted, shown.predicted)]
        kinds = set()
        for image, patch in np.ndindex(8, 16):
            original, corrupted, predicted = (each[image, patch] for each in cells)
            if not shown.mask.reshape(8, 16)[image, patch]:
                np.testing.assert_array_equal(corrupted, original)
                np.testing.assert_array_equal(predicted, original)
                continue
            assert np.unique(predicted).size == 1, "one colour"
            others = [np.array_equal(corrupted, other) for other in cells[0][image]]
            kinds.add(
                "grey" if np.all(corrupted == 0.5) else "own" if others[patch] else "other" if any(others) else ""
            )
        assert kinds == {"grey", "own", "other"}

    def test_follows_from_its_seed(self, build, images):
        model = build()
        first, again, other = (model.reconstruct(images, seed) for seed in (1, 1, 2))
        for name in ("images", "corrupted", "predicted", "mask"):
            np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
        assert np.any(first.mask != other.mask)

    @pytest.mark.parametrize("target", TARGETS)
    def test_predicted_images_are_what_the_head_says(self, make_model, images, target):
        """A head that says the same of every patch: by its bias."""
        model = MaskedPatchPrediction(make_model(), target)
        bias = model.get_layer("patch_prediction").projection.bias
        if target == "pixels":
            bias.assign(np.linspace(-0.5, 1.5, 48))
            expected = np.linspace(-0.5, 1.5, 48).clip(0, 1).reshape(4, 4, 3)
        else:
            color = 64 * 6 + 8 * 1 + 4
            bias.assign(np.tile(50.0 * np.eye(512)[color], bias.shape[0] // 512))
            expected = np.broadcast_to(np.array([6.5, 1.5, 4.5]) / 8, (4, 4, 3))
        shown = model.reconstruct(images)
        cells = numpy(cut_patches(shown.predicted, (4, 4)))[shown.mask.reshape(6, 16)]
        np.testing.assert_allclose(cells, np.broadcast_to(expected, cells.shape), atol=1e-5)

    def test_refuses(self, build, images):
        model = build("pixels")
        with pytest.raises(ValueError, match=r"images must be of shape \(batch, 16, 16, 3\); got \(6, 16, 16, 1\)"):
            model.reconstruct(images[..., :1])
        with pytest.raises(ValueError, match="colors must be None for target='pixels'.*; got 'expected'"):
            model.reconstruct(images, colors="expected")
        with pytest.raises(ValueError, match="colors must be one of 'expected', 'likeliest'; got colors='best'"):
            build().reconstruct(images, colors="best")
        with pytest.raises(ValueError, match="seed must be an integer of at least 0; got seed=None"):
            model.reconstruct(images, seed=None)


@pytest.mark.slow
def test_survives_saving_with_all_of_its_encoder(build, images, tmp_path):
    arguments = {"corruption_rate": 0.25, "shares": (0.6, 0.2, 0.2), "seed": 9, "name": "mine"}
    model = build("downsampled", arguments, representation_size=6, distilled=False)
    step(model, images)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again) is MaskedPatchPrediction and again.settings == model.settings and again.name == "mine"
    assert again.encoder.config == model.encoder.config
    for ours, theirs in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(numpy(ours), numpy(theirs))
    np.testing.assert_array_equal(again.reconstruct(images).predicted, model.reconstruct(images).predicted)
    assert int(again.optimizer.iterations) == 1
    with pytest.raises(
        ValueError, match=r"got 'MaskedPatchPrediction' \(keras.models.load_model\(path\).encoder is one"
    ):
        keras_vit.load_weights(model.encoder, tmp_path / "model.keras")
    assert {weight.path for weight in again.trainable_weights} == {weight.path for weight in model.trainable_weights}


def test_gives_its_encoder_back(build, images, run):
    model = build()
    encoder = model.encoder
    assert find_encoder(model) is encoder and isinstance(model, keras_vit.Model)
    before = run(encoder, images)
    step(model, images)
    assert np.abs(run(encoder, images) - before).max() > 1e-4, "the weights are shared"
    rates = dict(zip((weight.path for weight in model.trainable_weights), layer_rates(model, 0.5), strict=True))
    assert rates["patch_encoder/projection/kernel"] == 0.125 and rates["block_00/mlp/dense1/kernel"] == 0.25
    assert {rate for path, rate in rates.items() if path.startswith(("patch_prediction", "corruption"))} == {1.0}


@for_each(
    ("changes", "arguments", "message"),
    [
        ({}, {"target": "colour"}, "target must be one of 'mean_color', 'downsampled', 'pixels'; got target='colour'"),
        ({"patch_size": 2}, {"target": "downsampled"}, "sides divisible by 4; got 2 x 2"),
        ({"channels": 4}, {}, "encoder must take images of 1 or 3 channels; got 4"),
        ({"image_size": (19, 41), **HYBRID, "patch_size": 1}, {}, r"by its grid_size; got .*, its grid_size=\(5, 11\)"),
        ({"patch_size": 16}, {"corruption_rate": 1.0}, r"shares\[1\] must be 0 where there is a single patch"),
        ({"patch_size": 16}, {}, "must corrupt at least one of the 1 patches; got corruption_rate=0.5"),
        ({}, {"corruption_rate": 2}, r"corruption_rate must be a number in \(0, 1\]; got corruption_rate=2"),
    ],
)
def test_refuses(make_config, changes, arguments, message):
    with pytest.raises(ValueError, match=message):
        MaskedPatchPrediction(VisionTransformer(make_config(**changes)), **arguments)


def test_refuses_other_models():
    config = keras_vit.SwinConfig(name="t", image_size=32, embed_dim=8, depths=(1,), num_heads=(2,), window_size=2)
    for model in (keras_vit.SwinTransformer(config), keras.Sequential()):
        with pytest.raises(TypeError, match=f"encoder must be a keras_vit.VisionTransf.*; got {type(model).__name__}"):
            MaskedPatchPrediction(model)


@pytest.mark.slow
def test_replicas_and_microbatches_train_as_one_device(tmp_path_factory):
    pytest.importorskip("tensorflow")
    found = run_cases(tmp_path_factory, "replica_cases.py", ("masked_patches",))["masked_patches"]
    assert len(found) == 4 and max(found.values()) < 1e-5, found


@pytest.mark.slow
def test_opens_in_a_process_that_only_imported_keras_vit(build, images, tmp_path):
    model = build("downsampled")
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "images.npz", images=images)
    code = """
import sys, keras, numpy as np, keras_vit
model = keras.models.load_model(sys.argv[1] + "/model.keras")
np.save(sys.argv[1] + "/predicted.npy", model.reconstruct(np.load(sys.argv[1] + "/images.npz")["images"]).predicted)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True)
    np.testing.assert_allclose(np.load(tmp_path / "predicted.npy"), model.reconstruct(images).predicted, atol=1e-5)
