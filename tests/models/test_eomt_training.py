"""EoMTTraining: predictions of each block, masks that end during the run, and `fit`."""

import keras
import numpy as np
import pytest
from faults import for_each

import keras_vit
from keras_vit.models.eomt import MaskedAttention
from keras_vit.tasks import MaskLoss

CONFIG = keras_vit.ViTConfig(
    name="tiny", image_size=32, patch_size=8, hidden_dim=16, num_layers=4, num_heads=2, mlp_dim=32, include_top=False
)
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(4, 32, 32, 3)).astype("float32")


def eomt(**arguments):
    keras.utils.set_random_seed(0)
    encoder = keras_vit.VisionTransformer(CONFIG)
    return keras_vit.EoMT(encoder, classes=3, num_queries=5, **{"num_blocks": 3, **arguments})


def targets(count=4):
    labels = np.where(np.arange(3) < [[0], [1], [2], [3]], np.arange(3), -1)[:count]
    masks = np.zeros((count, 3, 32, 32), "uint8")
    for n in range(3):
        masks[:, n, 8 * n : 8 * n + 12, 4 : 4 + 9 * n] = 1
    return {"labels": labels, "masks": masks}


def test_windows_are_those_of_the_authors():
    """Configs of COCO: 88,692 steps; three blocks for S and B, four for L."""
    expected = {
        3: [(14782, 29564), (36955, 51737), (59128, 73910)],
        4: [(14782, 29564), (29564, 44346), (44346, 59128), (59128, 73910)],
    }
    for count, windows in expected.items():
        trained = keras_vit.EoMTTraining(eomt(num_blocks=count), steps=88692)
        found = [layer.window for layer in trained.layers if isinstance(layer, MaskedAttention)]
        np.testing.assert_allclose(found, windows, atol=1)


def test_predictions():
    """Masked in every call, the last prediction is that of an EoMT with `masked`; without, that of the EoMT."""
    model, again = eomt(), eomt(masked=True)
    values = {weight.path: weight for weight in model.weights}
    for weight in again.weights:
        weight.assign(values[weight.path])
    trained = keras_vit.EoMTTraining(model, steps=600, num_points=8)
    for training, expected in ((False, model(IMAGES)), (True, again(IMAGES))):
        found = trained(IMAGES, training=training)
        assert len(found["class_logits"]) == len(found["mask_logits"]) == 4
        for name, value in expected.items():
            np.testing.assert_allclose(found[name][-1], value, rtol=1e-4, atol=1e-5)
    assert found["points"].shape == (4, 8, 2) and found["candidates"].shape == (4, 24, 2)
    different = trained(IMAGES, training=True)["points"]
    assert not np.array_equal(found["points"], different)
    np.testing.assert_array_equal(trained(IMAGES)["points"], trained(IMAGES)["points"])
    assert len(keras_vit.EoMTTraining(model).output["class_logits"]) == 1


def test_queries_are_masked_by_chance():
    layer = MaskedAttention((10, 30))
    masks, patches, tokens = -np.ones((40, 4, 4, 50)), np.zeros((40, 4, 4, 8)), np.zeros((40, 67, 8))
    shares = []
    for step in (0, 9, 20, 30, 35):
        if not layer.built:
            layer(masks, patches, tokens, training=True)
        layer.step.assign(step)
        bias = keras.ops.convert_to_numpy(layer(masks, patches, tokens, training=True))
        assert int(layer.step) == step + 1
        rows = bias[:, 0, :50, 51:]  # queries to patches
        assert set(np.unique(rows.std(-1))) == {0.0} and not bias[:, :, 50:].any() and not bias[..., :51].any()
        shares.append((rows[..., 0] < 0).mean())
    np.testing.assert_allclose(shares, [1, 1, 0.5**0.9, 0, 0], atol=0.04)
    assert not keras.ops.convert_to_numpy(layer(masks, patches, tokens)).any()


def test_fit_trains_the_model(tmp_path):
    model = eomt(num_blocks=1)
    trained = keras_vit.EoMTTraining(model, steps=24, num_points=32)
    trained.compile(keras.optimizers.AdamW(3e-3), MaskLoss(), jit_compile=keras.backend.backend() == "jax")
    before = [keras.ops.convert_to_numpy(weight) for weight in trained.trainable_variables]
    history = trained.fit(IMAGES, targets(), epochs=12, verbose=0).history["loss"]
    assert history[-1] < 0.7 * history[0]
    changed = [not np.array_equal(old, new) for old, new in zip(before, trained.trainable_variables, strict=True)]
    assert all(changed) and len(before) == len(model.trainable_variables)
    trained.save(tmp_path / "trained.keras")
    again = keras.models.load_model(tmp_path / "trained.keras")
    assert again.settings == trained.settings
    np.testing.assert_allclose(again.model(IMAGES)["mask_logits"], model(IMAGES)["mask_logits"], rtol=1e-4, atol=1e-5)
    assert [int(layer.step) for layer in again.layers if isinstance(layer, MaskedAttention)] == [12]


@for_each(
    "make, error, message",
    [
        (lambda: keras_vit.EoMTTraining(eomt(masked=True)), ValueError, "model must have masked=False"),
        (lambda: keras_vit.EoMTTraining(eomt().encoder), TypeError, "model must be a keras_vit.EoMT"),
        (lambda: keras_vit.EoMTTraining(eomt(), steps=0), ValueError, "steps must be an integer of at least 1"),
        (lambda: MaskedAttention((5, 5)), ValueError, "window must be two ascending steps"),
    ],
)
def test_errors(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_microbatches_are_refused():
    trained = keras_vit.EoMTTraining(eomt(), num_points=8)
    trained.compile("sgd", MaskLoss(), microbatches=2)
    with pytest.raises(ValueError, match=r"microbatches must be 1 for a loss that is a mean over the objects"):
        trained.fit(IMAGES, targets(), verbose=0)
