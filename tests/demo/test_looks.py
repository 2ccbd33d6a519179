"""Files of visitors are read or refused, and a look finds what the package's own functions give."""

import dataclasses
import io
import struct
import zlib

import numpy as np
import pytest
from families import CLASSES, FAMILIES, built
from faults import for_each
from PIL import Image
from slow_rows import slow_after

import keras_vit
from keras_vit import analysis
from keras_vit.demo import looks
from keras_vit.demo.looks import read_image

DIFFERENT = ("plain", "axial", "Swin")
WITH_ATTENTION = {"merging": 2, "DeiT distilled": 2, "Swin": 2, "axial": 4, "plain": 2, "registers": 2}


def image(size=(48, 40)):
    return np.random.default_rng(0).integers(0, 256, (*size, 3), dtype="uint8")


@pytest.mark.parametrize(("name", "blocks"), slow_after(0, WITH_ATTENTION.items()))
def test_rollouts_end_with_every_block(name, blocks):
    model = built(name)
    found = looks.look(model, image())
    inputs = keras_vit.preprocess(image(), model.preprocessing)
    np.testing.assert_array_equal(found.inputs, inputs)
    assert len(found.rollouts) == blocks and found.remarks == []
    for depth in range(1, blocks + 1):
        rollout = analysis.attention_rollout(model, inputs, list(found.rollouts)[:depth])[0]
        np.testing.assert_allclose(found.rollouts[found.block(depth)], rollout, atol=1e-6)
        (seen, _), (overlay, caption), (heat_map, _) = found.figures(depth)
        np.testing.assert_array_equal(seen, found.image)
        assert caption == f"Attention rollout up to {found.block(depth)}"
        assert np.abs(overlay - analysis.overlay(found.image, rollout).astype(int)).max() <= 1
        assert np.abs(heat_map - analysis.heat_map(found.image, rollout).astype(int)).max() <= 1
    heads = found.heads(model, 1)
    maps = analysis.head_maps(model, inputs, found.block(1))[0]
    assert [caption for _, caption in heads] == [f"{found.block(1)}, head {k + 1}" for k in range(len(maps))]
    np.testing.assert_array_equal(heads[0][0], analysis.heat_map(found.image, maps[0]))
    if name == "Swin":
        assert all(block.startswith("stage_2") for block in found.rollouts)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in DIFFERENT else pytest.mark.slow) for name in FAMILIES]
)
def test_every_family_answers_as_predict_does(name):
    model = built(name)
    found = looks.look(model, image(), top=3)
    expected = keras_vit.predict(model, image(), top=3)[0]
    assert [label for label, _ in found.answers] == [label for label, _ in expected]
    np.testing.assert_allclose([s for _, s in found.answers], [s for _, s in expected], atol=1e-6)
    assert len(looks.look(model, image()).answers) == CLASSES
    parts = ["preprocessing", "model", *(["attention"] if found.rollouts else [])]
    assert list(found.milliseconds) == parts and all(0 < took < 60_000 for took in found.milliseconds.values())


@pytest.mark.parametrize("name", slow_after(1, ["BiT", "axial ResNet"]))
def test_without_attention_a_sentence_says_so(name):
    found = looks.look(built(name), image())
    assert found.rollouts == {} and found.answers and len(found.figures(0)) == 1
    (remark,) = found.remarks
    assert remark.startswith("There is no attention to show: model must have transformer blocks")
    assert remark.endswith("tiny has none.")


def test_a_head_of_zeros_is_told():
    found = looks.look(keras_vit.VisionTransformer(FAMILIES["plain"].config), image())
    assert found.remarks[0].startswith("The head of tiny has a kernel of zeros and returns the same")


def test_what_the_model_sees_is_shown_large_enough():
    model = built("plain")
    found = looks.look(model, image())
    assert found.image.shape == (224, 224, 3) and found.image.dtype == np.uint8
    seen = np.rint(255 * model.preprocessing.to_images(found.inputs)[0]).astype("uint8")
    np.testing.assert_array_equal(found.image[::7, ::7], seen)
    np.testing.assert_array_equal(found.image[6::7, 6::7], seen)


