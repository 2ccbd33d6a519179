"""Open files of the published task models that have names and shapes only, and count the parameters that are used.

It needs `pip install -e '.[tensorflow,bench]'`, and downloads nothing. The configs are those of the conversion scripts
of transformers; sizes that these do not have are those of the authors' code. transformers builds each model without
memory. `keras_vit.describe` opens the file that it would save, a header without numbers. One model of each class is
then built in full, with random weights, and its outputs are compared.
"""

import json
import math
import pathlib
import re
import tempfile

from benchmarks.report import Table, is_installed

NEEDED = ("torch", "transformers")
NOTE = (
    "The parameters of each file of transformers {version} that keras_vit uses, and those of the table of task models. "
    "The files have names and shapes only."
)
OUTPUTS = (
    "The largest differences from the outputs of transformers {version} for a random image, relative to the largest "
    "value of that output. The models have their published sizes and random weights."
)
# one repository for each head -> names of our outputs and of those of transformers
WHOLE = {
    "depth-anything/Depth-Anything-V2-Small-hf": {"depth": "predicted_depth"},
    "Intel/dpt-hybrid-midas": {"depth": "predicted_depth"},
    "Intel/dpt-large-ade": {"logits": "logits"},
    "tue-mps/coco_panoptic_eomt_small_640_2x": {
        "class_logits": "class_queries_logits",
        "mask_logits": "masks_queries_logits",
    },
    "usyd-community/vitpose-base": {"heatmaps": "heatmaps"},
    "hustvl/yolos-tiny": {"logits": "logits", "boxes": "pred_boxes"},
    "google/owlv2-base-patch16": {"boxes": "pred_boxes", "logits": "logits", "objectness": "objectness_logits"},
    "facebook/sam-vit-base": {"masks": "pred_masks", "iou": "iou_scores"},
    "CIDAS/clipseg-rd64-refined": {"masks": "logits"},
}
CHANNELS_LAST = ("logits", "mask_logits", "heatmaps")  # of ours, if they are maps
IDS = [[49406, 320, 2368, 49407], [49406, 1929, 49407, 0]]
VITS = {
    "tiny": {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3},
    "small": {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
    "huge": {"hidden_size": 1280, "num_hidden_layers": 32, "num_attention_heads": 16},
    "giant": {"hidden_size": 1536, "num_hidden_layers": 40, "num_attention_heads": 24, "use_swiglu_ffn": True},
    "small-dwr": {"hidden_size": 330, "num_hidden_layers": 14, "num_attention_heads": 6},
}
WITH_MLP = {size: {**fields, "intermediate_size": 4 * fields["hidden_size"]} for size, fields in VITS.items()}
DINOV2 = {"model_type": "dinov2", "image_size": 518, "patch_size": 14, "reshape_hidden_states": False}
DPT_LARGE = {"backbone_out_indices": [5, 11, 17, 23], "neck_hidden_sizes": [256, 512, 1024, 1024], **WITH_MLP["large"]}
DPT_HYBRID = {"is_hybrid": True, "reassemble_factors": [1, 1, 1, 0.5], "neck_hidden_sizes": [256, 512, 768, 768]}
NECKS = {"small": [48, 96, 192, 384], "base": [96, 192, 384, 768], "large": [256, 512, 1024, 1024]}
LEVELS = {"small": [3, 6, 9, 12], "base": [3, 6, 9, 12], "large": [5, 12, 18, 24], "giant": [10, 20, 30, 40]}
LAST_LEVELS = {"small": [9, 10, 11, 12], "base": [9, 10, 11, 12], "large": [21, 22, 23, 24]}  # of Depth Anything V1
YOLOS = {
    "tiny": {"image_size": [800, 1333], "use_mid_position_embeddings": False},
    "base": {"image_size": [800, 1344]},
}
PARTS = {"small": 96, "base": 192, "large": 256, "huge": 320}  # the widths of ViTPose++'s experts
GLOBAL = {"base": [2, 5, 8, 11], "large": [5, 11, 17, 23], "huge": [7, 15, 23, 31]}  # blocks of SAM without windows
CLASSES = {"coco_panoptic": 133, "coco_instance": 80, "ade20k_semantic": 150, "cityscapes_semantic": 19}
OWL_SIDES = {"owlvit-base": 768, "owlvit-large": 840, "owlv2-base": 960, "owlv2-large": 1008}
OWL_TEXTS = {
    "base": {"text_config": {}, "projection_dim": 512},
    "large": {
        "text_config": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
        "projection_dim": 768,
    },
}


def run(options):
    """Yield the table of all task models."""
    if missing := [name for name in NEEDED if not is_installed(name)]:
        raise SystemExit(f"task_models needs {', '.join(NEEDED)}; missing: {', '.join(missing)}")
    import transformers

    from keras_vit.checkpoints.foreign_names import task_models

    rows = [[name, f"{counted(name)[0]:,}", f"{row['parameters']:,}"] for name, row in task_models().items()]
    note = NOTE.format(version=transformers.__version__)
    yield Table("Published task models", note, ("repository", "in the file", "in the table"), rows)

    rows = [[name, *difference] for name in WHOLE for difference in differences(name).items()]
    yield Table(
        "Outputs", OUTPUTS.format(version=transformers.__version__), ("repository", "output", "difference"), rows
    )


def differences(name):
    """Return {output: largest difference} of the model of a repository with random weights."""
    import numpy as np
    import torch
    import transformers

    import keras_vit

    class_name, arguments = _config(name)
    model_class, generator = getattr(transformers, class_name), np.random.default_rng(0)
    torch.manual_seed(0)
    theirs = model_class(model_class.config_class(**arguments)).eval()
    with tempfile.TemporaryDirectory() as folder:
        for key, buffer in theirs.named_buffers():
            if key == "attn_mask_probs":  # as in files
                buffer.zero_()
        theirs.save_pretrained(folder)
        ours = keras_vit.load(folder)
    height, width = ours.preprocessing.image_size
    images = generator.normal(size=(1, height, width, ours.preprocessing.channels)).astype("float32")
    given = {"pixel_values": torch.from_numpy(images.transpose(0, 3, 1, 2).copy())}
    if "sam" in name:
        points = np.array([[[[200.0, 300], [500, 700]]]], "float32")
        given["input_points"] = torch.from_numpy(points)
        labels = np.ones((1, 1, 2), "int32")
        found = ours.decode(ours.encode(images), points=points, labels=labels)
    elif "owl" in name or "clipseg" in name:
        ids = np.array(IDS, "int32")
        given |= {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor((ids > 0).astype("int64"))}
        if "clipseg" in name:
            given["pixel_values"] = given["pixel_values"].expand(2, -1, -1, -1)
            found = {"masks": ours.segment(np.repeat(images, 2, 0), ours.embed_text(ids))}
        else:
            found = ours(images)
            found = {**found, "logits": ours.classify(found, ours.embed_text(ids))}
    else:
        found = ours(images)
    found = found if isinstance(found, dict) else dict.fromkeys(WHOLE[name], found)
    with torch.no_grad():
        outputs = theirs(**given)
    pairs = {}
    for key, their_key in WHOLE[name].items():
        expected = getattr(outputs, their_key).numpy()
        expected = expected.transpose(0, 2, 3, 1) if expected.ndim == 4 and key in CHANNELS_LAST else expected
        value = np.asarray(found[key])
        difference = np.abs(value - expected.reshape(value.shape)).max() / np.abs(expected).max()
        pairs[key] = f"{difference:.1e}"
    return pairs


def counted(name):
    """Return the number of parameters that keras_vit uses of the file of a repository, and its `Description`."""
    import torch
    import transformers
    from transformers.core_model_loading import revert_weight_conversion

    import keras_vit

    class_name, arguments = _config(name)
    model_class = getattr(transformers, class_name)
    config = model_class.config_class(**arguments)
    with torch.device("meta"):
        theirs = model_class(config)
    tied = {tensor: key for key, tensor in theirs.state_dict(keep_vars=True).items()}  # one name of each
    arrays = revert_weight_conversion(theirs, {key: tensor for tensor, key in tied.items()})
    shapes = {key: tuple(tensor.shape) for key, tensor in arrays.items() if tensor.is_floating_point()}
    with tempfile.TemporaryDirectory() as folder:
        theirs.config.architectures = [class_name]
        theirs.config.save_pretrained(folder)
        _write_header(pathlib.Path(folder) / "model.safetensors", shapes)
        described = keras_vit.describe(folder)
    return sum(math.prod(shape) for key, shape in shapes.items() if key not in described.unused), described


def _write_header(path, shapes):
    """Write a safetensors file of float32 zeros that takes no space on the disk."""
    header, start = {}, 0
    for key, shape in shapes.items():
        stop = start + 4 * math.prod(shape)
        header[key], start = {"dtype": "F32", "shape": shape, "data_offsets": [start, stop]}, stop
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + start)


