"""The official implementations' numbers: every case folder of `--golden DIR` that we understand.

A case is built from its `case.json` alone, its weights come through `keras_vit.load_weights`, and the logits and every
stored intermediate are compared within the case's own tolerances. Cases of published families come through
`keras_vit.load`, and are written back with the keys and bytes of their file.
"""

import json
import pathlib
import re
import tempfile

import golden_zero_shot
import keras
import numpy as np
import pytest
import safetensors.numpy
from golden_arrays import ARRAY_CASES, stored_in
from golden_autoencoders import compare_autoencoder
from golden_configs import NotUnderstood, config_of, is_published, load_arguments, native_size, reference_arguments
from golden_self_distillation import compare_self_distillation
from golden_ssl import compare_ssl
from golden_task_arrays import compare_arrays
from golden_task_models import TASK_CLASSES, compare_task

import keras_vit
from keras_vit.analysis import attention_model
from keras_vit.layers.patches import PADDING
from keras_vit.models import build_model


def pytest_generate_tests(metafunc):
    if "case_folder" in metafunc.fixturenames:
        given = metafunc.config.getoption("--golden")
        folders = [path.parent for folder in given for path in sorted(folder.glob("*/case.json"))]
        metafunc.parametrize("case_folder", folders, ids=[path.name for path in folders])
    if "reference_case" in metafunc.fixturenames:
        given = metafunc.config.getoption("--golden")
        paths = [path for folder in given for path in sorted(folder.rglob("*.json"))]
        paths = [path for path in paths if path.with_suffix(".safetensors").exists()]
        metafunc.parametrize("reference_case", paths, ids=[path.stem for path in paths])


def test_golden(case_folder):
    case = json.loads((case_folder / "case.json").read_text())
    try:
        compare = _comparison(case)
    except NotUnderstood as reason:
        pytest.skip(f"case not understood yet: {case['name']} ({reason})")
    compare(case_folder, case)


def test_reference(reference_case):
    """A small model of timm or transformers: `NAME.json` has its switches, `NAME.npz` images, tokens and output."""
    switches, arrays = json.loads(reference_case.read_text())["config"], stored_in(reference_case.with_suffix(".npz"))
    images = arrays["images_nchw"].transpose(0, 2, 3, 1).astype("float32")
    model = keras_vit.load(reference_case.with_suffix(".safetensors"), **reference_arguments(switches, images))
    has_norm = model.config.norm_position == "before_pooling"
    last = "encoder_norm" if has_norm else f"block_{model.config.num_layers - 1:02d}"
    outputs = {"tokens": model.get_layer(last).output, "out": model.output}
    outputs = keras.Model(model.input, {key: outputs[key] for key in outputs if key in arrays})(images)
    for key, value in outputs.items():
        expected = arrays[key]
        tolerance = 2e-5 * np.abs(expected).max()
        np.testing.assert_allclose(value, expected, atol=tolerance, rtol=0, err_msg=key)


def test_there_are_cases(request):
    for folder in request.config.getoption("--golden"):
        assert list(folder.rglob("*.npz")), f"{folder} holds no case"


def _comparison(case):
    if case.get("class") in TASK_CLASSES:
        return compare_task
    kind = case.get("kind", case.get("family"))
    if kind == "array-only":
        return compare_arrays
    if kind in ARRAY_CASES:
        return lambda folder, case: ARRAY_CASES[kind](stored_in(folder / "io.npz"), case)
    if kind == "zeroshot":
        return lambda folder, case: golden_zero_shot.compare(folder, case, _intermediate)
    if kind == "dino":
        return compare_self_distillation
    if kind == "ssl":
        return compare_ssl
    if case.get("family") == "mae" and "noise" in case["io_keys"]:
        return compare_autoencoder
    is_other_task = str(case.get("logits_is")).startswith("logits_per_image")
    if is_published(case) and not is_other_task:
        load_arguments(case, False)
        return _compare_published if case["image_size"] else _compare_each_image
    config = config_of(case)
    compare = _compare_patch_sizes if case.get("family") == "flexivit" else _compare_model
    return lambda folder, case: compare(folder, case, config)


