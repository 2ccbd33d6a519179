"""save_weights: write a model's weights, and Hugging Face's JSON files, in formats of other libraries."""

import functools
import json
import pathlib
import warnings
import zipfile

import keras
import numpy as np
import safetensors.numpy

from keras_vit import checks
from keras_vit.checkpoints import names
from keras_vit.checkpoints.config_json import HF_INTERPOLATIONS, KEYS
from keras_vit.checkpoints.names.rules import to_theirs
from keras_vit.compat.graph import owned_variables
from keras_vit.config.unseen import KEY, to_text
from keras_vit.files import replace_files
from keras_vit.logs import LOGGER
from keras_vit.models.base import ImageModel
from keras_vit.models.derived import check_not_quantized
from keras_vit.typing import PathLike

# layout -> required config values: the layout cannot express others, so a reader would misinterpret the file
_NEEDED = {
    "official": {"norm_position": "before_pooling", "distilled": False},
    "huggingface": {
        "norm_position": "before_pooling",
        "pooling": "token",
        "position_embedding": "learned",
        "num_registers": 0,
    },
}
_NEEDED_ALWAYS = {"position_placement": "stem"}
_HF_HEADS = ("classifier.", "cls_classifier.", "distillation_classifier.")  # these arrays have no model prefix
# model_type, which is also the prefix of the other arrays -> architectures with and without a head, image processor
_HF_TYPES = {
    "vit": ("ViTForImageClassification", "ViTModel", "ViTImageProcessor"),
    "deit": ("DeiTForImageClassificationWithTeacher", "DeiTModel", "DeiTImageProcessor"),
    "swin": ("SwinForImageClassification", "SwinModel", "ViTImageProcessor"),
}


def save_weights(model: ImageModel, path: PathLike, layout: str = "official") -> None:
    """Write the weights of a model in a format of other libraries.

    The files are written completely before they replace existing ones. Their metadata holds the preprocessing and the
    config fields that no array shows, such as the number of heads, GELU and epsilons. Only this package reads it. LoRA
    is merged into the kernels. A preprocessor_config.json cannot distinguish TensorFlow's bilinear interpolation from
    Pillow's, which is antialiased; this case is logged.

    Args:
        model: a model of this package.
        path: `official`: an `.npz` file with the array names of the published files (of vit_jax, or of BiT for a BiT).
            `timm` and `microsoft`: a `.safetensors` file. `huggingface`: a `.safetensors` file, or a folder that gets
            `model.safetensors`, `config.json` and `preprocessor_config.json` and that transformers reads.
        layout: `official` (ViT, hybrids, BiT), `huggingface` (ViT, DeiT, Swin), `timm` (ViT, hybrids, DeiT, Swin) or
            `microsoft` (Swin).

    Raises:
        ValueError: if the layout cannot represent the model (such as registers in an official file), the model is
            quantised, or the suffix of the path is wrong.
    """
    known = names.LAYOUTS[model.config.family]
    if not known:
        raise ValueError(f"no other library reads weights of {model.config.name} (use model.save)")
    checks.check_choice("layout", layout, known)
    path = checks.check_path("path", path)
    is_folder = layout == "huggingface" and path.suffix == ""
    suffix = ".npz" if layout == "official" else ".safetensors"
    if not is_folder and path.suffix != suffix:
        raise ValueError(f"path must end in {suffix} for layout={layout!r}; got {str(path)!r}")
    check_not_quantized(model, "save_weights, as other libraries read float weights (save it before quantize)")
    arrays = _arrays(model, layout, known[layout])
    is_known = model.preprocessing_source != "assumed"
    metadata = {KEY: to_text(model.config, model.preprocessing if is_known else None)}
    if layout == "official":
        writers = {path: lambda file: _write_npz(file, arrays, metadata)}
    else:
        weights = path / "model.safetensors" if is_folder else path
        writers = {weights: lambda file: safetensors.numpy.save_file(arrays, file, {"format": "pt", **metadata})}
    if is_folder:
        if not is_known:
            warnings.warn(
                f"preprocessor_config.json states {model.preprocessing}, which is assumed, as the weights came without "
                "preprocessing. Set model.preprocessing to the one that they were trained with",
                stacklevel=2,
            )
        for name, values in _huggingface_json(model).items():
            text = json.dumps(values, indent=2)
            writers[path / name] = functools.partial(pathlib.Path.write_text, data=text)
        path.mkdir(parents=True, exist_ok=True)
    replace_files(writers)
    if not is_folder:
        LOGGER.info(f"Saved {path}; its preprocessing is in the metadata, which other libraries do not read")
    elif model.preprocessing.interpolation == "bilinear":
        LOGGER.warning(
            f"Saved {path}. The model resizes images without antialiasing, which preprocessor_config.json cannot "
            "state: other libraries resize images differently, with antialiasing (keras_vit reads the metadata)"
        )


