"""create_model: what comes with a Hugging Face folder, labels and preprocessing."""

import json
import pathlib

import numpy as np
import pytest
from faults import for_each
from golden_arrays import stored_in

import keras_vit
from keras_vit.checkpoints.evidence import read_evidence
from keras_vit.checkpoints.readers import open_checkpoint
from keras_vit.checkpoints.releases.release import label_set

CLIP = {  # of CLIPImageProcessor in transformers 5.24
    "interpolation": "bicubic",
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
}


@pytest.fixture
def hub_folder(make_model, tmp_path):
    """Function of changes to config.json and preprocessor_config.json that writes a folder as transformers does."""

    def write(config=(), preprocessor=None):
        source = make_model(seed=1)
        keras_vit.save_weights(source, tmp_path / "model.safetensors", "huggingface")
        values = {"model_type": "vit", "hidden_act": "gelu", "layer_norm_eps": 1e-12, **dict(config)}
        (tmp_path / "config.json").write_text(json.dumps(values))
        if preprocessor is not None:
            (tmp_path / "preprocessor_config.json").write_text(json.dumps(preprocessor))
        return tmp_path

    return write


@pytest.mark.parametrize(("hidden_act", "gelu"), [("gelu", "erf"), ("gelu_new", "tanh"), ("gelu_pytorch_tanh", "tanh")])
def test_config_json(tiny_zoo, hub_folder, hidden_act, gelu):
    labels = {"2": "c", "0": 7, "1": "b"}
    model = tiny_zoo(hub_folder({"hidden_act": hidden_act, "layer_norm_eps": 1e-5, "id2label": labels}), classes=3)
    assert (model.config.gelu, model.config.epsilon) == (gelu, 1e-5)
    assert model.labels == ("7", "b", "c")


