"""from_npz: the parts of a file of arrays, and files that are none."""

import io
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import from_arrays, from_npz
from keras_vit.data.local import parts_of
from keras_vit.evaluation.labelled import match_labels, open_labelled

IMAGES = np.random.default_rng(0).integers(0, 256, (7, 4, 4, 3), dtype=np.uint8)
TRAIN = {"x_train": IMAGES[:4], "y_train": np.array([0, 2, 1, 0])}
TEST = {"x_test": IMAGES[4:], "y_test": np.array([[1], [0], [3]], np.uint8)}


@pytest.fixture
def write(tmp_path):
    def write(**arrays):
        np.savez_compressed(tmp_path / "set.npz", **arrays)
        return tmp_path / "set.npz"

    return write


def test_both_parts_have_the_classes_of_the_file(write):
    path = write(**TRAIN, **TEST)
    for part, arrays in (("train", TRAIN), ("test", TEST)):
        source = from_npz(path, part)
        elements = list(source.dataset.as_numpy_iterator())
        np.testing.assert_array_equal([element["image"] for element in elements], arrays[f"x_{part}"])
        assert [element["label"] for element in elements] == arrays[f"y_{part}"].reshape(-1).tolist()
        assert source.class_names == ("0", "1", "2", "3")
    assert parts_of(path) == ("train", "test") and from_npz(str(path)).size == 4


def test_labels_of_another_byte_order(write):
    assert from_npz(write(**{**TRAIN, "y_train": TRAIN["y_train"].astype(">i8")})).labels.tolist() == [0, 2, 1, 0]


def test_one_part_is_enough(write):
    path = write(**TRAIN, y_test=TEST["y_test"][:2])
    assert parts_of(path) == ("train",)
    assert from_npz(path).class_names == ("0", "1", "2")
    assert from_npz(path, class_names=list("abcd")).class_names == ("a", "b", "c", "d")


def test_refusals(write, tmp_path):
    whole = write(**TRAIN)
    with pytest.raises(ValueError, match="must contain x_test and y_test; it contains x_train, y_train"):
        from_npz(whole, "test")
    with pytest.raises(ValueError, match="part must be one of 'train', 'test'; got part='validation'"):
        from_npz(whole, "validation")
    with pytest.raises(ValueError, match="labels must be from 0 to 1; they range"):
        from_npz(whole, class_names=["a", "b"])
    (tmp_path / "cut.npz").write_bytes(whole.read_bytes()[:-40])
    (tmp_path / "text.npz").write_text("no arrays")
    (tmp_path / "empty.npz").write_bytes(b"")
    for name in ("cut", "text", "empty"):
        with pytest.raises(ValueError, match=f"{name}.npz' must be a whole .npz file"):
            from_npz(tmp_path / f"{name}.npz")
    np.save(tmp_path / "one.npy", IMAGES)
    with pytest.raises(ValueError, match="one.npy' must be a whole .npz file: File is not a zip file"):
        from_npz(tmp_path / "one.npy")
    with pytest.raises(FileNotFoundError, match="there is no file .*none.npz"):
        from_npz(tmp_path / "none.npz")
    with pytest.raises(ValueError, match="images must be uint8 .*; got float32"):
        from_npz(write(**{**TRAIN, "x_train": IMAGES[:4].astype("float32")}))


def test_objects_are_not_unpickled(write):
    path = write(x_train=IMAGES[:4], y_train=np.array([0, 1, "two", 3], dtype=object))
    with pytest.raises(ValueError, match="'y_train.npy' must hold numbers; got Python objects, which are never unpick"):
        from_npz(path)


def test_arrays_are_checked_by_their_headers(write, tmp_path, monkeypatch):
    """Nothing is read of arrays that do not fit, or that are compressed so that a small file fills the memory."""
    path = write(**{**TRAIN, "x_train": np.zeros((2**26, 1, 1), np.uint8)})
    assert path.stat().st_size < 2**20
    monkeypatch.setattr("keras_vit.checkpoints.npz.aligned_zeros", None)  # no array is read
    with pytest.raises(ValueError, match="labels must be 67108864 integers, one per image; got int64"):
        from_npz(path)
    monkeypatch.undo()
    monkeypatch.setattr("keras_vit.data.local._SMALL", 2**20)
    message = "may hold 1,048,576 bytes of images and labels at its size; got {} bytes"
    with pytest.raises(ValueError, match=message.format("1,048,640")):
        from_npz(write(x_train=np.zeros((5, 262145 // 5 + 1, 4), np.uint8), y_train=np.zeros(5, int)))
    zeros = {"x_test": np.zeros((2**17, 1, 1), np.uint8), "y_test": np.zeros(2**17, int)}
    with pytest.raises(ValueError, match=message.format("1,179,872")):  # all labels are read for the number of classes
        from_npz(write(**TRAIN, **zeros))
    with zipfile.ZipFile(tmp_path / "lzma.npz", "w", zipfile.ZIP_LZMA) as archive:
        for name, array in TRAIN.items():
            stream = io.BytesIO()
            np.save(stream, array)
            archive.writestr(f"{name}.npy", stream.getvalue())
    with pytest.raises(ValueError, match="'x_train.npy' must be stored or deflated; got compression 14"):
        from_npz(tmp_path / "lzma.npz")
    magic, power = b"\x93NUMPY\x01\x00", b"{'descr': '|u1', 'fortran_order': False, 'shape': (9**99,)}"
    for member in (magic + b"\x10\x00" + b"(" * 15 + b"\n", magic + b"\x40\x00" + power):
        with zipfile.ZipFile(tmp_path / "damaged.npz", "w") as archive:
            archive.writestr("x_train.npy", member.ljust(74))
            archive.writestr("other.txt", "ignored")
        with pytest.raises(ValueError, match="damaged.npz' must be a whole .npz file: 'x_train.npy' must be a .npy"):
            from_npz(tmp_path / "damaged.npz")
    with pytest.raises(ValueError, match="labels must be 4 integers, one per image; got str"):
        from_npz(write(**{**TRAIN, "y_train": np.array(["a"] * 4)}))


def test_one_damaged_label_makes_no_millions_of_names(write):
    message = "labels without class_names must be below 1,048,576; the highest is 30000000"
    for arrays in ({**TRAIN, "y_train": [0, 2, 1, 3 * 10**7]}, {**TRAIN, **TEST, "y_test": [0, 1, 3 * 10**7]}):
        with pytest.raises(ValueError, match=message):
            from_npz(write(**arrays))
    with pytest.raises(ValueError, match=message):
        from_arrays(IMAGES[:2], [0, 3 * 10**7])
    ready = tf.data.Dataset.from_tensor_slices((IMAGES / 255.0, [0, 1, 2, 3, 4, 5, 3 * 10**7])).batch(4)
    [opened] = open_labelled({"train": ready}, None, None, 4)
    with pytest.raises(ValueError, match=message):
        match_labels(opened, opened)


def test_a_damaged_array_is_named(write):
    path = write(**TRAIN)
    contents = bytearray(path.read_bytes())
    start = contents.index(b"x_train.npy") + 60
    contents[start : start + 40] = bytes(40)
    path.write_bytes(contents)
    with pytest.raises(ValueError, match="set.npz' must be a whole .npz file: .*CRC-32 for file 'x_train.npy'"):
        from_npz(path)
