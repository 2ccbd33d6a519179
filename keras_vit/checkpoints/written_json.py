"""The JSON files that `save_weights` writes for transformers: config.json and preprocessor_config.json."""

from keras_vit.checkpoints.config_json import HF_TYPES, PROBLEMS
from keras_vit.checkpoints.config_keys import KEYS
from keras_vit.checkpoints.image_processors import HF_INTERPOLATIONS


class CannotHold(ValueError):
    """A layout cannot hold a model; the message names a field."""


def huggingface_json(model, model_type, about):
    """Return {file name: JSON values} for a model.

    Args:
        model: a model of this package.
        model_type: model type of transformers, a section of huggingface.toml.
        about: further keys for config.json.

    Raises:
        CannotHold: if the files cannot describe the model.
    """
    config, row = model.config, HF_TYPES[model_type]
    preprocessing, keys = model.preprocessing, KEYS[row["dialect"]]
    values = {
        "architectures": [row["architectures"][0 if config.include_top else 1]],
        "model_type": model_type,
        "image_size": _side(getattr(config, "usual_size", config.image_size)),
        **_labels(model, model_type),
        **row.get("writes", {}),
        **about,
    }
    special = {"patch_size": _side(config.patch_size), **_SPECIAL_KEYS.get(row["dialect"], lambda config: {})(config)}
    for key, (field, check) in keys.items():
        value = None if field is None else config.field(field)
        if isinstance(check, dict):
            ours, value = value, next((theirs for theirs, known in check.items() if known == value), None)
            if value is None and key not in special:
                raise CannotHold(
                    f"layout 'huggingface' needs {field} among {list(check.values())} for {model_type}; the model has "
                    f"{ours!r}"
                )
        if value is not None:
            values[key] = value
    values |= special
    problems = {ours: theirs for theirs, ours in PROBLEMS.items() if ours is not None}
    if config.classifier_activation in problems:
        values["problem_type"] = problems[config.classifier_activation]
    resamples = {name: number for number, name in HF_INTERPOLATIONS.items()} | {"bilinear": 2}  # also antialiased
    if preprocessing.interpolation not in resamples:
        raise CannotHold(
            f"preprocessor_config.json supports the interpolations {list(resamples)}; "
            f"the model's is {preprocessing.interpolation!r}"
        )
    size, crop = preprocessing.size, preprocessing.crop
    size = {"shortest_edge": size} if isinstance(size, int) else {"height": size[0], "width": size[1]}
    images = {
        "image_processor_type": row["processor"],
        "do_resize": True,
        "size": size,
        "resample": resamples[preprocessing.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": preprocessing.mean,
        "image_std": preprocessing.std,
        "do_center_crop": crop is not None,
        **({} if crop is None else {"crop_size": {"height": crop[0], "width": crop[1]}}),
    }
    if row["dialect"] == "siglip2":  # for images of any size
        del values["image_size"], images["size"]
        most = preprocessing.max_tokens or values["num_patches"]
        images |= {"patch_size": values["patch_size"], "max_num_patches": most}
    if preprocessing.pad:
        images |= {"size": {"longest_edge": max(preprocessing.size)}, "do_pad": True, "pad_size": size}
    return {"config.json": values, "preprocessor_config.json": images}


def _labels(model, model_type):
    """Return the keys of config.json about the classes; a projection has a width instead."""
    config = model.config
    if model_type == "clip_vision_model":
        return {"projection_dim": config.classes} if config.include_top else {}
    return label_keys(model.labels, config.classes)


def label_keys(labels, classes):
    """Return the keys of config.json about this number of classes, whose names may be None."""
    labels = labels or [f"LABEL_{index}" for index in range(classes)]
    pairs = {str(index): label for index, label in enumerate(labels)}
    return {"id2label": pairs, "label2id": {label: index for index, label in enumerate(labels)}}


def _of_dinov2(config):
    """Return the ratio from which transformers computes the width of the MLP."""
    width, ratio = config.hidden_dim, config.mlp_dim / config.hidden_dim
    if config.block.gated:
        ratio *= 1.5
        if (int(int(width * ratio) * 2 / 3) + 7) // 8 * 8 != config.mlp_dim:
            raise CannotHold(f"config.json of DINOv2 needs an mlp_dim that is a multiple of 8; got {config.mlp_dim}")
    elif int(width * ratio) != config.mlp_dim:
        ratio += 1e-9
    return {"mlp_ratio": round(ratio) if ratio == round(ratio) else ratio}


def _of_beit(config):
    is_shared = config.position_placement == "shared"
    return {"use_relative_position_bias": not is_shared, "use_shared_relative_position_bias": is_shared}


# `keys` of a model type -> function of the config that returns the keys that follow from several fields
_SPECIAL_KEYS = {
    "vit": lambda config: {
        # keras-hub needs the dropout rates
        "hidden_dropout_prob": config.dropout_rate, "attention_probs_dropout_prob": config.attention_dropout_rate,
        **({} if config.representation_size is None
           else {"pooler_output_size": config.representation_size, "pooler_act": "tanh"}),
    },
    "swin": lambda config: {"hidden_size": config.stage_dim(len(config.depths) - 1)},
    "dinov2": _of_dinov2,
    "dinov3": lambda config: {
        "rope_parameters": {"rope_type": "default", "rope_theta": config.field("block.rotary.theta")},
        **({"hidden_act": "silu"} if config.block.gated else {}),
    },
    "aimv2": lambda config: {
        "use_head": config.pooling == "aim", "is_native": config.position_embedding == "sincos2d_mae",
    },
    "beit": _of_beit,
    "siglip2": lambda config: {"num_patches": square("embedding.position_grid", config.table_grid) ** 2},
    "sam": lambda config: {"image_size": square("image_size", config.usual_size)},
}  # fmt: skip


def square(name, size):
    """Return the side of a square; raise `ValueError` for another size, which transformers does not read."""
    if size[0] != size[1]:
        raise CannotHold(f"layout 'huggingface' needs a square {name}; the model has {size[0]} x {size[1]}")
    return size[0]


def _side(size):
    return size[0] if size[0] == size[1] else size
