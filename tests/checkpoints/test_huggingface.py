"""save_weights to a folder of Hugging Face: config.json and preprocessor_config.json are written and read back."""

import json

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import keras_vit
from keras_vit.config.unseen import to_text, whole


def check_equal(model, other, weights_of):
    mine, theirs = weights_of(model), weights_of(other)
    assert list(mine) == list(theirs)
    for path, array in mine.items():
        np.testing.assert_array_equal(array, theirs[path], err_msg=path)


def test_a_huggingface_folder(make_model, weights_of, in_zoo, tmp_path):
    source = make_model(seed=1, gelu="erf", epsilon=1e-5, dropout_rate=0.25, attention_dropout_rate=0.5)
    source.labels = ("ant", "bee", "cat")
    source.preprocessing = keras_vit.Preprocessing(
        size=18, crop=16, interpolation="bicubic", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)
    )
    folder = tmp_path / "new" / "folder"
    keras_vit.save_weights(source, folder, "huggingface")
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
    ]
    config = json.loads((folder / "config.json").read_text())
    expected = {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "image_size": 16,
        "patch_size": 4,
        "num_channels": 3,
        "qkv_bias": True,
        "hidden_dropout_prob": 0.25,
        "attention_probs_dropout_prob": 0.5,
        "id2label": {"0": "ant", "1": "bee", "2": "cat"},
        "label2id": {"ant": 0, "bee": 1, "cat": 2},
    }
    assert config == expected
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    assert processor["size"] == {"shortest_edge": 18} and processor["crop_size"] == {
        "height": 16,
        "width": 16,
    }
    assert (processor["resample"], processor["do_center_crop"], processor["do_normalize"]) == (3, True, True)
    assert (processor["image_mean"], processor["image_std"]) == ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    labels = dict(enumerate(source.labels))
    whole_model = {"processor": processor, "model": whole(source.config), "labels": labels}
    with safetensors.safe_open(folder / "model.safetensors", "numpy") as file:
        assert file.metadata() == {
            "format": "pt",  # transformers asks for it
            "keras_vit": to_text(source.config, source.preprocessing, **whole_model),
        }
    model = in_zoo("vit")(folder)
    check_equal(model, source, weights_of)
    assert (model.config.gelu, model.config.epsilon) == ("erf", 1e-5)
    assert (model.labels, model.preprocessing) == (source.labels, source.preprocessing)


@pytest.mark.parametrize(
    ("kind", "architecture", "values"),
    [
        (
            "distilled",
            "DeiTForImageClassificationWithTeacher",
            {"model_type": "deit", "hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 12, "patch_size": 4},
        ),
        (
            "swin",
            "SwinForImageClassification",
            {
                "model_type": "swin",
                "embed_dim": 8,
                "depths": [2, 1],
                "num_heads": [1, 2],
                "window_size": 4,
                "mlp_ratio": 4.0,
                "hidden_size": 16,
                "use_absolute_embeddings": False,
            },
        ),
    ],
)
def test_a_huggingface_folder_of_deit_and_swin(make_kind, weights_of, in_zoo, tmp_path, kind, architecture, values):
    source = make_kind(kind, seed=1, gelu="tanh", epsilon=1e-4)
    side = source.config.image_size[0]
    source.labels = ("ant", "bee", "cat")
    source.preprocessing = keras_vit.Preprocessing(size=side + 4, crop=side, interpolation="bicubic", mean=(0.4,) * 3)
    keras_vit.save_weights(source, tmp_path / "a", "huggingface")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    expected = {"architectures": [architecture], "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-4, **values}
    assert {name: config[name] for name in expected} == expected
    model = in_zoo(kind)(tmp_path / "a")
    check_equal(model, source, weights_of)
    assert (model.config.gelu, model.config.epsilon) == ("tanh", 1e-4)
    assert (model.labels, model.preprocessing) == (source.labels, source.preprocessing)
    without_head = make_kind(kind, include_top=False)
    keras_vit.save_weights(without_head, tmp_path / "b", "huggingface")
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert config["architectures"] == [{"distilled": "DeiTModel", "swin": "SwinModel"}[kind]]
    assert not any(
        name.startswith(("deit.", "swin."))
        for name in safetensors.numpy.load_file(tmp_path / "b" / "model.safetensors")
    )


def test_a_folder_for_a_model_without_head_or_labels(make_model, tmp_path):
    keras_vit.save_weights(
        make_model(include_top=False, representation_size=5, image_size=(8, 16)),
        tmp_path / "a",
        "huggingface",
    )
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["architectures"] == ["ViTModel"]
    assert (config["image_size"], config["pooler_output_size"]) == ([8, 16], 5)
    assert "vit.layernorm.weight" not in safetensors.numpy.load_file(tmp_path / "a" / "model.safetensors")


def test_a_folder_cannot_say_every_interpolation(make_model, tmp_path):
    model = make_model()
    model.preprocessing = keras_vit.Preprocessing(size=16, interpolation="area")
    with pytest.raises(ValueError, match=r"preprocessor_config.json supports the interpolations \['nearest'.*'area'"):
        keras_vit.save_weights(model, tmp_path / "a", "huggingface")
    assert list(tmp_path.rglob("*.*")) == []
    keras_vit.save_weights(model, tmp_path / "a.safetensors", "huggingface")