def _compare_patch_sizes(folder, case, config):
    """One set of weights at every number of patches per side, through `keras_vit.load`, and written back."""
    source, arguments = _weights(folder, case), {"variant": "flexivit", "image_size": config.image_size}
    stored, arrays = keras_vit.load(source, **arguments), stored_in(folder / "io.npz")
    assert stored.config == config.replace(name="flexivit", dtype=stored.config.dtype)
    _compare_written(folder, case, source, arguments, False, stored)
    for count in case["config"]["seqhw"]:
        model = stored.with_patch_size(config.image_size[0] // count)
        found = {
            "stem": model.get_layer("patch_encoder").output,
            "with_posemb": _intermediate(model, model.config, "with_posemb"),
            "encoded": _tokens(model),
            "logits": model.output,
        }
        for key, value in keras.Model(model.input, found)(arrays["images"]).items():
            expected, tolerance = arrays[f"{key}_seqhw_{count}"], case["tolerance"]["per_key_atol"]
            value = keras.ops.convert_to_numpy(value).reshape(expected.shape)
            np.testing.assert_allclose(value, expected, atol=tolerance[f"{key}_seqhw_{count}"], rtol=0, err_msg=key)


def _compare_model(folder, case, config):
    model = build_model(config)
    keras_vit.load_weights(model, _weights(folder, case), resize=case["machine"].get("resize", "auto"))
    new_head = case.get("load_pretrained", {}).get("new_head")
    if new_head:
        head = stored_in(folder / new_head)
        model.get_layer("head").set_weights([head["head/kernel"], head["head/bias"]])
    arrays, tolerance = _compare_outputs(model, folder, case)
    _compare_dialects(folder, config, arrays, tolerance)
    if config.network == "vit" and (folder / "config.json").exists():
        _compare_outputs(keras_vit.load(folder, image_size=config.image_size), folder, case)


def _compare_published(folder, case):
    is_folder = (folder / "config.json").exists()
    source, arguments = folder if is_folder else folder / case["params_file"], load_arguments(case, is_folder)
    model = keras_vit.load(source, **arguments)
    _compare_outputs(model, folder, case)
    _compare_written(folder, case, source, arguments, is_folder, model)
    for name in case.get("alt_params_files", ()):
        alternative = keras_vit.load(folder / name, **load_arguments(case, False))
        tokens = keras.Model(alternative.input, alternative.get_layer("encoder_norm").output)
        arrays = stored_in(folder / "io.npz")
        expected = arrays[next(key for key in ("layernorm", "norm", "final_norm") if key in arrays)]
        np.testing.assert_allclose(tokens(arrays["images"]), expected, atol=1e-4, rtol=0, err_msg=name)


def _compare_each_image(folder, case):
    """A case whose images have several sizes: each through the model of its size, and all as sequences of patches."""
    is_folder = (folder / "config.json").exists()
    source, arguments = folder if is_folder else folder / case["params_file"], load_arguments(case, is_folder)
    model, arrays = keras_vit.load(source, **arguments), stored_in(folder / "io.npz")
    for index, expected in enumerate(arrays["logits"]):
        image = arrays[f"image_{index}"]
        logits = keras_vit.resize(model, image.shape[:2])(image[None])[0]
        np.testing.assert_allclose(logits, expected, atol=case["tolerance"]["logits_atol"], rtol=0, err_msg=index)
    _compare_outputs(keras_vit.resize(model, "native"), folder, case)
    _compare_written(folder, case, source, arguments, is_folder, model)


def _inputs(arrays):
    """The images of a case, or its patches with their coordinates."""
    if "images" in arrays:
        return arrays["images"]
    is_patch, index = _is_patch(arrays), np.arange(arrays["pixel_patches"].shape[1])
    rows, columns = np.moveaxis(arrays["spatial_shapes"][:, :, None], 1, 0)  # (batch, 1) each
    coordinates = np.stack(np.broadcast_arrays(index // columns, index % columns, rows, columns, 0), axis=-1)
    if "patch_coord" in arrays:
        np.testing.assert_array_equal(coordinates[is_patch][:, :2], arrays["patch_coord"][is_patch])
    coordinates = np.where(is_patch[..., None], coordinates, PADDING).astype("int32")
    return {"patches": arrays["pixel_patches"].astype("float32"), "coordinates": coordinates}


def _is_patch(arrays):
    return arrays[next(key for key in _MASKS if key in arrays)] > 0


def _compare_written(folder, case, source, arguments, is_folder, model):
    """Every parameter that was read has the same key and bytes after `save_weights`.

    `model` was read with `arguments`; if the position table of the file has another size, the file is read again.
    """
    size = native_size(case)
    is_resized = is_folder if size is None else tuple(np.broadcast_to(size, 2)) != model.config.image_size
    if is_resized:
        model = keras_vit.load(source, **({} if is_folder else {**arguments, "image_size": size}))
    library = _LIBRARIES.get(case["runner"].partition(" ")[0], "original")
    written = pathlib.Path(tempfile.mkdtemp(), "written")
    if not is_folder:
        written = written.with_suffix(pathlib.Path(case["params_file"]).suffix)
    keras_vit.save_weights(model, written, library)
    theirs = _read_arrays(folder / case["params_file"])
    ours = _read_arrays(written / "model.safetensors" if is_folder else written)
    assert set(ours) <= set(theirs)
    left_out = [name for name in theirs if name not in ours]
    assert all(re.search(_NOT_WEIGHTS, name) for name in left_out), left_out
    for name, array in ours.items():
        expected = theirs[name]
        if f"{name}_mask" in theirs:
            expected = expected * theirs[f"{name}_mask"]
            array, expected = array + 0.0, expected + 0.0  # -0 is 0
        assert array.shape == expected.shape and array.tobytes() == expected.tobytes(), name
    if is_folder:
        images = stored_in(folder / "io.npz").get("images", np.zeros((1, 0, 0, 3)))
        if images.shape[1:3] == model.config.image_size:
            np.testing.assert_array_equal(keras_vit.load(written)(images), model(images))


def _read_arrays(path):
    return stored_in(path) if path.suffix == ".npz" else safetensors.numpy.load_file(path)


def _compare_outputs(model, folder, case):
    """Compare the logits and every stored intermediate; return the arrays of the case and the tolerance of logits."""
    config, arrays = model.config, stored_in(folder / "io.npz")
    others = ("images", "logits_float64", *_BIG_VISION_LOGITS, *_OF_TEXT, *_OF_PATCHES, *_MASKS)
    stored = [key for key in arrays if key not in others and not re.fullmatch(r"image_\d+", key)]
    symbolic = {key: _intermediate(model, config, key) for key in stored}
    outputs = {key: value for key, value in symbolic.items() if isinstance(value, keras.KerasTensor)}
    values = {key: value for key, value in symbolic.items() if key not in outputs}
    values |= keras.Model(model.input, outputs)(_inputs(arrays))
    for key in stored:
        tolerance = case["tolerance"]["per_key_atol"].get(key, 5e-5)
        if key == "logits":
            tolerance = case["tolerance"]["logits_atol"]
        expected = arrays[key]
        value = keras.ops.convert_to_numpy(values[key])[: len(expected)]
        if "pixel_patches" in arrays and value.ndim == 3 and key != "map_attention":  # padding is stored as zeros
            prefix = value.shape[1] - arrays["pixel_patches"].shape[1]
            value = value * np.pad(_is_patch(arrays), ((0, 0), (prefix, 0)), constant_values=True)[..., None]
        if key == "pooled" and (value.ndim, expected.ndim) == (2, 3):  # OpenCLIP norms every token
            expected = expected[:, 0]
        if value.ndim != expected.ndim:  # Swin's own code has its maps as sequences, timm's patches may be a map
            value = value.reshape(expected.shape)
        np.testing.assert_allclose(value, expected, atol=tolerance, rtol=0, err_msg=key)
    logits = keras.ops.convert_to_numpy(values["logits"])
    tolerance = case["tolerance"]["logits_atol"]
    np.testing.assert_allclose(logits, arrays["logits_float64"], atol=tolerance, rtol=0, err_msg="logits_float64")
    return arrays, tolerance


def _compare_dialects(folder, config, arrays, tolerance):
    """The same arrays under transformers 5.x names, and the same file through big_vision, which pads in its own way."""
    others = [(config, path, "logits") for path in folder.glob("params_v5_names.safetensors")]
    for key in set(_BIG_VISION_LOGITS) & set(arrays):
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
    np.savez(path, **{name: array for part in parts for name, array in stored_in(part).items()})
    return path


def _intermediate(model, config, key):
    """The symbolic output, or the array, that a case stores as `key`."""
    if match := re.fullmatch(r"attn_(\d+)", key):
        return attention_model(model, int(match[1])).outputs[0]
    if key in _OF_TOKENS:
        return _OF_TOKENS[key](model, config)
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
        "after_posembed": "pre_norm" if "pre_norm" in names else "position_embs",
        "after_embeddings": next((n for n in ("position_embs", "class_token", "patch_norm") if n in names), None),
        "pre_norm": "pre_norm",
        "neck_nhwc": "neck",
        "final_norm": norm,
        "encoder_norm": "encoder_norm",
        "layernorm": "encoder_norm",
        "norm": norm,
        "pooled": "encoder_norm" if norm != "encoder_norm" else pooled,
        "fc_norm": "encoder_norm" if norm != "encoder_norm" else pooled,
        "pre_logits": "pre_logits" if "pre_logits" in names else pooled,
        "pooler_output": "pre_logits",
        "cls_logits": "head",
        "dist_logits": "head_dist",
        "distillation_logits": "head_dist",
    }[key]


def _tokens(model):
    """The normed tokens."""
    return model.get_layer("encoder_norm").output


def _of_last_two(model, config):
    """Block outputs through the final norm, patches only, oldest first (DINOv2's get_intermediate_layers)."""
    norm = model.get_layer("encoder_norm")
    names = [f"block_{config.num_layers - index:02d}" for index in (2, 1)]
    return keras.ops.stack([norm(model.get_layer(name).output)[:, config.num_prefix_tokens :] for name in names])


def _map_attention(model, config):
    """The output of the attention of MAP, before its MLP."""
    pooling = model.get_layer("pooling")
    without = keras_vit.AttentionPooling.from_config({**pooling.get_config(), "name": "map_attention"})
    without.build(_tokens(model).shape)
    without.set_weights(pooling.get_weights())
    without.mlp = lambda pooled: 0.0 * pooled
    images = model.get_layer("patch_places").output[1] if config.embedding.images_per_sequence else None
    return without(_tokens(model), images)[:, None]


def _positions_used(model, config):
    """The table that is added, class token first, without registers."""
    if config.embedding.images_per_sequence:
        return model.get_layer("position_embs").output - model.get_layer("patch_encoder").output
    table = keras.ops.convert_to_numpy(model.get_layer("position_embs").table())
    keep = [*range(config.num_class_tokens), *range(config.num_prefix_tokens, table.shape[1])]
    return table[:, keep]


# keys that are no output of a single layer
_OF_TOKENS = {
    "storage_tokens": lambda model, config: _tokens(model)[:, config.num_class_tokens : config.num_prefix_tokens],
    "patch_tokens": lambda model, config: _tokens(model)[:, config.num_prefix_tokens :],
    "cls_mean_concat": lambda model, config: keras_vit.TokenAndAveragePooling(config.num_prefix_tokens)(_tokens(model)),
    "intermediate_last2_patches": _of_last_two,
    "map_attention": _map_attention,
    "image_embeds_l2": lambda model, config: keras.ops.normalize(model.output, axis=-1),
    "pos_embed_used": _positions_used,
}
_LIBRARIES = {"transformers": "huggingface", "timm": "timm"}
# what a file may hold besides the weights that are read
_NOT_WEIGHTS = (
    r"(^|\.)(mask_token|relative_position_index|bias_mask|periods|position_ids|logit_scale|logit_bias)$"
    r"|text_model\.|text_projection|^params/(txt/|t$|b$)"
)
_BIG_VISION_LOGITS = ("logits_big_vision_bit_paper",)
# the inputs of cases whose images have several sizes
_MASKS = ("attention_mask", "patch_valid", "patch_type")
_OF_PATCHES = ("pixel_patches", "patch_coord", "spatial_shapes", "yabs", "xabs")
_OF_TEXT = ("input_ids", "text_embeds_l2", "logits_per_image")
_NUMBERED = {
    r"(?:encoderblock|layer|block)_(\d+)": lambda block: f"block_{block:02d}",
    r"block(\d+)": lambda stage: f"stage_{stage}",
    r"stage(\d+)_block(\d+)": lambda stage, block: f"stage_{stage + 1}_block_{block:02d}",
    r"stage(\d+)_downsample": lambda stage: f"stage_{stage + 1}_downsample",
}
