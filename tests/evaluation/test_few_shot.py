"""few_shot: accuracies against scikit-learn's on the same draws, every kind of model and data, table and refusals."""

import csv
import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from image_sets import encode, stream, write_folder
from slow_rows import slow_after

import keras_vit
from keras_vit import Preprocessing, VisionTransformer, ViTConfig
from keras_vit.data import from_arrays
from keras_vit.evaluation import FewShot, few_shot
from keras_vit.evaluation.linear_probe import draw_shots

NAMES = ("ant", "bee", "cat", "dog")
CONFIG = ViTConfig(
    name="tiny", image_size=16, patch_size=8, hidden_dim=12, num_layers=2, num_heads=2, mlp_dim=16, classes=6
)
_RNG = np.random.default_rng(0)


def _images(count):
    """Noise around an image of each class."""
    labels = np.arange(count) % len(NAMES)
    centres = np.random.default_rng(1).integers(60, 196, (len(NAMES), 16, 16, 3))
    return np.clip(centres[labels] + _RNG.normal(0, 60, (count, 16, 16, 3)), 0, 255).astype(np.uint8), labels


TRAIN, TEST = _images(48), _images(30)


@functools.cache
def tiny(**changes):
    return VisionTransformer(CONFIG.replace(**changes))


def inputs_of(images):
    return images.astype(np.float32) / 127.5 - 1.0


def batched(images, labels, batch_size=16):
    return tf.data.Dataset.from_tensor_slices((inputs_of(images), labels)).batch(batch_size)


def pooled(model, images, layer="pooling"):
    """Class token, or mean of the patches, of each image."""
    outputs = keras.ops.convert_to_numpy(keras.Model(model.input, model.get_layer(layer).output)(inputs_of(images)))
    return outputs if outputs.ndim == 2 else outputs[:, 1:].mean(axis=1)


