"""linear_probe: the scores of the ridge regression as the logits of a model, which works as any other."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import Preprocessing, VisionTransformer, ViTConfig
from keras_vit.data import from_arrays
from keras_vit.evaluation import evaluate, few_shot, linear_probe, predict
from keras_vit.models.derived import of_pixels

SLOW = pytest.mark.slow
NAMES = ("dark", "middle", "light")
CONFIG = ViTConfig(
    name="tiny", image_size=16, patch_size=8, hidden_dim=12, num_layers=1, num_heads=2, mlp_dim=16, classes=6
)
LABELS = np.arange(30) % 3
_NOISE = np.random.default_rng(0).normal(0, 40, (30, 16, 16, 3))
IMAGES = np.clip(60 + 60 * LABELS[:, None, None, None] + _NOISE, 0, 255).astype(np.uint8)
INPUTS = IMAGES.astype(np.float32) / 127.5 - 1.0
SOURCE = from_arrays(IMAGES, LABELS, NAMES)
DATA = tf.data.Dataset.from_tensor_slices((INPUTS, LABELS)).batch(30)  # the same, prepared and without names

pytestmark = pytest.mark.usefixtures("eagerly")


@functools.cache
def tiny(**changes):
    return VisionTransformer(CONFIG.replace(**changes))


def features(model, name="pooling"):
    outputs = keras.Model(model.input, model.get_layer(name).output)(INPUTS)
    return keras.ops.convert_to_numpy(keras.ops.cast(outputs, "float32"))


def logits(model):
    return keras.ops.convert_to_numpy(model(INPUTS))


@pytest.mark.parametrize(
    ("changes", "layer"),
    [
        ({"representation_size": 7}, "pre_logits"),
        ({"include_top": False}, "pooling"),
        pytest.param({"pooling": "gap", "norm_position": "after_pooling"}, "encoder_norm", marks=SLOW),
        ({"dtype": "mixed_bfloat16", "classifier_activation": "softmax"}, "pooling"),
    ],
)
def test_logits_are_the_scores_of_a_ridge_regression(changes, layer):
    model = tiny(**changes)
    probe = linear_probe(model, DATA, l2=3.0)
    x = features(model, layer).astype(float)
    x = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-5)
    x = np.concatenate([x, np.full((30, 1), 100.0)], axis=1)
    weights = np.linalg.solve(x.T @ x + 3.0 * np.eye(x.shape[1]), x.T @ (2.0 * np.eye(3)[LABELS] - 1.0))
    built = probe.as_model()
    np.testing.assert_allclose(logits(built), x @ weights, atol=1e-4)
    assert (probe.layer, probe.count, probe.class_names) == (layer, 30, None)
    assert built.config == model.config.replace(include_top=True, classes=3, classifier_activation=None)


def test_both_heads_of_a_distilled_model():
    model = tiny(distilled=True)
    probe = linear_probe(model, DATA)
    built = probe.as_model()
    mean = (features(model, "pooling") + features(model, "pooling_dist")) / 2
    np.testing.assert_allclose(logits(built), probe.ridge.scores(mean), atol=1e-4)
    np.testing.assert_array_equal(*(built.get_layer(name).kernel for name in ("head", "head_dist")))


def test_shots_are_those_of_few_shot():
    model = tiny()
    built = linear_probe(model, DATA, shots=2, seed=4).as_model()
    accuracy = few_shot(model, DATA, DATA, shots=2, seeds=4).accuracy[2][0]
    assert (logits(built).argmax(axis=1) == LABELS).mean() == pytest.approx(accuracy)


def test_a_source_gives_the_same_head_with_names():
    model = tiny()
    probe, other = (linear_probe(model, data) for data in (SOURCE, DATA))
    np.testing.assert_allclose(probe.ridge.weights, other.ridge.weights, atol=1e-6)
    assert probe.class_names == NAMES and probe.as_model().labels == NAMES and other.as_model().labels is None


@SLOW
def test_preprocessing_of_the_images_goes_with_the_head():
    protocol = Preprocessing(size=16, mean=(0.4,) * 3, std=(0.3,) * 3)
    probe = linear_probe(tiny(), SOURCE, preprocessing=protocol)
    assert probe.as_model().preprocessing == protocol


def test_of_a_model_around_one_it_is_that_one_s():
    model = tiny()
    probe = linear_probe(of_pixels(model), DATA)
    assert probe.model is model and type(probe.as_model()) is VisionTransformer


@pytest.fixture(scope="module")
def built():
    return linear_probe(tiny(), SOURCE, l2=1.0).as_model()


class TestModel:
    """What a model with a probe as its head can do."""

    def test_evaluates_by_the_names(self, built):
        expected = int((logits(built).argmax(axis=1) == LABELS).sum())
        result = evaluate(built, SOURCE, top=1)
        assert result.correct == {1: expected} and result.matching == "by name" and expected > 20

    def test_predicts_names(self, built):
        best = logits(built)[:2].argmax(axis=1)
        assert [answer[0][0] for answer in predict(built, list(IMAGES[:2]), top=1)] == [NAMES[n] for n in best]

    def test_is_saved(self, built, tmp_path):
        built.save(tmp_path / "probe.keras")
        loaded = keras.models.load_model(tmp_path / "probe.keras")
        np.testing.assert_allclose(logits(loaded), logits(built), atol=1e-6)
        assert loaded.labels == NAMES and loaded.config == built.config

    def test_weights_are_written_for_others(self, built, tmp_path, capsys):
        keras_vit.save_weights(built, tmp_path / "probe.npz")
        other = VisionTransformer(built.config)
        keras_vit.load_weights(other, tmp_path / "probe.npz")
        np.testing.assert_allclose(logits(other), logits(built), atol=1e-6)

    def test_trains_on(self, built):
        model = keras_vit.clone(built)
        model.compile(keras.optimizers.SGD(0.001), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        history = model.fit(INPUTS, LABELS, epochs=3, batch_size=30, verbose=0).history["loss"]
        assert history[2] < history[0]


@SLOW
def test_a_probe_is_exported(tmp_path):
    built = linear_probe(tiny(), SOURCE).as_model()
    keras_vit.export(built, tmp_path / "serving")
    loaded = tf.saved_model.load(str(tmp_path / "serving" / "1"))
    answers = loaded.signatures["images"](tf.constant(IMAGES.astype(np.float32)))
    np.testing.assert_allclose(answers["logits"].numpy(), logits(built), atol=1e-5)


def test_refusals():
    one = from_arrays(IMAGES, LABELS * 0, ["dark"])
    plain = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten()])
    refused = [
        (plain, SOURCE, {}, TypeError, "model must be a model of keras_vit; got Sequential"),
        (tiny(pooling="unpooled"), SOURCE, {}, ValueError, "model must pool its tokens"),
        (tiny(), one, {}, ValueError, "train must have at least two classes; it has 1"),
        (tiny(), SOURCE, {"shots": 11}, ValueError, "got shots=11, and train has 10 of class 'dark'; 3 of 3"),
        (tiny(), SOURCE, {"shots": 0}, ValueError, "shots must be an integer of at least 1"),
        (tiny(), SOURCE, {"seed": -1}, ValueError, "seed must be an integer of at least 0"),
        (tiny(), SOURCE, {"l2": 0}, ValueError, "l2 must be a finite number above 0"),
    ]
    for model, train, options, error, message in refused:
        with pytest.raises(error, match=message):
            print(message, linear_probe(model, train, **options))  # shown where nothing is raised