def test_placeholder_labels_are_none(tiny_zoo, hub_folder):
    assert (
        tiny_zoo(hub_folder({"id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}}), classes=3).labels is None
    )


def test_labels_are_in_the_order_of_the_numbers(make_model, hub_folder):
    labels = {str(index): f"LABEL_{index % 11}" for index in range(12)}  # not all are placeholders; "10" < "2" as text
    folder = hub_folder({"id2label": labels})
    assert read_evidence(open_checkpoint(folder)).labels == (*(f"LABEL_{index}" for index in range(11)), "LABEL_0")


def test_labels_are_dropped_with_the_head(tiny_zoo, hub_folder):
    labels = {"0": "a", "1": "b", "2": "c"}
    assert tiny_zoo(hub_folder({"id2label": labels}), classes=2).labels is None
    assert tiny_zoo(hub_folder({"id2label": labels}), classes=3, labels=("x", "y", "z")).labels == (
        "x",
        "y",
        "z",
    )


def test_problem_type_says_what_scores_are(tiny_zoo, hub_folder):
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    plain = keras_vit.load(hub_folder(), num_heads=2)
    logits = plain.predict_on_batch(keras_vit.preprocess(pixels, plain.preprocessing))[0].astype("float64")
    # as ImageClassificationPipeline of transformers 5 postprocesses them
    expected = {
        "single_label_classification": np.exp(logits) / np.exp(logits).sum(),
        "multi_label_classification": 1 / (1 + np.exp(-logits)),
        "regression": logits,
    }
    for problem, scores in expected.items():
        folder = hub_folder({"problem_type": problem})
        for model in (keras_vit.load(folder, num_heads=2), tiny_zoo(folder, classes=3)):
            answers = dict(keras_vit.predict(model, pixels)[0])
            np.testing.assert_allclose([answers[f"class_{n}"] for n in range(3)], scores, rtol=1e-5, err_msg=problem)
        for model in (keras_vit.load(folder, num_heads=2, classes=4), tiny_zoo(folder, classes=4)):
            assert model.config.classifier_activation is None  # a new head is of another problem
        assert keras_vit.load(folder, num_heads=2, classifier_activation="relu").config.classifier_activation == "relu"
        report = keras_vit.load_weights(plain, folder)
        assert any("classifier_activation" in note for note in report.notes) == (problem[0] in "mr")
    with pytest.raises(ValueError, match="problem_type must be one of .*; got 'multilabel'"):
        tiny_zoo(hub_folder({"problem_type": "multilabel"}), classes=3)


@for_each(
    ("values", "expected"),
    [
        (
            {"size": 384, "resample": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]},
            keras_vit.Preprocessing(size=384, interpolation="bilinear_antialias"),
        ),
        (
            {
                "size": {"height": 16, "width": 16},
                "resample": 3,
                "image_mean": [0.1] * 3,
                "image_std": [0.2] * 3,
            },
            keras_vit.Preprocessing(size=16, interpolation="bicubic", mean=(0.1,) * 3, std=(0.2,) * 3),
        ),
        (
            {"size": {"shortest_edge": 18}, "crop_size": {"height": 16, "width": 16}, "do_center_crop": True},
            keras_vit.Preprocessing(size=18, crop=16, interpolation="bilinear_antialias", rounding="transformers"),
        ),
        ({"size": 16, "resample": 0}, keras_vit.Preprocessing(size=16, interpolation="nearest")),
        (  # the values of openai/clip-vit-base-patch32 and facebook/deit-base-patch16-224: `default_to_square` differs
            {"size": 18, "crop_size": 16, "do_center_crop": True, "feature_extractor_type": "CLIPFeatureExtractor"},
            keras_vit.Preprocessing(size=18, crop=16, **CLIP, rounding="transformers"),
        ),
        (
            {"size": 18, "crop_size": 16, "do_center_crop": True, "feature_extractor_type": "DeiTFeatureExtractor"},
            keras_vit.Preprocessing(size=(18, 18), crop=16, interpolation="bicubic", rounding="transformers"),
        ),
        # what the classes of transformers add
        (
            {"image_processor_type": "DeiTImageProcessorFast"},
            keras_vit.Preprocessing(size=(256, 256), crop=224, interpolation="bicubic", rounding="transformers"),
        ),
        ({"image_processor_type": "SiglipImageProcessor"}, keras_vit.Preprocessing(interpolation="bicubic")),
        (
            {"image_processor_type": "BitImageProcessor"},
            keras_vit.Preprocessing(size=224, crop=224, **CLIP, rounding="transformers"),
        ),
    ],
)
def test_preprocessor_config_json(tiny_zoo, hub_folder, values, expected):
    assert tiny_zoo(hub_folder(preprocessor=values), classes=3).preprocessing == expected.at(16)


def test_processor_config_json(tiny_zoo, hub_folder, make_model):
    """transformers 5 writes it alone for a processor of text and images; its image_processor takes precedence."""
    folder = hub_folder(preprocessor={"size": 16, "resample": 3})
    path = folder / "processor_config.json"
    section = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 18}, "resample": 0}
    section |= {"crop_size": {"height": 16, "width": 16}, "do_center_crop": True, "image_mean": [0.1, 0.2, 0.3]}
    section |= {"image_std": [0.5, 0.6, 0.7], "do_convert_rgb": None, "do_normalize": None}
    nested = keras_vit.Preprocessing(
        size=18, crop=16, interpolation="nearest", rounding="transformers", mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7)
    )
    beside = keras_vit.Preprocessing(size=16, interpolation="bicubic")
    for values, expected in (
        ({"image_processor": section, "processor_class": "CLIPProcessor"}, nested),
        ({"image_processor": None, "processor_class": "CLIPProcessor"}, beside),
        ({"processor_class": "CLIPProcessor"}, beside),  # transformers 4
    ):
        path.write_text(json.dumps(values))
        model = tiny_zoo(folder, classes=3)
        assert (model.preprocessing, model.preprocessing_source) == (expected, "stated")
    (folder / "preprocessor_config.json").unlink()
    path.write_text(json.dumps({"image_processor": section}))
    assert tiny_zoo(folder, classes=3).preprocessing == nested
    for values in ({**section, "resample": 1}, "CLIPImageProcessor"):
        path.write_text(json.dumps({"image_processor": values}))
        with pytest.raises(ValueError, match=r"/processor_config\.json': "):
            tiny_zoo(folder, classes=3)
    with pytest.raises(
        ValueError, match=r"path must be a folder without processor_config\.json, which takes precedence"
    ):
        keras_vit.save_weights(make_model(), folder, "huggingface")


