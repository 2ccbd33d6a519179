"""The monitor of self-distillation: its two numbers, the best epoch, the baseline, and that training is the same."""

import json
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import Preprocessing, SelfDistillation, VisionTransformer, ViTConfig
from keras_vit.data import from_arrays, from_directory
from keras_vit.data.sources import ImageSource
from keras_vit.evaluation import embed
from keras_vit.models.self_distillation import CollapseReport
from keras_vit.training import RECIPES, images, train
from keras_vit.training.distribution import Devices
from keras_vit.training.images import open_images
from keras_vit.training.monitor import Monitor, leave_one_out, rankme
from keras_vit.training.progress import draw_curves, merit, summary

CONFIG = ViTConfig(
    name="toy", image_size=16, patch_size=8, hidden_dim=8, num_layers=1, num_heads=2, mlp_dim=8, classes=2
)
RECIPE = RECIPES["dino/imagenet"].replace(
    batch_size=4,
    epochs=2,
    warmup_epochs=0,
    learning_rate=0.02,
    image_size=16,
    drop_path_rate=None,
    pretraining={"out_dim": 8, "hidden_dim": 8, "bottleneck_dim": 4, "teacher_momentum": 0.5, "freeze_epochs": 0},
    crops={"local_crops": 0, "augment": (("flip",), ("flip",), ("flip",))},
    model=CONFIG,
)

pytestmark = pytest.mark.usefixtures("eagerly")


class Killed(Exception):
    pass


@pytest.fixture(scope="module")
def source():
    images = np.random.default_rng(0).integers(0, 256, (4, 20, 20, 3))
    return from_arrays(images.astype("uint8"), np.arange(4) % 2, class_names=("night", "day"))


