"""embed, nearest and knn: cosines and votes against plain NumPy, the kinds of images, and refusals."""

import functools

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from faults import for_each
from image_sets import encode

import keras_vit
from keras_vit import VisionTransformer, ViTConfig
from keras_vit.data import from_arrays
from keras_vit.evaluation import embed, knn, knn_scores, nearest

NAMES = ("ant", "bee", "cat")
CONFIG = ViTConfig(
    name="tiny", image_size=16, patch_size=8, hidden_dim=12, num_layers=1, num_heads=2, mlp_dim=16, classes=6
)
RNG = np.random.default_rng(0)
LABELS = np.arange(42) % 3
IMAGES = np.clip(60 + 60 * LABELS[:, None, None, None] + RNG.normal(0, 70, (42, 16, 16, 3)), 0, 255).astype("uint8")
INPUTS = IMAGES.astype("float32") / 127.5 - 1.0
TRAIN, TEST = slice(0, 27), slice(27, None)

pytestmark = pytest.mark.usefixtures("eagerly")


@functools.cache
def tiny():
    return VisionTransformer(CONFIG)


@functools.cache
def features(layer="pooling"):
    outputs = keras.Model(tiny().input, tiny().get_layer(layer).output)(INPUTS)
    outputs = keras.ops.convert_to_numpy(outputs)
    return outputs if outputs.ndim == 2 else outputs[:, 1:].mean(1)


def ranked(queries, images):
    """The cosines, and the images in the order of theirs, in float64."""
    unit = [vectors / np.linalg.norm(vectors.astype("float64"), axis=1, keepdims=True) for vectors in (queries, images)]
    cosines = unit[0] @ unit[1].T
    return cosines, np.argsort(-cosines, axis=1)


def batched(part):
    return tf.data.Dataset.from_tensor_slices((INPUTS[part], LABELS[part])).batch(16)


class TestNearest:
    def test_is_the_order_of_the_cosines(self, monkeypatch):
        monkeypatch.setattr("keras_vit.evaluation.neighbours._AT_ONCE", 100)  # several parts
        images, queries = RNG.normal(size=(40, 5)), RNG.normal(size=(7, 5))
        cosines, order = ranked(queries, images)
        found = nearest(images, queries, 6)
        np.testing.assert_array_equal(found.indices, order[:, :6])
        np.testing.assert_allclose(found.similarities, np.take_along_axis(cosines, order[:, :6], 1), atol=1e-6)

    def test_one_query_and_all_images(self):
        images = RNG.normal(size=(9, 4))
        found = nearest(images, 3 * images[5], 9)
        assert found.indices.shape == (1, 9) and found.indices[0, 0] == 5 and sorted(found.indices[0]) == [*range(9)]
        assert found.similarities[0, 0] == pytest.approx(1)

    def test_of_equal_images_the_first_is_first(self):
        images = np.array([[0, 1], [1, 0], [2, 0], [1, 0]])
        assert nearest(images, [1, 0], 3).indices.tolist() == [[1, 2, 3]]
        images = np.random.default_rng(3).normal(size=(501, 384)).astype("float32")
        copies = np.concatenate([[0], np.arange(100, 130)])
        images[copies] = images[0]
        for count in (1, 4, 10, 31):
            assert nearest(images, images[:2], count).indices[0].tolist() == copies[:count].tolist()

    def test_cosines_do_not_depend_on_the_lengths_of_vectors(self):
        images, query = RNG.normal(size=(9, 4)), RNG.normal(size=4)
        images[3] = 0.0
        cosines = images @ query / np.maximum(np.linalg.norm(images, axis=1), 1e-9) / np.linalg.norm(query)
        for scale in (1e20, 1e-30, 1e160):
            found = nearest(images * scale, query / scale, 9)
            np.testing.assert_allclose(found.similarities, np.sort(cosines)[None, ::-1], atol=1e-6)

    @for_each(
        ("changes", "message"),
        [
            ({"count": 4}, "count must be at most the number of images, 3; got 4"),
            ({"query": np.zeros(5)}, "query must have the 2 values of features; got 5"),
            (
                {"features": np.zeros(3)},
                r"features must be a finite array \(images, dim\), not empty",
            ),
            ({"query": [np.nan, 1]}, "query must be a finite array"),
        ],
    )
    def test_refusals(self, changes, message):
        with pytest.raises(ValueError, match=message):
            nearest(**{"features": np.ones((3, 2)), "query": np.ones(2), "count": 1} | changes)


