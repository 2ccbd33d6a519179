"""One set of weights at many patch sizes: the resized kernel, copies with other patches, training, saving."""

import keras
import numpy as np
import onevit
import pytest
from slow_rows import slow_after

import keras_vit
from keras_vit import ViTConfig
from keras_vit.layers.patches import resize_patch_kernel


@pytest.mark.parametrize("size", [(8, 8), (6, 10), (2, 3), (5, 5), (4, 5)])
def test_kernel_is_the_old_one_times_the_pseudo_inverse_of_the_resizing(size):
    kernel = np.random.default_rng(0).normal(size=(4, 5, 3, 7))
    resizing = np.kron(*(onevit.resize_matrix(old, new) for old, new in zip((4, 5), size, strict=True)))
    expected = np.linalg.pinv(resizing.T, rcond=1e-10) @ kernel.reshape(20, -1)
    resized = resize_patch_kernel(kernel, size)
    np.testing.assert_allclose(resized, expected.reshape(*size, 3, 7), atol=1e-9)
    on_tensors = keras.ops.convert_to_numpy(resize_patch_kernel(keras.ops.convert_to_tensor(kernel, "float32"), size))
    np.testing.assert_allclose(on_tensors, resized, atol=1e-5)


def test_enlarged_patches_give_the_tokens_of_the_originals():
    rng = np.random.default_rng(1)
    kernel, patch = rng.normal(size=(4, 4, 3, 7)), rng.normal(size=(4, 4, 3))
    larger = np.einsum("yh,xw,hwc->yxc", *[onevit.resize_matrix(4, 9)] * 2, patch)
    expected = np.einsum("hwc,hwcd->d", patch, kernel)
    np.testing.assert_allclose(np.einsum("hwc,hwcd->d", larger, resize_patch_kernel(kernel, 9)), expected, atol=1e-10)


@pytest.mark.parametrize(("rows", "columns"), slow_after(1, [(8, 8), (2, 4), (2, 2), (4, 4)]))
def test_a_copy_has_the_weights_and_other_patches(make_model, run, rows, columns):
    model = make_model()
    images = np.random.default_rng(2).normal(size=(2, 16, 16, 3)).astype("float32")
    sides = rows, columns
    other = model.with_patch_size(sides)
    for one, two in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(two))
    plain = make_model(patch_size=sides)  # what a model for these patches alone gives with the resized arrays
    position = {"position_embs/embedding", "patch_encoder/projection/kernel"}
    for one, two in zip(model.weights, plain.weights, strict=True):
        if one.path not in position:
            two.assign(one)
    kernel = keras.ops.convert_to_numpy(model.get_layer("patch_encoder").projection.kernel)
    plain.get_layer("patch_encoder").projection.kernel.assign(resize_patch_kernel(kernel, sides))
    table = keras.ops.convert_to_numpy(model.get_layer("position_embs").embedding)
    grid = tuple(16 // side for side in sides)
    plain.get_layer("position_embs").embedding.assign(keras_vit.resize_position_embedding(table, (4, 4), grid))
    np.testing.assert_allclose(run(other, images), run(plain, images), atol=2e-5)
    np.testing.assert_allclose(run(other.with_patch_size(4), images), run(model, images), atol=2e-5)


@pytest.mark.slow
def test_it_trains_the_stored_kernel_and_is_saved(make_model, run, tmp_path):
    model = make_model().with_patch_size(8)
    before = keras.ops.convert_to_numpy(model.get_layer("patch_encoder").projection.kernel)
    assert before.shape == (4, 4, 3, 16)
    images, labels = np.random.default_rng(3).normal(size=(4, 16, 16, 3)).astype("float32"), np.arange(4)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert np.isfinite(model.fit(images, labels, verbose=0).history["loss"]).all()
    after = keras.ops.convert_to_numpy(model.get_layer("patch_encoder").projection.kernel)
    assert np.abs(after - before).max() > 0
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.config == model.config
    np.testing.assert_array_equal(run(again, images), run(model, images))


def test_images_of_any_size_with_other_patches(make_model, run):
    images = np.random.default_rng(4).normal(size=(2, 24, 16, 3)).astype("float32")
    every = keras_vit.resize(make_model(), "any").with_patch_size(8)
    fixed = make_model().with_patch_size(8)
    assert every.config.image_size == "any"
    expected = run(keras_vit.resize(make_model(), (24, 16)).with_patch_size(8), images)
    assert run(every, images).shape == expected.shape == (2, 5)
    square = images[:, :16]
    np.testing.assert_allclose(run(every, square), run(fixed, square), atol=2e-5)


def test_refusals(make_model):
    with pytest.raises(ValueError, match="image_size must be at least patch_size"):
        make_model().with_patch_size(17)
    with pytest.raises(ValueError, match="embedding.kernel_size can only be resized in one direction"):
        make_model().with_patch_size((2, 8))
    with pytest.raises(ValueError, match="token_merging needs images of one size"):
        make_model(token_merging=2).with_patch_size(2)
    with pytest.raises(ValueError, match="patch_size must be one positive integer"):
        make_model().with_patch_size(0)
    config = ViTConfig(name="x", image_size=16, patch_size=4, hidden_dim=8, num_layers=1, num_heads=1, mlp_dim=8)
    assert config.replace(**{"embedding.kernel_size": 8}).embedding.kernel_size == (8, 8)