def _config(name):
    """Return the class of transformers for a repository, and the arguments of its config."""
    owner, _, model = name.lower().partition("/")
    size = next((size for size in reversed(VITS) if re.search(rf"[-_]{size}(?![a-z])", model)), None)
    return _OWNERS[owner](model, size)


def _depth_anything(model, size):
    levels = LEVELS if "v2" in model else LAST_LEVELS
    fields = {
        "backbone_config": {**DINOV2, **VITS[size], "out_indices": levels[size]},
        "reassemble_hidden_size": VITS[size]["hidden_size"],
        "neck_hidden_sizes": NECKS[size],
        "fusion_hidden_size": {"small": 64, "base": 128, "large": 256}[size],
    }
    if "metric" in model:
        fields |= {"depth_estimation_type": "metric", "max_depth": 20 if "indoor" in model else 80}
    return "DepthAnythingForDepthEstimation", fields


def _intel(model, size):
    if model == "dpt-large-ade":
        return "DPTForSemanticSegmentation", {**DPT_LARGE, "use_batch_norm_in_fusion_residual": True, "num_labels": 150}
    return "DPTForDepthEstimation", DPT_HYBRID if "hybrid" in model else DPT_LARGE


def _facebook(model, size):
    if model.startswith("sam"):
        return "SamModel", {"vision_config": {**VITS[size], "global_attn_indexes": GLOBAL[size]}}
    width = VITS[size]["hidden_size"]
    fields = {
        "backbone_config": {**DINOV2, **VITS[size], "out_indices": LEVELS[size], "apply_layernorm": False},
        "neck_hidden_sizes": [width // 8, width // 4, width // 2, width],
        "use_bias_in_fusion_residual": False,
        "add_projection": True,
    }
    return "DPTForDepthEstimation", fields


def _eomt(model, size):
    fields = {
        **VITS[size],
        "image_size": int(re.search(r"_(\d+)", model)[1]),
        "num_blocks": {"large": 4, "giant": 5}.get(size, 3),
        "num_queries": 100 if "semantic" in model else 200,
        "num_labels": CLASSES[model.partition("_eomt")[0]],
    }
    return "EomtForUniversalSegmentation", fields


def _vitpose(model, size):
    fields = {**VITS[size], "model_type": "vitpose_backbone", "out_indices": [VITS[size]["num_hidden_layers"]]}
    if "plus" in model:
        fields |= {"num_experts": 6, "part_features": PARTS[size]}
        fields["num_attention_heads"] = max(fields["num_attention_heads"], 12)
    head = {"num_labels": 17, "use_simple_decoder": model.endswith("simple")}
    return "VitPoseForPoseEstimation", {"backbone_config": fields, **head}


def _yolos(model, size):
    return "YolosForObjectDetection", {**WITH_MLP[size], **YOLOS.get(size, {}), "num_labels": 91}


def _owl(model, size):
    kind, patch = re.match(r"(owl\w+-\w+)-patch(\d+)", model).groups()
    vision = {**WITH_MLP[size], "image_size": OWL_SIDES[kind], "patch_size": int(patch)}
    class_name = "OwlViTForObjectDetection" if model.startswith("owlvit") else "Owlv2ForObjectDetection"
    return class_name, {"vision_config": vision, **OWL_TEXTS[size]}


def _clipseg(model, size):
    fields = {"use_complex_transposed_convolution": "refined" in model, "reduce_dim": 16 if "rd16" in model else 64}
    return "CLIPSegForImageSegmentation", {"vision_config": {"patch_size": 16}, **fields}


_OWNERS = {
    "cidas": _clipseg,
    "depth-anything": _depth_anything,
    "facebook": _facebook,
    "google": _owl,
    "hustvl": _yolos,
    "intel": _intel,
    "liheyoung": _depth_anything,
    "tue-mps": _eomt,
    "usyd-community": _vitpose,
}
