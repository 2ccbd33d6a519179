"""zero_shot: heads as in NumPy, and the result is a model like any other.

The golden cases `zeroshot_*` compare with transformers.
"""

import pathlib

import keras
import numpy as np
import pytest
from families import FAMILIES
from faults import for_each

import keras_vit
from keras_vit import TextEncoder, analysis, zero_shot, zeroshot
from keras_vit.serving import fresh_process

pytest.importorskip("tokenizers", reason="needs the extra [text]")

GOLDEN = pathlib.Path(__file__).parent / "golden"
CLIP, SIGLIP = GOLDEN / "zeroshot_clip_hf", GOLDEN / "zeroshot_siglip_hf"
NAMES = ("cat", "fire truck", "café")
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (3, 32, 32, 3)).astype("float32")
IMAGES = RNG.normal(size=(3, 32, 32, 3)).astype("float32")


@pytest.fixture(scope="module")
def models():
    return {folder: keras_vit.load(folder) for folder in (CLIP, SIGLIP)}


@pytest.fixture(scope="module")
def encoders():
    return {folder: TextEncoder(folder) for folder in (CLIP, SIGLIP)}


@pytest.fixture(scope="module", params=[CLIP, SIGLIP], ids=["clip", "siglip"])
def classifier(request, models, encoders):
    return zero_shot(models[request.param], NAMES, text=encoders[request.param])


def run(model, images=IMAGES):
    return keras.ops.convert_to_numpy(model(images))


def unit(array):
    return array / np.linalg.norm(array, axis=-1, keepdims=True)


# --- heads


def test_arrays_are_averaged_as_published(models):
    """Each prompt is normalised, then their mean; the features of the images are normalised, too."""
    texts = RNG.normal(size=(3, 4, 24)) * RNG.uniform(1, 9, size=(3, 4, 1))
    expected = unit(run(models[CLIP])) @ unit(unit(texts).mean(axis=1)).T * 7.5
    found = zero_shot(models[CLIP], NAMES, text=texts, scale=7.5)
    np.testing.assert_allclose(run(found), expected, atol=1e-5)
    one = zero_shot(models[CLIP], NAMES, text=unit(texts).mean(axis=1), scale=7.5, bias=-2)
    np.testing.assert_allclose(run(one), expected - 2, atol=1e-5)
    assert found.labels == NAMES and found.preprocessing == models[CLIP].preprocessing
    assert [found.config.head.bias, one.config.head.bias] == [False, True]


def test_names_may_be_replaced(classifier, models, encoders):
    source = CLIP if classifier.config.head.projection else SIGLIP
    again = zero_shot(classifier, ("dog", "bird"), text=encoders[source])
    expected = zero_shot(models[source], ("dog", "bird"), text=encoders[source])
    assert again.config == expected.config
    np.testing.assert_array_equal(run(again), run(expected))


def test_a_copy_knows_the_file_of_its_weights(models):
    heads = [
        zero_shot(model, NAMES, templates=["a {}"]).get_layer("head").get_weights()[0]
        for model in (models[CLIP], keras_vit.resize(models[CLIP], 48))
    ]
    np.testing.assert_array_equal(*heads)


