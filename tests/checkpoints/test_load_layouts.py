"""load_weights and create_model: layouts that are forced, files of Keras, scanned blocks."""

import re

import keras
import numpy as np
import pytest
import safetensors.numpy
from official_files import check_equal, npz

import keras_vit


def test_a_layout_can_be_forced_and_is_not_mixed(make_model, arrays, tmp_path):
    path = npz(tmp_path / "a.npz", arrays)
    assert keras_vit.load_weights(make_model(), path, layout="official").used == tuple(arrays)
    with pytest.raises(ValueError, match=r"missing patch_embed.proj.weight(?s:.)*extra embedding/kernel"):
        keras_vit.load_weights(make_model(), path, layout="timm")
    with pytest.raises(
        ValueError,
        match="layout must be one of 'auto', 'official', 'original', 'timm', 'huggingface', 'microsoft', 'keras'; got",
    ):
        keras_vit.load_weights(make_model(), path, layout="flax")
    with pytest.raises(
        ValueError, match="resize must be one of 'auto', 'authors', 'timm', 'huggingface', 'align_corners'"
    ):
        keras_vit.load_weights(make_model(), path, resize="nearest")
    with pytest.raises(ValueError, match=r"head must be one of 'auto', 'load', 'reinitialise'; got head='drop'"):
        keras_vit.load_weights(make_model(), path, head="drop")


@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
def test_files_of_keras(make_model, weights_of, tmp_path, suffix):
    source = make_model(seed=1, dropout_rate=0.1, num_registers=2, qk_norm=True, layer_scale_init=1.0)
    (source.save if suffix == ".keras" else source.save_weights)(tmp_path / f"a{suffix}")
    model = make_model(seed=2, num_registers=2, qk_norm=True, layer_scale_init=1.0)
    report = keras_vit.load_weights(model, tmp_path / f"a{suffix}")
    check_equal(weights_of(model), weights_of(source))
    assert report.missing == report.reinitialised == ()
    assert all("seed_generator" in name for name in report.unused)
    assert report.assumed == ()


def test_a_keras_file_of_another_architecture(make_model, weights_of, tmp_path):
    make_model(pooling="gap", num_layers=3).save_weights(tmp_path / "a.weights.h5")
    model = make_model()
    before = weights_of(model)
    with pytest.raises(ValueError) as error:
        keras_vit.load_weights(model, tmp_path / "a.weights.h5")
    lines = str(error.value).splitlines()
    assert "  - missing class_token/0 (for class_token/class_token)" in lines
    assert "  + extra block_02/mlp/dense1/0" in lines
    check_equal(weights_of(model), before)
    dense = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    dense.save(tmp_path / "b.keras")
    with pytest.raises(ValueError, match="must hold a model of keras_vit with a config; got 'Sequential'"):
        keras_vit.load_weights(model, tmp_path / "b.keras")


def test_create_model_takes_what_a_keras_file_says(make_model, weights_of, tiny_zoo, tmp_path):
    source = make_model(seed=1, gelu="erf", epsilon=1e-4)
    source.labels = ("ant", "bee", "cat")
    source.preprocessing = keras_vit.Preprocessing(size=16, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    source.save(tmp_path / "a.keras")
    model = tiny_zoo(tmp_path / "a.keras", classes=3)
    check_equal(weights_of(model), weights_of(source))
    assert (model.config.gelu, model.config.epsilon) == ("erf", 1e-4)
    assert model.labels == ("ant", "bee", "cat")
    assert model.preprocessing == source.preprocessing
    other = tiny_zoo(tmp_path / "a.keras", classes=2, preprocessing=keras_vit.Preprocessing(size=16))
    assert other.labels is None
    assert other.preprocessing == keras_vit.Preprocessing(size=16)
    source.save_weights(tmp_path / "a.weights.h5")
    bare = tiny_zoo(tmp_path / "a.weights.h5", classes=3)
    check_equal(weights_of(bare), weights_of(source))
    assert (bare.config.gelu, bare.config.epsilon, bare.labels) == ("erf", 1e-4, None)
    assert bare.preprocessing == source.preprocessing


def test_the_error_for_a_keras_file_states_a_way_that_works(make_model, tmp_path):
    source, path = make_model(seed=1), tmp_path / "a.keras"
    source.preprocessing = keras_vit.Preprocessing(size=20, crop=16, interpolation="bicubic")
    source.save(path)
    for name, value in {"classes": 7, "include_top": False, "embedding.pad": True}.items():
        owner, _, field = name.partition(".")
        with pytest.raises(ValueError, match=f"states its whole model, so {name} must be None; got {value}") as caught:
            keras_vit.load(path, **{owner: {field: value} if field else value})
        found = re.search(r"(new = .*), then (keras_vit.load_weights.*)\)$", str(caught.value))
        scope = {"keras_vit": keras_vit, "model": keras_vit.load(path)}
        exec("; ".join(found.groups()), scope)
        assert scope["new"].config.field(name) == value and scope["new"].preprocessing == source.preprocessing
        np.testing.assert_array_equal(*(one.get_layer("block_00").weights[0] for one in (scope["new"], source)))
    for argument, value in {"labels": ["a"], "variant": "ViT-Ti_16", "resize": "timm", "image_size": 32}.items():
        with pytest.raises(ValueError, match=rf"so {argument} must be None; got .*keras_vit.resize\(model, image_size"):
            keras_vit.load(path, **{argument: value})


def test_scanned_blocks(make_model, weights_of, tiny_zoo, arrays, tmp_path):
    scanned = {}
    for name, array in arrays.items():
        if "encoderblock_0" in name:
            other = arrays[name.replace("encoderblock_0", "encoderblock_1")]
            scanned["params/" + name.replace("encoderblock_0", "encoderblock")] = np.stack([array, other])
        elif "encoderblock" not in name:
            scanned["params/" + name] = array
    path = npz(tmp_path / "a.npz", scanned)
    model = make_model()
    report = keras_vit.load_weights(model, path)
    assert report.used == tuple(scanned)
    check_equal(weights_of(model), weights_of(make_model(seed=1)))
    check_equal(weights_of(tiny_zoo(path, classes=3)), weights_of(model))
    with pytest.raises(ValueError, match="missing Transformer/encoderblock_2/"):
        keras_vit.load_weights(make_model(num_layers=3), path)
    scanned["params/Transformer/encoderblock/LayerNorm_0/scale"] = np.zeros((10**9, 0), "float32")
    with pytest.raises(ValueError, match=r"must stack all blocks, at most 1000, .*; got shape \(1000000000, 0\)"):
        keras_vit.load_weights(make_model(), npz(tmp_path / "b.npz", scanned))


def test_registers_may_be_a_table_without_rows(make_model, weights_of, tmp_path):
    """As in every DINOv3 of transformers that has no registers."""
    block = {"rotary": {"kind": "dinov3"}, "key_bias": False}
    source = make_model(seed=1, position_embedding="none", layer_scale_init=1.0, block=block, include_top=False)
    names = {"huggingface": "embeddings.register_tokens", "timm": "reg_token"}
    for layout, name in names.items():
        path = tmp_path / f"{layout}.safetensors"
        keras_vit.save_weights(source, path, layout)
        arrays = {**safetensors.numpy.load_file(path), name: np.zeros((1, 0, 8), "float32")}
        with safetensors.safe_open(path, "numpy") as file:
            metadata = file.metadata()
        safetensors.numpy.save_file(arrays, path, metadata)
        model = keras_vit.load(path, image_size=16)
        check_equal(weights_of(model), weights_of(source))
