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
from keras_vit.checkpoints import decoder, names
from keras_vit.checkpoints.config_json import HF_INTERPOLATIONS, HF_TYPES, KEYS
from keras_vit.checkpoints.names.rules import to_theirs
from keras_vit.compat.graph import owned_variables
from keras_vit.config.unseen import KEY, to_text
from keras_vit.files import replace_files
from keras_vit.logs import LOGGER
from keras_vit.models import MaskedAutoencoder
from keras_vit.models.base import ImageModel
from keras_vit.models.derived import check_not_quantized
from keras_vit.typing import PathLike
from keras_vit.variants import VARIANTS

_NEEDED_ALWAYS = {"position_placement": "stem", "window": "unset", "head.neck": "unset", "is_flexible": False}
_NEEDED_ALWAYS |= {"head.projection": "unset", "head.normalize": False}  # of zero-shot classifiers
_MAE = "vit_mae"  # written with a decoder, see `_of_autoencoder`
_HF_HEADS = ("classifier.", "cls_classifier.", "distillation_classifier.", "visual_projection.")  # without a prefix


def save_weights(model: ImageModel | MaskedAutoencoder, path: PathLike, layout: str = "official") -> None:
    """Write the weights of a model in a format of other libraries.

    The files are written completely before they replace existing ones. Their metadata holds the preprocessing and the
    config fields that no array shows, such as the number of heads, GELU and epsilons. Only this package reads it. LoRA
    is merged into the kernels. A preprocessor_config.json cannot distinguish TensorFlow's bilinear interpolation from
    Pillow's, which is antialiased; this case is logged.

    Args:
        model: a model of this package; of a `MaskedAutoencoder`, encoder and decoder are written.
        path: `official`: an `.npz` file with the array names of the published files (of vit_jax, or of BiT for a BiT).
            `timm`, `original` and `microsoft`: a `.safetensors` file. `huggingface`: a `.safetensors` file, or a folder
            that gets `model.safetensors`, `config.json` and `preprocessor_config.json` and that transformers reads.
        layout: `official` (ViT, hybrids, BiT), `huggingface`, `timm`, `microsoft` (Swin), or `original`: the names of
            the authors of DINOv2, DINOv3, CLIP, Perception Encoder, EVA-02, BEiT, DeiT-III, AIMv2 and SAM, else
            `official` or `microsoft`. A `MaskedAutoencoder` needs `original` or `huggingface`.

    Raises:
        ValueError: if the layout cannot represent the model (such as registers in an official file), the model is
            quantised, or the suffix of the path is wrong.
    """
    autoencoder = model if isinstance(model, MaskedAutoencoder) else None
    model = model if autoencoder is None else autoencoder.encoder
    layouts = names.LAYOUTS[model.config.family]
    if not layouts:
        raise ValueError(f"no other library reads weights of {model.config.name} (use model.save)")
    checks.check_choice("layout", layout, dict.fromkeys([*(rules.library for rules in layouts.values()), "original"]))
    path = checks.check_path("path", path)
    if autoencoder is None:
        hf_type = _huggingface_type(model.config) if layout == "huggingface" else None
        rules = _chosen(layouts, layout, hf_type, model.config, path.suffix)
    else:
        hf_type, rules = _MAE, _of_autoencoder(layouts, layout, model.config)
    layout = rules.library
    is_folder = layout == "huggingface" and path.suffix == ""
    if not is_folder and path.suffix != rules.suffix:
        raise ValueError(f"path must end in {rules.suffix} for layout={layout!r}; got {str(path)!r}")
    check_not_quantized(model, "save_weights, as other libraries read float weights (save it before quantize)")
    arrays = _arrays(model, rules, hf_type, autoencoder._unused if autoencoder else ())
    is_known = model.preprocessing_source != "assumed"
    metadata = {KEY: to_text(model.config, model.preprocessing if is_known else None)}
    if autoencoder is not None:
        of_decoder = names.LAYOUTS[decoder.FAMILY]["huggingface" if layout == "huggingface" else "original"]
        arrays |= _arrays(autoencoder.get_layer("decoder"), of_decoder, None)
        metadata[decoder.KEY] = json.dumps(autoencoder.settings)
    if rules.suffix == ".npz":
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
        about = {} if autoencoder is None else decoder.config_values(autoencoder.settings)
        for name, values in _huggingface_json(model, hf_type, about).items():
            writers[path / name] = functools.partial(pathlib.Path.write_text, data=json.dumps(values, indent=2))
        path.mkdir(parents=True, exist_ok=True)
    replace_files(writers)
    if not is_folder:
        LOGGER.info(f"Saved {path}; its preprocessing is in the metadata, which other libraries do not read")
    elif model.preprocessing.interpolation == "bilinear":
        LOGGER.warning(
            f"Saved {path}. The model resizes images without antialiasing, which preprocessor_config.json cannot "
            "state: other libraries resize images differently, with antialiasing (keras_vit reads the metadata)"
        )


