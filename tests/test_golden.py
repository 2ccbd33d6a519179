"""The official implementations' numbers: every case folder of `--golden DIR` (default tests/golden) that we understand.

A case is built from its `case.json` alone, its weights come through `keras_vit.load_weights`, and the logits and every
stored intermediate are compared within the case's own tolerances.
"""

import json
import pathlib
import re
import tempfile

import keras
import numpy as np
import pytest
from golden_arrays import ARRAY_CASES
from golden_configs import NotUnderstood, config_of

import keras_vit
from keras_vit.analysis import attention_model
from keras_vit.models import build_model


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
    if case.get("kind") in ARRAY_CASES:
        return lambda folder, case: ARRAY_CASES[case["kind"]](np.load(folder / "io.npz"), case)
    config = config_of(case)
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
    model = build_model(config)
    keras_vit.load_weights(model, _weights(folder, case), resize=case["machine"].get("resize", "auto"))
    new_head = case.get("load_pretrained", {}).get("new_head")
    if new_head:
        head = np.load(folder / new_head)
        model.get_layer("head").set_weights([head["head/kernel"], head["head/bias"]])
    arrays = np.load(folder / "io.npz")
    others = ("images", "logits_float64", *_BIG_VISION_LOGITS)
    stored = [key for key in arrays.files if key not in others]
    symbolic = {key: _intermediate(model, config, key) for key in stored}
    outputs = {key: value for key, value in symbolic.items() if isinstance(value, keras.KerasTensor)}
    values = {key: value for key, value in symbolic.items() if key not in outputs}
    values |= keras.Model(model.input, outputs)(arrays["images"])
    for key in stored:
        tolerance = case["tolerance"]["per_key_atol"].get(key, 5e-5)
        if key == "logits":
            tolerance = case["tolerance"]["logits_atol"]
        expected = arrays[key]
        value = keras.ops.convert_to_numpy(values[key])[: len(expected)]
        if value.ndim == 4 and expected.ndim == 3:  # Swin's own code has its maps as sequences
            value = value.reshape(expected.shape)
        np.testing.assert_allclose(value, expected, atol=tolerance, rtol=0, err_msg=key)
    logits = keras.ops.convert_to_numpy(values["logits"])
    tolerance = case["tolerance"]["logits_atol"]
    np.testing.assert_allclose(logits, arrays["logits_float64"], atol=tolerance, rtol=0, err_msg="logits_float64")
    _compare_dialects(folder, config, arrays, tolerance)


def _compare_dialects(folder, config, arrays, tolerance):
    """The same arrays under transformers 5.x names, and the same file through big_vision, which pads in its own way."""
    others = [(config, path, "logits") for path in folder.glob("params_v5_names.safetensors")]
    for key in set(_BIG_VISION_LOGITS) & set(arrays.files):
        others.append((config.replace(max_pool_padding="minus_infinity"), _merged(folder), key))
    for changed, path, key in others:
        model = build_model(changed)
        keras_vit.load_weights(model, path)
        logits = keras.ops.convert_to_numpy(model(arrays["images"]))
        np.testing.assert_allclose(logits, arrays[key], atol=tolerance, rtol=0, err_msg=f"{path.name} {key}")


def _weights(folder, case):
    path = folder / case["params_file"]
    return path if path.exists() else _merged(folder)


def _merged(folder):
    """A file of weights that lies here in parts."""
    parts = sorted(folder.glob("params.part*.npz"))
    if not parts:
        return folder / "params.npz"
    path = pathlib.Path(tempfile.mkdtemp(), "params.npz")
    np.savez(path, **{name: array for part in parts for name, array in np.load(part).items()})
    return path


def _intermediate(model, config, key):
    """The symbolic output, or the array, that a case stores as `key`."""
    if match := re.fullmatch(r"attn_(\d+)", key):
        return attention_model(model, int(match[1])).outputs[0]
    if key == "embedding":
        return keras.ops.reshape(model.get_layer("patch_encoder").output, (-1, *config.grid_size, config.hidden_dim))
    if key == "with_posemb":  # big_vision adds positions before it prepends the class token
        return model.get_layer("position_embs").output[:, config.num_prefix_tokens :]
    if key == "pos_embedding_used":
        return model.get_layer("position_embs").embedding[:, config.num_class_tokens :]
    if key == "pos_embedding_resized":
        return keras.ops.convert_to_numpy(model.get_layer("position_embs").embedding)
    if key == "sincos2d_table":
        return model.get_layer("position_embs").sincos2d[None]
    return model.output if key == "logits" else model.get_layer(_layer_name(model, config, key)).output


def _layer_name(model, config, key):
    for pattern, name in _NUMBERED.items():
        if match := re.fullmatch(pattern, key):
            return name(*(int(number) for number in match.groups()))
    names = [layer.name for layer in model.layers]
    norm = "encoder_norm"
    if getattr(config, "norm_position", None) == "after_pooling":
        norm = f"block_{config.num_layers - 1:02d}"
    pooled = "pooling" if "pooling" in names else norm
    return {
        "gn_root": "root_norm",
        "root": "root_pool",
        "backbone": next((name for name in reversed(names) if name.startswith("stage_")), "root_pool"),
        "patch_embed": "patch_norm" if "patch_norm" in names else "patch_encoder",
        "after_posembed": "position_embs",
        "after_embeddings": "patch_norm" if "patch_norm" in names else "position_embs",
        "encoder_norm": "encoder_norm",
        "layernorm": "encoder_norm",
        "norm": norm,
        "pooled": pooled,
        "fc_norm": "encoder_norm" if norm != "encoder_norm" else pooled,
        "pre_logits": "pre_logits" if "pre_logits" in names else pooled,
        "pooler_output": "pre_logits",
        "cls_logits": "head",
        "dist_logits": "head_dist",
        "distillation_logits": "head_dist",
    }[key]


_BIG_VISION_LOGITS = ("logits_big_vision_bit_paper",)
_NUMBERED = {
    r"(?:encoderblock|layer|block)_(\d+)": lambda block: f"block_{block:02d}",
    r"block(\d+)": lambda stage: f"stage_{stage}",
    r"stage(\d+)_block(\d+)": lambda stage, block: f"stage_{stage + 1}_block_{block:02d}",
    r"stage(\d+)_downsample": lambda stage: f"stage_{stage + 1}_downsample",
}
