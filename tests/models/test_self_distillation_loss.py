"""The functions of the training of DINOv2 and DINOv3 at their limits; tests/golden_ssl has the original numbers."""

import json

import keras
import numpy as np
import pytest
from keras import ops
from replica_process import start, wait

from keras_vit.models import self_distillation_loss as losses

RNG = np.random.default_rng(0)


def numpy(value):
    return ops.convert_to_numpy(value)


def compiled(function):
    """The function as the backend compiles it, with XLA."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function, jit_compile=True)


def rounds(logits, temperature, iterations=3):
    """Sinkhorn-Knopp in float64 as the paper's repository states it, without logarithms."""
    q = np.exp((logits.astype("float64") - logits.max()) / temperature).T
    q /= q.sum()
    for _ in range(iterations):
        q /= q.sum(axis=1, keepdims=True) * len(q)
        q /= q.sum(axis=0, keepdims=True) * q.shape[1]
    return (q * q.shape[1]).T


@pytest.mark.parametrize("iterations", [1, 3])
def test_sinkhorn_knopp_of_large_logits_is_that_of_float64(iterations):
    logits = RNG.normal(size=(6, 5)).astype("float32")
    logits[2] -= 2  # at 0.04, this row is exp(-50) of the others
    with np.errstate(over="ignore"):
        assert np.isinf(np.exp(np.float32(3.6) / np.float32(0.04)) ** 2)
    found = numpy(losses.sinkhorn_knopp(logits + 3.6, 0.04, iterations))
    np.testing.assert_allclose(found, rounds(logits, 0.04, iterations), atol=2e-5)
    far = logits - np.array([0, 0, 90, 0, 0, 0], "float32")[:, None]  # exp(-2250) is 0 in float64, too
    found = numpy(losses.sinkhorn_knopp(far, 0.04, iterations))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)


def test_sinkhorn_knopp_leaves_out_the_samples_that_do_not_count():
    logits, weights = RNG.normal(size=(7, 5)).astype("float32"), np.array([0, 1, 0.5, 0, 1, 0.2, 0], "float32")
    logits[0] += 50  # it would decide the sums
    run = compiled(lambda logits, weights: losses.sinkhorn_knopp(logits, 0.1, weights=weights))
    found = numpy(run(logits, weights))
    np.testing.assert_allclose(found[weights > 0], rounds(logits[weights > 0], 0.1), atol=1e-5)
    assert not found[weights == 0].any()
    assert not numpy(run(logits, np.zeros_like(weights))).any()  # no NaN where none counts


def test_center_of_patches_stays_where_no_patch_counts():
    logits, center = RNG.normal(size=(4, 3)).astype("float32"), RNG.normal(size=3).astype("float32")
    weights = np.array([0, 0.5, 0, 0.5], "float32")
    mean = numpy(losses.mean_of_patches(logits, weights, center))
    np.testing.assert_allclose(mean, logits[[1, 3]].mean(0), rtol=1e-6)
    unchanged = losses.mean_of_patches(logits, np.zeros(4, "float32"), center)
    np.testing.assert_array_equal(numpy(losses.moving_average(center, unchanged, 0.9)), center)


def test_loss_of_no_patch_is_zero():
    probabilities, logits = np.full((4, 3), 1 / 3, "float32"), RNG.normal(size=(4, 3)).astype("float32")
    assert float(losses.masked_patch_loss(probabilities, logits, np.zeros(4, "float32"), 0.1, 8)) == 0


def test_koleo_of_equal_images_in_float16_is_finite():
    features = RNG.normal(size=(4, 6)).astype("float16")
    features[2] = features[0]
    found = numpy(losses.koleo(ops.convert_to_tensor(features)))
    assert found.dtype == "float32"
    same = -np.log(1e-8 * np.sqrt(6) + 1e-8)
    np.testing.assert_allclose(found[[0, 2]], same, rtol=1e-5)
    assert (found[[1, 3]] < 1).all()


def test_gram_losses_is_the_mean_over_the_pairs_of_patches():
    student, teacher = RNG.normal(size=(2, 3, 2, 4, 5)).astype("float32")
    unit = [x.reshape(3, 8, 5) / np.linalg.norm(x.reshape(3, 8, 5), axis=-1, keepdims=True) for x in (student, teacher)]
    difference = unit[0] @ unit[0].swapaxes(1, 2) - unit[1] @ unit[1].swapaxes(1, 2)
    np.testing.assert_allclose(numpy(losses.gram_losses(student, teacher)), (difference**2).mean((1, 2)), rtol=1e-5)
    zeros = np.zeros_like(student)  # no norm to divide by
    assert np.isfinite(numpy(losses.gram_losses(zeros, teacher))).all()


def test_loss_keeps_its_divisor():
    loss = losses.SelfDistillationLoss(0.2, least_pairs=3)
    again = losses.SelfDistillationLoss.from_config(loss.get_config())
    targets, logits = np.full((1, 2, 4), 0.25, "float32"), RNG.normal(size=(1, 2, 4)).astype("float32")
    plain = float(losses.SelfDistillationLoss(0.2)(targets, logits))
    assert float(again(targets, logits)) == pytest.approx(plain * 2 / 3, rel=1e-6)


@pytest.mark.slow
def test_several_devices_are_one(tmp_path):
    wait([start("loss_devices.py", tmp_path / "found.json", KERAS_BACKEND=keras.backend.backend())])
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    sizes = found.pop("largest")
    assert sizes.pop("without any") == 0 and min(sizes.values()) > 0.1, sizes
    assert max(found.values()) < 2e-6, found