@pytest.fixture
def labelled(tmp_path):
    """A folder of nine images; the last one, alone in its batch, cannot be read."""
    rng = np.random.default_rng(1)
    for number in range(8):
        path = tmp_path / "labelled" / "ab"[number // 4] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (16, 16, 3)).astype("uint8")).save(path)
    (tmp_path / "labelled" / "b" / "9.png").write_bytes(b"not an image")
    return from_directory(tmp_path / "labelled")


def by_loops(features, labels, k, temperature=0.07):
    """The accuracy of `leave_one_out`, image by image."""
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    hits = 0
    for image, own in enumerate(unit):
        others = [other for other in range(len(unit)) if other != image]
        others.sort(key=lambda other: -np.float32(own @ unit[other]))
        votes = np.zeros(labels.max() + 1)
        for other in others[:k]:
            votes[labels[other]] += np.exp(own @ unit[other] / temperature)
        hits += votes.argmax() == labels[image]
    return hits / len(unit)


class TestNumbers:
    @pytest.mark.parametrize(("images", "k"), [(60, 20), (60, 1), (60, 4), (7, 20), (2, 20)])
    def test_leave_one_out(self, images, k):
        rng = np.random.default_rng(images + k)
        labels = rng.integers(0, 3, images)
        features = rng.normal(size=(images, 5)) + 0.8 * np.eye(5)[labels]
        assert leave_one_out(features, labels, k) == by_loops(features, labels, min(k, images - 1))

    def test_an_image_has_no_vote_among_its_copies(self):
        """Six copies of an image, of which each one's nearest others are copies with smaller numbers."""
        features = np.repeat([[3.0, 4.0], [4.0, -3.0]], (6, 2), axis=0)
        labels = np.array([0, 0, 0, 1, 1, 1, 1, 0])
        assert leave_one_out(features, labels, k=1) == 3 / 8  # 1 and 2 copy 0, as does 0 copy 1
        assert leave_one_out(features, labels, k=3) == 3 / 8

    def test_rankme(self):
        features = np.random.default_rng(0).normal(size=(30, 6)) * [1, 1, 2, 3, 0.1, 0.01]
        singular = np.sqrt(np.linalg.eigvalsh(features.T @ features))
        p = singular / singular.sum() + 1e-7
        np.testing.assert_allclose(rankme(features), np.prod(p**-p), rtol=1e-9)
        np.testing.assert_allclose(rankme(3.0 * np.eye(9, 5)), 5, rtol=1e-4)  # five equal directions
        np.testing.assert_allclose([rankme(np.ones((9, 5))), rankme(np.zeros((9, 5)))], 1, rtol=1e-4)

    def test_merit(self):
        assert merit({"rankme": 3.0}) > merit({"rankme": 2.0, "collapsed": 0.0}) > merit({"rankme": 9, "collapsed": 1})
        assert merit({"rankme": 2.0, "val_accuracy": 0.6}) > merit({"rankme": 3.0, "val_accuracy": 0.5})

    def test_the_tables_show_them(self, tmp_path):
        rows = [{"epoch": n, "step": n, "loss": 1.0, "val_accuracy": 1 / n, "rankme": 2.0} for n in (1, 2)]
        head, best, _ = (line.split() for line in summary(rows).splitlines())
        assert head == ["epoch", "step", "loss", "rankme", "val_accuracy"] and best[1] == "1"
        pytest.importorskip("matplotlib")
        assert draw_curves(rows, tmp_path / "curves.png")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:toy_self_distillation has collapsed|the k-NN accuracy")
def test_a_run_is_measured_and_not_changed(source, labelled, tmp_path, monkeypatch):
    found = []
    measure = Monitor._measured
    monkeypatch.setattr(
        Monitor, "_measured", lambda self: found.append(self.model.teacher.get_weights()) or measure(self)
    )
    result = train(RECIPE, source, tmp_path / "run", validation=labelled, max_corrupt=0.2, verbose=0)
    names, start = ("val_accuracy", "rankme"), json.loads((tmp_path / "run" / "start.json").read_text())
    measured = [start, *({name: result.history[name][epoch] for name in names} for epoch in range(2))]
    readable, labels = labelled.take(range(8)), np.arange(8) // 4
    teacher = result.model.teacher
    for weights, values in zip(found, measured, strict=True):
        teacher.set_weights(weights)
        features = embed(teacher, readable, batch_size=8, preprocessing=teacher.preprocessing).features
        assert values["val_accuracy"] == by_loops(features, labels, 7)
        np.testing.assert_allclose(values["rankme"], rankme(features), rtol=1e-5)
    assert result.accuracy == measured[-1]["val_accuracy"]
    best = keras.models.load_model(tmp_path / "run" / "best.keras")
    kept = max(range(3), key=lambda n: merit({**measured[n], "collapsed": n and result.history["collapsed"][n - 1]}))
    for ours, theirs in zip(best.get_weights(), found[kept], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert best.labels == ("night", "day") and best.preprocessing == result.model.teacher.preprocessing
    assert not np.array_equal(found[0][0], found[1][0])

    monkeypatch.setattr(Monitor, "_measured", lambda self: {"rankme": 1.0})
    unmeasured = train(RECIPE, source, tmp_path / "other", verbose=0)
    for ours, theirs in zip(result.model.get_weights(), unmeasured.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.fixture(scope="module")
def model():
    return SelfDistillation(VisionTransformer(CONFIG), **RECIPE.pretraining)


@pytest.mark.parametrize(
    ("rows", "collapsed", "kept", "said", "falls"),
    [
        ([(0.5, 2), (0.6, 2), (0.7, 2), (0.6, 9)], (), 2, "of epoch 2: val_accuracy 0.7, rankme 2 (at the start", 0),
        ([(0.5, 2), (0.48, 9), (0.4, 9), (0.5, 2)], (), 0, "before the first step, as no epoch was better: val_", 1),
        ([(0.5, 2), (0.49, 9), (0.5, 3), (0.5, 3)], (), 2, "of epoch 2: val_accuracy 0.5, rankme 3 (at the start", 0),
        ([(None, 2), (None, 4), (None, 3), (None, 9)], (3,), 1, "of epoch 1: rankme 4 (at the start rankme 2)", 0),
        ([(None, 9), (None, 4), (None, 5), (None, 3)], (), 2, "of epoch 2: rankme 5 (at the start rankme 9)", 0),
        ([(None, 2), (None, 4), (None, 5), (None, 9)], (1, 2, 3), 0, "before the first step, as no epoch was", 0),
    ],
)
def test_the_best_epoch_is_kept(model, tmp_path, monkeypatch, recwarn, rows, collapsed, kept, said, falls):
    """`rows` has accuracy and RankMe of the start and of three epochs; `collapsed` the epochs with a collapse."""
    rows = [{name: x for name, x in zip(("val_accuracy", "rankme"), row, strict=True) if x} for row in rows]
    given, texts = iter(rows), []
    monkeypatch.setattr(Monitor, "_measured", lambda self: next(given))
    measured, history = Monitor(tmp_path, model, None, True, True, texts.append), keras.callbacks.History()
    callbacks = keras.callbacks.CallbackList([measured, history], model=model)
    model.history = history
    model.teacher.weights[0].assign(np.zeros(model.teacher.weights[0].shape))
    callbacks.on_train_begin()
    warnings.simplefilter("always")
    for epoch in range(3):
        model.teacher.weights[0].assign(model.teacher.weights[0] + 1)
        mean = 1.01 if epoch + 1 in collapsed else 1.03
        callbacks.on_epoch_end(epoch, {"loss": 1.0, "teacher_entropy": 1.0, "batch_entropy": mean})
    callbacks.on_train_end()
    assert history.history["rankme"] == [row["rankme"] for row in rows[1:]]
    assert history.history["collapsed"] == [float(epoch in collapsed) for epoch in (1, 2, 3)]
    best = keras.models.load_model(tmp_path / "best.keras")
    assert (best.get_weights()[0] == kept).all()
    assert texts[1].startswith(f"best.keras is the teacher {said}") and len(texts) == 2
    accuracy = "val_accuracy 0.5, " * ("val_accuracy" in rows[0])
    assert texts[0] == f"the teacher before the first step: {accuracy}rankme {rows[0]['rankme']}"
    warned = [str(one.message) for one in recwarn if "k-NN" in str(one.message)]
    assert len(warned) == falls and all("is 0.480 after epoch 1 and was 0.500 before" in text for text in warned)


def test_the_baseline_of_an_interrupted_first_epoch(source, tmp_path, monkeypatch):
    """A run without a checkpoint starts again, and is measured again; with one, the baseline stays."""
    recipe, values = RECIPE.replace(batch_size=2, epochs=1), []

    def measured(self):
        values.append(6.0 + len(values))  # better with every call
        return {"rankme": values[-1]}

    def end(self, batch, logs=None):
        raise Killed

    monkeypatch.setattr(Monitor, "_measured", measured)
    for every, baseline in ((500, 6.0), (1, 7.0)):
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(CollapseReport, "on_train_batch_end", end)
            train(recipe, source, tmp_path, verbose=0, checkpoint_every=every)
        assert json.loads((tmp_path / "start.json").read_text()) == {"rankme": baseline}
    assert train(recipe, source, tmp_path, verbose=0, checkpoint_every=1).history["rankme"] == [8.0]
    assert json.loads((tmp_path / "start.json").read_text()) == {"rankme": 7.0}


def test_images_to_measure(source, monkeypatch):
    """Without validation, some of the training images; the labels of this source are the positions."""
    assert images._SAMPLED == 1000
    monkeypatch.setattr(images, "_SAMPLED", 20)
    preprocessing, one = Preprocessing(size=2), Devices("one")
    many = from_arrays(np.zeros((24, 2, 2, 3), "uint8"), np.arange(24))
    stream = ImageSource(many.dataset, many.class_names, many.size)
    found = []
    for recipe, given in ((RECIPE, many), (RECIPE, many), (RECIPE.replace(seed=1), many), (RECIPE, stream)):
        _, measured = open_images(recipe, given, None).batches(recipe, preprocessing, one, 0, 0.01)
        found.append(np.concatenate([labels for _, labels in measured.as_numpy_iterator()]))
    assert all(len(labels) == 20 and (np.diff(labels) > 0).all() for labels in found)
    assert np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[3], np.arange(20))
    several = Devices("multi_worker", workers=2, strategy=tf.distribute.get_strategy())
    with pytest.raises(ValueError, match="None with loss='self_distillation' and 2 processes; got 4 images"):
        open_images(RECIPE, source, source).batches(RECIPE, preprocessing, several, 0, 0.01)
