"""Losses of depth and heatmaps against their definitions in NumPy, and `fit` of task models with them."""

import keras
import numpy as np
import pytest
from conftest import TESTS
from faults import for_each
from slow_rows import slow_after

import keras_vit
from keras_vit.tasks import HeatmapLoss, ScaleShiftInvariantLoss, SiLogLoss, keypoints
from keras_vit.tasks.inputs import placements

FOLDER = TESTS / "golden_tasks"
RNG = np.random.default_rng(0)
TRUTH = RNG.uniform(0.5, 9, (3, 11, 14)).astype("float32")
TRUTH[0, :4], TRUTH[1, 3, 5], TRUTH[2] = 0, np.nan, -1  # without a depth; the last image has none at all
FOUND = RNG.uniform(0.2, 8, (3, 11, 14)).astype("float32")


def silog(truth, found, share):
    known = np.nan_to_num(truth) > 0
    difference = np.log(found[known].astype("float64")) - np.log(truth[known].astype("float64"))
    return np.sqrt((difference**2).mean() - share * difference.mean() ** 2) if known.any() else 0


def shift_invariant(truth, found, weight, scales):
    known = np.nan_to_num(truth) > 0
    if not known.any():
        return 0

    def aligned(values):
        ordered = np.sort(values[known])
        values = values.astype("float64") - ordered[(len(ordered) - 1) // 2]
        return values / np.abs(values[known]).mean()

    rest, total = np.where(known, aligned(found) - aligned(np.nan_to_num(truth)), 0), 0
    for step in (2**scale for scale in range(scales)):
        r, k = rest[::step, ::step], known[::step, ::step]
        for before, after in ((np.s_[:, :-1], np.s_[:, 1:]), (np.s_[:-1], np.s_[1:])):
            both = k[before] & k[after]
            total += np.abs(r[after] - r[before])[both].mean() if both.any() else 0
    return np.abs(rest)[known].mean() + weight * total


@for_each("share", [0.0, 0.5, 1.0])
def test_silog(share):
    loss = SiLogLoss(share, reduction=None)
    expected = [silog(*pair, share) for pair in zip(TRUTH, FOUND, strict=True)]
    np.testing.assert_allclose(loss(TRUTH, FOUND), expected, rtol=1e-5, atol=2e-6)
    scaled = SiLogLoss(1.0)(TRUTH[:1], 3 * TRUTH[:1])
    assert float(scaled) < 2e-3


@for_each("weight, scales", [(2.0, 4), (0.0, 1), (0.5, 2)])
def test_scale_and_shift_do_not_count(weight, scales):
    loss = ScaleShiftInvariantLoss(weight, scales, reduction=None)
    expected = [shift_invariant(*pair, weight, scales) for pair in zip(TRUTH, FOUND, strict=True)]
    np.testing.assert_allclose(loss(TRUTH, FOUND), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss(TRUTH, 7 * FOUND - 3), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss(TRUTH[:1], 2 * TRUTH[:1] + 5), 0, atol=1e-5)


def test_heatmaps():
    points = np.array([[[0, 0, 2], [23, 31, 1], [11.3, 20.9, 2], [5, 5, 0]]], "float32")
    found = RNG.normal(size=(1, 16, 12, 4)).astype("float32")
    y, x = np.mgrid[:16, :12].astype("float64")
    expected = np.zeros((16, 12, 4))
    for index, (left, down) in enumerate(points[0, :3, :2]):
        dx, dy = x - left * 11 / 23, y - down * 15 / 31
        inside = (abs(dx) <= 6) & (abs(dy) <= 6)
        expected[..., index] = np.exp(-(dx**2 + dy**2) / 8) * inside
    squares = (found[0] - expected) ** 2 * np.array([1, 1, 1, 0])
    np.testing.assert_allclose(HeatmapLoss((32, 24), reduction=None)(points, found), [squares.mean()], rtol=1e-5)
    # the keypoints that are read from such heatmaps are those of the loss
    how = keras_vit.config.Preprocessing(size=(32, 24), sizing="box")
    (place,) = placements(how, (32, 24))
    xy = keypoints(expected[None, ..., :3].astype("float32"), [place], "authors").xy[0]
    np.testing.assert_allclose(place.to_input(xy)[2], points[0, 2, :2], atol=0.7)


@for_each(
    "make, message",
    [
        (lambda: SiLogLoss(1.5), r"share must be a number in \[0, 1\]; got share=1.5"),
        (lambda: SiLogLoss(smallest=0), "smallest must be"),
        (lambda: ScaleShiftInvariantLoss(-1), "gradient_weight must be"),
        (lambda: ScaleShiftInvariantLoss(scales=0), "scales must be"),
        (lambda: HeatmapLoss(0), "size must be"),
        (lambda: HeatmapLoss(8, sigma=0), "sigma must be"),
        (lambda: SiLogLoss()(TRUTH[..., None], FOUND), r"maps must be \(batch, rows, columns\); got \(3, 11, 14, 1\)"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("case", "loss"),
    slow_after(
        1,
        [
            ("vitpose_simple", HeatmapLoss((64, 48))),
            ("depth_anything_relative", ScaleShiftInvariantLoss()),
            ("dpt_dinov2", SiLogLoss()),
        ],
    ),
)
def test_fit(case, loss):
    model = keras_vit.load(FOLDER / case)
    size = model.input_shape[1:3] if None not in model.input_shape[1:3] else (56, 56)
    images = RNG.normal(size=(2, *size, 3)).astype("float32")
    outputs = model.predict(images, verbose=0)
    truth = np.exp(outputs) if outputs.ndim == 3 else RNG.uniform(2, 20, (2, outputs.shape[-1], 3))
    again = type(loss).from_config(loss.get_config())
    model.compile(keras.optimizers.Adam(1e-5), loss=again)
    before = [keras.ops.convert_to_numpy(variable) for variable in model.trainable_variables]
    history = model.fit(images, truth.astype("float32"), epochs=5, verbose=0).history["loss"]
    assert min(history[1:]) < history[0]
    after = [keras.ops.convert_to_numpy(variable) for variable in model.trainable_variables]
    pairs = zip(model.trainable_variables, before, after, strict=True)
    assert [variable.path for variable, old, new in pairs if np.array_equal(old, new)] == []
