"""What no array shows is written beside the arrays, followed by new models and compared with those that are there."""

import json

import numpy as np
import pytest
import safetensors.numpy
from faults import for_each
from slow_rows import slow_after

import keras_vit
from keras_vit.config.unseen import KEY, to_text

STEM = keras_vit.ResNetConfig(stage_sizes=(), style="timm", gn_epsilon=1e-4)


def randomised(model):
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.normal(0.05, 0.2, weight.shape))
    return model


# variant, arguments of the model that is saved, layout, what the reader must find in the config
CASES = [
    ("ViT-Ti_16", {"gelu": "erf", "epsilon": 1e-3}, "official", {"gelu": "erf", "epsilon": 1e-3}),
    ("DeiT-Ti_16", {}, "official", {"gelu": "erf"}),
    ("ViT-Ti_16", {}, "timm", {"gelu": "tanh"}),
    ("R+ViT-Ti_16", {}, "timm", {"gelu": "tanh", "stem": keras_vit.ResNetConfig(stage_sizes=()).resolve()}),
]


@pytest.mark.parametrize(("variant", "arguments", "layout", "expected"), slow_after(1, CASES))
def test_our_files_are_read_as_what_they_were(tmp_path, variant, arguments, layout, expected):
    size = {"image_size": 32, "classes": 3}
    model = randomised(keras_vit.create_model(variant, **size, **arguments))
    path = tmp_path / ("a.npz" if layout == "official" else "a.safetensors")
    keras_vit.save_weights(model, path, layout)
    again = keras_vit.create_model(variant, weights=path, **size)
    assert {name: getattr(again.config, name) for name in expected} == expected
    images = np.random.default_rng(1).normal(size=(2, *model.config.image_size, 3)).astype("float32")
    np.testing.assert_array_equal(again(images), model(images))


@pytest.mark.parametrize("layout", ["huggingface", "microsoft", "timm"])
def test_files_state_their_window_or_show_it_in_their_tables(
    make_kind, in_zoo, save_foreign, logits_of, tmp_path, layout
):
    source, create = make_kind("swin", seed=1, window_size=2, epsilon=1e-3), in_zoo("swin")
    keras_vit.save_weights(source, tmp_path / "a.safetensors", layout)
    ours = create(tmp_path / "a.safetensors")
    assert (ours.config.window_size, ours.config.epsilon) == (2, 1e-3)
    np.testing.assert_array_equal(logits_of(ours), logits_of(source))
    save_foreign(source, tmp_path / "b.safetensors", layout)
    theirs = create(tmp_path / "b.safetensors").config
    assert (theirs.window_size, theirs.epsilon) == (2, 1e-5)
    larger = create(tmp_path / "b.safetensors", window_size=4)
    assert larger.config.window_size == 4  # the user's word counts; the tables are resized


def test_config_json_states_the_window(make_kind, in_zoo, tmp_path):
    keras_vit.save_weights(make_kind("swin", window_size=2), tmp_path / "folder", "huggingface")
    assert json.loads((tmp_path / "folder" / "config.json").read_text())["window_size"] == 2
    assert in_zoo("swin")(tmp_path / "folder").config.window_size == 2


def test_config_json_wins_over_our_metadata(make_model, in_zoo, tmp_path):
    model = make_model(gelu="erf", epsilon=1e-3)
    keras_vit.save_weights(model, tmp_path / "folder", "huggingface")
    path = tmp_path / "folder" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "layer_norm_eps": 1e-7}))
    again = in_zoo("vit")(tmp_path / "folder")
    assert (again.config.gelu, again.config.epsilon) == ("erf", 1e-7)


def test_arguments_win_and_the_report_says_what_differs(make_model, in_zoo, tmp_path, caplog):
    keras_vit.save_weights(make_model(gelu="erf"), tmp_path / "a.npz")
    model = in_zoo("vit")(tmp_path / "a.npz", gelu="tanh")
    assert model.config.gelu == "tanh"
    assert "the file states gelu='erf'; the model has 'tanh'" in caplog.text


def test_fields():
    config = keras_vit.ViTConfig(
        name="a", image_size=32, patch_size=8, hidden_dim=8, num_layers=1, num_heads=1, mlp_dim=8, stem=STEM
    )
    assert json.loads(to_text(config.resolve(), keras_vit.Preprocessing(size=32))) == {
        "config": {
            "num_heads": 1,
            "pooling": "token",
            "norm_position": "before_pooling",
            "position_embedding": "learned",
            "position_placement": "stem",
            "gelu": "tanh",
            "epsilon": 1e-6,
            "stem.style": "timm",
            "stem.gn_epsilon": 1e-4,
            "stem.std_epsilon": 1e-8,
        },
        "grid_size": [1, 1],
        "preprocessing": keras_vit.Preprocessing(size=32).to_dict(),
    }


@pytest.fixture(scope="module")
def stored(make_model, tmp_path_factory):
    """Arrays of a file in timm's format."""
    path = tmp_path_factory.mktemp("stored") / "a.safetensors"
    keras_vit.save_weights(make_model(), path, "timm")
    return safetensors.numpy.load_file(path)


@for_each(
    "text",
    [
        '{"config": {"image_size": 64}}',
        '{"config": {"classes": 5}}',
        "erf",
        "[1]",
        '{"config": 3}',
        '{"preprocessing": {"size": "x"}}',
    ],
)
def test_damaged_metadata_is_refused(stored, in_zoo, tmp_path, text):
    safetensors.numpy.save_file(stored, tmp_path / "b.safetensors", {KEY: text})
    with pytest.raises(ValueError, match=r"metadata .*b\.safetensors'"):
        in_zoo("vit")(tmp_path / "b.safetensors")
