"""Every family, in its smallest size, through the same life: trained, saved, served, quantised, adapted, resized."""

import gc
import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from families import CLASSES, FAMILIES, Family, built, resnet50

import keras_vit
from keras_vit import ViTConfig
from keras_vit.compat.graph import sublayers
from keras_vit.serving import fresh_process

# Families that the default suite leaves out, because others have nearly the same parts.
SLOW = (pytest.mark.slow,)
ALIKE = (
    *("axial", "axial ResNet", "DeiT", "DeiT distilled", "DeiT-III", "hybrid on a CNN", "hybrid on the root"),
    *("merging", "registers", "SigLIP", "post-norm", "CLIP", "DINOv2", "Perception Encoder", "DINOv3", "AIMv2"),
    *("BEiT", "RoPE-Mixed", "ViT-22B"),
)
DIFFERENT = [pytest.param(name, marks=SLOW if name in ALIKE else ()) for name in FAMILIES]
# Families with nearly the layers of the other ones, in the tests of what is made of a trained model, and of what
# test_contract.py tests layer by layer.
SAME_LAYERS = (*ALIKE, "hybrid", "EVA-02", "SAM")
OTHER_LAYERS = [pytest.param(name, marks=SLOW if name in SAME_LAYERS else ()) for name in FAMILIES]
# serving/test_saved_model.py and models/test_layer_states.py have the plain ViT; Swin has the most kinds of layers.
NOT_PLAIN = [pytest.param(name, marks=SLOW if name in ("plain", "BiT", *SAME_LAYERS) else ()) for name in FAMILIES]
FORMATS = [(name, runtime) for runtime in ("onnx", "litert", "openvino") for name in FAMILIES]
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"

# Constants that a softmax over them or a batch normalisation behind them takes away: what is added to all keys, and in
# the axial ResNet.
WITHOUT_EFFECT = (
    "attention/key_norm/beta",
    "product_norm/beta",
    "query_position_norm/beta",
    "key_position_norm/beta",
    "height_attention/value_norm/beta",
    "height_attention/value_position_norm/beta",
)

# Nothing but these imports: no custom_objects, no registration by hand.
_LOADER = """
import pathlib, sys
import keras, keras_vit
import numpy as np
folder = pathlib.Path(sys.argv[1])
images = np.load(folder / "images.npy")
outputs = {}
for path in sorted([*folder.glob("*.keras"), *folder.glob("*.h5")]):
    model = keras.models.load_model(path)
    outputs[path.name] = keras.ops.convert_to_numpy(model(images))
np.savez(folder / "outputs.npz", **outputs)
"""


@pytest.fixture(params=DIFFERENT)
def name(request):
    return request.param


@pytest.fixture
def family(name):
    return FAMILIES[name]


@pytest.fixture
def model(name):
    """The model of the family, built once; a test that changes it takes a clone."""
    return built(name)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Function from a name to that family's model after two steps of training and its `.keras` file."""
    folder, made = tmp_path_factory.mktemp("saved"), {}

    def get(name):
        if name not in made:
            trained = keras_vit.clone(built(name))
            made[name] = trained, _fit(trained, eager=ON_TENSORFLOW and name in SAME_LAYERS), folder / f"{name}.keras"
            trained.save(made[name][-1])
        return made[name]

    return get


def _images(count=4, size=(32, 32), seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (count, *size, 3)).astype("float32")


def _fit(model, steps=2, size=(32, 32), eager=ON_TENSORFLOW):
    """Two steps from labels; returns the losses. To compile them takes longer than the steps themselves."""
    losses = []
    watch = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.3), loss, jit_compile=not ON_TENSORFLOW, run_eagerly=eager)
    labels = np.arange(4 * steps) % CLASSES
    model.fit(_images(4 * steps, size), labels, batch_size=4, verbose=0, callbacks=[watch])
    return losses


def _run(model, images):
    return keras.ops.convert_to_numpy(keras.ops.cast(model(images), "float32"))


def _weights(model):
    return {weight.path: keras.ops.convert_to_numpy(weight).copy() for weight in model.weights}


def _changed(before, after):
    return {path for path in before if not np.array_equal(before[path], after[path])}


@pytest.mark.parametrize("name", OTHER_LAYERS)
def test_fit_changes_every_trainable_weight(name, model, fitted):
    trained, losses, _ = fitted(name)
    assert len(losses) == 2 and np.isfinite(losses).all()
    after = _weights(trained)
    assert all(np.isfinite(array).all() for array in after.values())
    unchanged = {weight.path for weight in model.trainable_weights} - _changed(_weights(model), after)
    assert not {path for path in unchanged if not path.endswith(WITHOUT_EFFECT)}


