"""from_tfds: a small set that is prepared here, and a mocked one."""

import logging
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
from image_sets import LEVELS, assert_equal, batches
from slow_rows import slow_after
from small_digits import NAMES, SmallDigits

from keras_vit import Preprocessing
from keras_vit.data import LabelRule, eval_pipeline, from_tfds, train_pipeline


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    made = SmallDigits(data_dir=tmp_path_factory.mktemp("tfds"))
    made.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=3))
    return made


def expected(builder, split):
    """Pixels and labels as TensorFlow Datasets reads and decodes them, sorted by number."""
    examples = sorted(tfds.as_numpy(builder.as_dataset(split=split)), key=lambda e: e["number"])
    return np.stack([e["image"] for e in examples]), [int(e["label"]) for e in examples]


def contents(source):
    (batch,) = batches(eval_pipeline(source, LEVELS, source.size))
    return np.rint(batch[0]).astype(np.uint8), batch[1].tolist()


def _sorted(images, labels):
    order = np.lexsort(np.asarray(images).reshape(len(images), -1).T)
    return np.asarray(images)[order], np.asarray(labels)[order]


@pytest.mark.parametrize("split", slow_after(0, ["train[7:]+test[-3:]", "train", "test", "train[:30%]"]))
def test_splits_are_those_of_tensorflow_datasets(builder, split):
    source = from_tfds(builder, split)
    images, labels = expected(builder, split)
    assert source.size == len(labels) == builder.info.splits[split].num_examples
    assert source.class_names == tuple(NAMES)
    for found, wanted in zip(_sorted(*contents(source)), _sorted(images, labels), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_images_stay_encoded_and_are_looked_up_by_record(builder):
    source = from_tfds(builder)
    assert source.is_encoded
    assert source.name_of(49).endswith("small_digits-train.tfrecord-00002-of-00003, record 16")
    images, labels = contents(source)
    rest, held_out = source.split(0.2, seed=1)
    assert rest.size == 40 and contents(held_out)[1] == [labels[n] for n in _positions(images, contents(held_out)[0])]


def _positions(images, some):
    return [next(n for n, image in enumerate(images) if np.array_equal(image, one)) for one in some]


def test_a_name_is_prepared_where_it_is_missing(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "keras_vit.data"):
        source = from_tfds("small_digits", "test", data_dir=str(tmp_path))
    assert source.size == 10
    (message,) = [r.getMessage() for r in caplog.records if r.name == "keras_vit.data"]
    assert message == f"Downloading and preparing small_digits/1.0.0 in {tmp_path}/small_digits/1.0.0"
    caplog.clear()
    assert from_tfds("small_digits", "test", data_dir=str(tmp_path)).size == 10
    assert not [r for r in caplog.records if r.name == "keras_vit.data"]


@pytest.mark.slow
def test_a_set_without_files_is_a_stream():
    with tfds.testing.mock_data(num_examples=9):
        source = from_tfds("rock_paper_scissors", "train[:80%]")
        assert (source.size, source.lookup, source.is_encoded) == (9, None, True)
        assert source.class_names == ("rock", "paper", "scissors")
        protocol = Preprocessing(size=16)
        first, again = (batches(eval_pipeline(source, protocol, 4)) for _ in range(2))
        assert [len(labels) for _, labels in first] == [4, 4, 1]
        assert_equal(first, again)
        whole = batches(train_pipeline(source, protocol, 4, seed=1), 5)
        assert_equal(whole[3:], batches(train_pipeline(source, protocol, 4, seed=1, start_step=3), 2))


def test_a_rule_makes_the_label_of_other_features(builder):
    rule = LabelRule({"number": True}, lambda example: example["number"] % 3, ("zero", "one", "two"))
    source = from_tfds(builder, "train[5:]", label_key=rule)
    assert (source.size, source.class_names) == (45, ("zero", "one", "two"))
    wanted = [int(e["number"]) % 3 for e in tfds.as_numpy(builder.as_dataset(split="train[5:]"))]
    assert [int(e["label"]) for e in source.dataset] == wanted and len(set(wanted)) == 3
    assert [int(e["label"]) for e in source.take([7, 2]).dataset] == [wanted[7], wanted[2]]
    far = LabelRule({"number": True}, lambda example: example["number"] + 2**32, ("one",))
    assert int(next(iter(from_tfds(builder, label_key=far).dataset))["label"]) == 2**31 - 1  # no class
    with pytest.raises(ValueError, match=r"read features of the set, image \(Image\), .*; it reads objects"):
        from_tfds(builder, label_key=LabelRule({"objects": ["size"]}, len, ("one",)))


def test_a_rule_serves_a_stream_too():
    with tfds.testing.mock_data(num_examples=9):
        plain = from_tfds("rock_paper_scissors")
        rule = LabelRule({"label": True}, lambda example: 2 - example["label"], ("scissors", "paper", "rock"))
        source = from_tfds("rock_paper_scissors", label_key=rule)
        labels = [[int(e["label"]) for e in s.dataset] for s in (plain, source)]
    assert source.lookup is None and labels[1] == [2 - label for label in labels[0]]


def test_refusals(builder, monkeypatch):
    with pytest.raises(
        ValueError, match=r"image_key must .*kind Image; got image_key='photo'; the set has image \(Image\)"
    ):
        from_tfds(builder, image_key="photo")
    with pytest.raises(ValueError, match="label_key must .*kind ClassLabel; got label_key='number'"):
        from_tfds(builder, label_key="number")
    with pytest.raises(ValueError, match="data_dir is for a name"):
        from_tfds(builder, data_dir="/elsewhere")
    with pytest.raises(TypeError, match="a name or a tfds.core.DatasetBuilder; got int"):
        from_tfds(3)
    with pytest.raises(ValueError, match="Unknown split 'valid'"):
        from_tfds(builder, "valid")
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ImportError, match=r"pip install tensorflow-datasets$"):
        from_tfds("cifar10")
