"""Golden cases of task models: what transformers computed, compared through `keras_vit.load` of the folder."""

import json
import math
import pathlib
import re
import shutil
import tempfile

import keras
import numpy as np
import safetensors.numpy
from golden_arrays import stored_in
from keras import ops

import keras_vit
from keras_vit.layers.open_vocabulary import cell_bias, unit
from keras_vit.layers.resizing import resize_maps
from keras_vit.tasks.keypoints import flip_average


def compare_task(folder, case):
    """Compare every array that is no input, in the tolerances of the case."""
    if not case.get("params_stored", True):
        with tempfile.TemporaryDirectory() as written:
            write_files(case, written)
            model = keras_vit.load(written)
    else:
        model = keras_vit.load(folder)
    arrays = stored_in(folder / "io.npz")
    size = arrays["images"].shape[1:3]
    if model.config.fixed_size not in (None, size):
        model = keras_vit.load(folder, image_size=size)
    found = TASK_CLASSES[case["class"]](model, arrays, case)
    inputs = ops.convert_to_tensor(arrays["images"])
    if "conditional_embeddings" in found:
        inputs = {"images": inputs, "condition": found["conditional_embeddings"]}
    symbolic = {key: tensor for key in set(arrays) - set(found) if (tensor := _intermediate(model, key)) is not None}
    found |= keras.Model(model.input, symbolic)(inputs) if symbolic else {}
    found["logits_float64"] = found["logits"]
    left = set(arrays) - set(found) - set(case["inputs"])
    assert not left, f"arrays without a value to compare: {sorted(left)}"
    for key in set(arrays) & set(found):
        check(case, key, found[key], arrays[key])


def with_config(case, folder, **changes):
    """Copy a case with other values in its config.json into an empty folder, which is returned."""
    shutil.copy(case / "model.safetensors", folder)
    values = json.loads((case / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **changes}))
    return folder


def write_files(case, folder):
    """Write the config.json and the weights of a case that has their recipe in place of the arrays."""
    rng, arrays = np.random.RandomState(case["params_seed"]), {}
    for name, shape in sorted(case["param_shapes"].items()):
        is_variance = name.endswith("running_var")
        scale = math.sqrt(3 / math.prod(shape[1:])) if len(shape) > 1 else 0.5 if is_variance else 0.1
        offset = float(len(shape) == 1 and (name.endswith((".weight", "lambda1")) or is_variance))
        offset += 2.0 * (name == "head.head.4.bias" and case["task"] == "depth")
        arrays[name] = (rng.uniform(-1, 1, shape) * scale + offset).astype("float32")
    folder = pathlib.Path(folder)
    (folder / "config.json").write_text(json.dumps(case["config"]))
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")


def check(case, key, value, expected):
    """Compare a value with an array, which may be that of the first image only."""
    limits = case["tolerance"]
    limit = limits["logits_atol"] if key.startswith("logits") else limits["per_key_atol"].get(key, 5e-5)
    value = ops.convert_to_numpy(value).reshape(-1, *expected.shape[1:])[: len(expected)]
    np.testing.assert_allclose(value, expected, atol=limit, rtol=0, err_msg=key)


def _intermediate(model, key):
    """Return the symbolic tensor that a case stores as `key`, if it is the input or output of a layer."""
    for pattern, name in (OUTPUTS | INPUTS).items():
        if match := re.fullmatch(pattern, key):
            name = name.format(*map(int, match.groups()), last=model.config.num_layers - 1)
            node = _calls(model, name)[-1]
            return node.outputs[0] if pattern in OUTPUTS else node.input_tensors[0]
    return None


def _calls(model, name):
    """Return the calls of a layer: some heads call the layers of the encoder again."""
    return model.get_layer(name)._inbound_nodes


def _last(model, name):
    return _calls(model, name)[-1].outputs[0]


