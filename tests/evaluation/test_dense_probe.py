"""dense_probe: its regression and its metric against NumPy, masks of every kind, and real images."""

import keras
import numpy as np
import pytest
from faults import for_each
from slow_rows import slow_after

import keras_vit
from benchmarks import dense
from keras_vit.evaluation import DenseProbe, dense_probe, fit_ridge

CLASSES = 3


@pytest.fixture(scope="module")
def patches():
    """A model whose features are the pixels of patches of 4 x 2, in maps of any size."""
    inputs = keras.Input((8, 12, 3))
    cut = keras.ops.reshape(inputs, (-1, 2, 4, 6, 2, 3))
    return keras.Model(inputs, keras.ops.reshape(keras.ops.transpose(cut, (0, 1, 3, 2, 4, 5)), (-1, 2, 6, 24)))


def scene(count, seed):
    """Images, and masks that depend on their brightness and change inside of patches; 9 is no class."""
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(count, 8, 12, 3)).astype("float32")
    masks = np.digitize(images.sum(-1), (-1, 1.2))
    return images, np.where(rng.uniform(size=masks.shape) < 0.1, 9, masks)


def test_regression_is_that_of_every_pixel(patches):
    """Pixels of a patch have equal features: ridge regression of all pixels, with lambda times as large."""
    images, masks = scene(20, 0)
    known = np.where(masks == 9, np.repeat(np.repeat(masks[:, ::4, ::2], 4, 1), 2, 2), masks)
    known = np.where(known == 9, 1, known)
    probe = dense_probe(patches, [(images[:7], known[:7]), (images[7:], known[7:])], [(images, known)], CLASSES, l2=3.0)
    features = keras.ops.convert_to_numpy(patches(images))
    of_pixels = np.repeat(np.repeat(features, 4, 1), 2, 2).reshape(-1, 24)
    expected = fit_ridge(of_pixels, known.ravel(), CLASSES, l2=3.0 * 8)
    np.testing.assert_allclose(probe.ridge.weights, expected.weights, atol=1e-8)
    np.testing.assert_allclose(probe.ridge.std, expected.std, rtol=1e-8)


def test_metric_is_that_of_numpy(patches):
    train, test = scene(20, 0), scene(5, 1)
    probe = dense_probe(patches, [train], [test], CLASSES, ignore=9)
    images, masks = test
    scores = keras.ops.convert_to_numpy(probe.model(images))
    assert scores.shape == (5, 8, 12, CLASSES)
    low = probe.ridge.scores(keras.ops.convert_to_numpy(patches(images)).reshape(-1, 24)).reshape(5, 2, 6, CLASSES)
    np.testing.assert_allclose(scores[:, 0, 0], low[:, 0, 0], atol=1e-4)  # beyond the centres, the nearest patch
    np.testing.assert_allclose(scores[:, 3:5].mean(1)[:, 0], low[:, :, 0].mean(1), atol=1e-4)
    found, ious = scores.argmax(-1), []
    for number in range(CLASSES):
        is_found, is_there, known = found == number, masks == number, masks != 9
        ious.append((is_found & is_there).sum() / ((is_found & known) | is_there).sum())
    np.testing.assert_allclose(probe.iou, ious)
    assert probe.mean_iou == pytest.approx(np.mean(ious))
    assert probe.accuracy == pytest.approx((found == masks)[masks != 9].mean())
    assert probe.confusion.sum() == (masks != 9).sum()


def test_classes_without_pixels_do_not_count():
    probe = DenseProbe(None, None, np.array([[6, 2, 0], [1, 3, 0], [0, 0, 0]]))
    np.testing.assert_allclose(probe.iou, [6 / 9, 3 / 6, np.nan])
    assert (probe.mean_iou, probe.accuracy) == (pytest.approx((6 / 9 + 3 / 6) / 2), 9 / 12)