def test_templates(models, encoders, tmp_path, monkeypatch):
    texts = []

    class Recorder(TextEncoder):
        def __init__(self):
            vars(self).update(vars(encoders[CLIP]))

        def tokenize(self, prompts):
            texts.append(list(prompts))
            return super().tokenize(prompts)

    (tmp_path / "open_clip").mkdir()
    (tmp_path / "open_clip" / "__init__.py").write_text("raise SystemExit('must not be imported')")
    source = "OPENAI_IMAGENET_TEMPLATES = (lambda c: f'a bad photo of a {c}.', lambda c: f'the {c}.')"
    (tmp_path / "open_clip" / "zero_shot_metadata.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    for templates in (["a {}.", str.upper], "imagenet", None):
        zero_shot(models[CLIP], ("cat", "{}"), templates=templates, text=Recorder())
    own = zeroshot._TEMPLATES.read_text().splitlines()
    assert texts == [
        ["a cat.", "CAT", "a {}.", "{}"],
        ["a bad photo of a cat.", "the cat.", "a bad photo of a {}.", "the {}."],
        [line.replace("{}", name) for name in ("cat", "{}") for line in own],
    ]
    assert len(set(own)) == 7 and all(line.count("{}") == 1 for line in own)


def test_published_templates():
    pytest.importorskip("open_clip", reason="the published templates are read from open_clip_torch")
    prompts = zeroshot._prompts(("cat",), "imagenet")
    assert len(set(prompts)) == 80 and prompts[0] == "a bad photo of a cat."


def test_predict_gives_softmax_or_what_the_activation_says(models, encoders):
    image = RNG.integers(0, 256, (40, 48, 3), "uint8")
    given = {"text": encoders[SIGLIP], "templates": ["a {}"]}
    logits, scores = (zero_shot(models[SIGLIP], NAMES, classifier_activation=a, **given) for a in (None, "sigmoid"))
    ((best, chance), *rest), independent = keras_vit.predict(logits, image)[0], keras_vit.predict(scores, image)[0]
    assert best == independent[0][0] and chance + sum(other for _, other in rest) == pytest.approx(1)
    found = run(logits, keras_vit.preprocess(image, models[SIGLIP].preprocessing))[0]
    expected = sorted(zip(1 / (1 + np.exp(-found)), NAMES, strict=True), reverse=True)
    assert [name for name, _ in independent] == [name for _, name in expected]
    np.testing.assert_allclose([score for _, score in independent], [score for score, _ in expected], rtol=1e-4)


# --- a model like any other


def test_saving_and_loading(classifier, tmp_path):
    classifier.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert (loaded.config, loaded.labels, loaded.weights_path) == (classifier.config, classifier.labels, None)
    np.testing.assert_array_equal(run(loaded), run(classifier))
    classifier.save_weights(tmp_path / "model.weights.h5")
    fresh = keras_vit.VisionTransformer(classifier.config)
    fresh.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(run(fresh), run(classifier))
    other = keras_vit.VisionTransformer(classifier.config.replace(**{"head.normalize": False}))
    with pytest.raises(ValueError, match=r"states head\.normalize=True; the model has False"):
        other.load_weights(tmp_path / "model.weights.h5")


def test_other_libraries_have_no_such_head(classifier, tmp_path):
    with pytest.raises(ValueError, match=r"needs head\.(projection='unset'|normalize=False)"):
        keras_vit.save_weights(classifier, tmp_path / "model.safetensors", "timm")


@pytest.mark.slow
def test_int8(models, encoders):
    model = zero_shot(models[CLIP], NAMES, text=encoders[CLIP])
    before = run(model)
    model.quantize("int8")
    assert model.get_layer("projection").quantization_mode == model.get_layer("head").quantization_mode == "int8"
    np.testing.assert_allclose(run(model), before, atol=0.05 * np.abs(before).max())
    with pytest.raises(ValueError, match="must not be quantised for zero_shot"):
        zero_shot(model, NAMES, text=encoders[CLIP])


@pytest.mark.slow
def test_training_starts_from_the_head(models, encoders):
    model = zero_shot(models[CLIP], NAMES, text=encoders[CLIP])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    before = model.get_layer("head").get_weights()[0]
    labels = np.array([0, 1, 2])
    history = model.fit(IMAGES, labels, epochs=3, verbose=0).history["loss"]
    assert history[-1] < history[0] and (model.get_layer("head").get_weights()[0] != before).any()
    assert keras_vit.evaluate(
        model, keras_vit.data.from_arrays((IMAGES * 40 + 128).clip(0, 255).astype("uint8"), labels)
    )
    rollout = analysis.attention_rollout(model, IMAGES)
    assert np.isfinite(np.asarray(rollout)).all()
    assert keras_vit.clone(model).config == model.config


def test_mixed_precision_normalises_in_float32(models, encoders):
    model = zero_shot(models[SIGLIP], NAMES, text=encoders[SIGLIP])
    built = keras_vit.models.with_dtype(model, "mixed_float16")
    assert built.get_layer("normalization").compute_dtype == "float32"
    np.testing.assert_allclose(run(built), run(model), atol=0.02)


@pytest.mark.slow
def test_saved_model_gives_the_same_answers(models, encoders, tmp_path):
    tf = pytest.importorskip("tensorflow")
    model = zero_shot(models[CLIP], NAMES, text=encoders[CLIP])
    path = keras_vit.export(model, tmp_path / "served", signatures=("images",), check=False)
    served = tf.saved_model.load(str(path)).signatures["images"](images=tf.constant(PIXELS))
    np.testing.assert_allclose(served["logits"], of_pixels(model), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["saved_model", "openvino", "onnx", "litert"])
def test_every_format_gives_the_same_answers(classifier, tmp_path, format):
    path = keras_vit.export(classifier, tmp_path / "served", format=format)  # checks itself in a fresh process
    if format != "saved_model":
        outputs, _ = fresh_process.run(format, path, {"images": PIXELS})
        np.testing.assert_allclose(outputs["logits"], of_pixels(classifier), atol=1e-4)


def of_pixels(model):
    inputs = (PIXELS / 255 - model.preprocessing.mean) / model.preprocessing.std
    return run(model, inputs.astype("float32"))


# --- what is refused


@for_each(
    ("arguments", "error", "message"),
    [
        ({"class_names": "cat"}, ValueError, "class_names must be a sequence of strings; got class_names='cat'"),
        ({"class_names": ()}, ValueError, "class_names must have at least one name"),
        ({"class_names": ("cat", "")}, ValueError, r"class_names\[1\] must be a string that is not empty"),
        ({"templates": "openai"}, ValueError, "templates must be one of 'imagenet'; got templates='openai'"),
        ({"templates": []}, ValueError, "templates must have at least one template"),
        ({"templates": ["a photo"]}, ValueError, r"templates\[0\] must be a string with {}, or a function"),
        ({"templates": [len]}, ValueError, "a prompt must be a string; got 3"),
        ({"scale": 0.0}, ValueError, "scale must be a finite number above 0"),
        ({"bias": float("nan")}, ValueError, "bias must be a finite number"),
        ({"text": np.ones((3, 24))}, ValueError, "scale must be given"),
        ({"text": np.ones((2, 24)), "scale": 1.0}, ValueError, r"\(3, 24\) or \(3, prompts, 24\).*got \(2, 1, 24\)"),
        ({"text": np.ones((3, 48)), "scale": 1.0}, ValueError, "as wide as the image embeddings"),
        ({"text": np.zeros((3, 24)), "scale": 1.0}, ValueError, "none of them zero; got one of norm 0"),
        (
            {"text": np.ones((3, 24)), "scale": 1.0, "templates": ["{}"]},
            ValueError,
            "templates must be None if text is",
        ),
        ({"text": "nowhere"}, FileNotFoundError, "nowhere"),
        ({"text": ""}, ValueError, "text must be a path that is not empty"),
        (
            {"text": GOLDEN / "clip_hf_quickgelu"},
            ValueError,
            "must hold the text tower .* no token embedding",
        ),
    ],
)
def test_refused_arguments(models, arguments, error, message):
    with pytest.raises(error, match=message):
        zero_shot(models[CLIP], **{"class_names": ("cat", "dog", "fox"), **arguments})


def test_refused_models(models, encoders):
    given = {"class_names": NAMES, "text": encoders[CLIP]}
    with pytest.raises(TypeError, match="model must be a VisionTransformer; got SwinTransformer"):
        zero_shot(FAMILIES["Swin"].build(), **given)
    with pytest.raises(
        ValueError, match="as wide as the image embeddings of .*a CLIP must be loaded with its projection"
    ):
        zero_shot(keras_vit.load(CLIP, include_top=False), **given)
    unknown = keras_vit.VisionTransformer(models[CLIP].config)
    with pytest.raises(ValueError, match="text must be a folder or hf://org/repo, as the model has no weights_path"):
        zero_shot(unknown, NAMES)
    with pytest.raises(ValueError, match="distilled needs two linear heads.*use head.normalize=False"):
        keras_vit.DeiT_Ti16(distilled=True, head={"normalize": True})


def test_without_open_clip(models, encoders, monkeypatch):
    monkeypatch.setattr(zeroshot.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install open_clip_torch"):
        zero_shot(models[CLIP], NAMES, templates="imagenet", text=encoders[CLIP])