# key -> layer with this output, or input; the last call of the layer counts
OUTPUTS = {
    "box_head": "box_head",
    r"decoder_(\d+)": "level_{}_block",
    "features|last_hidden_state|sequence_output": "encoder_norm",
    r"fused_(\d+)": "fusion_{}",
    r"layer_(\d+)": "block_{:02d}",
    r"reassembled_(\d+)": "level_{}_reassemble",
    r"reduced_(\d+)": "level_{}_reduced",
    "vision_after_embeddings": "position_embs",
    "vision_last_hidden": "block_{last:02d}",
    "vision_pre_norm": "pre_norm",
}
INPUTS = {"after_embeddings": "block_00", r"feature_(\d+)": "level_{}_readout"}


def _depth(model, arrays, case):
    head = model.get_layer("depth_head")
    fused = keras.Model(model.input, _last(model, "fusion_3"))(arrays["images"])
    halved = head.conv1(fused)
    resized = resize_maps(halved, case["image_size"], align_corners=True)
    return {"logits": model(arrays["images"]), "head_conv1": halved, "head_input_resized": resized}


def _segmentation(model, arrays, case):
    return model(arrays["images"])


def _eomt(model, arrays, case):
    plain, up = model(arrays["images"]), sum(layer.name.startswith("upscale_") for layer in model.layers) - 1
    outputs = {"upscaled": _last(model, f"upscale_{up}"), "query_embeds": _last(model, "mask_head")}
    found = {**plain, "logits": plain["mask_logits"], **keras.Model(model.input, outputs)(arrays["images"])}
    if set(case["machine"].get("masked_probs", ())) != {1.0}:  # ours masks all of the last blocks, or none
        for key in [key for key in arrays if key.endswith("_masked") or key.startswith("attention_mask_")]:
            del arrays[key]
        return found
    masked = type(model).from_config({**model.get_config(), "masked": True})
    values = {variable.path: variable for variable in model.weights}
    for variable in masked.weights:
        variable.assign(values[variable.path])
    patches, queries = math.prod(model.config.grid_size), plain["class_logits"].shape[1]
    biases = [call.outputs[0][:, 0, :queries, -patches:] for call in _calls(masked, "masked_attention")]
    outputs = {**masked.output, "sequence_output": _last(masked, "encoder_norm"), "biases": biases}
    outputs = keras.Model(masked.input, outputs)(arrays["images"])
    found |= {f"attention_mask_{n}": bias == 0 for n, bias in enumerate(outputs.pop("biases"))}
    return found | {f"{key}_masked": value for key, value in outputs.items()}


def _vitpose(model, arrays, case):
    for key in [key for key in arrays if re.fullmatch(r"heatmaps_\d", key)]:
        del arrays[key]  # of other experts, see tests/tasks/test_vitpose.py
    pairs = json.loads(re.search(r"flip_pairs (\[\[.*?\]\])", case["notes"])[1])
    plain, mirrored = (np.asarray(model(images)) for images in (arrays["images"], arrays["images"][:, :, ::-1]))
    return {
        "logits": plain,
        "heatmaps_flipped_back": 2 * flip_average(np.zeros_like(plain), mirrored, pairs),
        "heatmaps_flip_averaged": flip_average(plain, mirrored, pairs),
    }


def _yolos(model, arrays, case):
    found = model(arrays["images"])
    return {"logits": found["logits"], "pred_boxes": found["boxes"]}


def _owl(model, arrays, case):
    found, guide = model(arrays["images"]), model(arrays["query_images"])
    _, rows, columns, _ = found["image_embeds"].shape
    queries = arrays["logits"].shape[-1]
    ids, mask = (arrays[key].reshape(-1, queries, arrays[key].shape[-1]) for key in ("input_ids", "attention_mask"))
    texts, examples = model.embed_text(ids, mask), model.embed_examples(arrays["query_images"])
    guided = model.detect(arrays["images"], examples["queries"])
    tower, is_query = model.text_tower, arrays["input_ids"][:, 0] > 0
    layers = {name: tower.get_layer(name).output for name in ("encoder_norm", "pooling")}
    layers = keras.Model(tower.input, layers)({"ids": ops.convert_to_tensor(arrays["input_ids"], "int32")})
    is_token = (arrays["attention_mask"] > 0) & is_query[:, None]
    return {
        "logits": model.classify(found, texts),
        "pred_boxes": found["boxes"],
        "image_embeds": found["image_embeds"],
        "class_head_dense": found["class_embeds"],
        "class_embeds": unit(found["class_embeds"], 1e-6),
        "box_bias": cell_bias(rows, columns),
        "text_embeds": texts,
        "text_pooled": np.where(is_query[:, None], layers["pooling"], 0),  # what is no text is stored as 0
        "text_last_hidden": np.where(is_token[..., None], layers["encoder_norm"], 0),
        "query_embeds": examples["queries"],
        "query_box_index": examples["patches"],
        "guided_query_boxes": guide["boxes"],
        "guided_logits": guided["logits"],
        "guided_target_boxes": guided["boxes"],
        **({"objectness_logits": found["objectness"]} if "objectness" in found else {}),
    }


