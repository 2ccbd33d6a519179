"""From the `case.json` of a golden case to the config of its model, or to the arguments of `keras_vit.load`."""

import keras_vit

_VIT_JAX_POOLINGS = {name: name for name in ("token", "gap", "unpooled", "token_unpooled")}
_BIG_VISION_POOLINGS = {"tok": "token", "gap": "gap", "map": "map", "0": "first", "none": "unpooled"}
_BIG_VISION_POSITIONS = {"learn": "learned", "sincos2d": "sincos2d"}
_BIG_VISION_KEYS = {
    "patch_size", "width", "depth", "mlp_dim", "num_heads", "posemb", "rep_size", "pool_type", "scan", "head_zeroinit",
    "dropout",
}  # fmt: skip
_TIMM_KEYS = {
    "kind", "img_size", "patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio", "num_classes", "global_pool",
    "class_token", "init_values", "qk_norm", "reg_tokens", "no_embed_class", "qkv_bias",
    "layers", "channels", "stem_chs",
}  # fmt: skip


class NotUnderstood(Exception):
    """A case of a kind that this package has no model for yet."""


def config_of(case):
    """Returns the config of a case; raises `NotUnderstood` for a kind of case that has no model here."""
    makers = {
        ("vit", "vit_jax"): (keras_vit.ViTConfig, _vit_jax),
        ("vit", "big_vision"): (keras_vit.ViTConfig, _big_vision),
        ("flexivit", "big_vision"): (keras_vit.ViTConfig, _flexivit),
        ("vit", "transformers"): (keras_vit.ViTConfig, _transformers),
        ("vit", "timm"): (keras_vit.ViTConfig, _timm),
        ("deit", "transformers"): (keras_vit.ViTConfig, _transformers),
        ("deit", "timm"): (keras_vit.ViTConfig, _timm),
        ("deit3", "timm"): (keras_vit.ViTConfig, _timm),
        ("deit3", "deit_repo"): (keras_vit.ViTConfig, _timm),
        ("swin", "transformers"): (keras_vit.SwinConfig, _swin),
        ("swin", "microsoft_swin"): (keras_vit.SwinConfig, _swin),
        ("bit_resnetv2", "big_transfer"): (keras_vit.BiTConfig, _bit),
    }
    kind = case.get("family"), case.get("runner")
    if kind not in makers:
        raise NotUnderstood(f"family {kind[0]!r}, runner {kind[1]!r}")
    config_class, make = makers[kind]
    machine = case["machine"]
    numerics = {name: machine[name] for name in ("gelu", "epsilon") if name in machine}
    return config_class(
        name=case["name"], image_size=tuple(case["image_size"]), **numerics, **make(case, case["config"])
    )


def _stem(case, stage_sizes, width_factor):
    """The ResNet of a hybrid: its style from the form of the weight standardisation, its epsilons as the case says."""
    machine = case["machine"]
    return keras_vit.ResNetConfig(
        stage_sizes=stage_sizes,
        width_factor=width_factor,
        style={"std + epsilon": "vit", "sqrt(var + epsilon)": "timm"}[machine["std_form"]],
        gn_epsilon=machine["gn_epsilon"],
        std_epsilon=machine["std_epsilon"],
    )


def _bit(case, config):
    machine = case["machine"]
    return {
        "stage_sizes": config["block_units"],
        "width_factor": config["width_factor"],
        "gn_epsilon": machine["gn_epsilon"],
        "std_epsilon": machine["std_epsilon"],
        **_head(case["num_classes"]),
    }


def _swin(case, config):
    names = ("patch_size", "embed_dim", "depths", "num_heads", "window_size")
    return {**{name: config[name] for name in names}, **_head(case["num_classes"])}


def _head(num_classes):
    return {"classes": num_classes} if num_classes else {"include_top": False}


