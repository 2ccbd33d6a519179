"""Folders of label maps and depths, against arrays that are written; parts and fingerprints of sources."""

import dataclasses
import shutil

import numpy as np
import pytest
from faults import for_each
from PIL import Image
from task_sets import write_images

from keras_vit.data import VOID, TaskSource, from_depth_maps, from_label_maps

SIZES = {name: (6, 5) for name in range(4)}
NAMES = ["sky", "cat", "dog"]


@pytest.fixture
def images(tmp_path):
    write_images(tmp_path / "images", SIZES)
    (tmp_path / "maps").mkdir()
    return tmp_path / "images"


def write_maps(folder, maps):
    """Write each map as a file whose ending, `.png` or `.npy`, is in its name."""
    folder.mkdir(exist_ok=True)
    for name, values in maps.items():
        if name.endswith(".npy"):
            np.save(folder / name, values)
        else:
            image = values if isinstance(values, Image.Image) else Image.fromarray(values)
            image.save(folder / name)
    return folder


def test_label_maps_of_all_files(images, tmp_path):
    values = np.random.default_rng(0).integers(0, 3, (6, 5), "uint8")
    values[0, 0] = VOID
    palette = Image.fromarray(values)
    palette.putpalette([9, 9, 9] * 256)  # the colours say nothing
    grey16, array, bits = values.astype("uint16"), values.astype("int64"), Image.fromarray(values == 1)
    maps = {"0.png": values, "1.png": palette, "2.png": grey16, "3.npy": array}
    source = from_label_maps(images, write_maps(tmp_path / "maps", maps), NAMES)
    assert (source.kind, source.class_names, source.category_ids) == ("semantic", tuple(NAMES), (0, 1, 2))
    assert source.image_ids == ("0", "1", "2", "3") and source.size == 4
    for position in range(4):
        found = source.answer(position).label_map
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, values)
    write_maps(tmp_path / "maps", {"0.png": bits})
    np.testing.assert_array_equal(source.answer(0).label_map, values == 1)


def test_the_values_of_ade20k(images, tmp_path):
    values = np.arange(30, dtype="uint8").reshape(6, 5) * 5  # 0 to 145
    maps = write_maps(tmp_path / "maps", {f"{n}.png": values for n in range(4)})
    classes = {n + 1: n for n in range(150)}
    source = from_label_maps(images, maps, [f"class {n}" for n in range(150)], classes=classes)
    expected = np.where(values == 0, VOID, values.astype(int) - 1)
    np.testing.assert_array_equal(source.answer(2).label_map, expected)
    assert source.category_ids == tuple(range(1, 151))


def test_the_folders_of_cityscapes(tmp_path):
    for city in ("aachen", "bonn"):
        (tmp_path / "left" / city).mkdir(parents=True)
        name = f"{city}_000000_000019"
        Image.fromarray(np.zeros((4, 4, 3), "uint8")).save(tmp_path / "left" / city / f"{name}_leftImg8bit.png")
        (tmp_path / "fine").mkdir(exist_ok=True)
        maps = {f"{name}_gtFine_color.png": np.zeros((4, 4, 3), "uint8")}
        maps[f"{name}_gtFine_labelIds.png"] = np.array([[0, 7, 8, 33]] * 4, "uint8")
        write_maps(tmp_path / "fine" / city, maps)
    suffixes = ("_leftImg8bit", "_gtFine_labelIds")
    classes = {7: 0, 8: 1, 33: 2}
    source = from_label_maps(tmp_path / "left", tmp_path / "fine", NAMES, classes=classes, suffixes=suffixes)
    assert source.image_ids == ("aachen_000000_000019_leftImg8bit", "bonn_000000_000019_leftImg8bit")
    assert source.answer(1).label_map.tolist() == [[VOID, 0, 1, 2]] * 4 and source.category_ids == (7, 8, 33)
    shutil.move(tmp_path / "left" / "bonn" / "bonn_000000_000019_leftImg8bit.png", tmp_path / "left" / "bonn" / "x.png")
    assert from_label_maps(tmp_path / "left", tmp_path / "fine", NAMES, suffixes=suffixes).size == 1


def test_equal_names_in_several_folders(tmp_path):
    for part in ("a", "b"):
        for kind in ("images", "maps"):
            (tmp_path / kind / part).mkdir(parents=True)
            Image.fromarray(np.zeros((3, 3), "uint8")).save(tmp_path / kind / part / "1.png")
    assert from_label_maps(tmp_path / "images", tmp_path / "maps", NAMES).image_ids == ("a/1", "b/1")


def test_depth_maps(images, tmp_path):
    values = np.arange(30, dtype="uint16").reshape(6, 5) * 2000
    metres = np.full((6, 5), 2.5)
    metres[0, :2] = np.nan, np.inf
    maps = {"0.png": values, "1.png": values.astype("uint8"), "2.npy": values, "3.npy": metres.astype("float32")}
    source = from_depth_maps(images, write_maps(tmp_path / "maps", maps), 256)
    assert (source.kind, source.class_names) == ("depth", ())
    found = source.answer(0).depth
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, values / 256)
    np.testing.assert_allclose(source.answer(1).depth, values.astype("uint8") / 256)
    np.testing.assert_allclose(source.answer(2).depth, values / 256)
    assert source.answer(3).depth[0].tolist() == [0, 0, *[np.float32(2.5 / 256)] * 3]