def _arrays(model, layout, rules):
    """Return {name in the file: array}; raise an error if the layout has no name for a variable."""
    config = model.config
    _check_holds(config, layout)
    arrays, homeless = {}, []
    for owned in owned_variables(model):
        variable, has_lora = owned.variable, getattr(owned.layer, "lora_enabled", False)
        if has_lora and "lora" in variable.name:
            continue  # merged into the kernel
        value = keras.ops.convert_to_numpy(owned.layer.kernel if has_lora and variable.name == "kernel" else variable)
        rule = names.find_rule(rules, variable.path, config)
        if variable.path == "position_embs/embedding":
            arrays[next(iter(rules.position_tables))] = _position_table(value, config, layout)
        elif rule is None:
            homeless.append(variable.path)
        else:
            for name, piece in zip(rule.theirs, np.split(value, len(rule.theirs), axis=rule.axis), strict=True):
                theirs = to_theirs(piece, rule.form, getattr(config, "num_heads", None))
                arrays[name] = np.ascontiguousarray(theirs)
    if homeless:
        raise ValueError(f"layout {layout!r} must have names for every variable; it has none for {homeless}")
    if layout == "huggingface" and config.include_top:
        prefix = f"{_model_type(config)}."
        return {name if name.startswith(_HF_HEADS) else prefix + name: value for name, value in arrays.items()}
    return arrays


def _position_table(table, config, layout):
    """Return the position table with the rows that the layout needs.

    With registers, timm's has rows for class tokens and registers, or for neither (`no_embed_class`, as in its
    published models).
    """
    if layout != "timm" or not config.num_registers:
        return table
    class_rows, patches = np.split(table, [config.num_class_tokens], axis=1)
    if not class_rows.any():
        return patches
    registers = np.zeros((1, config.num_registers, table.shape[2]), table.dtype)
    return np.concatenate([class_rows, registers, patches], axis=1)


def _check_holds(config, layout):
    """Raise an error if the layout cannot represent the model, because a reader would misinterpret the file."""
    needed = {**_NEEDED_ALWAYS, **_NEEDED.get(layout, {})}
    if layout == "huggingface" and config.include_top:
        needed["representation_size"] = None
    for stage in range(len(getattr(config, "depths", ())) if layout == "huggingface" else 0):
        rows, columns = config.stage_size(stage)
        if min(rows, columns) < config.window_size:  # transformers needs tables of the whole window
            raise ValueError(
                "layout 'huggingface' needs maps of at least window_size in every stage; "
                f"got window_size={config.window_size} and a map of {rows} x {columns} in stage {stage + 1}"
            )
    for name, value in needed.items():
        if hasattr(config, name) and getattr(config, name) != value:
            raise ValueError(f"layout {layout!r} needs {name}={value!r}; the model has {getattr(config, name)!r}")


def _model_type(config):
    return "deit" if getattr(config, "distilled", False) else config.family


def _huggingface_json(model):
    """Return {file name: JSON values} for a model; raise `ValueError` if the files cannot describe it."""
    config, preprocessing, model_type = model.config, model.preprocessing, _model_type(model.config)
    architecture, bare, processor = _HF_TYPES[model_type]
    labels = model.labels or [f"LABEL_{index}" for index in range(config.classes)]
    keys = KEYS[config.family]
    fields = {key: getattr(config, field) for key, (field, _) in keys.items() if field}
    values = {
        "architectures": [architecture if config.include_top else bare],
        "model_type": model_type,
        "image_size": _side(config.image_size),
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
        **fields,
        "patch_size": _side(config.patch_size),
        "hidden_act": next(name for name, gelu in keys["hidden_act"][1].items() if gelu == config.gelu),
    }
    if model_type == "swin":
        values |= {"hidden_size": config.stage_dim(len(config.depths) - 1), "use_absolute_embeddings": False}
    elif config.representation_size is not None:
        values |= {"pooler_output_size": config.representation_size, "pooler_act": "tanh"}
    resamples = {name: number for number, name in HF_INTERPOLATIONS.items()}
    resamples["bilinear"] = resamples["bilinear_antialias"]
    if preprocessing.interpolation not in resamples:
        raise ValueError(
            f"preprocessor_config.json supports the interpolations {list(resamples)}; "
            f"the model's is {preprocessing.interpolation!r}"
        )
    size, crop = preprocessing.size, preprocessing.crop
    images = {
        "image_processor_type": processor,
        "do_resize": True,
        "size": {"shortest_edge": size} if isinstance(size, int) else {"height": size[0], "width": size[1]},
        "resample": resamples[preprocessing.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": preprocessing.mean,
        "image_std": preprocessing.std,
        "do_center_crop": crop is not None,
        **({} if crop is None else {"crop_size": {"height": crop[0], "width": crop[1]}}),
    }
    return {"config.json": values, "preprocessor_config.json": images}


def _side(size):
    return size[0] if size[0] == size[1] else size


def _write_npz(path, arrays, metadata):
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
        archive.comment = json.dumps(metadata).encode()