def _chosen(layouts, library, hf_type, config, suffix):
    """Return the `Layout` of a library to write: that of the model's family, or the first, with files of this suffix.

    Raises:
        ValueError: if none can hold the model; the message names a field.
    """
    if hf_type is not None:
        return layouts[HF_TYPES[hf_type]["layout"]]
    wanted = (library, "official", "microsoft") if library == "original" else (library,)
    family = VARIANTS[config.name].family if config.name in VARIANTS else config.name
    known = [rules for rules in layouts.values() if rules.library in wanted]
    known.sort(key=lambda rules: (family not in rules.published, wanted.index(rules.library), len(rules.published)))
    known = [rules for rules in known if rules.suffix == suffix] or known
    problems = [_problem(rules.library, {**_NEEDED_ALWAYS, **rules.holds}, config) for rules in known]
    if all(problems):
        raise ValueError(problems[-1])
    return known[problems.index(None)]


def _huggingface_type(config):
    """Return the model type of transformers that can hold a model; raise `ValueError` if there is none."""
    problems = {}
    for name, row in HF_TYPES.items():
        if row.get("family") == config.family and "architectures" in row and name != _MAE:
            problems[name] = _problem("huggingface", {**_NEEDED_ALWAYS, **row.get("holds", {})}, config)
            if problems[name] is None:
                return name
    raise ValueError(problems["deit" if getattr(config, "distilled", False) else config.family])


def _of_autoencoder(layouts, library, config):
    """Return the `Layout` of the encoder in a file of a masked autoencoder; raise `ValueError` if there is none."""
    checks.check_choice("layout", library, names.LAYOUTS[decoder.FAMILY])
    problem = _problem(library, {**_NEEDED_ALWAYS, **HF_TYPES[_MAE]["holds"]}, config)
    if problem is not None:
        raise ValueError(problem)
    return layouts["timm" if library == "original" else library]


def _problem(library, needed, config):
    """Return why a layout cannot represent a model, because a reader would misinterpret the file, or None.

    Args:
        library: name of the layout.
        needed: see `Layout.holds`.
        config: config of the model.
    """
    if library == "huggingface":
        for stage in range(len(getattr(config, "depths", ()))):
            rows, columns = config.stage_size(stage)
            if min(rows, columns) < config.window_size:  # transformers needs tables of the whole window
                return (
                    "layout 'huggingface' needs maps of at least window_size in every stage; "
                    f"got window_size={config.window_size} and a map of {rows} x {columns} in stage {stage + 1}"
                )
        needed = {**needed, **({"representation_size": None} if config.include_top else {})}
    if getattr(config, "position_embedding", None) == "relative_2d":  # its names show the placement
        needed = {name: value for name, value in needed.items() if name != "position_placement"}
    for name, value in needed.items():
        if hasattr(config, name.partition(".")[0]):
            ours = config.field(name)
            is_other = str(value).startswith("not ") and ours != value[4:]
            fits = bool(ours) if value == "set" else not ours if value == "unset" else ours == value or is_other
            fits = fits or value == "any"
            if not fits:
                return f"layout {library!r} needs {name}={value!r}; the model has {ours!r}"
    return None


def _arrays(model, rules, hf_type, skipped=()):
    """Return {name in the file: array}; raise an error if the layout has no name for a variable.

    Variables whose ids are in `skipped` are left out.
    """
    config = model.config
    arrays, homeless = {}, []
    for owned in owned_variables(model):
        variable, has_lora = owned.variable, getattr(owned.layer, "lora_enabled", False)
        if id(variable) in skipped or has_lora and "lora" in variable.name:
            continue  # LoRA is merged into the kernel
        value = keras.ops.convert_to_numpy(owned.layer.kernel if has_lora and variable.name == "kernel" else variable)
        rule = names.find_rule(rules, variable.path, config)
        if variable.path == "position_embs/embedding" and rules.position_tables:
            arrays[next(iter(rules.position_tables))] = value
        elif rule is None:
            homeless.append(variable.path)
        else:
            for name, piece in zip(rule.theirs, np.split(value, len(rule.theirs), axis=rule.axis), strict=True):
                arrays[name] = np.ascontiguousarray(to_theirs(piece, rule.form, config.field("num_heads")))
    if homeless:
        raise ValueError(f"layout {rules.library!r} must have names for every variable; it has none for {homeless}")
    if rules.library == "timm" and config.family == "vit":
        _as_timm(arrays, config)
    for name, array in arrays.items():
        if (rank := rules.rank_of(name)) is not None:
            shape = array.shape[3 - rank :] if rank < 3 else (1, *config.table_grid, array.shape[2])[4 - rank :]
            arrays[name] = array.reshape(shape)
    arrays = _joined(arrays)
    prefix = _prefix(model, rules, hf_type)
    return {name if name.startswith(_HF_HEADS) else prefix + name: value for name, value in arrays.items()}


def _joined(arrays):
    """Join the pieces `NAME#0`, `NAME#1` and so on of each array; a piece that is absent, a masked bias, is zero."""
    pieces, joined = {}, {}
    for name, array in arrays.items():
        stem, cut, index = name.partition("#")
        if cut:
            pieces.setdefault(stem, {})[int(index)] = array
        else:
            joined[name] = array
    for stem, parts in pieces.items():
        blank = np.zeros_like(next(iter(parts.values())))
        joined[stem] = np.concatenate([parts.get(index, blank) for index in range(max(parts) + 1)])
    return joined