@for_each(
    ("config", "preprocessor", "words"),
    [
        ({"model_type": "swin"}, None, r"config\.json': model_type must be one of 'vit', 'deit', .*; got 'swin'"),
        ({"hidden_act": "relu"}, None, r"config\.json': hidden_act must be one of .*'gelu'.*; got 'relu'"),
        ({"hidden_act": "quick_gelu"}, None, "the file states gelu='quick'; the model has 'tanh'"),
        (
            {"id2label": {"a": "b"}},
            None,
            r"config\.json': id2label must be an object with integer keys; got {'a': 'b'}",
        ),
        ({"id2label": [1]}, None, r"id2label must be an object with integer keys; got \[1\]"),
        ({"id2label": 0}, None, "id2label must be an object with integer keys; got 0"),
        (
            {"id2label": {"1": "a", "2": "b", "3": "c"}},
            None,
            r"id2label must have the keys 0 to 2; got \['1', '2', '3'\]",
        ),
        ({"id2label": {"0": "a", "00": "b"}}, None, r"id2label must have the keys 0 to 1; got \['0', '00'\]"),
        ({"id2label": {"0": None}}, None, r"id2label\[0\] must be a string; got None"),
        ({"id2label": {"0": True}}, None, r"id2label\[0\] must be a string; got True"),
        ({"layer_norm_eps": [1]}, None, r"config\.json': layer_norm_eps must be a finite number above 0"),
        ({"layer_norm_eps": 1e308}, None, "layer_norm_eps must be a number from 1e-30 to 1; got"),
        ({"layer_norm_eps": True}, None, "layer_norm_eps must be a finite number above 0"),
        (
            {"num_attention_heads": True},
            None,
            "num_attention_heads must be an integer of at least 1 and at most 1048576; got",
        ),
        (
            {"num_hidden_layers": 2**31},
            None,
            "num_hidden_layers must be an integer of at least 1 and at most 1000; got",
        ),
        ({"num_channels": 10**30}, None, "num_channels must be an integer of at least 1 and at most 1000; got"),
        ({"layer_norm_eps": "abc"}, None, r"config\.json': layer_norm_eps must be .* got layer_norm_eps='abc'"),
        ({}, {"resample": 1}, r"preprocessor_config\.json': resample must be one of \[0, 2, 3\]; got 1"),
        ({}, {"resample": False}, r"resample must be one of \[0, 2, 3\]; got False"),
        ({}, {"max_num_patches": True, "patch_size": 4}, "max_num_patches must be an integer of at least 1; got"),
        ({}, {"max_num_patches": 4, "patch_size": True}, "patch_size must be an integer of at least 1; got"),
        ({}, {"do_center_crop": "no", "crop_size": 3}, "do_center_crop must be True or False; got"),
        ({}, {"size": True}, "size must be one positive integer or a pair"),
        ({}, {"size": {"shortest_edge": 1.5}}, "size must be one positive integer or a pair"),
        ({}, {"image_mean": [1e308] * 3}, r"mean\[0\] must be a finite number from -1e6 to 1e6; got"),
        ({}, {"image_std": [1e-308] * 3}, "std must be above 0, at least 1e-6; got"),
        ({}, {"size": {"width": 3}}, "its structure is invalid: KeyError"),
        ({}, {"image_mean": 3}, "its structure is invalid"),
    ],
)
def test_a_config_that_is_wrong(make_model, hub_folder, config, preprocessor, words):
    with pytest.raises(ValueError, match=words):
        keras_vit.load_weights(make_model(), hub_folder(config, preprocessor))


def test_the_values_of_a_hostile_file_are_quoted_in_part(make_model, hub_folder):
    hostile = "y" * 800_000
    cases = [({key: hostile}, None) for key in ("model_type", "hidden_act", "layer_norm_eps", "id2label", "patch_size")]
    cases += [({"id2label": {hostile: "a"}}, None), ({"id2label": {"0": [hostile]}}, None)]
    cases += [({"architecture": hostile}, None), ({"model_cfg": {"vision_cfg": {hostile: hostile}}}, None)]
    cases += [({}, {key: hostile}) for key in ("resample", "size", "do_resize", "image_mean", "rescale_factor")]
    for config, preprocessor in cases:
        with pytest.raises(ValueError, match="json'") as error:
            keras_vit.load(hub_folder(config, preprocessor))
        assert len(str(error.value)) < 4_000, (list(config), preprocessor and list(preprocessor))


def test_thousand_classes_of_a_nameless_file_are_imagenet(make_model, tiny_zoo, tmp_path, caplog):
    keras_vit.save_weights(make_model(classes=1000), tmp_path / "a.npz")
    model = tiny_zoo(tmp_path / "a.npz", classes=1000)
    assert model.labels == label_set("imagenet2012")
    assert "note: 1000 classes: the labels are assumed to be those of ImageNet-2012" in caplog.text
    assert model.preprocessing == keras_vit.Preprocessing(size=16)


@pytest.mark.parametrize(
    ("name", "activation", "unread"),
    [
        ("clip", None, "the norm of the file is not read (2 arrays)"),
        ("siglip", "sigmoid", "the attention pooling of the file is not read (11 arrays)"),
        ("siglip2", None, "the attention pooling of the file is not read (11 arrays)"),
        ("timm_wrapper", "sigmoid", "the prefix 'timm_model.' of its array names is left out"),
    ],
)
def test_image_classifiers_of_other_families(name, activation, unread, caplog, tmp_path):
    """Folders of transformers 5.24, `save_pretrained` of `NAMEForImageClassification` with random weights."""
    folder = pathlib.Path(__file__).parents[1] / "golden" / "classifiers" / name
    arrays = stored_in(folder / "io.npz")
    with caplog.at_level("INFO", "keras_vit"):
        model = keras_vit.load(folder)
    assert unread in caplog.text
    assert (model.labels, model.config.classifier_activation) == (tuple("abcde"), activation)
    expected = arrays["logits"] if activation is None else 1 / (1 + np.exp(-arrays["logits"]))
    np.testing.assert_allclose(model(arrays["images"]), expected, atol=1e-5, rtol=0)
    keras_vit.save_weights(model, tmp_path / "own.safetensors", "timm")
    np.testing.assert_allclose(keras_vit.load(tmp_path / "own.safetensors")(arrays["images"]), expected, atol=1e-5)
