"""from_npz: the parts of a file of arrays, and files that are none."""

import numpy as np
import pytest

from keras_vit.data import from_npz
from keras_vit.data.local import parts_of

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
    with pytest.raises(ValueError, match="labels must be from 0 to 1, as there are 2 classes"):
        from_npz(whole, class_names=["a", "b"])
    (tmp_path / "cut.npz").write_bytes(whole.read_bytes()[:-40])
    (tmp_path / "text.npz").write_text("no arrays")
    (tmp_path / "empty.npz").write_bytes(b"")
    for name in ("cut", "text", "empty"):
        with pytest.raises(ValueError, match=f"{name}.npz must be a complete .npz file"):
            from_npz(tmp_path / f"{name}.npz")
    np.save(tmp_path / "one.npy", IMAGES)
    with pytest.raises(ValueError, match="it is an .npy file of one array"):
        from_npz(tmp_path / "one.npy")
    with pytest.raises(FileNotFoundError, match="there is no file .*none.npz"):
        from_npz(tmp_path / "none.npz")
    with pytest.raises(ValueError, match="images must be uint8 on 0..255; got float32"):
        from_npz(write(**{**TRAIN, "x_train": IMAGES[:4].astype("float32")}))


def test_objects_are_not_unpickled(write):
    path = write(x_train=IMAGES[:4], y_train=np.array([0, 1, "two", 3], dtype=object))
    with pytest.raises(ValueError, match="y_train of .*set.npz must be a complete array of numbers; Object arrays"):
        from_npz(path)


def test_a_damaged_array_is_named(write):
    path = write(**TRAIN)
    contents = bytearray(path.read_bytes())
    start = contents.index(b"x_train.npy") + 60
    contents[start : start + 40] = bytes(40)
    path.write_bytes(contents)
    with pytest.raises(ValueError, match="x_train of .*set.npz must be a complete array of numbers"):
        from_npz(path)
