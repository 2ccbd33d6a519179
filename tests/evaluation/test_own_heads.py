"""Models with layers around one of this package: predict, evaluate, embed, save and export use its preprocessing."""

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from slow_rows import slow_after

import keras_vit
from keras_vit import Preprocessing, VisionTransformer, ViTConfig, evaluate, predict
from keras_vit.data import from_arrays
from keras_vit.evaluation import embed, predict_prepared
from keras_vit.models.derived import of_pixels

CONFIG = ViTConfig(
    name="tiny", image_size=16, patch_size=8, hidden_dim=12, num_layers=1, num_heads=2, mlp_dim=16, classes=3
)
PREPROCESSING = Preprocessing(size=16, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
IMAGES = np.random.default_rng(0).integers(0, 256, (9, 16, 16, 3), dtype=np.uint8)
INPUTS = ((IMAGES / 255.0 - PREPROCESSING.mean) / PREPROCESSING.std).astype("float32")


def build(kind):
    """The guides' own head on the features of an encoder, and layers after a whole classifier."""
    is_bare = kind.startswith("graph")
    vit = VisionTransformer(CONFIG.replace(include_top=not is_bare), preprocessing=PREPROCESSING)
    if not is_bare:
        vit.get_layer("head").kernel.assign(np.random.default_rng(1).normal(0.0, 1.0, (12, 3)))
    head = keras.layers.Dense(2, activation="softmax" if kind == "softmax" else None)
    images = keras.Input((16, 16, 3))
    augmented = keras.layers.RandomFlip()
    return {
        "graph": lambda: keras_vit.Model(vit.input, head(vit.output)),
        "graph, plain": lambda: keras.Model(vit.input, head(vit.output)),
        "sequential": lambda: keras.Sequential([vit, head]),
        "softmax": lambda: keras_vit.Model(images, head(vit(images))),
        "augmented": lambda: keras_vit.Model(images, head(vit(augmented(images)))),
    }[kind]()


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("kind", slow_after(2, ["graph", "sequential", "augmented", "softmax", "graph, plain"]))
def test_the_whole_model_classifies(kind, tmp_path):
    model = build(kind)
    if kind == "augmented":
        with pytest.raises(ValueError, match=r"the model inside, set model.preprocessing = encoder.preprocessing"):
            predict(model, IMAGES)
        model.preprocessing = PREPROCESSING
    outputs = model.predict_on_batch(INPUTS)
    shares = outputs if kind == "softmax" else scipy.special.softmax(outputs, axis=-1)
    for answers in (predict(model, IMAGES), predict_prepared(model, INPUTS)):
        found = [[dict(row)[name] for name in ("class_0", "class_1")] for row in answers]
        np.testing.assert_allclose(found, shares, atol=1e-6)
    model.labels = ("ant", "bee")
    right = from_arrays(IMAGES, 1 - outputs.argmax(-1), ["bee", "ant"])
    assert str(evaluate(model, right)).startswith("top-1 accuracy 100.00 % (9 of 9); classes matched by name")
    assert embed(model, right).features.shape == (9, 2 if kind.startswith("graph") else 12)
    model.save(tmp_path / "own.keras")
    loaded = keras.models.load_model(tmp_path / "own.keras")
    if kind == "graph, plain":  # Keras saves neither attribute
        assert not hasattr(loaded, "labels")
        loaded.preprocessing = PREPROCESSING
    answers = predict(loaded, IMAGES[0], top=1)
    names = ("class_0", "class_1") if type(model) is not keras_vit.Model else ("ant", "bee")
    assert answers == [[(names[shares[0].argmax()], pytest.approx(shares[0].max(), abs=1e-6))]]


def test_models_without_one_row_of_scores_per_image_are_refused(tmp_path):
    vit = VisionTransformer(CONFIG.replace(include_top=False), preprocessing=PREPROCESSING)
    a, b = (keras.layers.Dense(count)(vit.output) for count in (2, 3))
    images, others = keras.Input((16, 16, 3)), keras.Input((2,))
    both = keras.layers.Concatenate()([vit(images), others])
    models = [keras_vit.Model(vit.input, outputs) for outputs in ([a, b], (a, b), {"a": a, "b": b})]
    for model in (*models, keras_vit.Model([images, others], keras.layers.Dense(2)(both))):
        for use in (predict, evaluate, keras_vit.export):
            with pytest.raises(
                ValueError, match=r"of several outputs, take one: keras_vit.Model\(model.input, model.ou"
            ):
                use(model, tmp_path if use is keras_vit.export else IMAGES)
    assert len(predict(keras_vit.Model(models[0].input, models[0].outputs[0]), IMAGES[0])[0]) == 2
    larger = keras.Sequential([keras.Input((20, 20, 3)), keras.layers.Resizing(16, 16), vit, keras.layers.Dense(2)])
    larger.preprocessing = PREPROCESSING
    with pytest.raises(ValueError, match=r"give images of \(20, 20, 3\); .*\(use preprocessing.at\)"):
        keras_vit.export(larger, tmp_path)


def test_a_softmax_after_a_classifier_has_its_labels():
    vit = VisionTransformer(CONFIG.replace(include_preprocessing=True), labels=["ant", "bee", "cat"])
    model = keras.Sequential([vit, keras.layers.Softmax()])
    assert {name for name, _ in predict(model, IMAGES[0])[0]} == {"ant", "bee", "cat"}
    assert of_pixels(vit) is vit and of_pixels(model) is model  # they standardise pixels already
    model = build("sequential")
    np.testing.assert_allclose(of_pixels(model).predict_on_batch(IMAGES), model.predict_on_batch(INPUTS), atol=1e-5)
    model.labels = ["ant"]
    with pytest.raises(ValueError, match="must name each of its 2 classes; got 1 names"):
        predict(model, IMAGES)


_EXPORTS = [("sequential", "saved_model"), ("graph", "saved_model"), ("augmented", "saved_model"), ("softmax", "onnx")]


@pytest.mark.parametrize(("kind", "format"), slow_after(1, _EXPORTS))
def test_an_export_has_all_layers(kind, format, tmp_path):
    if format == "onnx":
        pytest.importorskip("onnx")
    model = build(kind)
    model.preprocessing, model.labels = PREPROCESSING, ("ant", "bee")
    quick = {"check": False, "signatures": ("images",)} if kind == "sequential" else {}
    folder = keras_vit.export(model, tmp_path, format, **quick)
    if format == "saved_model":
        signatures = tf.saved_model.load(str(folder)).signatures
        outputs = signatures["images"](tf.constant(IMAGES.astype("float32")))
        np.testing.assert_allclose([*outputs.values()][0], model.predict_on_batch(INPUTS), atol=1e-5)
        assert (folder / "assets" / "labels.txt").read_text() == "ant\nbee\n"
        for option in ({"tokens": True}, {"compute_dtype": "bfloat16"}):
            with pytest.raises(ValueError, match="compute_dtype and tokens are for models without layers around them"):
                keras_vit.export(model, tmp_path, **option)
