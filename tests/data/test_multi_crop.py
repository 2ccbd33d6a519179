"""multi_crop_pipeline: shapes, areas of the crops, and batches that depend on seed and step alone."""

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
from faults import for_each
from image_sets import encode

from keras_vit import Preprocessing
from keras_vit.data import from_arrays, from_directory, multi_crop_pipeline

PREPROCESSING = Preprocessing(size=(16, 24), mean=(0.0,) * 3, std=(1.0,) * 3)
PLAIN = {"augment": ((), (), ()), "local_crops": 3, "local_size": 8}
SMALL = {"local_crops": 2, "local_size": 8}


@pytest.fixture(scope="module")
def source():
    """Ramps from left to right, 240 pixels wide, whose colour is the number of the image."""
    ramp = np.broadcast_to(np.arange(240, dtype="uint8")[None, :, None], (160, 240, 1))
    images = [np.concatenate([ramp, ramp, np.full_like(ramp, 20 * n)], -1) for n in range(10)]
    return from_arrays(np.stack(images), np.arange(10))


def batches(source, count=2, batch_size=4, **arguments):
    return list(multi_crop_pipeline(source, PREPROCESSING, batch_size, **arguments).take(count).as_numpy_iterator())


@pytest.mark.slow
def test_crops_of_each_image_cover_the_areas(source):
    data = batches(source, 5, **PLAIN)
    labels = np.concatenate([labels for _, labels in data])
    assert sorted(labels[:10]) == list(range(10))
    spans = {}
    for key, shape in {"global": (2, 16, 24, 3), "local": (3, 8, 8, 3)}.items():
        crops = np.concatenate([crops[key] for crops, _ in data])
        assert crops.shape == (20, *shape) and crops.dtype == np.float32
        np.testing.assert_allclose(
            crops[..., 2] * 255, np.broadcast_to(20 * labels[:, None, None, None], crops.shape[:4])
        )
        spans[key] = np.ptp(255 * crops[..., 0], axis=(2, 3)) / 240  # about the share of the width
        assert (np.ptp(spans[key], axis=1) > 0).mean() > 0.8  # every crop is drawn on its own
    # width / side of the image = sqrt(area * aspect * 160 / 240), with aspects from 3/4 to 4/3
    assert spans["global"].min() > 0.9 * np.sqrt(0.4 * 3 / 4 * 160 / 240) and spans["global"].max() > 0.8
    assert 0.9 * np.sqrt(0.05 * 3 / 4 * 160 / 240) < spans["local"].min() < 0.25
    assert spans["local"].max() < np.sqrt(0.4 * 4 / 3 * 160 / 240)


@pytest.mark.slow
def test_batches_depend_on_seed_and_step_alone(source):
    whole = batches(source, **SMALL)
    assert np.abs(whole[1][0]["global"] - whole[0][0]["global"]).max() > 0.1
    part = batches(source, 1, start_step=1, shard=(1, 2), **SMALL)[0]
    tf.nest.map_structure(lambda own, all_rows: np.testing.assert_array_equal(own, all_rows[2:]), part, whole[1])


@pytest.mark.slow
def test_files_are_read_as_arrays_and_local_crops_may_be_absent(source, tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3, 40, 48, 3)).astype("uint8")
    for n, image in enumerate(images):
        (tmp_path / f"c{n}").mkdir()
        (tmp_path / f"c{n}" / "image.png").write_bytes(encode(image, "PNG"))
    arguments = {"batch_size": 3, "count": 1, "local_crops": 0, "augment": ((), (), ())}
    [(files, labels)] = batches(from_directory(tmp_path), **arguments)
    [(arrays, same)] = batches(from_arrays(images, np.arange(3)), **arguments)
    assert list(files) == ["global"] and labels.tolist() == same.tolist()
    np.testing.assert_array_equal(files["global"], arrays["global"])


@pytest.mark.parametrize(("side", "ratio"), [(300, 4), (120, 1)])
def test_scaled_decoding_crops_a_smaller_image(tmp_path, side, ratio):
    """The crops are those of the pixels that Pillow decodes at a quarter of the sides.

    Of the shorter side, sqrt(0.05 * 3 / 4) is in the smallest local crop: 58 of 300 pixels are 7 times 8, and 23 of 120
    are 2.9 times 8, less than twice 1.5.
    """
    coarse = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype="uint8")
    image = np.asarray(PIL.Image.fromarray(coarse).resize((side * 4 // 3, side)))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "image.jpg").write_bytes(encode(image, "JPEG"))
    with PIL.Image.open(tmp_path / "c" / "image.jpg") as smaller:
        smaller.draft("RGB", (smaller.width // ratio, smaller.height // ratio))
        pixels = np.asarray(smaller)
    assert pixels.shape == (side // ratio, side * 4 // 3 // ratio, 3)
    arguments = {"batch_size": 1, "count": 1, **PLAIN}
    [(found, _)] = batches(from_directory(tmp_path), scaled_decoding=True, **arguments)
    [(expected, _)] = batches(from_arrays(pixels[None], [0]), **arguments)
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, atol=1e-6)


@for_each(
    ("arguments", "message"),
    [
        ({"scaled_decoding": 1}, "scaled_decoding must be True or False"),
        ({"local_crops": -1}, "local_crops must be an integer of at least 0; got local_crops=-1"),
        ({"local_size": 0}, "local_size must be one positive integer or a pair"),
        ({"augment": (("flip",),)}, "augment must be three sequences of strings, one per kind of crop; got 1"),
        ({"global_area": (0.5, 0.4)}, "min_area=0.5, max_area=0.4"),
        ({"augment": (("flop",), (), ())}, "augment must be one of"),
        ({"shard": (0, 3)}, "batch_size must be divisible by the count of shard"),
    ],
)
def test_refused(source, arguments, message):
    with pytest.raises(ValueError, match=message):
        multi_crop_pipeline(source, PREPROCESSING, 4, **arguments)
