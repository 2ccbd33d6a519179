"""Writing of Hugging Face's config.json and preprocessor_config.json."""

_HF_GELUS = {"erf": "gelu", "tanh": "gelu_pytorch_tanh"}
_HF_RESAMPLE = {"nearest": 0, "bilinear": 2, "bilinear_antialias": 2, "bicubic": 3}
_HEADS = ("classifier.", "cls_classifier.", "distillation_classifier.")  # these arrays have no model prefix

# kind of model -> prefix of its arrays and model_type, architectures with and without a head
_MODEL_TYPES = {
    "vit": ("ViTForImageClassification", "ViTModel"),
    "deit": ("DeiTForImageClassificationWithTeacher", "DeiTModel"),
    "swin": ("SwinForImageClassification", "SwinModel"),
}


def check_windows(config):
    """Reject a Swin Transformer with maps smaller than its window: transformers needs tables of the whole window."""
    for stage in range(len(getattr(config, "depths", ()))):
        rows, columns = config.stage_size(stage)
        if min(rows, columns) < config.window_size:
            raise ValueError(
                "layout 'huggingface' needs maps of at least window_size in every stage; "
                f"got window_size={config.window_size} and a map of {rows} x {columns} in stage {stage + 1}"
            )


def with_prefix(arrays, config):
    """Return the arrays under the names of a classifier, or of the bare model if there is no head."""
    if not config.include_top:
        return arrays
    prefix = f"{_model_type(config)}."
    return {name if name.startswith(_HEADS) else prefix + name: value for name, value in arrays.items()}


def describe_model(model):
    """Return {file name: JSON values} for a model.

    Raises:
        ValueError: if the files cannot describe the model.
    """
    config = model.config
    model_type = _model_type(config)
    labels = model.labels or [f"LABEL_{index}" for index in range(config.classes)]
    values = {
        "architectures": [_MODEL_TYPES[model_type][0 if config.include_top else 1]],
        "model_type": model_type,
        "image_size": _side_or_pair(config.image_size),
        "patch_size": _side_or_pair(config.patch_size),
        "num_channels": config.channels,
        "hidden_act": _HF_GELUS[config.gelu],
        "layer_norm_eps": config.epsilon,
        "qkv_bias": config.qkv_bias,
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
        **(_swin(config) if model_type == "swin" else _vit(config)),
    }
    return {"config.json": values, "preprocessor_config.json": _image_processor(model.preprocessing, model_type)}


def _model_type(config):
    return "deit" if getattr(config, "distilled", False) else config.family


def _vit(config):
    values = {
        "hidden_size": config.hidden_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
    }
    if config.representation_size is not None:
        values |= {"pooler_output_size": config.representation_size, "pooler_act": "tanh"}
    return values


def _swin(config):
    return {
        "embed_dim": config.embed_dim,
        "depths": list(config.depths),
        "num_heads": list(config.num_heads),
        "window_size": config.window_size,
        "mlp_ratio": config.mlp_ratio,
        "hidden_size": config.stage_dim(len(config.depths) - 1),
        "use_absolute_embeddings": False,
    }


def _image_processor(preprocessing, model_type):
    if preprocessing.interpolation not in _HF_RESAMPLE:
        raise ValueError(
            f"preprocessor_config.json supports the interpolations {list(_HF_RESAMPLE)}; "
            f"the model's is {preprocessing.interpolation!r}"
        )
    size = preprocessing.size
    values = {
        "image_processor_type": "DeiTImageProcessor" if model_type == "deit" else "ViTImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": size} if isinstance(size, int) else {"height": size[0], "width": size[1]},
        "resample": _HF_RESAMPLE[preprocessing.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
        "do_center_crop": preprocessing.crop is not None,
    }
    if preprocessing.crop is not None:
        values["crop_size"] = {"height": preprocessing.crop[0], "width": preprocessing.crop[1]}
    return values


def _side_or_pair(size):
    return size[0] if size[0] == size[1] else list(size)
