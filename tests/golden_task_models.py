"""Golden cases of task models: what transformers computed, compared through `keras_vit.load` of the folder."""

import keras
import numpy as np
from golden_arrays import stored_in

import keras_vit

# class of transformers -> {key of a case: layer with this output}; `{n}` stands for each number
LAYERS = {
    "DepthAnythingForDepthEstimation": {
        "logits": "depth_head",
        "reassembled_{n}": "level_{n}_reassemble",
        "fused_{n}": "fusion_{n}",
    },
    "DPTForDepthEstimation": {
        "logits": "depth_head",
        "layer_{n}": "block_0{n}",
        "reassembled_{n}": "level_{n}_reassemble",
        "fused_{n}": "fusion_{n}",
    },
    "EomtForUniversalSegmentation": {},
    "VitPoseForPoseEstimation": {"logits": "decoder", "features": "encoder_norm"},
    "YolosForObjectDetection": {"logits": "class_head", "pred_boxes": "box_head"},
}


def compare_task(folder, case):
    """Compare the outputs of a case, and the stored intermediates that are outputs of layers."""
    model, arrays = keras_vit.load(folder), stored_in(folder / "io.npz")
    images = arrays["images"]
    outputs = dict(_outputs(case, model, arrays))
    for key, value in (keras.Model(model.input, outputs)(images) if outputs else {}).items():
        _check(case, arrays, key, value)
    for key, value in MORE.get(case["class"], lambda *_: {})(case, model, images).items():
        _check(case, arrays, key, value)


def _outputs(case, model, arrays):
    names = {layer.name for layer in model.layers}
    for key, layer in LAYERS[case["class"]].items():
        for n in range(10 if "{n}" in key else 1):
            key_n, layer_n = key.format(n=n), layer.format(n=n)
            if key_n in arrays and layer_n in names:
                yield key_n, _last(model, layer_n)


def _last(model, name):
    """Return the output of a layer's last call, as the blocks of an encoder are called again by some heads."""
    layer = model.get_layer(name)
    return layer.get_output_at(-1) if hasattr(layer, "get_output_at") else layer._inbound_nodes[-1].outputs[0]


def _check(case, arrays, key, value):
    expected, tolerance = arrays[key], case["tolerance"]
    limit = tolerance["logits_atol"] if key == "logits" else tolerance["per_key_atol"].get(key, 5e-5)
    found = keras.ops.convert_to_numpy(value).reshape(-1, *expected.shape[1:])[: len(expected)]
    np.testing.assert_allclose(found, expected, atol=limit, rtol=0, err_msg=key)


def _eomt(case, model, images):
    plain = model(images)
    config = {**model.get_config(), "masked": True}
    masked = type(model).from_config(config)
    values = {variable.path: variable.numpy() for variable in model.weights}
    for variable in masked.weights:
        variable.assign(values[variable.path])
    with_masks = masked(images)
    return {
        "mask_logits": plain["mask_logits"],
        "class_logits": plain["class_logits"],
        "mask_logits_masked": with_masks["mask_logits"],
        "class_logits_masked": with_masks["class_logits"],
    }


def _vitpose(case, model, images):
    swapped = [0, 2, 1, 4, 3]
    back = keras.ops.convert_to_numpy(model(images[:, :, ::-1]))[:, :, ::-1][..., swapped]
    return {"heatmaps_flipped_back": back, "heatmaps_flip_averaged": (back + model(images)) / 2}


MORE = {"EomtForUniversalSegmentation": _eomt, "VitPoseForPoseEstimation": _vitpose}