def _vit_jax(case, config):
    if not config.get("transformer"):
        raise NotUnderstood("a ResNet without a transformer")
    transformer, resnet = config["transformer"], config.get("resnet")
    return {
        "stem": resnet and _stem(case, resnet["num_layers"], resnet["width_factor"]),
        "patch_size": tuple(config["patches"]["size"]),
        "hidden_dim": config["hidden_size"],
        "num_layers": transformer["num_layers"],
        "num_heads": transformer["num_heads"],
        "mlp_dim": transformer["mlp_dim"],
        "dropout_rate": transformer.get("dropout_rate", 0.1),
        "attention_dropout_rate": transformer.get("attention_dropout_rate", 0.1),
        "pooling": _VIT_JAX_POOLINGS[config["classifier"]],
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
        "pooling": _BIG_VISION_POOLINGS[config.get("pool_type", "gap")],
        "position_embedding": _BIG_VISION_POSITIONS[config.get("posemb", "learn")],
        "representation_size": representation_size or None,
        **_head(case["num_classes"]),
    }


def _flexivit(case, config):
    """The model of the stored kernel and of the first `seqhw`, whose patches are of that size."""
    plain = {name: value for name, value in config.items() if name not in ("posemb_size", "seqhw")}
    embedding = {"class_position": False, "resize": "bilinear_antialias", "position_grid": config["posemb_size"]}
    embedding["kernel_size"] = config["patch_size"]
    return {**_big_vision(case, plain), "embedding": embedding}


def _transformers(case, config):
    classifiers = (
        "ViTForImageClassification",
        "DeiTForImageClassification",
        "DeiTForImageClassificationWithTeacher",
    )
    if case["class"] not in (*classifiers, "ViTModel"):
        raise NotUnderstood(f"class {case['class']}")
    is_classifier = case["class"] in classifiers
    has_pooler = not is_classifier and "pooler_output" in case["io_keys"]
    return {
        "patch_size": config["patch_size"],
        "hidden_dim": config["hidden_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"],
        "mlp_dim": config["intermediate_size"],
        "qkv_bias": config.get("qkv_bias", True),
        "representation_size": config.get("pooler_output_size", config["hidden_size"]) if has_pooler else None,
        "distilled": case["class"] == "DeiTForImageClassificationWithTeacher",
        # in the sequence, but no head reads it
        "num_registers": int(case["class"] == "DeiTForImageClassification"),
        **_head(config["num_labels"] if is_classifier else None),
    }


def _timm(case, config):
    if config["kind"] not in ("vit", "v2", "deit", "hybrid") or set(config) - _TIMM_KEYS:
        raise NotUnderstood(f"kind {config['kind']!r} with {sorted(set(config) - _TIMM_KEYS)}")
    is_hybrid = config["kind"] == "hybrid"
    pool = config.get("global_pool", "token")
    class_token = config.get("class_token", True)
    pooling = {"token": "token" if class_token else "first", "avg": "gap", "map": "map", "": "token_unpooled"}[pool]
    return {
        "stem": _stem(case, config["layers"], config.get("stem_chs", 64) / 64) if is_hybrid else None,
        "distilled": config["kind"] == "deit",
        "patch_size": config["patch_size"],
        "hidden_dim": config["embed_dim"],
        "num_layers": config["depth"],
        "num_heads": config["num_heads"],
        "mlp_dim": int(config["mlp_ratio"] * config["embed_dim"]),
        "pooling": pooling,
        "class_token": class_token,
        "norm_position": "after_pooling" if pool == "avg" else "before_pooling",
        # DeiT-III's own models always have LayerScale, from 1e-4
        "layer_scale_init": config.get("init_values", 1e-4 if config["kind"] == "v2" else None),
        "qk_norm": config.get("qk_norm", False),
        "qkv_bias": config.get("qkv_bias", True),
        "num_registers": config.get("reg_tokens", 0),
        **_head(config["num_classes"]),
    }


