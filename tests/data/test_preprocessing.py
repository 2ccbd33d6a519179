"""Decoding and resizing against Pillow and NumPy."""

import io

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
from slow_rows import slow_after

from keras_vit import Preprocessing
from keras_vit.data import preprocessing

COLOUR = PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8), "RGB").resize(
    (45, 36), PIL.Image.BICUBIC
)
PALETTE = COLOUR.convert("P", palette=PIL.Image.ADAPTIVE)


def encode(image, image_format, **options):
    file = io.BytesIO()
    image.save(file, image_format, **options)
    return file.getvalue()


ENCODED = {
    "jpeg": encode(COLOUR, "JPEG"),
    "jpeg_half_chroma": encode(COLOUR, "JPEG", subsampling=2, quality=70),
    "jpeg_progressive": encode(COLOUR, "JPEG", progressive=True),
    "jpeg_grey": encode(COLOUR.convert("L"), "JPEG"),
    "jpeg_cmyk": encode(COLOUR.convert("CMYK"), "JPEG"),
    "png": encode(COLOUR, "PNG"),
    "png_grey": encode(COLOUR.convert("L"), "PNG"),
    "png_black_and_white": encode(COLOUR.convert("1"), "PNG"),
    "png_palette": encode(PALETTE, "PNG"),
    "png_alpha": encode(COLOUR.convert("RGBA"), "PNG"),
    "png_grey_alpha": encode(COLOUR.convert("LA"), "PNG"),
    "bmp": encode(COLOUR, "BMP"),
    "bmp_grey": encode(COLOUR.convert("L"), "BMP"),
    "bmp_palette": encode(PALETTE, "BMP"),
    "bmp_alpha": encode(COLOUR.convert("RGBA"), "BMP"),
    "gif": encode(PALETTE, "GIF"),
    "gif_animated": encode(PALETTE, "GIF", save_all=True, append_images=[COLOUR.rotate(90).convert("P")]),
    "webp": encode(COLOUR, "WEBP"),
    "webp_alpha": encode(COLOUR.convert("RGBA"), "WEBP", lossless=True),
}
UNREADABLE = {
    "empty": b"",
    "text": b"no image, only words",
    "bmp_cut_in_its_header": ENCODED["bmp_palette"][:20],
    "bmp_cut_in_its_palette": ENCODED["bmp_palette"][:100],
    "jpeg_cut": ENCODED["jpeg"][: len(ENCODED["jpeg"]) // 2],
    "png_cut": ENCODED["png"][: len(ENCODED["png"]) // 2],
    "webp_animated": encode(COLOUR, "WEBP", save_all=True, append_images=[COLOUR.rotate(90)]),
}


@pytest.mark.parametrize("channels, mode", [(3, "RGB"), (1, "L")])
def test_decode_gives_the_pixels_of_pillow(channels, mode):
    for kind, contents in ENCODED.items():
        expected = np.asarray(PIL.Image.open(io.BytesIO(contents)).convert(mode)).reshape(36, 45, channels)
        np.testing.assert_array_equal(preprocessing.decode(contents, channels), expected, err_msg=kind)


@pytest.mark.parametrize(("size", "ratio"), slow_after(3, [(102, 1), (50, 4), ((50, 100), 2), (100, 2), ((25, 25), 8)]))
def test_decode_at_a_part_of_the_size_gives_the_pixels_of_pillow(size, ratio):
    contents = encode(COLOUR.resize((450, 303)), "JPEG", progressive=ratio == 4)
    expected = PIL.Image.open(io.BytesIO(contents))
    expected.draft("RGB", (450 // ratio, 303 // ratio))
    protocol = Preprocessing(size=size)
    found = preprocessing.decode(contents, 3, scaled_for=protocol)
    np.testing.assert_array_equal(found, expected)
    assert found.shape[:2] == (-(-303 // ratio), -(-450 // ratio))
    assert preprocessing.decode(contents, 3).shape == (303, 450, 3)
    np.testing.assert_array_equal(preprocessing.decode(ENCODED["png"], 3, scaled_for=protocol), COLOUR)


def test_decode_cuts_16_bits_to_the_upper_8():
    levels = np.random.default_rng(1).integers(0, 2**16, (5, 7), dtype=np.uint16)
    image = preprocessing.decode(encode(PIL.Image.fromarray(levels), "PNG"), 1)
    np.testing.assert_array_equal(image[..., 0], levels >> 8)


def test_decode_refuses_what_is_no_whole_image():
    for kind, contents in UNREADABLE.items():
        with pytest.raises(tf.errors.InvalidArgumentError):
            print(kind, preprocessing.decode(contents, 3).shape)  # shown where nothing is raised


def test_decode_refuses_other_channels():
    with pytest.raises(ValueError, match="images with 4 channels must be arrays, such as of"):
        preprocessing.decode(ENCODED["png"], 4)


@pytest.mark.parametrize("interpolation", slow_after(1, ["bicubic", "bilinear"]))
def test_graph_equals_eager_and_has_a_static_shape(interpolation):
    protocol = Preprocessing(size=36, crop=(24, 32), interpolation=interpolation)

    @tf.function(input_signature=[tf.TensorSpec((), tf.string)], autograph=False)
    def graph(contents):
        return preprocessing.apply(protocol, preprocessing.decode(contents, protocol.channels))

    assert graph.get_concrete_function().output_shapes == (24, 32, 3)
    eager = preprocessing.apply(protocol, preprocessing.decode(ENCODED["jpeg"], 3))
    assert eager.dtype == tf.float32
    np.testing.assert_allclose(graph(ENCODED["jpeg"]), eager, atol=1e-6)


def smooth_noise(height, width, seed=2):
    small = np.random.default_rng(seed).integers(0, 256, (height // 4 + 2, width // 4 + 2, 3), dtype=np.uint8)
    return PIL.Image.fromarray(small).resize((width, height), PIL.Image.BICUBIC)


# the integer of the longer side, and the start of the crop: big_vision's get_resize_small and get_central_crop;
# torchvision's _compute_resized_output_size and center_crop; transformers' image_transforms.py
AUTHORS = {
    "big_vision": (round, lambda surplus: surplus // 2),
    "torchvision": (int, lambda surplus: int(round(surplus / 2.0))),
    "transformers": (int, lambda surplus: int(surplus / 2.0)),
}


def central_crop(pixels, height, width, author="big_vision"):
    top, left = (AUTHORS[author][1](side - crop) for side, crop in zip(pixels.shape, (height, width), strict=False))
    return pixels[top : top + height, left : left + width]


@pytest.mark.parametrize(
    "interpolation, pillow", [("bicubic", PIL.Image.BICUBIC), ("bilinear_antialias", PIL.Image.BILINEAR)]
)
def test_shorter_side_and_crop_as_pillow(interpolation, pillow):
    sizes = ((300, 451), (481, 468), (281, 500), (60, 81), (248, 248), (40, 500), (500, 40))
    for author, (integer, _) in AUTHORS.items():
        protocol = Preprocessing(size=248, crop=(224, 201), interpolation=interpolation, rounding=author)
        for height, width in sizes if author == "big_vision" else sizes[:3]:
            image = smooth_noise(height, width)
            shorter = min(height, width)
            resized = image.resize((integer(248 * width / shorter), integer(248 * height / shorter)), pillow)
            expected = central_crop(np.asarray(resized, np.float32), 224, 201, author)
            difference = np.abs(preprocessing.resize(protocol, np.asarray(image)) - expected)
            # One pixel value, where Pillow's fixed-point weights and float32 ones fall on either side of a half. The
            # last image, a column, is resized in the other order, which rounds otherwise.
            is_column = height > 8 * width
            assert difference.max() <= (4 if is_column else 1), (author, height, width)
            assert difference.mean() < (0.5 if is_column else 0.02), (author, height, width)


def test_the_library_decides_about_the_integers_of_every_interpolation():
    """The width becomes 88 or 89, and 51 or 3 surplus pixels are cropped; the three libraries differ in both."""
    image = np.asarray(smooth_noise(90, 200))
    for author, (integer, _) in AUTHORS.items():
        width = integer(40 * 200 / 90)
        protocol = Preprocessing(size=40, crop=(37, 37), rounding=author)
        resized = np.einsum("ah,hwc,bw->abc", linear_weights(90, 40), image, linear_weights(200, width))
        expected = central_crop(resized, 37, 37, author)
        np.testing.assert_allclose(preprocessing.resize(protocol, image), expected, atol=0.02, err_msg=author)
        exact = preprocessing.resize(protocol.replace(size=(40, 88)), image)
        resized = preprocessing.resize(Preprocessing(size=(40, 88)), image).numpy()
        np.testing.assert_allclose(exact, central_crop(resized, 37, 37, author), atol=1e-3, err_msg=author)


def test_exact_size_as_pillow():
    image = smooth_noise(90, 200)
    expected = np.asarray(image.resize((64, 48), PIL.Image.BICUBIC), np.float32)
    protocol = Preprocessing(size=(48, 64), interpolation="bicubic")
    assert np.abs(preprocessing.resize(protocol, np.asarray(image)) - expected).max() <= 1


@pytest.mark.parametrize("interpolation", ["bilinear_antialias", "bilinear"])
@pytest.mark.parametrize(
    ("sides", "resized"), [((90, 200), (29, 64)), ((200, 90), (48, 22)), ((31, 40), (48, 62)), ((3, 900), (1, 64))]
)
def test_padding_keeps_the_whole_image_upper_left(interpolation, sides, resized):
    """As in the code of SAM: the largest size inside, rounded half up, and zeros after normalising."""
    image = smooth_noise(*sides)
    protocol = Preprocessing(
        size=(48, 64), pad=True, interpolation=interpolation, mean=(0.1, 0.2, 0.3), std=(0.25,) * 3
    )
    prepared = preprocessing.apply(protocol, np.asarray(image)).numpy()
    height, width = resized
    inside = protocol.to_images(prepared)[:height, :width] * 255
    if interpolation == "bilinear_antialias":
        expected = np.asarray(image.resize((width, height), PIL.Image.BILINEAR), np.float32)
        assert np.abs(inside - expected).max() <= 1.01
    else:
        expected = preprocessing.resize(Preprocessing(size=resized), np.asarray(image))
        np.testing.assert_allclose(inside, expected, atol=1e-3)
    assert prepared.shape == (48, 64, 3) and not prepared[height:].any() and not prepared[:, width:].any()


def test_exact_size_and_crop_as_pillow():
    image = smooth_noise(90, 200)
    expected = central_crop(np.asarray(image.resize((81, 61), PIL.Image.BICUBIC), np.float32), 48, 64)
    protocol = Preprocessing(size=(61, 81), crop=(48, 64), interpolation="bicubic")
    assert np.abs(preprocessing.resize(protocol, np.asarray(image)) - expected).max() <= 1


def linear_weights(old, new):
    """Rows of half-pixel linear interpolation without antialias, edges repeated (new, old)."""
    position = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    return np.maximum(0.0, 1.0 - np.abs(position[:, None] - np.arange(old)))


def test_bilinear_is_half_pixel_and_not_antialiased():
    image = np.asarray(smooth_noise(90, 201))
    expected = np.einsum("ah,hwc,bw->abc", linear_weights(90, 32), image, linear_weights(201, 48))
    np.testing.assert_allclose(preprocessing.resize(Preprocessing(size=(32, 48)), image), expected, atol=0.02)


def test_bilinear_with_a_shorter_side_keeps_the_aspect_ratio():
    image = np.asarray(smooth_noise(90, 201))
    resized = np.einsum("ah,hwc,bw->abc", linear_weights(90, 40), image, linear_weights(201, 89))
    protocol = Preprocessing(size=40, crop=(32, 38))
    expected = central_crop(resized, 32, 38)
    np.testing.assert_allclose(preprocessing.resize(protocol, image), expected, atol=0.02)


def test_area_is_the_mean_of_blocks():
    image = np.asarray(smooth_noise(96, 160))
    blocks = image.reshape(32, 3, 32, 5, 3).mean(axis=(1, 3))
    protocol = Preprocessing(size=32, interpolation="area")
    np.testing.assert_allclose(preprocessing.resize(protocol, image), blocks, atol=1e-3)


def test_nearest_takes_the_middle_of_blocks():
    image = np.asarray(smooth_noise(96, 160))
    protocol = Preprocessing(size=32, interpolation="nearest")
    np.testing.assert_array_equal(preprocessing.resize(protocol, image), image[1::3, 2::5])


def test_very_long_images_need_little_memory():
    # Resized whole, the shorter side to 248, this would be 248 x 4,960,000 pixels: 15 gigabytes of float32.
    row = np.full((1, 20000, 3), 7, np.uint8)
    row[:, 9990:10010] = 99
    for interpolation in ("bilinear", "bilinear_antialias", "bicubic", "area", "nearest"):
        protocol = Preprocessing(size=248, crop=224, interpolation=interpolation)
        for image in (row, row.swapaxes(0, 1)):
            resized = preprocessing.resize(protocol, image)
            np.testing.assert_allclose(resized, np.full((224, 224, 3), 99.0), atol=0.01)


def test_values_are_standardised_per_channel():
    image = np.empty((8, 8, 3), np.uint8)
    image[:] = [0, 102, 255]
    protocol = Preprocessing(size=8, mean=(0.5, 0.4, 0.25), std=(0.5, 0.2, 0.75))
    np.testing.assert_allclose(preprocessing.apply(protocol, image)[3, 4], [-1.0, 0.0, 1.0], atol=1e-6)


def test_the_default_is_the_official_range():
    image = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    expected = (image.astype(np.float32) - 127.5) / 127.5
    np.testing.assert_array_equal(preprocessing.apply(Preprocessing(size=8), image), expected)


def test_uint8_and_float_images_agree():
    image = np.asarray(smooth_noise(40, 50))
    for interpolation in ("bilinear", "bicubic"):
        protocol = Preprocessing(size=16, interpolation=interpolation)
        of_floats = preprocessing.apply(protocol, image.astype(np.float32))
        np.testing.assert_allclose(preprocessing.apply(protocol, image), of_floats, atol=1e-6)


def test_grey_becomes_three_equal_channels():
    image = np.asarray(smooth_noise(16, 16))[..., :1]
    resized = preprocessing.resize(Preprocessing(size=16), image)
    np.testing.assert_array_equal(resized, np.repeat(image, 3, axis=-1))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_colour_becomes_the_luma_of_pillow_and_alpha_is_dropped(dtype):
    image = smooth_noise(16, 16)
    with_alpha = np.concatenate([np.asarray(image), np.full((16, 16, 1), 9, np.uint8)], axis=-1).astype(dtype)
    protocol = Preprocessing(size=16, mean=(0.5,), std=(0.5,))
    grey = preprocessing.resize(protocol, with_alpha)
    assert grey.shape == (16, 16, 1)
    expected = np.asarray(image.convert("L"))
    np.testing.assert_allclose(grey[..., 0], expected, atol=0 if dtype == np.uint8 else 0.501)


def test_other_types_and_shapes_are_refused():
    with pytest.raises(TypeError, match="uint8, or float32 on the scale .* got int32"):
        preprocessing.apply(Preprocessing(size=8), np.zeros((8, 8, 3), np.int32))
    with pytest.raises(ValueError, match="1, 3 or 4 channels.*got .*8, 8, 2"):
        preprocessing.apply(Preprocessing(size=8), np.zeros((8, 8, 2), np.uint8))
    with pytest.raises(TypeError, match="preprocessing must be a keras_vit.Preprocessing.*got dict"):
        preprocessing.check({})


def test_real_images_as_the_reference_fed_them(real_data):
    stored = np.load(real_data / "golden_vit_tiny.npz")
    protocol = Preprocessing(size=248, crop=224, interpolation="bicubic")
    for name, pixels in zip(stored["files"], stored["pixels"], strict=True):
        image = preprocessing.decode((real_data / str(name)).read_bytes(), 3)
        difference = np.abs(preprocessing.apply(protocol, image) - pixels) * 127.5  # of 255
        assert difference.max() < 1.01
        assert difference.mean() < 0.01


@pytest.mark.parametrize("size", [(600, 40), (513, 70), (40, 600)])
def test_large_images_are_worked_on_strip_by_strip_to_the_same(size, monkeypatch):
    image = tf.constant(np.random.default_rng(0).integers(0, 256, (*size, 3)), tf.uint8)
    protocols = [
        Preprocessing(size=64, crop=(48, 56), interpolation=interpolation, mean=mean, std=mean)
        for interpolation in ("bicubic", "bilinear_antialias")
        for mean in ((0.5, 0.5, 0.5), (0.5,))
    ]
    at_once = [preprocessing.resize(protocol, image) for protocol in protocols]
    monkeypatch.setattr(preprocessing, "_LARGE", 5_000)
    monkeypatch.setattr(preprocessing, "_STRIP", 1_500)
    for protocol, expected in zip(protocols, at_once, strict=True):
        np.testing.assert_array_equal(preprocessing.resize(protocol, image), expected)


def test_a_large_image_of_a_palette_is_decoded_strip_by_strip_to_the_same(monkeypatch):
    at_once = preprocessing.decode(ENCODED["bmp_palette"], 3)
    monkeypatch.setattr(preprocessing, "_LARGE", 100)
    monkeypatch.setattr(preprocessing, "_STRIP", 100)
    np.testing.assert_array_equal(preprocessing.decode(ENCODED["bmp_palette"], 3), at_once)
