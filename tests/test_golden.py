"""The official implementations' numbers: every case folder of `--golden DIR` (default tests/golden) that we understand.

A case is built from its `case.json` alone, its weights come through `keras_vit.load_weights`, and the logits and every
stored intermediate are compared within the case's own tolerances.
"""

import json
import pathlib
import re

import keras
import numpy as np
import pytest

import keras_vit

_VIT_JAX_CLASSIFIERS = {name: name for name in ("token", "gap", "unpooled", "token_unpooled")}
_BIG_VISION_CLASSIFIERS = {"tok": "token", "gap": "gap", "map": "map", "0": "first", "none": "unpooled"}
_BIG_VISION_POSITIONS = {"learn": "learned", "sincos2d": "sincos2d"}
_BIG_VISION_KEYS = {
    "patch_size", "width", "depth", "mlp_dim", "num_heads", "posemb", "rep_size", "pool_type", "scan", "head_zeroinit",
    "dropout",
}  # fmt: skip
_TIMM_KEYS = {
    "kind", "img_size", "patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio", "num_classes", "global_pool",
    "class_token", "init_values", "qk_norm", "reg_tokens", "no_embed_class", "qkv_bias",
}  # fmt: skip


class NotUnderstood(Exception):
    """A case of a kind that this package has no model for yet."""


def pytest_generate_tests(metafunc):
    if "case_folder" in metafunc.fixturenames:
        folder = pathlib.Path(metafunc.config.getoption("--golden"))
        folders = sorted(path.parent for path in folder.glob("*/case.json"))
        metafunc.parametrize("case_folder", folders, ids=[path.name for path in folders])


def test_golden(case_folder):
    case = json.loads((case_folder / "case.json").read_text())
    try:
        compare = _comparison(case)
    except NotUnderstood as reason:
        pytest.skip(f"case not understood yet: {case['name']} ({reason})")
    compare(case_folder, case)


def test_there_are_cases(request):
    folder = pathlib.Path(request.config.getoption("--golden"))
    assert list(folder.glob("*/case.json")), f"{folder} holds no case"


def _comparison(case):
    if case.get("kind") == "posembed":
        return _compare_position_table
    config = _config(case)
    return lambda folder, case: _compare_model(folder, case, config)


def _compare_position_table(folder, case):
    arrays, arguments = np.load(folder / "io.npz"), case["args"]
    resized = keras_vit.resize_position_embedding(
        arrays["table"], arguments["g0"], arguments["g1"], int(arguments["cls"]), "align_corners"
    )
    tolerance = case["tolerance"]["atol"]
    np.testing.assert_allclose(resized, arrays["resized"], atol=tolerance, rtol=0)
    if "resized_big_vision" in arrays.files:
        np.testing.assert_allclose(resized, arrays["resized_big_vision"], atol=tolerance, rtol=0)
    methods = {
        "other_timm_bicubic_aa": "bicubic_antialias",
        "other_timm_npz_bilinear": "bilinear",
        "other_torch_bicubic_hf_deit": "bicubic",
    }
    for key in set(methods) & set(arrays.files):
        assert np.abs(resized - arrays[key]).max() > 0.01, f"the official way must differ from {key}"
        other = keras_vit.resize_position_embedding(
            arrays["table"], arguments["g0"], arguments["g1"], int(arguments["cls"]), methods[key]
        )
        np.testing.assert_allclose(other, arrays[key], atol=2e-5, rtol=0)


def _compare_model(folder, case, config):
    model = keras_vit.VisionTransformer(config)
    keras_vit.load_weights(model, folder / case["params_file"], resize=case["machine"].get("resize", "auto"))
    new_head = case.get("load_pretrained", {}).get("new_head")
    if new_head:
        head = np.load(folder / new_head)
        model.get_layer("head").set_weights([head["head/kernel"], head["head/bias"]])
    arrays = np.load(folder / "io.npz")
    stored = [key for key in arrays.files if key not in ("images", "logits_float64")]
    symbolic = {key: _intermediate(model, config, key, arrays["images"]) for key in stored}
    outputs = {key: value for key, value in symbolic.items() if isinstance(value, keras.KerasTensor)}
    values = {key: value for key, value in symbolic.items() if key not in outputs}
    values |= keras.Model(model.input, outputs)(arrays["images"])
    for key in stored:
        tolerance = case["tolerance"]["per_key_atol"].get(key, 5e-5)
        if key == "logits":
            tolerance = case["tolerance"]["logits_atol"]
        value = keras.ops.convert_to_numpy(values[key])
        expected = arrays[key]
        np.testing.assert_allclose(value[: len(expected)], expected, atol=tolerance, rtol=0, err_msg=key)
    logits = keras.ops.convert_to_numpy(values["logits"])
    tolerance = case["tolerance"]["logits_atol"]
    np.testing.assert_allclose(logits, arrays["logits_float64"], atol=tolerance, rtol=0, err_msg="logits_float64")


