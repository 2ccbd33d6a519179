"""Images are turned as their EXIF says, as Pillow's ImageOps.exif_transpose turns them, wherever they are read."""

import io
import pathlib
import struct
import warnings
import zlib

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import tensorflow as tf

from keras_vit import Preprocessing, preprocess
from keras_vit.data import eval_pipeline, from_directory, orientation, preprocessing, train_pipeline
from keras_vit.data.augment import parse_augment
from keras_vit.demo.looks import read_image

IMAGE = PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((45, 36))
IMAGES = pathlib.Path(__file__).parent / "images"
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


def tiff(*entries, endian="<", at=8, gap=b"", magic=None):
    """A TIFF with one directory of entries (tag, type, count, bytes of the values) at an offset."""
    behind, values, directory = at + 2 + 12 * len(entries) + 4, b"", struct.pack(f"{endian}H", len(entries))
    for tag, kind, count, data in entries:
        directory += struct.pack(f"{endian}HHL", tag, kind, count)
        directory += data.ljust(4, b"\0") if len(data) <= 4 else struct.pack(f"{endian}L", behind + len(values))
        values += data if len(data) > 4 else b""
    magic = magic or {"<": b"II*\0", ">": b"MM\0*"}[endian]
    return magic + struct.pack(f"{endian}L", at) + b"\0" * (at - 8) + directory + b"\0" * 4 + values


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def webp_chunk(kind, data):
    return kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def jpegs():
    """JPEGs whose EXIF or XMP is laid out in many ways, valid and not."""
    plain, date, maker = encode(IMAGE), (0x0132, 2, 20, b"2020:01:02 03:04:05\0"), (0x010F, 2, 9, b"a maker of")
    turn = lambda value, kind=3, form="H": (ORIENTATION, kind, 1, struct.pack(f"<{form}", value))  # noqa: E731
    app1 = lambda data: segment(0xE1, b"Exif\0\0" + data)  # noqa: E731
    xmp = lambda text: segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + text)  # noqa: E731
    six, three = app1(tiff(turn(6))), app1(tiff(turn(3)))
    kinds = {
        1: "B",
        2: "B",
        4: "L",
        6: "b",
        7: "B",
        8: "h",
        9: "l",
        11: "f",
        12: "d",
        13: "L",
        14: "H",
        16: "Q",
        99: "H",
    }
    rational = [(ORIENTATION, kind, 1, struct.pack("<2L", 6, 1)) for kind in (5, 10)]
    parts = [app1(tiff(maker, turn(6, kind, form))) for kind, form in kinds.items()]
    parts += [app1(tiff(maker, entry)) for entry in rational]
    parts += [app1(tiff((ORIENTATION, 4, 1, struct.pack(">L", 8)), endian=">"))]
    parts += [app1(tiff(turn(8), endian="<", at=at)) for at in (9, 16, 5000)]
    parts += [app1(tiff(date, turn(8))), app1(tiff(*[maker] * 500, turn(7)))]
    parts += [app1(tiff((ORIENTATION, 3, count, b"\6\0\3\0")) + b"\0" * 8) for count in (0, 2, 3000)]
    parts += [app1(tiff(turn(6), (0x010F, 2, 900, b"maker"))), app1(tiff(maker, date, turn(5)))]
    if int(PIL.__version__.split(".")[0]) >= 13:  # earlier ones stop at values beyond the end, and take the last entry
        parts += [app1(tiff(turn(6), turn(8))), app1(tiff(turn(8), turn(6), date))]
        parts += [
            app1(tiff((0x010F, 2, 900, b"maker"), turn(6))),
            app1(tiff((0x010F, 2, 48, b"maker"), turn(6)) + b"\0" * 10),
        ]
        parts += [app1(tiff((0x010F, 2, 900, b"maker"), (0x0110, 2, 9, b"a maker of"), turn(6)))]
    parts += [app1(tiff((0x010F, 77, 900, b"maker"), turn(6))), app1(tiff(maker, turn(6))[:-3])]
    parts += [app1(tiff(turn(6))[:size]) for size in (0, 5, 17, 22)] + [app1(tiff(turn(6), magic=b"XX*\0"))]
    parts += [app1(b"Exif\0\0" + tiff(turn(6))), app1(b"") + six, six + three, three + six]
    exif = tiff(turn(6), at=70000)
    parts += [app1(exif[:60000]) + app1(exif[60000:])]
    parts += [segment(0xE2, b"ICC_PROFILE\0\1\3" + bytes(60000)) * 3 + six, segment(0xFE, six) + segment(0xED, six)]
    parts += [segment(0xE1, b"x" + six), segment(0xE1, b"Exif\0\xff" + tiff(turn(6)))]
    parts += [b"\xff" * 3 + six + b"\xff\xff", b"junk" + six, b"\xff\0" + six, b"\xff\xd0" + six]
    parts += [xmp(text) for text in (b'<x tiff:Orientation="6"/>', b"<tiff:Orientation>8<", b' tiff:Orientation = "6"')]
    parts += [xmp(b'tiff:Orientation="9"'), xmp(b'\xe9\xff\0 tiff:Orientation="6" \xff'), segment(0xFE, xmp(b"6"))]
    parts += [app1(tiff(value)) + xmp(b'tiff:Orientation="6"') for value in (date, turn(1), turn(9), turn(8))]
    parts += [app1(b"not a TIFF") + xmp(b'tiff:Orientation="6"')]
    for part in parts:
        yield plain[:20] + part + plain[20:]
    pixels, end = plain.index(b"\xff\xda"), len(plain) - 2
    yield from (plain[:place] + six + plain[place:] for place in (2, pixels, end))
    yield plain[:2] + six + plain[20:]
    yield plain + plain[:20] + six + plain[20:]
    yield encode(IMAGE, "MPO", save_all=True, append_images=[IMAGE.rotate(90)], exif=b"Exif\0\0" + tiff(turn(6)))
    yield encode(IMAGE, progressive=True, exif=b"Exif\0\0" + tiff(turn(5)))