def _clipseg(model, arrays, case):
    images = ops.convert_to_tensor(arrays["images"])
    conditions = model.embed_text(arrays["input_ids"], arrays["attention_mask"])
    return {
        "conditional_embeddings": conditions,
        "pooled_output": model.embed_images(images),
        "logits": model.segment(images, conditions),
    }


# set of prompts of SAM -> its inputs
PROMPTS = {
    "points": ("points", "labels"),
    "boxes": ("boxes",),
    "both": ("points", "labels", "boxes"),
    "mask": ("points", "labels", "low_res_masks"),
}


def sam_prompts(arrays, name):
    """Return the arguments of `decode` for a set of prompts of a case."""
    given = {key.replace("low_res_masks", "masks"): arrays[key] for key in PROMPTS[name]}
    return {**given, "multimask": arrays[f"{name}_masks"].shape[2] > 1}


def _sam(model, arrays, case):
    sets = [key.removesuffix("_masks") for key in arrays if key.endswith("_masks") and key not in case["inputs"]]
    embeddings = model.encode(arrays["images"])
    positions = model.get_layer("fourier_positions")(model.get_layer("grid_places")(embeddings))
    patches = keras.Model(model.encoder.input, model.get_layer("patch_encoder").output)(arrays["images"])
    found = {
        "image_embeddings": embeddings,
        "image_positional_embeddings": positions,
        "vision_patch_embed": patches,
    }
    for name in reversed(sets):  # the intermediates of the decoder are those of the first set
        given = sam_prompts(arrays, name)
        answer = model.decode(embeddings, **given)
        places, kinds = model.get_layer("prompt_places")(embeddings, *map(given.get, ("points", "labels", "boxes")))
        tokens = model.get_layer("point_embedding")(model.get_layer("fourier_positions")(places), kinds)
        masks = ops.convert_to_tensor(given["masks"][:, None]) if "masks" in given else None
        maps = model.get_layer("mask_embedding")(embeddings, masks)
        found |= {f"{name}_{key}": value for key, value in answer.items()}
        found |= {f"{name}_sparse": tokens, f"{name}_dense": maps}
        tokens, image = model.get_layer("mask_decoder").features(embeddings, positions, tokens, maps)
        found |= {"iou_token_path": tokens[:, 0], "hyper_0_in": tokens[:, 1], "upscaled": image}
    if "upscaled" in arrays:  # stored before the GELU
        arrays["upscaled"] = ops.convert_to_numpy(ops.gelu(arrays["upscaled"], approximate=False))
    return {**found, "logits": found[f"{sets[0]}_masks"]}


# class of transformers -> function of the model, the arrays and the case that returns values by key
TASK_CLASSES = {
    "CLIPSegForImageSegmentation": _clipseg,
    "DPTForDepthEstimation": _depth,
    "DPTForSemanticSegmentation": _segmentation,
    "DepthAnythingForDepthEstimation": _depth,
    "EomtDinov3ForUniversalSegmentation": _eomt,
    "EomtForUniversalSegmentation": _eomt,
    "OwlViTForObjectDetection": _owl,
    "Owlv2ForObjectDetection": _owl,
    "SamModel": _sam,
    "VitPoseForPoseEstimation": _vitpose,
    "YolosForObjectDetection": _yolos,
}