@pytest.mark.parametrize("name", OTHER_LAYERS)
def test_saved_model_opens_with_equal_outputs(name, fitted):
    trained, _, path = fitted(name)
    again = keras.models.load_model(path)
    assert type(again) is type(trained) and again.config == trained.config
    np.testing.assert_allclose(_run(again, _images()), _run(trained, _images()), atol=1e-6)
    assert again.optimizer.iterations == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        pytest.param([name for name in FAMILIES if name not in ALIKE], id="different"),
        pytest.param(ALIKE, id="alike", marks=SLOW),
    ],
)
def test_saved_models_open_in_a_fresh_process(fitted, names):
    expected = {name: _run(fitted(name)[0], _images()) for name in names}
    folder = fitted("plain")[-1].parent
    for name in names:
        fitted(name)[0].save(folder / f"{name}.h5")
    np.save(folder / "images.npy", _images())
    root = pathlib.Path(keras_vit.__file__).parents[1]
    search_path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": search_path, "KERAS_BACKEND": keras.backend.backend()}
    command = [sys.executable, "-c", _LOADER, str(folder)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outputs = np.load(folder / "outputs.npz")
    for name, logits in expected.items():
        for file in (f"{name}.keras", f"{name}.h5"):
            np.testing.assert_allclose(outputs[file], logits, atol=1e-5, err_msg=file)


@pytest.mark.parametrize("name", OTHER_LAYERS)
def test_mixed_bfloat16_is_near_float32_and_trains(family, model):
    mixed = family.build(dtype="mixed_bfloat16")
    mixed.set_weights(model.get_weights())
    expected = _run(model, _images())
    assert np.abs(_run(mixed, _images()) - expected).max() < 0.1 * expected.std()
    assert np.isfinite(_fit(mixed, steps=1)).all()
    assert all(np.isfinite(array).all() for array in _weights(mixed).values())
    assert {weight.dtype for weight in mixed.weights} == {"float32"}


@pytest.mark.slow  # serving/test_saved_model.py has one
@pytest.mark.skipif(not ON_TENSORFLOW, reason="SavedModels need TensorFlow")
@pytest.mark.parametrize("name", NOT_PLAIN)
def test_saved_model_of_export_gives_equal_outputs_for_any_batch(model, tmp_path):
    import tensorflow as tf

    folder = keras_vit.export(model, tmp_path, signatures=("images", "features"), check=False)
    served = tf.saved_model.load(str(folder)).signatures["images"]
    pixels = np.random.default_rng(4).integers(0, 256, (3, 32, 32, 3)).astype("float32")
    expected = _run(model, keras_vit.preprocess(pixels.astype("uint8"), model.preprocessing))
    for count in (1, 3):
        logits = served(images=tf.constant(pixels[:count]))["logits"]
        np.testing.assert_allclose(logits, expected[:count], atol=1e-4)


@pytest.mark.slow  # serving/test_portable.py has one of each format
@pytest.mark.skipif(not ON_TENSORFLOW, reason="exports are written by TensorFlow")
@pytest.mark.parametrize(("name", "runtime"), FORMATS)
def test_other_formats_of_export_give_equal_outputs_for_any_batch(model, tmp_path, runtime):
    folder = keras_vit.export(model, tmp_path, format=runtime, check=False)
    pixels = np.random.default_rng(4).integers(0, 256, (3, 32, 32, 3)).astype("float32")
    expected = _run(model, keras_vit.preprocess(pixels.astype("uint8"), model.preprocessing))
    for count in (1, 3):
        outputs, _ = fresh_process.run(runtime, folder, {"images": pixels[:count]})
        np.testing.assert_allclose(outputs["logits"], expected[:count], atol=1e-4)


@pytest.mark.parametrize("name", OTHER_LAYERS)
def test_batch_size_is_open(model):
    assert model.input.shape[0] is None and tuple(model.output.shape) == (None, CLASSES)
    expected = _run(model, _images(3))
    for image, logits in zip(_images(3), expected, strict=True):
        np.testing.assert_allclose(_run(model, image[None])[0], logits, atol=1e-5)


@pytest.mark.parametrize("name", OTHER_LAYERS)
def test_rectangular_images(family, model):
    images = _images(2, family.rectangle)
    built = family.build(image_size=family.rectangle)
    assert built.input.shape[1:3] == family.rectangle
    assert _run(built, images).shape == (2, CLASSES)
    resized = keras_vit.resize(model, family.rectangle)
    logits = _run(resized, images)
    assert np.isfinite(logits).all() and np.ptp(logits) > 0
    assert not np.allclose(logits, _run(resized, images[:, :, ::-1]))  # columns count


def test_what_the_architecture_does_not_allow_is_refused(family):
    for changes, message in family.refused:
        with pytest.raises(ValueError, match=message):
            family.config.replace(**changes) if family.stem is None else family.build(**changes)


@pytest.mark.parametrize("name", OTHER_LAYERS)
def test_another_size_and_back(model):
    larger = keras_vit.resize(model, 64)
    assert type(larger) is type(model) and larger.config == model.config.replace(**_sizes_of(larger))
    assert np.isfinite(_run(larger, _images(2, (64, 64)))).all()
    expected = _run(model, _images())
    for same in (keras_vit.resize(model, 32), keras_vit.clone(model)):
        np.testing.assert_allclose(_run(same, _images()), expected, atol=1e-6)


def _sizes_of(model):
    sizes = {"image_size": model.config.image_size}
    return {**sizes, "stem": model.config.stem} if hasattr(model.config, "stem") else sizes


def test_features_are_maps(name, family, model):
    maps = keras_vit.feature_extractor(model, list(family.maps))(_images(2))
    shapes = [tuple(map_.shape) for map_ in maps]
    assert dict(zip(family.maps, shapes, strict=True)) == {name: (2, *size) for name, size in family.maps.items()}
    assert all(np.isfinite(_array(map_)).all() for map_ in maps)


def _array(tensor):
    return keras.ops.convert_to_numpy(tensor)


def test_features_move_with_the_image(family, model):
    """The first map changes where the image does."""
    name = next(iter(family.maps))
    maps = keras_vit.feature_extractor(model, name)
    images = _images(1)
    changed = images.copy()
    changed[:, :8, 24:] += 1.0  # upper right
    moved = np.abs(_array(maps(changed)) - _array(maps(images)))[0].max(-1)
    rows, columns = moved.shape
    assert moved[: rows // 4, -columns // 4 :].min() > 0
    assert moved[rows // 2 :, : columns // 2].max() == 0


def test_config_goes_to_a_dict_and_back(family, model):
    for config in (family.config, model.config):
        values = json.loads(json.dumps(config.to_dict()))
        assert type(config).from_dict(values) == config


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER_LAYERS)
def test_lora_and_head_alone_learn(family, model, tmp_path):
    adapted = keras_vit.clone(model)
    keras_vit.freeze(adapted)
    dense = [layer for layer in sublayers(adapted) if layer.name in family.lora]
    assert bool(dense) == bool(family.lora)
    for layer in dense:
        layer.trainable = True  # Keras gives a frozen layer LoRA weights that are frozen too
        layer.enable_lora(8)
        if layer.bias is not None:
            layer.bias.trainable = False
    np.testing.assert_allclose(_run(adapted, _images()), _run(model, _images()), atol=1e-6)
    before = _weights(adapted)
    assert np.isfinite(_fit(adapted)).all()
    changed = _changed(before, _weights(adapted))
    wanted = {path for path in before if "lora" in path or path.startswith("head")}
    assert changed == wanted and len(wanted) >= 1 + 2 * len(dense)
    adapted.save(tmp_path / "lora.keras")
    for again in (keras.models.load_model(tmp_path / "lora.keras", compile=False), keras_vit.clone(adapted)):
        np.testing.assert_allclose(_run(again, _images()), _run(adapted, _images()), atol=1e-5)


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_int8_agrees_with_float_and_survives_saving(model, tmp_path, quick_collection):
    """Each logit within a fifth of the deviation of the logits; at most 0.03 to 0.11 of it was measured."""
    quantized = keras_vit.clone(model)
    quantized.quantize("int8")
    images, expected = _images(16), _run(model, _images(16))
    logits = _run(quantized, images)
    assert 0 < np.abs(logits - expected).max() < 0.2 * expected.std()
    quantized.save(tmp_path / "int8.keras")
    for again in (keras.models.load_model(tmp_path / "int8.keras"), keras_vit.clone(quantized)):
        np.testing.assert_allclose(_run(again, images), logits, atol=1e-6)
        kernels = {weight.path for weight in again.weights if weight.dtype == "int8"}
        assert kernels and kernels == {weight.path for weight in quantized.weights if weight.dtype == "int8"}


@pytest.fixture
def quick_collection():
    """Keras collects garbage for each layer that it quantises; this keeps the other tests' objects out of that."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
def test_hybrid_on_resnet50_of_keras(tmp_path):
    config = ViTConfig(
        name="tiny",
        image_size=64,
        patch_size=1,
        hidden_dim=24,
        num_layers=1,
        num_heads=2,
        mlp_dim=32,
        classes=CLASSES,
    )
    model = Family(config, {}, stem=resnet50).build()
    assert model.config.grid_size == (2, 2)
    images = _images(2, (64, 64))
    expected = _run(model, images)
    model.save(tmp_path / "resnet50.keras")
    np.testing.assert_allclose(_run(keras.models.load_model(tmp_path / "resnet50.keras"), images), expected, atol=1e-5)
    maps = keras_vit.feature_extractor(model, ["resnet50", "block_00"])(images)
    assert [tuple(map_.shape) for map_ in maps] == [(2, 2, 2, 2048), (2, 2, 2, 24)]
    assert _run(keras_vit.resize(model, (64, 96)), _images(1, (64, 96))).shape == (1, CLASSES)
    keras_vit.freeze(model, "resnet50")
    before = _weights(model)
    assert np.isfinite(_fit(model, size=(64, 64))).all()
    changed = _changed(before, _weights(model))
    assert {"head/kernel", "patch_encoder/projection/kernel"} < changed
    assert changed <= {weight.path for weight in model.trainable_weights}
