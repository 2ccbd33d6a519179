"""A run of a masked autoencoder: it resumes exactly, and its encoder is fine-tuned."""

import keras
import numpy as np
import pytest

from keras_vit import MaskedAutoencoder, ViTConfig
from keras_vit.data import from_arrays
from keras_vit.training import RECIPES, progress, train

CONFIG = ViTConfig(
    name="toy",
    image_size=8,
    patch_size=2,
    hidden_dim=8,
    num_layers=1,
    num_heads=2,
    mlp_dim=8,
    channels=1,
    embedding={"position_init": "sincos2d_mae"},
)
RECIPE = RECIPES["mae/imagenet"].replace(
    batch_size=8, epochs=2, warmup_epochs=1, image_size=None, model=CONFIG, augment=("flip",), seed=3
)

pytestmark = pytest.mark.usefixtures("eagerly")


@pytest.fixture(scope="module")
def source():
    images = np.random.default_rng(0).integers(0, 256, size=(8, 8, 8, 1), dtype="uint8")
    return from_arrays(images, np.arange(8) % 2, class_names=("night", "day"))


@pytest.mark.slow
def test_the_same_call_goes_on_and_its_encoder_is_fine_tuned(source, tmp_path, monkeypatch):
    class Killed(Exception):
        pass

    def end(self, epoch, logs):
        raise Killed

    result = train(RECIPE, source, tmp_path / "1", validation=source, verbose=0)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(progress.BestModel, "on_epoch_end", end)
        train(RECIPE, source, tmp_path / "2", validation=source, verbose=0)
    again = train(RECIPE, source, tmp_path / "2", validation=source, verbose=0)
    for name in ("loss", "val_loss"):
        assert again.history[name] == result.history[name]
    assert result.accuracy is None
    for ours, theirs in zip(again.model.get_weights(), result.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    model = result.model
    assert type(model) is MaskedAutoencoder and model.norm_pixels and model.encoder.labels == ("night", "day")
    assert float(model.optimizer.beta_2) == 0.95
    table = model.encoder.get_layer("position_embs").embedding
    before = np.array(table)
    saved = keras.models.load_model(tmp_path / "1" / "model.keras")
    np.testing.assert_array_equal(saved.encoder.get_layer("position_embs").embedding, before)
    tuned = RECIPES["mae/finetune/b"].replace(
        batch_size=8, epochs=3, warmup_epochs=0, image_size=None, drop_path_rate=None, augment=(), mix=()
    )
    train(tuned, source, tmp_path / "3", model=model.encoder, verbose=0)
    assert np.any(np.array(table) != before), "fine-tuning trains the positions"
