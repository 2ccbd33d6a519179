"""ImageModel: saving, copies, other image sizes, and the description a model carries."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from faults import for_each
from keras import ops
from scipy import ndimage
from slow_rows import slow_after

import keras_vit
from keras_vit import Preprocessing, VisionTransformer
from keras_vit.models.derived import of_pixels
from keras_vit.models.encoders import count_classes, keep_class_names

PREPROCESSING = Preprocessing(size=20, crop=16, interpolation="bicubic", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
LABELS = ("ant", "bee", "cat", "dog", "eel")

# name -> changes to the tiny config
SAVED = {
    "plain": {},
    "everything": {
        "image_size": (8, 16),
        "pooling": "gap",
        "class_token": True,
        "norm_position": "after_pooling",
        "representation_size": 6,
        "dropout_rate": 0.1,
        "attention_dropout_rate": 0.1,
        "drop_path_rate": 0.1,
        "layer_scale_init": 0.1,
        "qkv_bias": False,
        "qk_norm": True,
        "num_registers": 2,
        "gelu": "erf",
        "epsilon": 1e-12,
        "remat": "block",
    },
    "map": {"pooling": "map", "position_embedding": "sincos2d"},
    "bfloat16": {"dtype": "mixed_bfloat16", "position_embedding": "none"},
    "headless": {"include_top": False},
}

# Nothing but these imports: no custom_objects, no registration by hand.
_LOADER = """
import json, pathlib, sys
import keras, keras_vit
import numpy as np
folder = pathlib.Path(sys.argv[1])
descriptions, outputs = {}, {}
for path in sorted(folder.glob("*.keras")):
    model = keras.models.load_model(path)
    images = np.load(folder / f"{path.stem}.npy")
    outputs[path.stem] = keras.ops.convert_to_numpy(keras.ops.cast(model(images), "float32"))
    descriptions[path.stem] = {
        "class": type(model).__name__,
        "config": model.config.to_dict(),
        "preprocessing": model.preprocessing.to_dict(),
        "labels": model.labels,
        "name": model.name,
        "trainable": [w.path for w in model.trainable_weights],
    }