def _prefix(model, rules, hf_type):
    """Return the start of all names but those of heads: that of the file that was loaded, or the usual one."""
    of_file = getattr(model, "names_prefix", None)
    if rules.suffix != ".npz" and of_file is not None and of_file[0] == rules.marker:
        return of_file[1]
    if hf_type is None or rules.library != "huggingface" or (not model.config.include_top and hf_type != _MAE):
        return rules.prefix
    return HF_TYPES[hf_type].get("prefix", f"{hf_type}.")


def _as_timm(arrays, config):
    """Change the arrays of a model to what timm's models have.

    With registers, timm's published models have positions of patches alone (`no_embed_class`): those of the class token
    are part of `cls_token`. Its heads always have a bias.
    """
    if config.num_registers and "pos_embed" in arrays:
        class_rows, patches = np.split(arrays["pos_embed"], [config.num_position_rows], axis=1)
        arrays["pos_embed"] = np.ascontiguousarray(patches)
        for index in range(class_rows.shape[1]):
            name, row = ("cls_token", "dist_token")[index], class_rows[:, index : index + 1]
            if row.any():
                arrays[name] = arrays[name] + row
    if "head.weight" in arrays and "head.bias" not in arrays:
        arrays["head.bias"] = np.zeros(len(arrays["head.weight"]), arrays["head.weight"].dtype)


def _huggingface_json(model, model_type, about):
    """Return {file name: JSON values} for a model; raise `ValueError` if the files cannot describe it.

    `about` has further keys for config.json.
    """
    config, row = model.config, HF_TYPES[model_type]
    preprocessing, keys = model.preprocessing, KEYS[row["keys"]]
    values = {
        "architectures": [row["architectures"][0 if config.include_top else 1]],
        "model_type": model_type,
        "image_size": _side(getattr(config, "usual_size", config.image_size)),
        **_labels(model, model_type),
        **row.get("writes", {}),
        **about,
    }
    for key, (field, check) in keys.items():
        value = None if field is None else config.field(field)
        if isinstance(check, dict):
            value = next((theirs for theirs, ours in check.items() if ours == value), None)
        if value is not None:
            values[key] = value
    values["patch_size"] = _side(config.patch_size)
    values |= _SPECIAL_KEYS.get(row["keys"], lambda config: {})(config)
    resamples = {name: number for number, name in HF_INTERPOLATIONS.items()}
    resamples["bilinear"] = resamples["bilinear_antialias"]
    if preprocessing.interpolation not in resamples:
        raise ValueError(
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
    if row["keys"] == "siglip2":  # for images of any size
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
    labels = model.labels or [f"LABEL_{index}" for index in range(config.classes)]
    pairs = {str(index): label for index, label in enumerate(labels)}
    return {"id2label": pairs, "label2id": {label: index for index, label in enumerate(labels)}}


def _of_dinov2(config):
    """Return the ratio from which transformers computes the width of the MLP."""
    width, ratio = config.hidden_dim, config.mlp_dim / config.hidden_dim
    if config.block.gated:
        ratio *= 1.5
        if (int(int(width * ratio) * 2 / 3) + 7) // 8 * 8 != config.mlp_dim:
            raise ValueError(f"config.json of DINOv2 needs an mlp_dim that is a multiple of 8; got {config.mlp_dim}")
    elif int(width * ratio) != config.mlp_dim:
        ratio += 1e-9
    return {"mlp_ratio": round(ratio) if ratio == round(ratio) else ratio}


def _of_dinov3(config):
    act = {"erf": "gelu", "tanh": "gelu_pytorch_tanh"}.get(config.gelu)
    return {"value_bias": config.qkv_bias, "hidden_act": "silu" if config.block.gated else act}


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
    "swin": lambda config: {
        "hidden_size": config.stage_dim(len(config.depths) - 1), "use_absolute_embeddings": False,
    },
    "dinov2": _of_dinov2,
    "dinov3": _of_dinov3,
    "aimv2": lambda config: {
        "hidden_act": "silu", "use_head": True, "is_native": config.position_embedding == "sincos2d_mae",
    },
    "beit": _of_beit,
    "siglip2": lambda config: {"num_patches": _square("embedding.position_grid", config.table_grid) ** 2},
    "sam": lambda config: {"image_size": _square("image_size", config.usual_size)},
}  # fmt: skip


def _square(name, size):
    """Return the side of a square; raise `ValueError` for another size, which transformers does not read."""
    if size[0] != size[1]:
        raise ValueError(f"layout 'huggingface' needs a square {name}; the model has {size[0]} x {size[1]}")
    return size[0]


def _side(size):
    return size[0] if size[0] == size[1] else size


def _write_npz(path, arrays, metadata):
    np.savez(path, **arrays)
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = json.dumps(metadata).encode()