class TestKnn:
    @pytest.mark.parametrize("layer", [None, "block_00"])
    def test_accuracy_is_that_of_numpy(self, layer):
        found = knn(tiny(), batched(TRAIN), batched(TEST), k=(1, 4, 20), temperature=0.5, layer=layer)
        vectors = features(layer or "pooling")
        cosines, order = ranked(vectors[TEST], vectors[TRAIN])
        for k in (1, 4, 20):
            votes = np.zeros((15, 3))
            for row, neighbours in enumerate(order[:, :k]):
                for image in neighbours:
                    votes[row, LABELS[image]] += np.exp(cosines[row, image] / 0.5)
            assert found.top1[k] == (votes.argmax(1) == LABELS[TEST]).mean()
        assert 0.4 < found.top1[20] < 1 and found.top5[20] == 1
        assert (found.count, found.class_names, found.layer) == (15, tuple("012"), layer or "pooling")
        assert str(found).splitlines()[-1] == f"15 images of 3 classes, features of {layer or 'pooling'}, T=0.5"

    def test_votes_of_any_temperature_are_finite(self):
        found, labels = nearest([[1, 0.1], [1, 0.2], [1, 0.3]], [[1, 0.2], [-1, -0.2]], 3), [0, 1, 0]
        for temperature in (1e-3, 1e-4, 1e-320):  # the weights of a softmax, and one class wins
            votes = knn_scores(found, labels, 2, temperature)
            shares = scipy.special.softmax(found.similarities.astype("float64") / max(temperature, 1e-4), axis=1)
            is_of = np.take(labels, found.indices)[..., None] == [0, 1]
            expected = (shares[..., None] * is_of).sum(axis=1)
            np.testing.assert_allclose(votes / votes.sum(1, keepdims=True), expected, rtol=1e-9, atol=1e-12)

    @pytest.mark.slow  # test_few_shot.py and test_labelled.py have the matching
    def test_classes_are_matched_by_name(self):
        order = [2, 0, 1]
        renamed = from_arrays(IMAGES[TEST], np.argsort(order)[LABELS[TEST]], [NAMES[n] for n in order])
        train = from_arrays(IMAGES[TRAIN], LABELS[TRAIN], NAMES)
        assert knn(tiny(), train, renamed).top1 == knn(tiny(), batched(TRAIN), batched(TEST)).top1

    @for_each(
        ("changes", "message"),
        [
            ({"k": 28}, "k must be at most the number of training images, 27; got 28"),
            ({"k": (5, 5)}, "k must be one integer or several distinct ones"),
            ({"temperature": 0}, "temperature must be"),
        ],
    )
    def test_refusals(self, changes, message):
        with pytest.raises(ValueError, match=message):
            knn(tiny(), batched(TRAIN), batched(TEST), **changes)


class TestEmbed:
    def test_a_folder_of_any_depth(self, tmp_path):
        names = ["b/cat/2.png", "a.png", "b/1.PNG", "b/.hidden.png"]
        for index, name in enumerate(names):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(encode(IMAGES[index]))
        (tmp_path / "b" / "notes.txt").write_text("no image")
        found = embed(tiny(), tmp_path, batch_size=2)
        assert found.files == ("a.png", "b/1.PNG", "b/cat/2.png") and found.layer == "pooling"
        np.testing.assert_allclose(found.features, features()[[1, 2, 0]], atol=1e-5)
        found.save(tmp_path / "features.npz")
        with np.load(tmp_path / "features.npz", allow_pickle=False) as saved:
            np.testing.assert_array_equal(saved["features"], found.features)
            assert tuple(saved["files"]) == found.files
        with pytest.raises(ValueError, match="path must end in .npz"):
            found.save(tmp_path / "features.npy")

    def test_an_image_that_cannot_be_read_is_named(self, tmp_path):
        (tmp_path / "good.png").write_bytes(encode(IMAGES[0]))
        (tmp_path / "bad.png").write_bytes(b"nothing")
        with pytest.raises(ValueError, match="bad.png"):
            embed(tiny(), tmp_path)

    def test_an_empty_folder(self, tmp_path):
        with pytest.raises(ValueError, match="path must contain images ending in .jpg"):
            embed(tiny(), tmp_path)


@pytest.mark.slow
def test_a_pipeline_without_labels_trains(tmp_path):
    (tmp_path / "deep").mkdir()
    for index in range(4):
        (tmp_path / "deep" / f"{index}.png").write_bytes(encode(IMAGES[index]))
    source = keras_vit.data.from_files(tmp_path)
    images, labels = next(iter(keras_vit.data.train_pipeline(source, tiny().preprocessing, 4)))
    assert images.shape == (4, 16, 16, 3) and labels.numpy().tolist() == [0] * 4
    assert source.class_names == ("unlabelled",) and source.name_of(1) == "deep/1.png"