def _intermediate(model, config, key, images):
    """The symbolic output, or the array, that a case stores as `key`."""
    names = [layer.name for layer in model.layers]
    last_block = f"block_{config.num_layers - 1:02d}"
    norm = last_block if config.norm_position == "after_pooling" else "encoder_norm"
    pooled = "pooling" if "pooling" in names else norm
    table = model.get_layer("position_embs")
    if key == "embedding":
        return keras.ops.reshape(model.get_layer("patch_encoder").output, (-1, *config.grid_size, config.hidden_dim))
    if key == "with_posemb":  # big_vision adds positions before it prepends the class token
        return model.get_layer("position_embs").output[:, config.num_prefix_tokens :]
    if key == "pos_embedding_used":
        return table.embedding[:, config.num_class_tokens :]
    if key == "pos_embedding_resized":
        return keras.ops.convert_to_numpy(table.embedding)
    if key == "sincos2d_table":
        return table.sincos2d[None]
    if match := re.fullmatch(r"attn_(\d+)", key):
        block = model.get_layer(f"block_{int(match[1]):02d}")
        return block.attention_scores(keras.Model(model.input, block.input)(images))
    if match := re.fullmatch(r"(?:encoderblock|layer|block)_(\d+)", key):
        return model.get_layer(f"block_{int(match[1]):02d}").output
    layers = {
        "patch_embed": "patch_encoder",
        "after_posembed": "position_embs",
        "after_embeddings": "position_embs",
        "encoder_norm": "encoder_norm",
        "layernorm": "encoder_norm",
        "norm": norm,
        "pooled": pooled,
        "fc_norm": "encoder_norm" if config.norm_position == "after_pooling" else pooled,
        "pre_logits": "pre_logits" if "pre_logits" in names else pooled,
        "pooler_output": "pre_logits",
    }
    return model.output if key == "logits" else model.get_layer(layers[key]).output


def _config(case):
    makers = {
        "vit_jax": _vit_jax,
        "big_vision": _big_vision,
        "transformers": _transformers,
        "timm": _timm,
        "deit_repo": _timm,
    }
    if case.get("family") not in ("vit", "deit3") or case.get("runner") not in makers:
        raise NotUnderstood(f"family {case.get('family')!r}, runner {case.get('runner')!r}")
    machine = case["machine"]
    common = {
        "name": case["name"],
        "image_size": tuple(case["image_size"]),
        "gelu": machine["gelu"],
        "epsilon": machine["epsilon"],
    }
    return keras_vit.ViTConfig(**common, **makers[case["runner"]](case, case["config"]))


def _head(num_classes):
    return {"classes": num_classes} if num_classes else {"include_top": False}


def _vit_jax(case, config):
    if config.get("resnet") or not config.get("transformer"):
        raise NotUnderstood("a ResNet stem")
    transformer = config["transformer"]
    return {
        "patch_size": tuple(config["patches"]["size"]),
        "hidden_dim": config["hidden_size"],
        "num_layers": transformer["num_layers"],
        "num_heads": transformer["num_heads"],
        "mlp_dim": transformer["mlp_dim"],
        "dropout_rate": transformer.get("dropout_rate", 0.1),
        "attention_dropout_rate": transformer.get("attention_dropout_rate", 0.1),
        "classifier": _VIT_JAX_CLASSIFIERS[config["classifier"]],
        "representation_size": config.get("representation_size"),
        **_head(case["num_classes"]),
    }


def _big_vision(case, config):
    if set(config) - _BIG_VISION_KEYS:
        raise NotUnderstood(f"big_vision's {sorted(set(config) - _BIG_VISION_KEYS)}")
    representation_size = config.get("rep_size", False)
    if representation_size is True:
        representation_size = config["width"]
    return {
        "patch_size": tuple(config["patch_size"]),
        "hidden_dim": config["width"],
        "num_layers": config["depth"],
        "num_heads": config["num_heads"],
        "mlp_dim": config.get("mlp_dim") or 4 * config["width"],
        "classifier": _BIG_VISION_CLASSIFIERS[config.get("pool_type", "gap")],
        "position_embedding": _BIG_VISION_POSITIONS[config.get("posemb", "learn")],
        "representation_size": representation_size or None,
        **_head(case["num_classes"]),
    }


def _transformers(case, config):
    if case["class"] not in ("ViTForImageClassification", "ViTModel"):
        raise NotUnderstood(f"class {case['class']}")
    is_classifier = case["class"] == "ViTForImageClassification"
    has_pooler = not is_classifier and "pooler_output" in case["io_keys"]
    return {
        "patch_size": config["patch_size"],
        "hidden_dim": config["hidden_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"],
        "mlp_dim": config["intermediate_size"],
        "qkv_bias": config.get("qkv_bias", True),
        "representation_size": config.get("pooler_output_size", config["hidden_size"]) if has_pooler else None,
        **_head(config["num_labels"] if is_classifier else None),
    }


def _timm(case, config):
    if config["kind"] not in ("vit", "v2") or set(config) - _TIMM_KEYS:
        raise NotUnderstood(f"kind {config['kind']!r} with {sorted(set(config) - _TIMM_KEYS)}")
    pool = config.get("global_pool", "token")
    class_token = config.get("class_token", True)
    classifier = {"token": "token" if class_token else "first", "avg": "gap", "map": "map", "": "token_unpooled"}[pool]
    return {
        "patch_size": config["patch_size"],
        "hidden_dim": config["embed_dim"],
        "num_layers": config["depth"],
        "num_heads": config["num_heads"],
        "mlp_dim": int(config["mlp_ratio"] * config["embed_dim"]),
        "classifier": classifier,
        "class_token": class_token,
        "norm_position": "after_pooling" if pool == "avg" else "before_pooling",
        # DeiT-III's own models always have LayerScale, from 1e-4
        "layer_scale_init": config.get("init_values", 1e-4 if config["kind"] == "v2" else None),
        "qk_norm": config.get("qk_norm", False),
        "qkv_bias": config.get("qkv_bias", True),
        "num_registers": config.get("reg_tokens", 0),
        **_head(config["num_classes"]),
    }