def expected_accuracy(features, test_features, draw, l2=1024.0):
    """By scikit-learn."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    chosen = draw.reshape(-1)
    mean, std = features[chosen].mean(axis=0), features[chosen].std(axis=0) + 1e-5
    train, test = (
        (np.pad((x - mean) / std, ((0, 0), (0, 1)), constant_values=100.0)) for x in (features, test_features)
    )
    ridge = linear_model.Ridge(alpha=l2, fit_intercept=False, solver="svd")
    ridge.fit(train[chosen], 2.0 * np.eye(len(NAMES))[TRAIN[1][chosen]] - 1.0)
    return (ridge.predict(test).argmax(axis=1) == TEST[1]).mean()


pytestmark = pytest.mark.usefixtures("eagerly")


@pytest.mark.parametrize(("layer", "l2"), [(None, 1024.0), ("block_00", 2.0)])
def test_accuracies_are_those_of_scikit_learn(layer, l2):
    model, seeds, shots = tiny(), (0, 3), (1, 5, 10)
    result = few_shot(model, batched(*TRAIN), batched(*TEST), shots=shots, seeds=seeds, layer=layer, l2=l2)
    features, test_features = (pooled(model, x, layer or "pooling") for x in (TRAIN[0], TEST[0]))
    draws = {seed: draw_shots(TRAIN[1], NAMES, 10, seed) for seed in seeds}
    expected = {n: [expected_accuracy(features, test_features, draws[s][:, :n], l2) for s in seeds] for n in shots}
    assert list(result.accuracy) == [1, 5, 10] and result.seeds == seeds
    for n in shots:
        assert result.accuracy[n] == pytest.approx(expected[n])
        assert result.mean[n] == pytest.approx(np.mean(expected[n]))
        assert result.std[n] == pytest.approx(np.std(expected[n]))
    assert (result.count, result.class_names, result.layer, result.l2) == (30, tuple("0123"), layer or "pooling", l2)
    assert 0.25 < result.mean[10] < 1.0 and len(set(map(tuple, result.accuracy.values()))) > 1


@pytest.mark.slow
def test_every_kind_of_data_gives_the_same(tmp_path):
    model, options = tiny(), {"shots": (2, 5), "seeds": 0, "batch_size": 20}
    order = np.argsort(TRAIN[1], kind="stable")  # of a folder
    images, labels = TRAIN[0][order], TRAIN[1][order]
    source, test = from_arrays(images, labels, NAMES), batched(*TEST, 30)
    expected = few_shot(model, batched(images, labels), test, **options)
    folder = write_folder(tmp_path, [encode(image) for image in images], labels)
    for train in (source, stream(source), str(folder)):
        assert few_shot(model, train, test, **options).accuracy == expected.accuracy


def test_test_labels_follow_the_names():
    order = [2, 0, 3, 1]
    renamed = from_arrays(TEST[0], np.argsort(order)[TEST[1]], [NAMES[n] for n in order])
    model = tiny()
    expected = few_shot(model, batched(*TRAIN), batched(*TEST), shots=10, seeds=0)
    found = few_shot(model, from_arrays(*TRAIN, NAMES), renamed, shots=10, seeds=0)
    assert found.class_names == NAMES and found.accuracy == expected.accuracy and found.mean[10] > 0.3


def test_only_images_that_a_draw_needs_are_read():
    images, labels = TRAIN
    drawn = np.concatenate([draw_shots(labels, NAMES, 2, seed).reshape(-1) for seed in (0, 1)])
    inputs = inputs_of(images)
    inputs[np.setdiff1d(np.arange(48), drawn)] = np.nan  # would be refused
    train = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(10)
    few_shot(tiny(), train, batched(*TEST), shots=(1, 2), seeds=(0, 1))
    with pytest.raises(ValueError, match="model must return finite features"):
        few_shot(tiny(), train, batched(*TEST), shots=(1, 3), seeds=(0, 1))


@pytest.mark.parametrize(
    "changes", slow_after(2, [{"dtype": "mixed_bfloat16"}, {"distilled": True}, {"include_top": False}])
)
def test_other_models(changes):
    model = tiny(**changes)
    result = few_shot(model, batched(*TRAIN), batched(*TEST), shots=(1, 10), seeds=(0, 1))
    assert result.mean[10] > 0.3  # by chance 0.25


def test_a_model_of_another_package_and_a_preprocessing_of_ones_own():
    other = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten()])
    result = few_shot(other, from_arrays(*TRAIN), batched(*TEST), 10, 0, preprocessing=Preprocessing(size=16))
    features, test_features = (inputs_of(images).reshape(len(images), -1) for images in (TRAIN[0], TEST[0]))
    draw = draw_shots(TRAIN[1], NAMES, 10, 0)
    assert result.accuracy[10] == pytest.approx([expected_accuracy(features, test_features, draw)])
    assert result.layer == "output"


def test_weights_stay_as_they_are():
    model = VisionTransformer(CONFIG)
    model.get_layer("block_00").trainable = False
    before = [keras.ops.convert_to_numpy(weight).copy() for weight in model.weights]
    few_shot(model, batched(*TRAIN), batched(*TEST), shots=1, seeds=0)
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), value)
    assert [layer.trainable for layer in model.layers if "block" in layer.name] == [False, True]


RESULT = FewShot({1: (0.5, 0.25), 10: (0.75, 1.0)}, (0, 7), ("ant", "bee"), 8, "pooling", 1024.0)


def test_text_is_a_table():
    assert str(RESULT).splitlines() == [
        "shots  mean %    std  seed 0  seed 7",
        "    1   37.50  12.50   50.00   25.00",
        "   10   87.50  12.50   75.00  100.00",
        "8 images of 2 classes, features of pooling, l2=1024",
    ]


def test_csv_has_a_row_per_draw(tmp_path):
    path = tmp_path / "few_shot.csv"
    RESULT.write_csv(path)
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {"shots": "1", "seed": "0", "accuracy": "0.5"}
    found = {(int(row["shots"]), int(row["seed"])): float(row["accuracy"]) for row in rows}
    assert found == {(1, 0): 0.5, (1, 7): 0.25, (10, 0): 0.75, (10, 7): 1.0} and list(tmp_path.iterdir()) == [path]


def test_result_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RESULT.count = 3


def test_progress(capsys):
    model = tiny()
    for verbose in (False, True):
        few_shot(model, batched(*TRAIN), batched(*TEST), shots=1, seeds=0, verbose=verbose)
        output = capsys.readouterr().out
        assert ("1/1" in output and "2/2" in output) if verbose else not output


def test_refusals():
    model, train, test = tiny(), batched(*TRAIN), batched(*TEST)
    four = from_arrays(*TRAIN, NAMES)
    too_high = batched(TEST[0], TEST[1] + 1)
    refused = [
        ((model, train, test), {"shots": 13}, "got shots=13, .* 12 of class '0'; 4 of 4 classes have too few"),
        ((model, train, test), {"shots": (1, 0)}, "shots must be an integer of at least 1; got shots=0"),
        ((model, train, test), {"shots": ()}, r"shots must be one integer or several distinct ones; got shots=\(\)"),
        ((model, train, test), {"seeds": (1, 1)}, r"seeds must be one integer .*; got seeds=\(1, 1\)"),
        ((model, train, test), {"seeds": -1}, "seeds must be an integer of at least 0"),
        ((model, train, test), {"l2": -1.0}, "l2 must be a finite number above 0"),
        ((model, train, test), {"verbose": 2}, "verbose must be True or False"),
        ((model, train, test), {"layer": "block_7"}, "among .*; got 'block_7'"),
        (
            (model, four, too_high),
            {"shots": 1},
            "labels of test must be from 0 to 3, as there are 4 classes; .* 1 to 4",
        ),
        ((model, four, from_arrays(*TEST)), {}, "same classes; .* only in train: ant, bee, cat, dog"),
        ((model, four, four), {"preprocessing": Preprocessing(size=8)}, r"images of \(16, 16, 3\); got \(8, 8, 3\)"),
    ]
    for arguments, options, message in refused:
        with pytest.raises(ValueError, match=message):
            print(message, few_shot(*arguments, **options))  # shown where nothing is raised


def test_names_are_public():
    assert keras_vit.evaluation.few_shot is few_shot