# families of cases that `keras_vit.load` reads
_FAMILIES = (
    *("aimv2", "beit", "clip", "data2vec", "dinov2", "dinov3", "eva", "eva02", "ijepa", "mae", "parallel_vit", "pe"),
    *("naflexvit", "sam", "siglip", "siglip2_naflex", "tips"),
)
_KERNELS = {
    ("bicubic", False, 0.0): "bicubic",
    ("bicubic", False, 0.1): "bicubic_offset",
    ("bicubic", True, 0.0): "bicubic_antialias",
    ("bilinear", False, 0.0): "bilinear",
    ("bilinear", True, 0.0): "bilinear_antialias",
}


def is_published(case):
    """Returns whether a case is of the published families, which `keras_vit.load` reads."""
    return case.get("family") in _FAMILIES and "machine" in case and "params_file" in case


def load_arguments(case, is_folder):
    """Returns the arguments of `keras_vit.load` for the images of a case.

    A folder with config.json states everything but another image size; a bare file gets what no array shows. A case
    whose images have several sizes is loaded at the grid of its position table.
    """
    machine, config = case["machine"], case["config"]
    config = config.get("vision_config") or config.get("vision") or config
    arguments = {} if case["image_size"] is None else {"image_size": tuple(case["image_size"])}
    resize = machine.get("pos_interpolation") or {}
    if "kernel" in resize:
        arguments["resize"] = _KERNELS[resize["kernel"], resize["antialias"], resize.get("offset", 0.0)]
    elif resize:  # the table of BEiT
        arguments["resize"] = "bilinear" if case["runner"] == "transformers" else "geometric"
    if is_folder:
        return arguments
    rope = machine.get("rope")
    order = "post_norm" if "post" in machine.get("block", "") else "pre_norm"
    arguments |= {
        "num_heads": next(config[key] for key in ("num_heads", "num_attention_heads", "heads") if key in config),
        "epsilon": machine["epsilon"],
        "block": {"rotary": rope and _rotary(rope, config), "order": order},
    }
    if machine.get("block", "").startswith("parallel"):
        del arguments["block"]["order"]  # the names of its arrays show it
    if machine.get("gelu"):
        arguments["gelu"] = machine["gelu"]
    if config.get("pos_embed_ar_preserving"):
        arguments["embedding"] = {"square_positions": True}
    if "attn_pool_num_heads" in config:
        arguments["head"] = {"map_heads": config["attn_pool_num_heads"], "map_prefix": True}
    if config.get("global_pool") in ("token", "avg", "map"):
        arguments["pooling"] = {"avg": "gap"}.get(config["global_pool"], config["global_pool"])
    return arguments


def _rotary(rope, config):
    if rope["kind"] not in ("dinov3", "eva02", "pe"):
        raise NotUnderstood(f"rotary positions of kind {rope['kind']!r}")
    reference = None if rope["kind"] == "dinov3" else config.get("ref_feat_shape")
    return {"kind": rope["kind"], "theta": rope["theta"], "reference_grid": reference}


def native_size(case):
    """Returns the image size that the position table of a case has."""
    config = case["config"]
    return next((config[key] for key in ("image_size", "img_size", "input_resolution") if key in config), None)


_ACTIVATIONS = {"erf": "erf", "tanh": "tanh", "quick": "quick", "silu": "erf"}  # SwiGLU has no GELU


def reference_arguments(switches, images):
    """Returns the arguments of `keras_vit.load` for a model of `test_reference`."""
    rotary = None
    if "rope" in switches:
        rotary = {"kind": switches["rope"], "reference_grid": switches.get("ref")}
    arguments = {
        "image_size": images.shape[1:3],
        "num_heads": switches["heads"],
        "epsilon": switches["eps"],
        "gelu": _ACTIVATIONS[switches["act"]],
        "block": {"rotary": rotary, "order": "post_norm" if switches.get("post_norm") else "pre_norm"},
    }
    if "pool_heads" in switches:
        arguments["head"] = {"map_heads": switches["pool_heads"], "map_prefix": True}
    return arguments