np.savez(folder / "outputs.npz", **outputs)
(folder / "descriptions.json").write_text(json.dumps(descriptions))
"""


@pytest.mark.slow
def test_saved_models_open_in_a_fresh_process_that_only_imported_the_package(make_model, make_images, run, tmp_path):
    models = {name: make_model(**changes) for name, changes in SAVED.items()}
    models["plain"].preprocessing, models["plain"].labels = PREPROCESSING, LABELS
    for name in ("patch_encoder", "block_00"):
        models["map"].get_layer(name).trainable = False
    for name, model in models.items():
        model.save(tmp_path / f"{name}.keras")
        np.save(tmp_path / f"{name}.npy", make_images(model))
    root = pathlib.Path(keras_vit.__file__).parents[1]
    search_path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": search_path, "KERAS_BACKEND": keras.backend.backend()}
    command = [sys.executable, "-c", _LOADER, str(tmp_path)]
    process = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    outputs = np.load(tmp_path / "outputs.npz")
    descriptions = json.loads((tmp_path / "descriptions.json").read_text())
    for name, model in models.items():
        tolerance = 1e-5 if name != "bfloat16" else 1e-2
        np.testing.assert_allclose(outputs[name], run(model, make_images(model)), atol=tolerance, err_msg=name)
        assert descriptions[name] == {
            "class": "VisionTransformer",
            "config": model.config.to_dict(),
            "preprocessing": model.preprocessing.to_dict(),
            "labels": None if model.labels is None else list(model.labels),
            "name": "tiny",
            "trainable": [w.path for w in model.trainable_weights],
        }
    assert descriptions["plain"]["labels"] == list(LABELS)
    assert not [path for path in descriptions["map"]["trainable"] if path.startswith(("patch_encoder", "block_00"))]
    assert descriptions["map"]["trainable"]


def test_model_inside_a_larger_model_survives_saving(make_model, make_images, run, tmp_path):
    encoder = make_model(include_top=False)
    inputs = keras.Input((16, 16, 3))
    model = keras.Model(inputs, keras.layers.Dense(2, name="mine")(encoder(inputs)))
    model.save(tmp_path / "larger.keras")
    again = keras.models.load_model(tmp_path / "larger.keras")
    np.testing.assert_allclose(run(again, make_images(model)), run(model, make_images(model)), atol=1e-6)
    assert isinstance(again.layers[1], VisionTransformer) and again.layers[1].config == encoder.config


def test_lora_is_merged_into_the_saved_kernel(make_model, make_images, run, tmp_path):
    model = make_model()
    dense = model.get_layer("block_00").mlp.dense1
    dense.enable_lora(2)
    dense.lora_kernel_b.assign(np.ones((2, 24)))
    model.save(tmp_path / "lora.keras")
    again = keras.models.load_model(tmp_path / "lora.keras")
    np.testing.assert_allclose(run(again, make_images(model)), run(model, make_images(model)), atol=1e-5)


@pytest.mark.parametrize("changes", slow_after(3, SAVED.values()), ids=SAVED)
def test_clone_is_equal_and_shares_nothing(changes, make_model, make_images, run):
    model = make_model(**changes)
    model.get_layer("block_01").trainable = False
    copy = keras_vit.clone(model)
    assert type(copy) is VisionTransformer
    assert (copy.config, copy.name) == (model.config, model.name)
    np.testing.assert_allclose(run(copy, make_images(model)), run(model, make_images(model)), atol=1e-6)
    assert not {id(w) for w in copy.variables} & {id(w) for w in model.variables}
    assert not {id(x) for x in copy.layers} & {id(x) for x in model.layers}
    assert [w.path for w in copy.trainable_weights] == [w.path for w in model.trainable_weights]
    before = model.get_weights()
    for weight in copy.weights:
        weight.assign(ops.zeros(weight.shape))
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_clone_keeps_preprocessing_and_labels(make_model):
    copy = keras_vit.clone(make_model(preprocessing=PREPROCESSING, labels=LABELS))
    assert (copy.preprocessing, copy.labels) == (PREPROCESSING, LABELS)


def test_clone_trains(make_model, make_images):
    copy = keras_vit.clone(make_model(dropout_rate=0.1, drop_path_rate=0.1))
    copy.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    before = copy.get_weights()
    copy.train_on_batch(make_images(copy), np.array([0, 1, 2]))
    assert all((old != new).any() for old, new in zip(before, copy.get_weights(), strict=True))


@pytest.mark.parametrize(
    "changes", slow_after(1, [SAVED["everything"], SAVED["plain"], SAVED["map"]]), ids=["everything", "plain", "map"]
)
def test_keras_clone_model_gives_equal_outputs(changes, make_model, make_images, run):
    model = make_model(**changes)
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    np.testing.assert_allclose(run(copy, make_images(model)), run(model, make_images(model)), atol=1e-6)


@pytest.mark.parametrize("use", ["clone", "features", "predict", "evaluate", "export", "masked"])
def test_a_plain_copy_of_keras_is_refused_with_what_to_use(use, make_model, tmp_path):
    model = make_model()
    uses = {
        "clone": keras_vit.clone,
        "features": lambda model: keras_vit.feature_extractor(model, "head"),
        "predict": lambda model: keras_vit.predict(model, "a.png"),
        "evaluate": lambda model: keras_vit.evaluate(model, "folder"),
        "export": lambda model: keras_vit.export(model, tmp_path),
        "masked": keras_vit.MaskedPatchPrediction,
    }
    with pytest.raises((TypeError, ValueError), match=r"\(keras_vit.clone\(model\) copies a model\)"):
        uses[use](keras.models.clone_model(model))
    if use not in ("clone", "features", "masked"):  # tests/evaluation/test_own_heads.py
        return
    inside = keras.Sequential([model, keras.layers.Softmax()])
    with pytest.raises((TypeError, ValueError), match=f"got Sequential around one .give model.get_layer.'{model.name}"):
        uses[use](inside)


@for_each("make", [keras_vit.clone, lambda model: keras_vit.resize(model, 32)])
@for_each("model", [None, "ViT-B_16", keras.Sequential])
def test_copies_of_other_models_are_refused(make, model):
    model = model() if isinstance(model, type) else model
    with pytest.raises(TypeError, match=f"model must be a model of keras_vit; got {type(model).__name__}"):
        make(model)


@pytest.mark.parametrize("image_size", [(8, 24), *slow_after(0, [[32], [8], [(4, 64)]])])
@pytest.mark.parametrize("changes", [{}, {"num_registers": 2}, {"pooling": "gap"}], ids=str)
def test_resize_changes_only_the_position_table(image_size, changes, make_model, make_images, run):
    model = make_model(**changes)
    resized = keras_vit.resize(model, image_size)
    height, width = image_size if isinstance(image_size, tuple) else (image_size, image_size)
    assert resized.config == model.config.replace(image_size=(height, width))
    assert resized.preprocessing.image_size == (height, width)
    assert run(resized, make_images(resized)).shape == (3, 5)
    old, new = _by_path(model), _by_path(resized)
    table, new_table = old.pop("position_embs/embedding")[0], new.pop("position_embs/embedding")[0]
    rows = model.config.num_class_tokens
    factors = (height / 16, width / 16, 1)
    grid = ndimage.zoom(table[rows:].reshape(4, 4, 16), factors, order=1)
    np.testing.assert_allclose(new_table, np.concatenate([table[:rows], grid.reshape(-1, 16)]), atol=1e-5)
    assert old.keys() == new.keys()
    for path in old:
        np.testing.assert_array_equal(old[path], new[path])


def test_resize_takes_the_method_the_preprocessing_and_what_is_frozen(make_model):
    model = make_model(preprocessing=PREPROCESSING, labels=LABELS)
    model.get_layer("block_00").trainable = False
    bilinear, official = (keras_vit.resize(model, 32, method) for method in ("bilinear", "align_corners"))
    assert np.abs(_table(bilinear) - _table(official)).max() > 0.01
    assert bilinear.preprocessing == PREPROCESSING.at(32) and bilinear.preprocessing.size == 40
    assert bilinear.labels == LABELS and not bilinear.get_layer("block_00").trainable


@pytest.mark.parametrize("position_embedding", ["sincos2d", "none"])
def test_resize_of_a_model_without_a_table(position_embedding, make_model, make_images, run):
    model = make_model(position_embedding=position_embedding)
    resized = keras_vit.resize(model, (8, 24))
    assert run(resized, make_images(resized)).shape == (3, 5)
    for old, new in zip(model.get_weights(), resized.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_resize_and_back_is_the_same_model(make_model, make_images, run):
    # 4 -> 7 -> 4 rows: align-corners puts every old row on a new one.
    model = make_model()
    back = keras_vit.resize(keras_vit.resize(model, 28), 16)
    np.testing.assert_allclose(run(back, make_images(model)), run(model, make_images(model)), atol=1e-5)


@for_each(
    ("arguments", "message"),
    [
        (
            ((30, 3),),
            r"image_size must be at least patch_size; got image_size=\(30, 3\), patch_size=\(4, 4\)",
        ),
        ((0,), "image_size must be one positive integer or a pair"),
        ((32, "cubic"), "method must be one of 'auto', 'align_corners', .* got method='cubic'"),
    ],
)
def test_resize_refuses_wrong_arguments(arguments, message, make_model):
    with pytest.raises(ValueError, match=message):
        keras_vit.resize(make_model(), *arguments)


def test_default_preprocessing_is_the_official_one_at_the_models_size(make_model):
    assert make_model(image_size=(8, 16)).preprocessing == Preprocessing(size=(8, 16))
    assert make_model(channels=1).preprocessing == Preprocessing(size=16, mean=0.5, std=0.5)
    model = make_model(preprocessing=PREPROCESSING)
    assert model.preprocessing == PREPROCESSING
    model.preprocessing = None
    assert model.preprocessing == Preprocessing(size=16)


@for_each(
    ("value", "error", "message"),
    [
        (
            {"size": 16},
            TypeError,
            r"preprocessing must be a keras_vit.Preprocessing or None; got \{'size': 16\}",
        ),
        ("imagenet", TypeError, "preprocessing must be a keras_vit.Preprocessing or None; got 'imagenet'"),
        (
            Preprocessing(size=32),
            ValueError,
            r"image_size \(16, 16\) and 3 channels, and .*; got \(32, 32\), 3 and None \(Preprocessing.at",
        ),
        (Preprocessing(size=16, mean=0.5, std=0.5), ValueError, r"and 3 channels, and .*; got \(16, 16\), 1 and None"),
    ],
)
def test_preprocessing_that_does_not_fit_is_refused(value, error, message, make_model):
    model = make_model()
    with pytest.raises(error, match=message):
        model.preprocessing = value
    with pytest.raises(error, match=message):
        make_model(preprocessing=value)
    assert (model.preprocessing, model.preprocessing_source) == (Preprocessing(size=16), "default")


@for_each(
    ("value", "error", "message"),
    [
        (["a"], ValueError, "labels must name each of the 5 classes; got 1 names"),
        ([], ValueError, "labels must name each of the 5 classes; got 0 names"),
        ("abcde", TypeError, "labels must be a sequence of strings or None; got 'abcde'"),
        ([1, 2, 3, 4, 5], TypeError, r"labels must be a sequence of strings or None; got \[1, 2, 3, 4, 5\]"),
        (5, TypeError, "labels must be a sequence of strings or None; got 5"),
    ],
)
def test_labels_that_do_not_fit_are_refused(value, error, message, make_model):
    model = make_model()
    with pytest.raises(error, match=message):
        model.labels = value
    assert model.labels is None


def test_inputs_may_be_named_or_listed(make_model, make_images):
    model = make_model()
    images = make_images(model)
    expected = model.predict(images, verbose=0)
    for inputs in ([images], {"images": images}):
        with pytest.warns(UserWarning, match="The structure of `inputs` doesn't match"):  # of Keras, which goes on
            np.testing.assert_array_equal(model.predict(inputs, verbose=0), expected)


@pytest.mark.parametrize("dtype", slow_after(1, ["uint8", "int64"]))
def test_levels_instead_of_prepared_images_are_warned_of(dtype, make_model):
    model = make_model()
    levels = np.zeros((1, *model.input_shape[1:]), dtype)
    with pytest.warns(UserWarning, match=f"expects prepared images; got {dtype}: prepare them .* include_pre"):
        model.predict(levels, verbose=0)
    of_pixels(model).predict(levels.astype("uint8"), verbose=0)


def test_labels_become_a_tuple_and_can_be_taken_away(make_model):
    model = make_model(labels=list(LABELS))
    assert model.labels == LABELS
    model.labels = None
    assert model.labels is None


def test_config_cannot_be_replaced(make_model):
    with pytest.raises(AttributeError):
        make_model().config = None


@pytest.mark.parametrize("copy", [keras_vit.clone, lambda model: keras_vit.resize(model, 32)])
def test_copies_draw_dropout_seeds_of_their_own(copy, make_model):
    copied = copy(make_model(dropout_rate=0.5))
    weights = {id(weight) for weight in copied.weights}
    seeds = [tuple(ops.convert_to_numpy(v)) for v in copied.variables if id(v) not in weights]
    assert len(seeds) > 1 and len(set(seeds)) == len(seeds)  # equal seeds would drop the same units in every layer


def _by_path(model):
    return {weight.path: ops.convert_to_numpy(weight) for weight in model.weights}


def _table(model):
    return ops.convert_to_numpy(model.get_layer("position_embs").embedding)


def test_keys_of_class_weight_are_classes():
    def fit(classes, class_weight):
        inputs = keras.Input((2,))
        model = keras_vit.Model(inputs, keras.layers.Dense(classes)(inputs))  # not compiled, which Keras finds later
        model.fit(np.zeros((4, 2)), np.zeros(4), class_weight=class_weight)

    for classes, weights in ((3, {0: 1.0, np.int64(2): 2.0}), (1, {0: 1.0, 1: 3.0}), (3, {1.0: 2.0})):
        with pytest.raises(ValueError, match=r"compile\(\)"):
            fit(classes, weights)
    for weights, wrong in (({"cat": 2.0, 0: 1.0}, "'cat' "), ({3: 2.0, -1: 0.5}, "3, -1"), ({0.5: 1.0}, "0.5")):
        with pytest.raises(ValueError, match=f"class_weight must have numbers of classes .* from 0 to 2; got {wrong}"):
            fit(3, weights)
    inputs = keras.Input((2,))
    several = keras_vit.Model(inputs, {"a": keras.layers.Dense(3)(inputs), "b": keras.layers.Dense(2)(inputs)})
    assert count_classes(several) is None
    keep_class_names(several, ["ant", "bee"])
    assert several.labels is None


def test_channels_first_images_are_answered_with_the_axis_of_the_channels(make_model):
    """Whatever Keras is set to; images of another size are left to Keras."""
    model = make_model()
    images = np.zeros((2, 3, *model.config.image_size), "float32")
    around = keras_vit.Model(model.input, model.output)
    around.compile(loss="mse", run_eagerly=True)
    keras.config.set_image_data_format("channels_first")
    try:
        calls = [model, around]
        if keras.backend.backend() == "tensorflow":  # on JAX, Keras calls the layers without its check of the input
            calls += [lambda x: around.predict(x, verbose=0), lambda x: around.fit(x, x, verbose=0)]
        for call in calls:
            told = r"takes channels-last images \(batch, height, width, 3\), .* got \(2, 3, .*moveaxis\(images, 1, -1\)"
            with pytest.raises(ValueError, match=told):
                call(images)
        assert model(ops.moveaxis(images, 1, -1)).shape == (2, model.config.classes)
    finally:
        keras.config.set_image_data_format("channels_last")
    with pytest.raises(ValueError, match="expected shape"):
        model(np.zeros((2, 5, 5, 3), "float32"))