@pytest.mark.parametrize("brightness", slow_after(1, [255, 0]))
def test_heat_maps_are_hot_where_the_rollout_is_high(brightness):
    found = looks.look(built("plain"), np.full((48, 48, 3), brightness, "uint8"))
    rollout = np.zeros((8, 8))
    rollout[2, 5] = 1
    found = dataclasses.replace(found, rollouts={"block_00": rollout})
    heat_map = found.figures(1)[2][0].astype(int)
    side = len(heat_map) // 8
    brightest = np.unravel_index(heat_map.sum(-1).argmax(), heat_map.shape[:2])
    assert tuple(place // side for place in brightest) == (2, 5)
    warmth = heat_map[..., 0] - heat_map[..., 2]  # red without blue: orange and yellow, not violet or grey
    assert warmth[brightest] > 100 > 20 > warmth[:, : 2 * side].max()


def test_blocks_are_counted_from_one():
    found = looks.look(built("plain"), image())
    assert [found.block(depth) for depth in (1, 2)] == ["block_00", "block_01"]
    for depth in (0, 3, -1):
        with pytest.raises(ValueError, match=f"depth must be one of 1, 2; got depth={depth}"):
            found.figures(depth)


@for_each(
    ("message", "expected"),
    [
        (ValueError("x must be\n  one; got 2"), "X must be one; got 2."),
        (OSError("No file."), "No file."),
        (ValueError("cat.jpg must be an image"), "cat.jpg must be an image."),
        (ValueError("image_size must be 8"), "image_size must be 8."),
        (ValueError(), "ValueError."),
        ("a" * 400, "A" + "a" * 295 + " ..."),
    ],
)
def test_a_message_becomes_one_sentence(message, expected):
    assert looks.sentence(message) == expected


def saved_image(mode="RGB", size=(24, 16)):
    levels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype="uint8")
    return Image.fromarray(levels).convert(mode)


def claiming(width, height):
    """A PNG whose header claims a size, with hardly anything behind it."""
    header = b"IHDR" + struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    end = b"\0\0\0\0IEND" + struct.pack(">I", zlib.crc32(b"IEND"))
    return start + end


def animated(width, height):
    """An animated WebP whose header claims a size."""
    stream = io.BytesIO()
    saved_image().save(stream, "WEBP", save_all=True, append_images=[saved_image().rotate(90)])
    data = bytearray(stream.getvalue())
    data[24:30] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return bytes(data)


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.jpg", "a.webp"])
def test_pixels_are_those_that_the_package_decodes(tmp_path, name):
    saved_image().save(tmp_path / name)
    pixels = read_image(tmp_path / name)
    assert pixels.shape == (16, 24, 3) and pixels.dtype == np.uint8
    preprocessing = keras_vit.Preprocessing(size=(16, 24))
    expected = keras_vit.preprocess(tmp_path / name, preprocessing)
    np.testing.assert_array_equal(keras_vit.preprocess(pixels, preprocessing), expected)


def test_grey_and_transparent_images_have_three_channels(tmp_path):
    for mode in ("L", "LA", "RGBA", "P"):
        saved_image(mode).save(tmp_path / "a.png")
        assert read_image(tmp_path / "a.png").shape == (16, 24, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photos_are_turned_upright(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    saved_image().save(tmp_path / "a.png", exif=exif)
    pixels = read_image(tmp_path / "a.png")
    plain = np.asarray(saved_image())
    turned = {
        1: plain,
        2: plain[:, ::-1],
        3: plain[::-1, ::-1],
        4: plain[::-1],
        5: plain.transpose(1, 0, 2),
        6: plain[::-1].transpose(1, 0, 2),
        7: plain[::-1, ::-1].transpose(1, 0, 2),
        8: plain[:, ::-1].transpose(1, 0, 2),
    }
    np.testing.assert_array_equal(pixels, turned[orientation])


@for_each(
    ("contents", "message"),
    [
        (b"", r"^x.png must be an image .*; it is empty \(0 bytes\)"),
        (
            b"just text",
            "^x.png must be an image .*; it is not an image or its header is damaged: 9 bytes, starts with just te",
        ),
        (claiming(20_000, 20_000), "^x.png must have at most 178,956,970 pixels"),
        (animated(16_000, 12_000), "^x.png must have at most 178,956,970 pixels; got 12000 x 16000"),
        (claiming(10, 10), "^x.png must be a complete image"),
    ],
)
def test_what_is_no_image_is_refused_without_its_folder(tmp_path, contents, message):
    (tmp_path / "x.png").write_bytes(contents)
    with pytest.raises(ValueError, match=message) as error:
        read_image(tmp_path / "x.png")
    assert str(tmp_path) not in str(error.value)


def test_large_files_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(looks, "MAX_BYTES", 100)
    (tmp_path / "x.png").write_bytes(b"0" * 101)
    with pytest.raises(ValueError, match="x.png must have at most 100 bytes; got 101"):
        read_image(tmp_path / "x.png")
