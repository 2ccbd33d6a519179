"""VTAB-1k: the table, its label rules against NumPy, and parts of a set that is prepared here."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from faults import for_each
from numbered_images import NumberedImages, objects_of
from slow_rows import slow_after
from small_digits import SmallDigits

import keras_vit.data
from keras_vit.data import VTAB_TASKS, from_arrays, list_vtab_tasks, thousand_examples, vtab_1k

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    made = NumberedImages(data_dir=tmp_path_factory.mktemp("tfds"))
    made.download_and_prepare()
    return made


@pytest.fixture(scope="module")
def order(builder):
    """{split: numbers of its images in the order of the records}."""
    splits = {name: builder.as_dataset(split=name, shuffle_files=False) for name in builder.info.splits}
    return {name: [int(n) for n in dataset.map(lambda e: e["number"])] for name, dataset in splits.items()}


def contents(source):
    """Highest pixel value, numbers and labels of the images, in order."""
    pixels = source.map_images(lambda p: tf.io.decode_png(p, channels=1)) if source.is_encoded else source
    batch = next(pixels.dataset.batch(source.size).as_numpy_iterator())
    bits = batch["image"].reshape(source.size, 16) > 0
    return batch["image"].max(), (bits @ (1 << np.arange(16))).tolist(), batch["label"].tolist()


def label_of(task, **features):
    def tensors(value):
        return {k: tensors(v) for k, v in value.items()} if isinstance(value, dict) else tf.constant(value)

    return int(VTAB_TASKS[task].label.label(tensors(features)))


def test_tasks_are_in_the_order_of_table_9():
    names = list_vtab_tasks()
    groups = [VTAB_TASKS[name].group for name in names]
    assert groups == ["natural"] * 7 + ["specialized"] * 4 + ["structured"] * 8
    assert names[:2] + names[6:8] + names[-2:] == [
        "Caltech",
        "CIFAR-100",
        "SVHN",
        "Camelyon",
        "sNORB-Azim",
        "sNORB-Elev",
    ]
    assert list_vtab_tasks("Clevr-*") == ["Clevr-Count", "Clevr-Dist"]


@for_each("task", VTAB_TASKS.values())
def test_row_is_a_set_of_tensorflow_datasets(task):
    with tfds.testing.mock_data():
        features = tfds.builder(task.dataset).info.features
    assert isinstance(features["image"], tfds.features.Image)
    if isinstance(task.label, str):
        assert features[task.label].num_classes == task.classes
    else:
        assert len(task.label.class_names) == len(set(task.label.class_names)) == task.classes
        for name, inside in task.label.features.items():
            assert inside is True or set(inside) <= set(features[name].feature)


# Parts as the official code cuts them, for 1200 training, 220 validation and 430 test images.
@pytest.mark.parametrize(
    ("task", "validation", "test"),
    slow_after(
        0,
        [
            ("KITTI", ("validation", slice(200)), ("test", slice(430))),
            ("dSpr-Ori", ("train", slice(960, 1160)), ("train", slice(1080, 1200))),
            ("EuroSAT", ("train", slice(720, 920)), ("train", slice(960, 1200))),
            ("sNORB-Azim", ("test", slice(200)), ("test", slice(215, 430))),
        ],
    ),
)
def test_parts_are_those_of_the_official_code(builder, order, task, validation, test):
    found = vtab_1k(task, dataset=builder)
    assert len(found.class_names) == VTAB_TASKS[task].classes
    wanted = {"train800": order["train"][:800]}
    wanted |= {"val200": order[validation[0]][validation[1]], "test": order[test[0]][test[1]]}
    for part, numbers in wanted.items():
        source = getattr(found, part)
        highest, found_numbers, labels = contents(source)
        assert found_numbers == numbers, part
        assert labels == [label_by_numpy(task, n) for n in numbers] and len(set(labels)) > 1
        assert highest == (255 if task == "dSpr-Ori" else 1)
        assert source.lookup is not None and source.class_names == found.class_names
    assert sorted(contents(found.train1000)[1]) == sorted(wanted["train800"] + wanted["val200"])


def label_by_numpy(task, n):
    objects = objects_of(n)
    if task == "KITTI":
        depths = [z for z, kind in zip(objects["location"][:, 2], objects["type"], strict=True) if kind in (0, 1, 2)]
        return 3 if not depths else int(np.digitize(min(depths), [8, 20], right=True))
    modulus = {"dSpr-Ori": 40, "sNORB-Azim": 18}.get(task, 10)
    return n % modulus if task != "dSpr-Ori" else int(np.float32(n % 40) // np.float32(40 / 16))


def test_clevr_counts_objects():
    for count in range(3, 11):
        sizes = RNG.integers(0, 2, count)
        assert label_of("Clevr-Count", objects={"size": sizes}) == count - 3
        assert VTAB_TASKS["Clevr-Count"].label.class_names[count - 3] == f"{count} objects"


def test_clevr_distance_is_that_of_the_closest_object():
    for depth in (7.0, 8.0, 8.0001, 8.5, 8.7, 9.0, 9.4, 9.5, 9.9, 10.0, 10.1, 14.0):
        coordinates = np.float32([[300, 200, depth + 2], [10, 20, depth], [0, 1, depth + 0.5]])
        expected = np.digitize(np.float32(depth), [8.0, 8.5, 9.0, 9.5, 10.0], right=True)
        assert label_of("Clevr-Dist", objects={"pixel_coords": coordinates}) == expected
    names = VTAB_TASKS["Clevr-Dist"].label.class_names
    assert (names[0], names[1], names[5]) == ("closest object up to 8.0", "up to 8.5", "beyond 10.0")


@for_each(
    ("kinds", "depths", "expected"),
    [
        ([0], [8.0], 0),
        ([0], [8.1], 1),
        ([1, 2], [50.0, 20.0], 1),
        ([2, 3], [20.5, 5.0], 2),  # the pedestrian in front is no vehicle
        ([0, 0, 1], [-1.0, 30.0, 70.0], 0),
        ([3, 4, 5, 6, 7], [1.0, 2.0, 3.0, 4.0, 5.0], 3),
        ([], [], 3),
    ],
)
def test_kitti_distance_is_that_of_the_closest_car_van_or_truck(kinds, depths, expected):
    locations = np.float32([[7.0, 1.5, depth] for depth in depths]).reshape(-1, 3)
    assert label_of("KITTI", objects={"type": np.int64(kinds), "location": locations}) == expected


@pytest.mark.parametrize(
    ("task", "feature", "values"),
    [
        ("dSpr-Loc", "label_x_position", 32),
        ("dSpr-Ori", "label_orientation", 40),
    ],
)
def test_dsprites_neighbours_share_a_class(task, feature, values):
    found = [label_of(task, **{feature: np.int64(v)}) for v in range(values)]
    assert found == np.floor_divide(np.arange(values, dtype=np.float32), np.float32(values / 16)).astype(int).tolist()
    assert sorted(set(found)) == list(range(16))
    for v, label in enumerate(found):
        first, last = VTAB_TASKS[task].label.class_names[label].split(" ")[1::2]
        assert int(first) <= v <= int(last)


def test_refusals(builder, tmp_path):
    with pytest.raises(ValueError, match="task must be one of 'Caltech', .*got task='caltech'"):
        vtab_1k("caltech")
    with pytest.raises(ValueError, match=r"the 37 classes of Pets; got 10 \(0, 1, 2, ...\)"):
        vtab_1k("Pets", dataset=builder)
    with pytest.raises(ValueError, match="must read features of the set, image .*; it reads label_x_position"):
        vtab_1k("dSpr-Loc", dataset=builder)
    small = SmallDigits(data_dir=tmp_path)
    small.download_and_prepare()
    with pytest.raises(ValueError, match="small_digits/1.0.0 must have 800 images in train; it has 50"):
        vtab_1k("SVHN", dataset=small)


class TestThousandExamples:
    IMAGES = RNG.integers(0, 256, (1100, 2, 2, 1), dtype=np.uint8)
    SOURCE = from_arrays(IMAGES, np.arange(1100) % 5)

    def found(self, source):
        keys = {image.tobytes(): n for n, image in enumerate(self.IMAGES)}
        assert len(keys) == 1100
        return [keys[e["image"].tobytes()] for e in source.dataset.as_numpy_iterator()]

    def test_parts_share_nothing_and_leave_nothing(self):
        parts = thousand_examples(self.SOURCE, seed=3)
        train, validation, test = (self.found(part) for part in (parts.train800, parts.val200, parts.test))
        assert [len(part) for part in (train, validation, test)] == [800, 200, 100]
        assert sorted(train + validation + test) == list(range(1100))
        assert self.found(parts.train1000) == train + validation
        assert train == sorted(train) != list(range(800))
        assert parts.class_names == ("0", "1", "2", "3", "4")

    def test_the_seed_chooses(self):
        drawn = [self.found(thousand_examples(self.SOURCE, seed=seed).val200) for seed in (0, 0, 1)]
        assert drawn[0] == drawn[1] != drawn[2]

    def test_a_test_set_stays_whole(self):
        thousand, test = self.SOURCE.take(range(1000)), self.SOURCE.take(range(1000, 1100))
        parts = thousand_examples(thousand, test)
        assert parts.test is test and sorted(self.found(parts.train1000)) == list(range(1000))

    def test_refusals(self):
        with pytest.raises(ValueError, match="source must contain at least 1001 images; got 1000"):
            thousand_examples(self.SOURCE.take(range(1000)))
        other = from_arrays(self.IMAGES[:9], np.arange(9) % 5, list("abcde"))
        with pytest.raises(ValueError, match=r"test must have the classes 5 \(0, 1, 2, ...\); got 5 \(a, b, c"):
            thousand_examples(self.SOURCE, other)
        stream = keras_vit.data.ImageSource(self.SOURCE.dataset, self.SOURCE.class_names, 1100)
        with pytest.raises(ValueError, match="without lookup"):
            thousand_examples(stream)
