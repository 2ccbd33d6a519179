"""from_arrays, and what every source can do: splits, names and memory."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from image_sets import encode, stream, write_folder, write_records
from slow_rows import slow_after

from keras_vit.data import ImageSource, from_arrays, from_directory, from_tfrecord, sources

IMAGES = np.random.default_rng(0).integers(0, 256, (10, 4, 4, 1), dtype=np.uint8)
LABELS = np.array([3, 1, 2, 0, 1, 1, 2, 3, 0, 2])


def elements(source):
    return [(e["image"], int(e["label"])) for e in source.dataset.as_numpy_iterator()]


def test_arrays_keep_their_order():
    source = from_arrays(IMAGES, LABELS)
    assert source.class_names == ("0", "1", "2", "3") and source.size == 10 and source.files is None
    images, labels = zip(*elements(source), strict=True)
    np.testing.assert_array_equal(images, IMAGES)
    np.testing.assert_array_equal(labels, LABELS)
    assert source.dataset.element_spec["label"].dtype == "int32"


def test_arrays_without_channels_and_labels_in_a_column():
    source = from_arrays(IMAGES[..., 0], LABELS[:, None], class_names=["a", "b", "c", "d", "e"])
    assert source.class_names == ("a", "b", "c", "d", "e")
    np.testing.assert_array_equal([image for image, _ in elements(source)], IMAGES)
    np.testing.assert_array_equal([label for _, label in elements(source)], LABELS)


def test_array_refusals():
    refused = [
        ((IMAGES / 255.0, LABELS), r"images must be uint8 on 0..255; got float64 \(np.round"),
        ((IMAGES[0, 0], LABELS), r"images, height, width.*got \(4, 1\)"),
        ((IMAGES[:0], LABELS[:0]), r"no side of length 0; got shape \(0, 4, 4, 1\)"),
        ((np.zeros((3, 3, 4, 4, 2), np.uint8), LABELS[:3]), r"got \(3, 3, 4, 4, 2\)"),
        ((IMAGES, LABELS[:9]), r"10 integers, one per image; got int64 of shape \(9,\)"),
        ((IMAGES, np.eye(4)[LABELS]), r"10 integers, one per image; got float64 of shape \(10, 4\)"),
        ((IMAGES, LABELS, ["a", "b"]), "from 0 to 1; they range from 0 to 3"),
        ((IMAGES, LABELS - 1), "they range from -1 to 2"),
    ]
    for arguments, message in refused:
        with pytest.raises(ValueError, match=message):
            print(message, from_arrays(*arguments))  # shown where nothing is raised


def test_split_is_a_partition_in_order_and_depends_on_the_seed():
    numbers = np.arange(10, dtype=np.uint8).reshape(10, 1, 1)

    def numbers_of(seed):
        rest, held_out = from_arrays(numbers, LABELS).split(0.3, seed=seed)
        assert (rest.size, held_out.size) == (7, 3)
        parts = [[int(image.item()) for image, _ in elements(part)] for part in (rest, held_out)]
        for part, found in zip((rest, held_out), parts, strict=True):
            assert [label for _, label in elements(part)] == [LABELS[n] for n in found]
        return parts

    first, again, other = numbers_of(1), numbers_of(1), numbers_of(2)
    assert first == again != other
    for rest, held_out in (first, other):
        assert sorted(rest + held_out) == list(range(10))
        assert rest == sorted(rest) and held_out == sorted(held_out)


@pytest.mark.parametrize("fraction", slow_after(2, [0.05, 0.5, 0.2, 0.9]))
def test_split_holds_out_of_every_class_its_share(fraction):
    counts = np.array([100, 60, 20, 7, 1, 1])
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(6), counts))
    source = from_arrays(np.zeros((len(labels), 1, 1, 1), np.uint8), labels)
    held_outs = []
    for seed in range(3):
        rest, held_out = source.split(fraction, seed=seed)
        assert held_out.size == round(fraction * len(labels))
        found = [np.bincount([label for _, label in elements(part)], minlength=6) for part in (rest, held_out)]
        np.testing.assert_array_equal(sum(found), counts)
        assert np.abs(found[1] - fraction * counts).max() <= 1
        for part, number in zip((rest, held_out), found, strict=True):
            np.testing.assert_array_equal(np.bincount(part.labels, minlength=6), number)
        held_outs.append(found[1][4:].sum())
    assert max(held_outs) <= 2


def test_classes_of_one_image_are_drawn_alike():
    source = from_arrays(np.zeros((20, 1, 1, 1), np.uint8), np.arange(20))
    drawn = [source.split(0.25, seed=seed)[1].labels for seed in range(25)]
    assert {len(labels) for labels in drawn} == {5}
    assert set(np.concatenate(drawn)) == set(range(20))


def test_every_class_keeps_an_image(caplog):
    images = np.zeros((12, 1, 1, 1), np.uint8)
    counts = [1] * 6 + [6]
    source = from_arrays(images, np.repeat(np.arange(7), counts))
    for fraction, held_out in ((0.1, 1), (0.2, 2), (5 / 12, 5)):
        for seed in range(5):
            parts = source.split(fraction, seed=seed)
            assert {*parts[0].labels.tolist()} == {*range(7)} and parts[1].labels.tolist() == [6] * held_out
    assert not caplog.messages
    rest, _ = source.split(0.75)
    assert len({*rest.labels}) == 3  # of 7 classes
    assert caplog.messages == ["split(0.75) holds out every image of 4 classes: training lacks them"]
    damaged = dataclasses.replace(source, labels=np.array([-1, 2**31 - 1] + 10 * [0]))  # as cached() keeps them
    assert set(damaged.split(0.5)[0].labels) == {-1, 0, 2**31 - 1}


def test_a_source_whose_labels_are_not_known_is_split_as_a_whole(tmp_path):
    source = from_directory(write_folder(tmp_path, [encode(image) for image in IMAGES], LABELS))
    unknown = dataclasses.replace(source, labels=None)
    rest, held_out = unknown.split(0.4, seed=3)
    assert rest.labels is held_out.labels is None
    assert sorted(rest.files + held_out.files) == sorted(source.files)
    np.testing.assert_array_equal(unknown.cached().labels, source.labels)


def test_split_refusals():
    source = from_arrays(IMAGES, LABELS)
    with pytest.raises(ValueError, match="each part an image; got fraction=0.01 of 10"):
        source.split(0.01)
    with pytest.raises(ValueError, match="fraction must be a number"):
        source.split(1.5)
    with pytest.raises(ValueError, match="without lookup cannot be split"):
        ImageSource(source.dataset, source.class_names, source.size).split(0.5)


def test_take_refuses_positions_outside():
    with pytest.raises(ValueError, match="positions must be from 0 to 9; got 10"):
        from_arrays(IMAGES, LABELS).take([0, 10])


def test_images_have_names(tmp_path):
    source = from_directory(write_folder(tmp_path, [encode(image) for image in IMAGES[:3]], LABELS[:3]))
    assert source.name_of(0) == str(tmp_path / "001" / "0001.png")
    assert source.take([2, 0]).name_of(1) == source.name_of(0)
    assert from_arrays(IMAGES, LABELS).name_of(4) == "image 4"
    described = ImageSource(source.dataset, source.class_names, 3, lookup=source.lookup, describe="record {}".format)
    assert described.take([2, 0]).take([1]).name_of(0) == "record 0"


@pytest.mark.parametrize("has_lookup", [True, False])
def test_mapped_images_keep_labels_and_places(tmp_path, has_lookup):
    source = from_directory(write_folder(tmp_path, [encode(image, "png") for image in IMAGES], LABELS))
    known = elements(source)
    source = source if has_lookup else ImageSource(source.dataset, source.class_names, source.size, source.files)
    mapped = source.map_images(lambda encoded: 255 - tf.io.decode_png(encoded))
    assert (mapped.size, mapped.files, mapped.class_names) == (source.size, source.files, source.class_names)
    assert not mapped.is_encoded and (mapped.lookup is not None) == has_lookup
    for (image, label), (encoded, wanted) in zip(elements(mapped), known, strict=True):
        np.testing.assert_array_equal(image, 255 - tf.io.decode_png(encoded).numpy())
        assert label == wanted
    if has_lookup:
        np.testing.assert_array_equal(elements(mapped.take([3]))[0][0], elements(mapped)[3][0])


def test_cached_pixels_and_files_are_the_same_and_read_once(tmp_path):
    arrays = from_arrays(IMAGES, LABELS)
    folder = from_directory(write_folder(tmp_path, [encode(image) for image in IMAGES], LABELS))
    for source in (arrays, stream(arrays), folder):
        cached = source.cached()
        assert (cached.class_names, cached.size, cached.files) == (source.class_names, source.size, source.files)
        assert cached.dataset.element_spec == source.dataset.element_spec
        for (image, label), (expected, expected_label) in zip(elements(cached), elements(source), strict=True):
            np.testing.assert_array_equal(image, expected)
            assert label == expected_label
        assert elements(cached.take([7]))[0][1] == elements(source)[7][1]  # a stream has lookup now
    before = elements(folder)
    cached = folder.cached()
    for file in folder.files:
        open(file, "wb").close()
    assert elements(cached) == before


def test_cached_images_may_differ_in_size():
    sizes = [(2, 3, 1), (4, 1, 1), (1, 1, 1)]
    images = [np.random.default_rng(n).integers(0, 256, size, dtype=np.uint8) for n, size in enumerate(sizes)]
    signature = {"image": tf.TensorSpec((None, None, 1), tf.uint8), "label": tf.TensorSpec((), tf.int32)}
    dataset = tf.data.Dataset.from_generator(
        lambda: ({"image": image, "label": n} for n, image in enumerate(images)), output_signature=signature
    )
    for expected, (image, _) in zip(images, elements(ImageSource(dataset, "abc", 3).cached()), strict=True):
        np.testing.assert_array_equal(image, expected)


def test_cached_keeps_the_place_of_a_file_that_is_gone(tmp_path):
    source = from_directory(write_folder(tmp_path, [encode(image) for image in IMAGES[:3]], [0, 1, 2]))
    (tmp_path / "001" / "0001.png").unlink()
    found = elements(source.cached())
    assert [len(image) > 0 for image, _ in found] == [True, False, True] and found[2][1] == 2


def test_cached_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match=r"max_bytes must hold 10 images; got 100, and \d take \d{3}"):
        from_arrays(IMAGES, LABELS).cached(max_bytes=100)
    shorter = ImageSource(from_arrays(IMAGES, LABELS).dataset.take(4), ("a",) * 4, 10)
    with pytest.raises(ValueError, match="must contain 10 images, its size; it contains 4"):
        shorter.cached()


class TestFingerprint:
    def test_each_change_shows_in_its_own_value(self):
        def changed(images=IMAGES, labels=LABELS, names="abcd"):
            other = from_arrays(images, labels, class_names=tuple(names)).fingerprint()
            return {name for name in plain if plain[name] != other[name]}

        plain = from_arrays(IMAGES, LABELS, class_names=tuple("abcd")).fingerprint()
        assert plain["images"] == 10 and plain["classes"] == 4 and plain["files"] is None
        assert changed() == set()
        assert changed(images=255 - IMAGES) == {"contents"}
        assert changed(images=IMAGES.transpose(0, 2, 1, 3)) == {"contents"}
        assert changed(labels=LABELS[::-1]) == {"labels"}
        assert changed(names="abdc") == {"class_names"}
        assert changed(names="abcde") == {"class_names", "classes"}
        assert changed(images=IMAGES[:9], labels=LABELS[:9]) == {"images", "labels", "contents"}

    def test_a_moved_folder_keeps_it_and_renamed_or_rewritten_files_do_not(self, tmp_path):
        contents = [encode(image) for image in IMAGES]
        folder = write_folder(tmp_path / "here", contents, LABELS)
        before = from_directory(folder).fingerprint()
        folder = folder.rename(tmp_path / "there")
        assert from_directory(folder).fingerprint() == before
        (folder / "001" / "0001.png").write_bytes(contents[0])
        rewritten = from_directory(folder).fingerprint()
        assert {name for name in before if before[name] != rewritten[name]} == {"contents"}
        (folder / "001" / "0001.png").rename(folder / "001" / "0000.png")
        moved = from_directory(folder).fingerprint()
        assert moved == {**rewritten, "files": moved["files"]} and moved["files"] != before["files"]

    def test_mapped_split_and_streamed_images_have_their_own(self):
        source = from_arrays(IMAGES, LABELS)
        inverted = source.map_images(lambda image: 255 - image)
        assert inverted.fingerprint() == from_arrays(255 - IMAGES, LABELS).fingerprint()
        assert source.split(0.5, seed=1)[0].fingerprint() != source.split(0.5, seed=2)[0].fingerprint()
        assert stream(source).fingerprint() == source.fingerprint()  # of up to 256 images
        assert stream(inverted).fingerprint() != source.fingerprint()
        assert dataclasses.replace(source, labels=None).fingerprint() == source.fingerprint()

    def test_records_tell_labels_and_images(self, tmp_path):
        contents = [encode(image) for image in IMAGES]
        files = [
            write_records(tmp_path / name, contents, labels)[0] for name, labels in (("a", LABELS), ("b", LABELS[::-1]))
        ]
        first, second = (from_tfrecord([file], class_names=tuple("abcd")).fingerprint() for file in files)
        assert {name for name in first if first[name] != second[name]} == {"labels"}

    def test_it_is_quick_for_large_folders(self, tmp_path, monkeypatch):
        """At most 256 of the files are read, evenly from the first to the last."""
        source = from_directory(write_folder(tmp_path, [b"no image"] * 300, np.arange(300) % 3))
        read = []
        monkeypatch.setattr(sources, "digest", lambda data: read.append(data) or "0")
        source.fingerprint()
        assert read.count(b"no image") == 256 + 8

    def test_a_random_function_and_unreadable_files_make_no_other_images(self, tmp_path):
        noise = from_arrays(IMAGES, LABELS).map_images(
            lambda image: tf.cast(tf.random.uniform(tf.shape(image), 0, 256, "int32"), "uint8")
        )
        tf.random.set_seed(None)
        assert noise.fingerprint()["contents"] is None
        source = from_directory(write_folder(tmp_path, [encode(image) for image in IMAGES], LABELS))
        (tmp_path / "000" / "0003.png").unlink()
        first, second = source.fingerprint(), source.fingerprint()
        assert first["contents"] is not None and second == first