def test_parts_and_fingerprints(images, tmp_path):
    maps = write_maps(tmp_path / "maps", {f"{n}.png": np.full((6, 5), n % 3, "uint8") for n in range(4)})
    source = from_label_maps(images, maps, NAMES)
    part = source.take([2, 0])
    assert part.image_ids == ("2", "0") and part.size == 2 and part.answer(0).label_map.max() == 2
    np.testing.assert_array_equal(part.image(0), source.image(2))
    rest, held_out = source.split(0.25, seed=1)
    assert held_out.size == 1 and sorted(rest.image_ids + held_out.image_ids) == ["0", "1", "2", "3"]
    assert source.split(0.25, seed=1)[1].files == held_out.files
    shutil.copytree(tmp_path, tmp_path.parent / "moved")
    moved = from_label_maps(tmp_path.parent / "moved" / "images", tmp_path.parent / "moved" / "maps", NAMES)
    first = source.fingerprint()
    assert moved.fingerprint() == first and first["images"] == 4 and first["classes"] == 3
    assert part.fingerprint() != source.take([0, 2]).fingerprint()
    assert dataclasses.replace(source, class_names=("a", "b", "c")).fingerprint() != first
    write_maps(maps, {"3.png": np.full((6, 5), 1, "uint8")})
    assert source.fingerprint() != first


@for_each(
    "name, values, message",
    [
        ("0.png", np.full((6, 5), 3, "uint8"), r"0.png must have classes from 0 to 2, or 255; got 3 \(`classes` maps"),
        ("0.npy", np.full((6, 5), -1), "0.npy must have classes from 0 to 2, or 255; got -1"),
        ("0.npy", np.zeros((6, 5)), "0.npy must have integers; got float64"),
        ("0.npy", np.array([[None] * 5] * 6), "0.npy must be a whole PNG or .npy file of numbers"),
        ("0.npy", np.array([["a"] * 5] * 6), "0.npy must have integers; got <U1"),
        ("0.png", np.zeros((5, 6), "uint8"), r"0.png must have the height and width .*, \(6, 5\); got \(5, 6\)"),
        ("0.npy", np.zeros((6, 5, 1), int), r"0.npy must have the height and width .*, \(6, 5\); got \(6, 5, 1\)"),
        ("0.png", np.zeros((6, 5, 3), "uint8"), r"0.png must have the height .*, \(6, 5\); got \(6, 5, 3\)"),
    ],
)
def test_errors_of_a_label_map(tmp_path, name, values, message):
    write_images(tmp_path / "images", {0: (6, 5)})
    source = from_label_maps(tmp_path / "images", write_maps(tmp_path / "maps", {name: values}), NAMES)
    with pytest.raises(ValueError, match=message):
        source.answer(0)


def test_errors_of_depths_and_damaged_files(images, tmp_path):
    maps = write_maps(tmp_path / "maps", {f"{n}.npy": np.full((6, 5), -0.5) for n in range(4)})
    source = from_depth_maps(images, maps, 1)
    with pytest.raises(ValueError, match="0.npy must have depths of at least 0; got -0.5"):
        source.answer(0)
    (maps / "1.npy").write_bytes((maps / "1.npy").read_bytes()[:-9])
    with pytest.raises(ValueError, match="1.npy must be a whole PNG or .npy file"):
        source.answer(1)
    write_maps(maps, {"2.png": np.arange(30, dtype="uint8").reshape(6, 5)})
    (maps / "2.png").write_bytes((maps / "2.png").read_bytes()[:50])
    with pytest.raises(ValueError, match="2.png must be a whole PNG or .npy file"):
        from_depth_maps(images, maps, 1).answer(2)
    (images / "3.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="3.png must be an image"):
        source.answer(3)


def test_errors_of_arguments(images, tmp_path):
    maps = tmp_path / "maps"
    for make, message in (
        (lambda: from_label_maps(images, maps, []), "class_names must be from 1 to 255 names"),
        (lambda: from_label_maps(images, maps, "cat"), "class_names must be a sequence of strings"),
        (lambda: from_label_maps(images, maps, ["a"] * 256), "255 marks no class; got 256"),
        (lambda: from_label_maps(images, maps, NAMES, classes={7: 3}), "classes from 0 to 2; got 7: 3"),
        (lambda: from_label_maps(images, maps, NAMES, classes={"7": 0}), "must map integers to .*; got '7': 0"),
        (lambda: from_label_maps(images, maps, NAMES, suffixes=("a",)), "suffixes must be two strings"),
        (
            lambda: from_label_maps(images, maps, NAMES, suffixes=("_x", "")),
            "images must contain names that end in '_x'",
        ),
        (lambda: from_label_maps(images, maps, NAMES), r"0.png must have a map .*maps/0.png or .npy; there is none"),
        (lambda: from_label_maps(maps, maps, NAMES), "path must contain images ending in"),
        (lambda: from_depth_maps(images, maps, 0), "scale must be a finite number above 0"),
        (lambda: TaskSource("pose", (), (), (), (), (), (), (), lambda record, size: None), "kind must be one of"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            make()
    write_maps(maps, {f"{n}.png": np.zeros((6, 5), "uint8") for n in range(4)})
    source = from_label_maps(images, maps, NAMES)
    with pytest.raises(ValueError, match="positions must be from 0 to 3; got 4"):
        source.take([4])
    with pytest.raises(ValueError, match="fraction must leave each part an image"):
        source.split(0.1)
