"""preprocess: every form an image comes in gives the same numbers."""

import io
import pathlib
import types

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from keras_vit import Preprocessing
from keras_vit.data.images import preprocess

IMAGE = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
SAME_SIZE = Preprocessing(size=16)
EXPECTED = IMAGE.astype(np.float32) / 127.5 - 1.0


@pytest.fixture
def file(tmp_path):
    PIL.Image.fromarray(IMAGE).save(tmp_path / "cat.png")
    return tmp_path / "cat.png"


def test_every_form_of_one_image_gives_the_same(file):
    alpha = np.concatenate([IMAGE, IMAGE[..., :1]], axis=-1)
    forms = [
        file,
        str(file),
        file.read_bytes(),
        bytearray(file.read_bytes()),
        PIL.Image.open(file),
        IMAGE,
        IMAGE / 255.0,
        IMAGE.astype(np.uint16) * 257,
        tf.constant(IMAGE),
        tf.constant(IMAGE / 255.0, tf.float32),
        alpha,
        IMAGE[None],
        [IMAGE],
        (file,),
    ]
    for form in forms:
        result = preprocess(form, SAME_SIZE)
        assert result.dtype == np.float32 and result.shape == (1, 16, 16, 3)
        np.testing.assert_allclose(result[0], EXPECTED, atol=1e-6, err_msg=str(type(form)))


def test_open_files_are_read_from_their_start(file):
    path, expected = file, preprocess(file, SAME_SIZE)
    stream = io.BytesIO()
    PIL.Image.open(path).save(stream, "png")  # the position is now the end
    with open(path, "rb") as opened, open(path, encoding="latin-1") as text, open(path, "rb", buffering=0) as raw:
        for given in (opened, raw, [stream], path.read_bytes()):
            for _ in range(2):
                np.testing.assert_array_equal(preprocess(given, SAME_SIZE), expected)
        pipe = types.SimpleNamespace(read=opened.read)  # without seek
        opened.seek(0)
        np.testing.assert_array_equal(preprocess(pipe, SAME_SIZE), expected)
        with pytest.raises(TypeError, match=r"images\[0\] must be a file opened in binary mode; read\(\) returns str"):
            preprocess([text], SAME_SIZE)
        with pytest.raises(ValueError, match="images must be an image .*; it is empty"):
            preprocess(io.BytesIO(), SAME_SIZE)
    for address in ("https://host/cat.jpg", "gs://bucket/cat.png", pathlib.Path("http://host/x.png")):
        with pytest.raises(FileNotFoundError, match="is an address, and images are not downloaded: pass a local file"):
            preprocess(address, SAME_SIZE)


def test_a_list_may_mix_forms_and_sizes_and_keeps_its_order(file):
    white = np.full((5, 9), 255, np.uint8)
    result = preprocess([white, file, PIL.Image.new("L", (3, 3)), np.zeros((7, 2, 1))], SAME_SIZE)
    assert result.shape == (4, 16, 16, 3)
    np.testing.assert_array_equal(result[0], np.ones((16, 16, 3)))
    np.testing.assert_allclose(result[1], EXPECTED, atol=1e-6)
    np.testing.assert_array_equal(result[2:], -np.ones((2, 16, 16, 3)))


def test_a_batch_keeps_its_order():
    batch = np.stack([IMAGE, IMAGE[::-1]]).astype(np.float32)
    result = preprocess(batch, SAME_SIZE, value_range=(0, 255))
    np.testing.assert_allclose(result, [EXPECTED, EXPECTED[::-1]], atol=1e-6)


def test_a_dark_image_in_a_bright_batch_is_no_contradiction():
    batch = np.stack([np.full((4, 4, 1), 0.5), np.full((4, 4, 1), 200.0)])
    batch[0, 0, 0] = 0.0
    assert preprocess(batch, SAME_SIZE, value_range=(0, 255)).shape == (2, 16, 16, 3)


def test_grey_input_of_a_grey_model(file):
    protocol = Preprocessing(size=16, mean=(0.0,), std=(1.0,))
    expected = np.asarray(PIL.Image.open(file).convert("L"))[..., None] / 255.0
    for form in (file, IMAGE):
        np.testing.assert_allclose(preprocess(form, protocol)[0], expected, atol=1e-6)


def test_bfloat16_arrays():
    image = tf.constant([[0.0, 0.5], [1.0, 0.25]], tf.bfloat16)
    protocol = Preprocessing(size=2, mean=(0.0,), std=(1.0,))
    np.testing.assert_allclose(preprocess(image, protocol)[0, ..., 0], [[0, 0.5], [1, 0.25]], atol=1e-6)


def test_refusals_name_the_image(tmp_path, file):
    (tmp_path / "paper.jpg").write_bytes(b"%PDF-1.7 and more")
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "cut.png").write_bytes(file.read_bytes()[:200])
    refused = [
        ([file, tmp_path / "none.png"], FileNotFoundError, "none.png"),
        (tmp_path / "paper.jpg", ValueError, "paper.jpg must be an image.*starts with %PDF-1.7"),
        (str(tmp_path / "empty.jpg"), ValueError, "empty.jpg must be an image.*empty"),
        (tmp_path / "cut.png", ValueError, "cut.png must be a complete image.*begins as PNG"),
        (tmp_path, ValueError, "is a folder, not an image"),
        ([IMAGE, IMAGE * 1.0], ValueError, r"images\[1\] must have values from 0 to 1"),
        ([IMAGE, b"text"], ValueError, r"images\[1\] must be an image.*starts with text"),
        ([IMAGE, [IMAGE]], TypeError, r"images\[1\] must be a path.*got a list"),
        ([IMAGE, IMAGE[None]], ValueError, r"images\[1\] must have shape.*got \(1, 16, 16, 3\)"),
        (object(), TypeError, "array of numbers; got object"),
        ([], ValueError, r"at least one image; got \[\]"),
    ]
    for images, error, message in refused:
        with pytest.raises(error, match="(?s)" + message):
            print(message, preprocess(images, SAME_SIZE).shape)  # shown where nothing is raised


def test_a_value_range_without_arrays_is_refused(file):
    for images in (file, [file, file.read_bytes()]):
        with pytest.raises(ValueError, match=r"value_range must be None for files.*got value_range=\(0, 255\)"):
            preprocess(images, SAME_SIZE, value_range=(0, 255))
    assert preprocess([file, IMAGE], SAME_SIZE, value_range=(0, 255)).shape[0] == 2


def test_the_preprocessing_of_a_model_is_asked_for_not_the_model():
    with pytest.raises(TypeError, match="such as model.preprocessing; got .*Path"):
        preprocess(IMAGE, pathlib.Path("."))


def test_real_images_are_within_a_level_of_pillow(real_data):
    protocol = Preprocessing(size=248, crop=224, interpolation="bicubic")
    files = sorted((real_data / "imagenet200").glob("*/*"))[::40]
    for file, result in zip(files, preprocess(files, protocol), strict=True):
        image = PIL.Image.open(file).convert("RGB")
        width, height = (round(248 * side / min(image.size)) for side in image.size)
        left, top = (width - 224) // 2, (height - 224) // 2
        resized = image.resize((width, height), PIL.Image.BICUBIC)
        expected = np.asarray(resized.crop((left, top, left + 224, top + 224)), np.float32)
        assert np.abs((result + 1.0) * 127.5 - expected).mean() < 0.01, file  # of 255
