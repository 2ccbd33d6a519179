"""from_directory: order, names, laziness and refusals."""

import os
import unicodedata

import numpy as np
import PIL.Image
import pytest

from keras_vit.data import from_directory, from_files
from keras_vit.evaluation.class_matching import match_classes
from keras_vit.evaluation.labelled import SourceImages, match_labels

IMAGES = np.random.default_rng(0).integers(0, 256, (10, 4, 4, 1), dtype=np.uint8)


def elements(source):
    return [(e["image"], int(e["label"])) for e in source.dataset.as_numpy_iterator()]


@pytest.fixture
def folder(tmp_path):
    """Three classes, written in another order than their names'."""
    for name, files in (("dog", ["2.JPG", "10.png"]), ("Cat", ["b.bmp", "a.jpeg"]), ("eel", ["x.webp"])):
        (tmp_path / name).mkdir()
        for file in files:
            PIL.Image.fromarray(IMAGES[len(file), ..., 0]).save(tmp_path / name / file)
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    (tmp_path / "dog" / ".hidden.png").write_text("not an image")
    (tmp_path / ".cache").mkdir()
    (tmp_path / "list.csv").write_text("not a class")
    return tmp_path


def test_folder_sorts_classes_and_files_by_name(folder):
    source = from_directory(folder)
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
    assert [image for image, _ in elements(from_directory(folder, extensions=(".tif",)))] == [b"x", b"x", b"y"]


def test_folder_reads_files_when_they_are_reached(folder):
    source = from_directory(str(folder))
    (folder / "Cat" / "a.jpeg").write_bytes(b"new")
    assert elements(source)[0] == (b"new", 0)


def test_folder_takes_names_that_are_not_ascii(tmp_path):
    (tmp_path / "köter").mkdir()
    (tmp_path / "köter" / "größe 1.png").write_bytes(b"bytes")
    assert elements(from_directory(tmp_path)) == [(b"bytes", 0)]


def test_what_is_not_read_is_counted(folder, caplog):
    for name in ("eel/small/x.jpg", "eel/small/y.jpg", "eel/z.HEIC", "dog/c.tif", "dog/d.tif", "beside.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x")
    (folder / "eel" / "y.jfif").write_bytes(b"JPEG")
    (folder / "eel" / "absent.jpg").symlink_to("nowhere")
    os.mkfifo(folder / "dog" / "pipe.gif")
    source = from_directory(folder)
    assert source.files[-2:] == (str(folder / "eel" / "x.webp"), str(folder / "eel" / "y.jfif"))
    assert from_files(folder).size == 9
    endings = ["1 .png, 1 .txt, 2 .tif, 3 .jpg, 1 .heic, 1 .gif", "1 .csv, 1 .txt, 2 .tif, 1 .heic, 1 .jpg, 1 .gif"]
    for record, counts in zip(caplog.records, endings, strict=True):
        assert record.name == "keras_vit.data" and str(folder) in record.getMessage()
        assert sorted(record.getMessage().rpartition(": ")[2].split(", ")) == sorted(counts.split(", "))


def test_spellings_of_one_name_are_one_class(tmp_path):
    """macOS stores a letter and its accent; elsewhere they are one character. Both look the same."""
    letters = {form: unicodedata.normalize(form, "é") for form in ("NFC", "NFD")}
    sources = []
    for form, letter in letters.items():
        for name in (f"caf{letter}", "cafz"):
            (tmp_path / form / name).mkdir(parents=True)
            (tmp_path / form / name / "1.png").write_bytes(name.encode())
        sources.append(from_directory(tmp_path / form))
        assert sources[-1].class_names == ("cafz", "café")
        assert [image for image, _ in elements(sources[-1])] == [b"cafz", f"caf{letter}".encode()]
        assert match_classes((f"caf{letter}",), ("cafz", "cafe\u0301", "caf"), 3) == ((1,), "by name")
    assert match_labels(*(SourceImages("test", source, None, 1) for source in sources))[1].tolist() == [0, 1]
    (tmp_path / "NFD" / "café" / "").mkdir()
    (tmp_path / "NFD" / "café" / "2.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"different names; 'cafe\\u0301' and 'caf\\xe9' look alike"):
        from_directory(tmp_path / "NFD")


@pytest.mark.parametrize("name", [b"caf\xe9/1.png", b"cat/caf\xe9.png"])
def test_names_that_are_no_utf_8_are_refused_at_once(name, tmp_path):
    path = os.path.join(os.fsencode(tmp_path), name)
    os.mkdir(os.path.dirname(path))
    with open(path, "wb") as file:
        file.write(b"bytes")
    with pytest.raises(ValueError, match=r"^names of .* must be UTF-8; got b'.*caf\\xe9.*': rename it$") as error:
        from_directory(tmp_path)
    str(error.value).encode()  # it can be printed


def test_folder_refusals(tmp_path, folder):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        from_directory(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="list.csv is a file"):
        from_directory(folder / "list.csv")
    with pytest.raises(ValueError, match="one folder of images per class; .*dog has none"):
        from_directory(folder / "dog")
    (folder / "fox" / "no_image.jpg").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"ending in .jpg, .*; 1 of 4 in .* contain none: fox"):
        from_directory(folder)
    with pytest.raises(ValueError, match="extensions must be a sequence.*got extensions='.jpg'"):
        from_directory(folder, extensions=".jpg")


def test_split_keeps_files_and_class_names(folder):
    source = from_directory(folder)
    for part in source.split(0.4):
        assert part.class_names == source.class_names
        for file, (image, label) in zip(part.files, elements(part), strict=True):
            assert elements(source)[source.files.index(file)] == (image, label)
