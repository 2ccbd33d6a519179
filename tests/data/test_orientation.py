"""Images are turned as their EXIF says, as Pillow's ImageOps.exif_transpose turns them, wherever they are read."""

import io
import warnings

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import tensorflow as tf

from keras_vit import Preprocessing, preprocess
from keras_vit.data import eval_pipeline, from_directory, headers, preprocessing, train_pipeline
from keras_vit.data.augment import parse_augment
from keras_vit.demo.looks import read_image

IMAGE = PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((45, 36))
ORIENTATION, THUMBNAIL_IFD = 0x0112, 1
KINDS = {"JPEG": {}, "PNG": {}, "WEBP": {"lossless": True}}


def encode(image, image_format="JPEG", **options):
    file = io.BytesIO()
    image.save(file, image_format, **options)
    return file.getvalue()


def exif(value, endian="<", has_thumbnail=False):
    """An EXIF block with entries before and after the orientation."""
    block = PIL.Image.Exif()
    block.endian = endian
    block[0x010F], block[0x0100] = "maker of cameras", 45  # behind the directory, and in it
    block[ORIENTATION] = value
    block[0x011A], block[0x0132] = 72.0, "2020:01:02 03:04:05"
    if has_thumbnail:
        thumbnail = encode(IMAGE.resize((16, 12)), exif=exif(3 if value != 3 else 6))
        block._ifds[THUMBNAIL_IFD] = {0x0103: 6, 0x0112: 8, 0x0201: thumbnail, 0x0202: len(thumbnail)}
    return block.tobytes()


def upright(contents):
    return np.asarray(PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(contents))).convert("RGB"))


def segment(marker, data):
    return b"\xff" + bytes([marker]) + (len(data) + 2).to_bytes(2, "big") + data


@pytest.mark.parametrize("image_format", KINDS)
@pytest.mark.parametrize("endian", "<>")
def test_eight_orientations_are_those_of_pillow(image_format, endian):
    for value in range(10):  # 0 and 9 are none
        contents = encode(IMAGE, image_format, exif=exif(value, endian), **KINDS[image_format])
        np.testing.assert_array_equal(preprocessing.decode(contents, 3), upright(contents), err_msg=str(value))
        grey = preprocessing.decode(contents, 1)
        assert grey.shape == (*upright(contents).shape[:2], 1)


@pytest.mark.parametrize("endian", "<>")
@pytest.mark.parametrize("has_thumbnail", [False, True])
def test_exif_need_not_be_the_first_segment_of_a_jpeg(endian, has_thumbnail):
    plain = encode(IMAGE)
    profile = segment(0xE2, b"ICC_PROFILE\0\1\1" + bytes(3000)) + segment(0xFE, b"a comment") + segment(0xED, b"Photo")
    for value in range(1, 9):
        app1 = segment(0xE1, exif(value, endian, has_thumbnail))
        for before in (b"", profile, segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>")):
            contents = plain[:20] + before + app1 + plain[20:]  # behind JFIF's segment
            np.testing.assert_array_equal(preprocessing.decode(contents, 3), upright(contents), err_msg=str(value))


def test_damaged_exif_is_ignored():
    plain, rng = encode(IMAGE), np.random.default_rng(0)
    whole = exif(6)
    damaged = [
        b"Exif\0\0",
        b"Exif\0\0" + rng.bytes(300),
        b"Exif\0\0II*\0\x08\0\0\0",
        b"Exif\0\0MM\0*\xff\xff\xff\xff" + bytes(40),
        b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + rng.bytes(100),
        whole[:20],
        whole.replace(b"\x12\x01\x03\0\x01", b"\x12\x01\x07\0\x01"),  # of a type that it has not
        whole.replace(b"II*", b"II+"),
    ]
    expected = preprocessing.decode(plain, 3)
    protocol = Preprocessing(size=IMAGE.size[::-1])
    for data in damaged:
        contents = plain[:20] + segment(0xE1, data) + plain[20:]
        np.testing.assert_array_equal(preprocessing.decode(contents, 3), expected, err_msg=repr(data))
        with warnings.catch_warnings(action="ignore"):  # Pillow's, of corrupt EXIF
            opened = PIL.Image.open(io.BytesIO(contents))
        np.testing.assert_allclose(preprocess(opened, protocol), preprocess(plain, protocol), atol=1e-6)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of one class with an image of each orientation in each format, and what they show, upright."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "class").mkdir()
    shown = []
    for number, image_format in enumerate(KINDS):
        for value in range(1, 9):
            path = folder / "class" / f"{number}_{value}.{image_format.lower()}"
            path.write_bytes(encode(IMAGE, image_format, exif=exif(value), **KINDS[image_format]))
            shown.append(upright(path.read_bytes()))
    return folder, shown


def test_files_and_pil_images_and_uploads_agree(photos):
    folder, shown = photos
    files = sorted((folder / "class").iterdir())
    protocol = Preprocessing(size=24)
    expected = preprocess(shown, protocol)
    for images in (files, [path.read_bytes() for path in files], [read_image(path) for path in files]):
        np.testing.assert_array_equal(preprocess(images, protocol), expected)
    np.testing.assert_array_equal(preprocess([PIL.Image.open(path) for path in files], protocol), expected)


@pytest.mark.slow
def test_pipelines_read_images_upright(photos):
    folder, shown = photos
    source, protocol = from_directory(folder), Preprocessing(size=24)
    images, _ = next(eval_pipeline(source, protocol, len(shown)).as_numpy_iterator())
    np.testing.assert_allclose(images, preprocess(shown, protocol), atol=1e-6)
    images, _ = next(train_pipeline(source, protocol, len(shown), shuffle=False).as_numpy_iterator())
    np.testing.assert_allclose(images, preprocess(shown, protocol), atol=1e-6)


@pytest.mark.slow
def test_crops_are_of_the_upright_image(photos):
    folder, shown = photos
    pipeline = train_pipeline(
        from_directory(folder),
        Preprocessing(size=8),
        8,
        augment=["inception_crop(0.1, 0.2)"],
        shuffle=False,
        repeat=False,
    )
    images = np.concatenate([images for images, _ in pipeline.as_numpy_iterator()])
    (crop,) = parse_augment(["inception_crop(0.1, 0.2)"])
    for number, (image, pixels) in enumerate(zip(images, shown, strict=True)):
        key = tf.random.experimental.stateless_fold_in(tf.constant([0, number], tf.int64), 0)
        expected = crop(tf.constant(pixels), size=(8, 8), channels=3, seed=key)
        expected = preprocessing.standardise(Preprocessing(size=8), expected)
        np.testing.assert_allclose(image, expected, atol=1e-5, err_msg=str(number))


def test_only_what_is_turned_is_decoded_as_a_whole():
    for value in range(1, 9):
        contents = tf.constant(encode(IMAGE, exif=exif(value)))
        assert bool(headers.is_turned(contents, is_jpeg=True)) == (value > 1)