def test_pixels_that_fill_no_patch_are_not_measured():
    config = keras_vit.ViTConfig(
        name="tiny", image_size=(9, 7), patch_size=4, hidden_dim=8, num_layers=1, num_heads=2, mlp_dim=8, classes=3
    )
    model = keras_vit.VisionTransformer(config)
    rng = np.random.default_rng(0)
    images, masks = rng.normal(size=(5, 9, 7, 3)).astype("float32"), rng.integers(0, CLASSES, (5, 9, 7))
    probe = dense_probe(model, [(images, masks)], [(images, masks)], CLASSES)
    read, seen = (images[:, :8, :4], masks[:, :8, :4])
    whole = dense_probe(keras_vit.resize(model, (8, 4)), [(read, seen)], [(read, seen)], CLASSES)
    np.testing.assert_array_equal(probe.confusion, whole.confusion)
    assert probe.confusion.sum() == seen.size


@pytest.mark.parametrize("pad", slow_after(1, [True, False]))
def test_features_of_a_model_for_any_size(pad):
    config = keras_vit.ViTConfig(
        name="tiny", image_size=16, patch_size=4, hidden_dim=8, num_layers=1, num_heads=2, mlp_dim=8, classes=3
    )
    every = keras_vit.resize(keras_vit.VisionTransformer(config), "any", pad=pad)
    sizes = ((12, 20), (9, 14)) if pad else ((12, 20), (8, 16))
    rng = np.random.default_rng(2)
    data = [(rng.normal(size=(2, *size, 3)), rng.integers(0, 2, (2, *size))) for size in sizes]
    probe = dense_probe(every, data, data, 2, layer="block_00", ignore=-1)
    assert probe.confusion.sum() == sum(masks.size for _, masks in data)


@for_each(
    ("change", "message"),
    [
        ({"classes": 1}, "classes must be an integer of at least 2"),
        ({"l2": 0}, "l2"),
        ({"verbose": "no"}, "verbose must be"),
        ({"ignore": 2}, "ignore must not be one of the 3 classes; got 2"),
        ({"layer": "block_00"}, "layer is for models of keras_vit"),
        ({"train": [(scene(2, 0)[0], np.full((2, 8, 12), 255))]}, "train must have at least one pixel with a class"),
        ({"test": [(scene(2, 0)[0], np.full((2, 8, 12), 255))]}, "test must have at least one pixel with a class"),
        ({"train": []}, "train must have at least one pixel with a class"),
        ({"train": [(scene(2, 0)[0], np.full((2, 8, 12), 3))]}, "from 0 to 2 or ignore=255; got int64 .* from 0 to 3"),
        ({"train": [(scene(2, 0)[0], np.zeros((2, 8, 12)))]}, "got float64"),
        ({"train": [(scene(2, 0)[0], np.zeros((2, 2, 6), int))]}, r"got int64 \(2, 2, 6\)"),
        ({"train": [scene(2, 0)[0]]}, r"train must contain batches \(inputs, masks\)"),
    ],
)
def test_refusals(patches, change, message):
    images, masks = scene(2, 0)
    data = [(images, np.minimum(masks, 2))]
    arguments = {"train": data, "test": data, "classes": CLASSES, **change}
    with pytest.raises(ValueError, match=message):
        dense_probe(patches, **arguments)


def test_what_has_no_map_is_refused():
    flat = keras.Sequential([keras.Input((4, 4, 3)), keras.layers.Flatten()])
    with pytest.raises(ValueError, match=r"model must return one map .* got \(None, 4, 4, 3\) -> \(None, 48\)"):
        dense_probe(flat, [], [], 2)
    with pytest.raises(ValueError, match="rows and columns divide the image size"):
        dense_probe(keras.Sequential([keras.Input((9, 9, 3)), keras.layers.Conv2D(2, 4, 4)]), [], [], 2)
    with pytest.raises(TypeError, match="model must be a keras model"):
        dense_probe(None, [], [], 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", dense.SEEDS)
def test_real_features_segment_better_at_higher_resolution_and_than_pixels(real_data, seed):
    found, pixels = zip(*(dense.measure(real_data, scale, seed) for scale in dense.SCALES), strict=True)
    assert list(found) == sorted(found)
    assert min(found) > max(pixels)
