"""One image that cannot be read spoils no other: zeros, empty classes and the reason in its own row."""

import io

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import tensorflow as tf
from drawn import draw, encode
from served import make_model
from slow_rows import slow_after

from keras_vit.serving import export

GOOD = [encode(draw(seed), image_format) for seed, image_format in enumerate(("PNG", "JPEG", "BMP", "GIF", "WEBP"))]
JPEG, PNG = GOOD[1], GOOD[0]
BAD = {
    b"": "the file is empty",
    b"hello world": "not an image in a supported format (JPEG, PNG, BMP, GIF, WebP)",
    JPEG[:300]: "a JPEG that is damaged, unsupported, or larger than its header states",
    PNG[:60]: "a PNG that is damaged, unsupported, or larger than its header states",
    encode(draw(0, (70, 60)), "GIF"): "an image of 60 x 70 pixels; the limit is 4,000",
    encode(draw(0, (70, 60)), "JPEG"): "an image of 60 x 70 pixels; the limit is 4,000",
    encode(draw(0, (40, 50)), "JPEG", progressive=True): "an image of 50 x 40 pixels; the limit of a "
    "progressive JPEG is 1,333",
    b"GIF89a": "a GIF that is damaged, unsupported, or larger than its header states",
    b"RIFF____WEBPVP8X" + b"\xff" * 20: "an image of 16777216 x 16777216 pixels; the limit is 4,000",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("export")
    for on_error in ("row", "raise"):
        options = {"max_pixels": 4000, "on_error": on_error, "check": False}
        export(make_model(), path, signatures=("serving_default", "features"), **options)
    return path


@pytest.fixture(scope="module")
def tolerant(folder):
    return tf.saved_model.load(str(folder / "1")).signatures


@pytest.fixture(scope="module")
def strict(folder):
    return tf.saved_model.load(str(folder / "2")).signatures


@pytest.mark.parametrize("place", slow_after(1, [1, 0, 2]))
def test_bad_rows_say_why_and_leave_the_others_alone(tolerant, place):
    for bad, reason in BAD.items():
        files = GOOD[:3]
        expected = tolerant["serving_default"](tf.constant(files))
        files = [*files[:place], bad, *files[place + 1 :]]
        answer = tolerant["serving_default"](tf.constant(files))
        others = [row for row in range(3) if row != place]
        assert answer["error"].numpy().tolist() == [reason.encode() if row == place else b"" for row in range(3)]
        assert set(answer["classes"].numpy()[place]) == {b""} and not answer["scores"].numpy()[place].any()
        for name in ("classes", "scores"):
            np.testing.assert_array_equal(answer[name].numpy()[others], expected[name].numpy()[others])


def test_features_of_bad_rows_are_zero(tolerant):
    answer = tolerant["features"](tf.constant([b"text", PNG]))
    assert not answer["features"].numpy()[0].any() and answer["features"].numpy()[1].any()
    assert answer["error"].numpy()[1] == b""


def test_every_format_is_read(tolerant, strict):
    for signatures in (tolerant, strict):
        assert signatures["serving_default"](tf.constant(GOOD))["scores"].numpy().min() > 0


def test_no_images_give_no_answers(tolerant, strict):
    for signatures in (tolerant, strict):
        answer = signatures["serving_default"](tf.zeros((0,), tf.string))
        assert answer["scores"].shape == answer["classes"].shape == (0, 5)


def test_the_strict_variant_fails_as_a_whole(strict):
    assert "error" not in strict["serving_default"].structured_outputs
    for bad in BAD:
        with pytest.raises(tf.errors.InvalidArgumentError):
            strict["serving_default"](tf.constant([PNG, bad]))


def test_images_are_read_upright(strict):
    """Of every orientation of EXIF, in both byte orders, as Pillow turns the image."""
    files, upright = [], []
    for endian in "<>":
        for value in range(1, 9):
            exif = PIL.Image.Exif()
            exif.endian, exif[0x0112] = endian, value
            contents = encode(draw(value), "PNG", exif=exif.tobytes())
            turned = PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(contents)))
            jpeg = encode(draw(value), "JPEG", exif=exif.tobytes(), quality=95)
            files += [contents, jpeg]
            # the same pixels of the JPEG, without loss
            turned_jpeg = PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(jpeg)))
            upright += [encode(turned.copy(), "PNG", exif=b""), encode(turned_jpeg.convert("RGB"), "PNG", exif=b"")]
    answers, expected = (strict["features"](tf.constant(rows))["features"] for rows in (files, upright))
    np.testing.assert_allclose(answers, expected, atol=1e-5)
