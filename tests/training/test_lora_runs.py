"""Runs of train with LoRA: they resume bit for bit, their checkpoints hold A and B, and their files are merged."""

import keras
import numpy as np
import pytest
from safetensors import safe_open
from short_runs import KillAt, Killed

import keras_vit
from keras_vit import VisionTransformer, ViTConfig
from keras_vit.data import from_arrays
from keras_vit.training import Recipe, progress, train

CONFIG = ViTConfig(
    name="toy", image_size=8, patch_size=4, hidden_dim=8, num_layers=1, num_heads=2, mlp_dim=8, classes=2, channels=1
).replace(dropout_rate=0.1)
RECIPE = Recipe(
    name="toy", source="this test", optimizer="adamw", learning_rate=1e-2, batch_size=8, epochs=2, weight_decay=0.1
)
LORA = [f"block_00/attention/{name}/lora_kernel_{part}" for name in ("qkv", "proj") for part in "ab"]

pytestmark = pytest.mark.usefixtures("eagerly")


@pytest.fixture(scope="module")
def source():
    rng = np.random.default_rng(0)
    return from_arrays(rng.integers(0, 255, size=(24, 8, 8, 1)).astype("uint8"), np.arange(24) % 2)


def _run(source, workdir):
    """One start of the command: a model of the same weights, with A drawn anew."""
    model = VisionTransformer(CONFIG)
    rng = np.random.default_rng(1)
    model.set_weights([rng.normal(size=weight.shape) / 3 for weight in model.weights])
    keras_vit.add_lora(model, rank=2, alpha=4)
    return train(RECIPE, source, workdir, model=model, checkpoint_every=2, verbose=0).model


def _bits(model):
    return [keras.ops.convert_to_numpy(v).tobytes() for v in [*model.variables, *model.optimizer.variables]]


@pytest.mark.slow
def test_an_interrupted_run_ends_as_the_other(source, tmp_path, monkeypatch):
    whole = _run(source, tmp_path / "whole")
    with monkeypatch.context() as patched, pytest.raises(Killed):
        killer = KillAt(5)
        patched.setattr(progress.Tables, "on_train_batch_end", lambda *step, **logs: killer.count())
        _run(source, tmp_path / "broken")
    weights = {weight.path: keras.ops.convert_to_numpy(weight) for weight in whole.weights}
    with safe_open(tmp_path / "broken" / "checkpoints" / "step-000000004.safetensors", "np") as file:
        saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    matrices = [array for name, array in saved.items() if name.startswith("model.") and ".lora_kernel_" in name]
    assert [array.shape for array in matrices] == [weights[path].shape for path in LORA]
    assert all(np.any(array) for array in matrices)  # also B, after four steps
    assert _bits(_run(source, tmp_path / "broken")) == _bits(whole)


@pytest.mark.slow
def test_files_of_a_finished_run_are_merged_and_are_its_result(source, tmp_path):
    images = np.random.default_rng(2).normal(size=(4, 8, 8, 1)).astype("float32")
    done = _run(source, tmp_path)
    expected = done(images, training=False)
    saved = keras.models.load_model(tmp_path / "model.keras")
    assert len(saved.weights) == len(done.weights) - len(LORA)
    assert {weight.path for weight in saved.trainable_weights} == {"head/kernel", "head/bias"}
    again = _run(source, tmp_path)  # the run is finished: its weights go into the new model
    for model in (saved, again):
        np.testing.assert_allclose(model(images, training=False), expected, atol=1e-5)
    matrices = {weight.path: np.any(weight) for weight in again.weights if weight.path in LORA}
    assert matrices == {path: path.endswith("_a") for path in LORA}  # LoRA may go on from there
