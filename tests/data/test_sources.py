"""from_folder and from_arrays: order, names, laziness and refusals."""

import numpy as np
import PIL.Image
import pytest

from keras_vit.data import ImageSource, from_arrays, from_folder

IMAGES = np.random.default_rng(0).integers(0, 256, (10, 4, 4, 1), dtype=np.uint8)
LABELS = np.array([3, 1, 2, 0, 1, 1, 2, 3, 0, 2])


def elements(source):
    return [(e["image"], int(e["label"])) for e in source.dataset.as_numpy_iterator()]


@pytest.fixture
def folder(tmp_path):
    """Three classes, written in another order than their names'."""
    for name, files in (("dog", ["2.JPG", "10.png"]), ("Cat", ["b.bmp", "a.jpeg"]), ("eel", ["x.webp"])):
        (tmp_path / name).mkdir()
        for file in files:
            PIL.Image.fromarray(IMAGES[len(file), ..., 0]).save(tmp_path / name / file)
    (tmp_path / "dog" / "notes.txt").write_text("not a picture")
    (tmp_path / "dog" / ".hidden.png").write_text("not a picture")
    (tmp_path / ".cache").mkdir()
    (tmp_path / "list.csv").write_text("not a class")
    return tmp_path


def test_folder_sorts_classes_and_files_by_name(folder):
    source = from_folder(folder)
    assert source.class_names == ("Cat", "dog", "eel")
    names = ["Cat/a.jpeg", "Cat/b.bmp", "dog/10.png", "dog/2.JPG", "eel/x.webp"]
    assert source.files == tuple(str(folder / name) for name in names)
    assert source.size == 5
    assert elements(source) == [
        ((folder / name).read_bytes(), label) for name, label in zip(names, (0, 0, 1, 1, 2), strict=True)
    ]


def test_folder_takes_the_extensions_asked_for(folder):
    (folder / "Cat" / "c.tif").write_bytes(b"x")
    (folder / "dog" / "c.tif").write_bytes(b"x")
    (folder / "eel" / "c.TIF").write_bytes(b"y")
    assert [image for image, _ in elements(from_folder(folder, extensions=(".tif",)))] == [b"x", b"x", b"y"]


def test_folder_reads_files_when_they_are_reached(folder):
    source = from_folder(str(folder))
    (folder / "Cat" / "a.jpeg").write_bytes(b"new")
    assert elements(source)[0] == (b"new", 0)


def test_folder_takes_names_that_are_not_ascii(tmp_path):
    (tmp_path / "köter").mkdir()
    (tmp_path / "köter" / "größe 1.png").write_bytes(b"bytes")
    assert elements(from_folder(tmp_path)) == [(b"bytes", 0)]


def test_folder_refusals(tmp_path, folder):
    with pytest.raises(FileNotFoundError, match="there is no .*/nowhere"):
        from_folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="list.csv is a file"):
        from_folder(folder / "list.csv")
    with pytest.raises(ValueError, match="one sub-folder of pictures per class; there are none in .*dog"):
        from_folder(folder / "dog")
    (folder / "fox").mkdir()
    with pytest.raises(ValueError, match=r"ending in .jpg, .*; 1 of 4 in .* hold none: fox"):
        from_folder(folder)
    with pytest.raises(ValueError, match="extensions must be a sequence.*got extensions='.jpg'"):
        from_folder(folder, extensions=".jpg")


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
        ((IMAGES / 255.0, LABELS), "uint8 on 0..255; got float64: convert"),
        ((IMAGES[0, 0], LABELS), r"pictures, height, width.*got \(4, 1\)"),
        ((IMAGES[:0], LABELS[:0]), r"no side of 0; got \(0, 4, 4, 1\)"),
        ((np.zeros((3, 4, 4, 2), np.uint8), LABELS[:3]), r"got \(3, 4, 4, 2\)"),
        ((IMAGES, LABELS[:9]), r"10 integers, one per picture; got int64 of shape \(9,\)"),
        ((IMAGES, np.eye(4)[LABELS]), r"10 integers, one per picture; got float64 of shape \(10, 4\)"),
        ((IMAGES, LABELS, ["a", "b"]), "from 0 to 1, as there are 2 classes; they range from 0 to 3"),
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


def test_split_keeps_files_and_class_names(folder):
    source = from_folder(folder)
    for part in source.split(0.4):
        assert part.class_names == source.class_names
        for file, (image, label) in zip(part.files, elements(part), strict=True):
            assert elements(source)[source.files.index(file)] == (image, label)


def test_split_refusals():
    source = from_arrays(IMAGES, LABELS)
    with pytest.raises(ValueError, match="at least one picture; got fraction=0.01 of 10"):
        source.split(0.01)
    with pytest.raises(ValueError, match="fraction must be a number"):
        source.split(1.5)
    with pytest.raises(ValueError, match="without lookup cannot be split"):
        ImageSource(source.dataset, source.class_names, source.size).split(0.5)
