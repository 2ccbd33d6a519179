"""Images with labels: every kind gives the same ones, and classes are matched by name."""

import types

import numpy as np
import pytest
import tensorflow as tf
from image_sets import encode, stream, write_folder, write_records
from sklearn.datasets import load_digits

from keras_vit import Preprocessing
from keras_vit.data import ImageSource, from_arrays, from_directory, from_tfds, from_tfrecord
from keras_vit.evaluation.labelled import match_labels, open_labelled

LEVELS = Preprocessing(size=8, mean=(0.0,) * 3, std=(1 / 255,) * 3)  # leaves the pixel values as they are
IMAGES = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
LABELS = np.sort(np.arange(12) % 3)  # in the order of class folders
NAMES = ("000", "001", "002")
SLOW = pytest.mark.slow


MODEL = types.SimpleNamespace(name="toy", preprocessing=LEVELS, input_shape=(None, 8, 8, 3))


def opened(data, batch_size=4, preprocessing=None):
    return open_labelled({"train": data}, MODEL, preprocessing, batch_size)[0]


def batched(batch_size=5, **changes):
    arrays = {"x": IMAGES.astype(np.float32), "y": LABELS, **changes}
    return tf.data.Dataset.from_tensor_slices((arrays["x"], arrays["y"])).batch(batch_size)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    contents = [encode(image) for image in IMAGES]
    folder = write_folder(tmp_path_factory.mktemp("folder"), contents, LABELS)
    records = write_records(tmp_path_factory.mktemp("records"), contents, LABELS)
    arrays = from_arrays(IMAGES, LABELS, NAMES)
    return {
        "folder": folder,
        "path": str(folder),
        "records": from_tfrecord(records, class_names=NAMES),
        "arrays": arrays,
        "stream": stream(arrays),
        "dataset": batched(),
    }


@pytest.mark.parametrize(
    "kind", ["arrays", "stream", "dataset", *(pytest.param(k, marks=SLOW) for k in ("path", "records"))]
)
def test_every_kind_gives_the_same(kinds, kind):
    data, positions = opened(kinds[kind]), np.array([1, 2, 5, 6, 8, 11])
    np.testing.assert_array_equal(data.labels, LABELS)
    assert data.class_names == (None if kind == "dataset" else NAMES)
    batches, steps = data.batches(positions)
    batches = list(batches)
    assert [len(labels) for _, labels in batches] == [4, 2] and steps == 2
    assert_are(batches, positions)


@pytest.mark.parametrize(("kind", "steps"), [("folder", 3), ("dataset", 3)])
def test_all_images(kinds, kind, steps):
    batches, found = opened(kinds[kind]).batches()
    assert found == steps
    assert_are(list(batches), np.arange(12))


def assert_are(batches, positions):
    images, labels = (np.concatenate(part) for part in zip(*batches, strict=True))
    np.testing.assert_allclose(images, IMAGES[positions], atol=1e-3)
    np.testing.assert_array_equal(labels, LABELS[positions])


@SLOW
def test_a_set_of_tensorflow_datasets(tmp_path):
    digits = pytest.importorskip("small_digits").SmallDigits(data_dir=tmp_path)
    data = opened(from_tfds(digits, "test"))
    np.testing.assert_array_equal(np.sort(data.labels), np.sort(load_digits().target[50:60]))
    images, labels = next(iter(data.batches(np.array([3]))[0]))
    assert images.shape == (1, 8, 8, 3) and labels.tolist() == [data.labels[3]]


def test_labels_are_read_without_the_images(tmp_path):
    write_folder(tmp_path, [encode(image) for image in IMAGES], LABELS)
    source = from_directory(tmp_path)
    for file in source.files:
        (tmp_path / file).unlink()
    np.testing.assert_array_equal(opened(source).labels, LABELS)


@SLOW
def test_a_stream_names_the_image_that_cannot_be_read():
    contents = [encode(image) for image in IMAGES[:3]] + [b"not an image"]
    elements = tf.data.Dataset.from_tensor_slices({"image": contents, "label": tf.constant([0, 1, 0, 1])})
    data = opened(ImageSource(elements, ("a", "b"), 4))
    assert len(list(data.batches(np.array([0, 1]))[0])) == 1
    with pytest.raises(ValueError, match="image 3 must be an image"):
        list(data.batches(np.array([1, 3]))[0])


def test_another_order_of_a_dataset_is_seen():
    shuffled = batched().unbatch().shuffle(12, seed=0).batch(5)
    elements = from_arrays(IMAGES, LABELS, NAMES).dataset.shuffle(12, seed=0)
    for data in (opened(shuffled), opened(ImageSource(elements, NAMES, 12))):
        assert sorted(data.labels) == LABELS.tolist()
        with pytest.raises(ValueError, match="train must keep its order"):
            list(data.batches(np.arange(12))[0])


class TestMatchLabels:
    def test_by_name(self):
        train = opened(from_arrays(IMAGES, LABELS, ["ant", "bee", "cat"]))
        test = opened(from_arrays(IMAGES, LABELS, ["cat", "ant", "bee"]))
        names, places = match_labels(train, test)
        assert names == ("ant", "bee", "cat") and places.tolist() == [2, 0, 1]

    def test_of_a_dataset_by_number(self):
        source, dataset = opened(from_arrays(IMAGES, LABELS, NAMES)), opened(batched())
        for pair in ((source, dataset), (dataset, source)):
            names, places = match_labels(*pair)
            assert names == NAMES and places.tolist() == [0, 1, 2]
        assert match_labels(dataset, dataset)[0] == ("0", "1", "2")

    def test_other_classes_are_refused(self):
        train = opened(from_arrays(IMAGES, LABELS, ["ant", "bee", "cat"]))
        other = opened(from_arrays(IMAGES, LABELS, ["ant", "bee", "dog"]))
        with pytest.raises(ValueError, match="got 3 and 3, only in train: cat; only in test: dog$"):
            match_labels(train, other)
        more = opened(from_arrays(IMAGES, LABELS, ["ant", "bee", "cat", "dog"]))
        with pytest.raises(ValueError, match="same classes; got 3 and 4, only in train: none; only in test: dog$"):
            match_labels(train, more)

    def test_one_class_is_refused(self):
        only = opened(from_arrays(IMAGES, LABELS * 0, ["ant"]))
        with pytest.raises(ValueError, match="at least two classes; it has 1"):
            match_labels(only, only)


def test_a_dataset_of_unknown_length_has_no_number_of_batches():
    assert opened(batched().filter(lambda x, y: True)).batches()[1] is None


def test_refusals():
    refused = [
        ((IMAGES, LABELS), {}, TypeError, "train must be a folder, an ImageSource or .*; got tuple"),
        (batched(), {"preprocessing": LEVELS}, ValueError, "preprocessing is for folders and sources"),
        (batched(), {"batch_size": 0}, ValueError, "batch_size must be an integer of at least 1"),
        (batched().map(lambda x, y: x), {}, ValueError, r"batches \(inputs, labels\); its elements are"),
        (batched(y=np.eye(3)[LABELS]), {}, ValueError, r"integer labels \(images,\); got float64 of"),
        (batched(y=LABELS - 1), {}, ValueError, "labels of train must be from 0; they range from -1 to"),
        (batched().take(0), {}, ValueError, "train must contain at least one image; it contains none"),
        (ImageSource(from_arrays(IMAGES, LABELS).dataset, ("a", "b"), 12), {}, ValueError, "from 0 to 1, as .* 0 to 2"),
    ]
    for data, options, error, message in refused:
        with pytest.raises(error, match=message):
            print(message, opened(data, **options).labels)  # shown where nothing is raised
