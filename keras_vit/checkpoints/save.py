"""save_weights: writes a model in the layout of the official, Hugging Face or timm files, for others to read."""

import json
import os
import pathlib
import uuid
import zipfile

import keras
import numpy as np
import safetensors.numpy

from keras_vit import checks
from keras_vit.checkpoints import names

LAYOUTS = ("official", "huggingface", "timm")
_TABLES = {
    "official": "Transformer/posembed_input/pos_embedding",
    "huggingface": "embeddings.position_embeddings",
    "timm": "pos_embed",
}
_HF_GELUS = {"erf": "gelu", "tanh": "gelu_pytorch_tanh"}
_HF_RESAMPLE = {"nearest": 0, "bilinear": 2, "bilinear_antialias": 2, "bicubic": 3}


def save_weights(model, path, layout="official"):
    """Writes the weights of a model so that other code reads them; existing files are replaced in one step.

    Args:
        model: a model of this package.
        path: `official`: an `.npz` file with the names of the published ones. `timm`: a `.safetensors` file.
            `huggingface`: a `.safetensors` file, or a folder that gets `model.safetensors`, `config.json` and
            `preprocessor_config.json` and that transformers reads.
        layout: `official`, `huggingface` or `timm`.

    Raises:
        ValueError: if the layout cannot hold the model (registers in an official file), or on a wrong suffix.
    """
    checks.check_choice("layout", layout, LAYOUTS)
    path = pathlib.Path(path)
    is_folder = layout == "huggingface" and path.suffix == ""
    suffix = ".npz" if layout == "official" else ".safetensors"
    if not is_folder and path.suffix != suffix:
        raise ValueError(f"path must end in {suffix} for layout={layout!r}; got {str(path)!r}")
    arrays = _arrays(model, layout)
    metadata = {"position_grid": json.dumps(model.config.grid_size)}
    if layout == "official":
        writers = {path: lambda file: _write_npz(file, arrays, metadata)}
    else:
        weights = path / "model.safetensors" if is_folder else path
        writers = {weights: lambda file: safetensors.numpy.save_file(arrays, file, {"format": "pt", **metadata})}
    if is_folder:
        for name, values in _huggingface_files(model).items():
            writers[path / name] = lambda file, values=values: file.write_text(json.dumps(values, indent=2))
        path.mkdir(parents=True, exist_ok=True)
    _write_together(writers)


def _arrays(model, layout):
    """{name in the file: array}; raises if a variable has no name there."""
    config = model.config
    _check_holds(config, layout)
    arrays, homeless = {}, []
    for variable in model.weights:
        rule = names.find_rule(layout, variable.path, config.norm_position)
        value = keras.ops.convert_to_numpy(variable)
        if variable.path == "position_embs/embedding":
            arrays[_TABLES[layout]] = value
        elif rule is None:
            homeless.append(variable.path)
        else:
            pieces = np.split(value, len(rule.theirs), axis=-1)
            for name, piece in zip(rule.theirs, pieces, strict=True):
                arrays[name] = np.ascontiguousarray(names.to_theirs(piece, rule.form, config.num_heads))
    if homeless:
        raise ValueError(f"layout {layout!r} must have names for every variable; it has none for {homeless}")
    if layout == "huggingface" and config.include_top:
        arrays = {name if name.startswith("classifier") else f"vit.{name}": value for name, value in arrays.items()}
    return arrays


def _check_holds(config, layout):
    """Refuses what a file of the layout would be read as something else."""
    if layout == "timm":
        return
    needed = {"norm_position": "before_pooling"}
    if layout == "huggingface":
        needed |= {"classifier": "token", "position_embedding": "learned"}
        if config.include_top:
            needed["representation_size"] = None
    for name, value in needed.items():
        if getattr(config, name) != value:
            raise ValueError(f"layout {layout!r} needs {name}={value!r}; the model has {getattr(config, name)!r}")


def _huggingface_files(model):
    config, preprocessing = model.config, model.preprocessing
    labels = model.labels or [f"LABEL_{index}" for index in range(config.classes)]
    height, width = config.image_size
    patch_height, patch_width = config.patch_size
    values = {
        "architectures": ["ViTForImageClassification" if config.include_top else "ViTModel"],
        "model_type": "vit",
        "hidden_size": config.hidden_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": _HF_GELUS[config.gelu],
        "layer_norm_eps": config.epsilon,
        "image_size": height if height == width else [height, width],
        "patch_size": patch_height if patch_height == patch_width else [patch_height, patch_width],
        "num_channels": config.channels,
        "qkv_bias": config.qkv_bias,
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }
    if config.representation_size is not None:
        values |= {"pooler_output_size": config.representation_size, "pooler_act": "tanh"}
    if preprocessing.interpolation not in _HF_RESAMPLE:
        raise ValueError(
            f"preprocessor_config.json knows the interpolations {list(_HF_RESAMPLE)}; "
            f"the model's is {preprocessing.interpolation!r}"
        )
    size = preprocessing.size
    size = {"shortest_edge": size} if isinstance(size, int) else {"height": size[0], "width": size[1]}
    image_processor = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": size,
        "resample": _HF_RESAMPLE[preprocessing.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
        "do_center_crop": preprocessing.crop is not None,
    }
    if preprocessing.crop is not None:
        image_processor["crop_size"] = {"height": preprocessing.crop[0], "width": preprocessing.crop[1]}
    return {"config.json": values, "preprocessor_config.json": image_processor}


def _write_npz(path, arrays, metadata):
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
        archive.comment = json.dumps(metadata).encode()


def _write_together(writers):
    """Writes each file to a temporary name beside it and renames them at the end: a broken write changes nothing."""
    temporaries = {path: path.with_name(f".{uuid.uuid4().hex}.{path.name}") for path in writers}
    try:
        for path, write in writers.items():
            write(temporaries[path])
        for path, temporary in temporaries.items():
            os.replace(temporary, path)
    finally:
        for temporary in temporaries.values():
            temporary.unlink(missing_ok=True)