def chunked():
    """PNGs and WebPs whose EXIF or XMP is in chunks of many kinds."""
    plain = encode(IMAGE, "PNG")
    six = tiff((ORIENTATION, 3, 1, b"\6\0"))
    eight = tiff((ORIENTATION, 3, 1, b"\0\x08"), endian=">")
    digits = (b"Exif\0\0" + six).hex().encode()
    lines = b"\nexif\n      %d\n" % (len(digits) // 2) + b"\n".join([digits[:72], digits[72:]]) + b"\n"
    xmp = b'<x tiff:Orientation="6"/>'
    parts = [chunk(b"eXIf", six), chunk(b"eXIf", eight), chunk(b"eXIf", six) + chunk(b"eXIf", eight)]
    parts += [chunk(b"eXIf", b""), chunk(b"eXIf", tiff((0x0100, 3, 1, b"\1\0")))]
    for key, text in ((b"Raw profile type exif\0", lines), (b"XML:com.adobe.xmp\0", xmp)):
        packed = zlib.compress(text)
        parts += [chunk(b"tEXt", key + text), chunk(b"zTXt", key + b"\0" + packed)]
        parts += [chunk(b"iTXt", key + b"\0\0en\0key\0" + text), chunk(b"iTXt", key + b"\1\0\0\0" + packed)]
    parts += [chunk(b"tEXt", b"Raw profile type exif\0" + lines.upper()), chunk(b"tEXt", b"exif\0" + six)]
    parts += [chunk(b"tEXt", b"Raw profile type exif\0\nexif\n4\nzz"), chunk(b"tEXt", b"Comment\0eXIf" + six)]
    parts += [chunk(b"tEXt", b"Raw profile type exif\0" + lines) + chunk(b"eXIf", eight)]
    parts += [chunk(b"prVt", chunk(b"eXIf", six)), chunk(b"prVt", bytes(70000)) + chunk(b"eXIf", six)]
    for part in parts:
        yield from (plain[:place] + part + plain[place:] for place in (33, len(plain) - 12))
    yield plain + chunk(b"eXIf", six)
    pixels = encode(IMAGE, "WEBP", lossless=True)[12:]
    exif, text = webp_chunk(b"EXIF", six), webp_chunk(b"XMP ", xmp)
    for flags, before, behind, appended in (
        *((8, b"", exif, b""), (8, exif, b"", b""), (0, b"", exif, b""), (8, b"", b"", exif)),
        (8, b"", webp_chunk(b"EXIF", b"Exif\0\0" + eight) + exif, b""),
        (12, b"", webp_chunk(b"EXIF", six + b"x") + text, b""),
        *((4, b"", text, b""), (8, b"", text, b""), (8, b"", webp_chunk(b"abcd", exif), b"")),
    ):
        header = bytes([flags, 0, 0, 0, IMAGE.width - 1, 0, 0, IMAGE.height - 1, 0, 0])
        chunks = b"WEBP" + webp_chunk(b"VP8X", header) + before + pixels + behind
        yield webp_chunk(b"RIFF", chunks) + appended
    yield webp_chunk(b"RIFF", b"WEBP" + pixels) + exif


def as_pillow(contents):
    """The upright pixels, or those of the file if Pillow does not accept its EXIF."""
    try:
        return upright(contents)
    except Exception:
        return np.asarray(PIL.Image.open(io.BytesIO(contents)).convert("RGB"))


def test_every_layout_of_exif_and_xmp_is_read_as_pillow_reads_it():
    files = [path.read_bytes() for path in sorted(IMAGES.glob("exif*"))] + [*jpegs(), *chunked()]
    assert len(files) > 130
    images = tf.data.Dataset.from_tensor_slices(files).map(lambda contents: preprocessing.decode(contents, 3))
    with warnings.catch_warnings(action="ignore"):  # Pillow's, of corrupt EXIF
        wanted = [as_pillow(contents) for contents in files]
    assert 0.3 < np.mean([image.shape[0] == 45 for image in wanted]) < 0.7
    for number, (image, pixels) in enumerate(zip(images, wanted, strict=True)):
        assert image.shape == pixels.shape, (number, files[number][:300])
        np.testing.assert_allclose(image, pixels, atol=2, err_msg=str(number))


def test_many_parts_and_large_compressed_texts_end():
    key = b"Raw profile type exif\0\0"
    files = [b"\xff\xd8" + b"\xff\xe1\0\x08Exif\0\0" * 10**5]
    files += [b"\x89PNG\r\n\x1a\n" + chunk(b"zTXt", key + zlib.compress(bytes(2 * 10**7))) * 9]
    for contents in files:
        assert orientation.read(tf.constant(contents), is_jpeg=contents[0] == 0xFF) == 1


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


def test_the_orientation_of_each_value():
    for value in range(1, 9):
        contents = tf.constant(encode(IMAGE, exif=exif(value)))
        assert orientation.read(contents, is_jpeg=True) == value


@pytest.mark.slow
def test_an_exported_graph_reads_images_upright(photos, tmp_path):
    folder, shown = photos
    module = tf.Module()
    module.decode = tf.function(lambda contents: preprocessing.decode(contents, 3), [tf.TensorSpec((), tf.string)])
    tf.saved_model.save(module, tmp_path)
    decode = tf.saved_model.load(tmp_path).decode
    for path, pixels in zip(sorted((folder / "class").iterdir()), shown, strict=True):
        np.testing.assert_array_equal(decode(path.read_bytes()), pixels)
