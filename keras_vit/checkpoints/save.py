"""save_weights: write a model's weights in formats of other libraries."""

import contextlib
import dataclasses
import functools
import itertools
import json
import pathlib
import re
import warnings
import zipfile

import keras
import numpy as np
import safetensors.numpy

from keras_vit import checks
from keras_vit.checkpoints import decoder, names
from keras_vit.checkpoints.config_json import HF_TYPES
from keras_vit.checkpoints.entries import Checkpoint, Entry
from keras_vit.checkpoints.evidence import read_evidence
from keras_vit.checkpoints.match import make_plan
from keras_vit.checkpoints.names.rules import fits, to_theirs
from keras_vit.checkpoints.readers import IMAGE_PROCESSOR, PROCESSOR, open_checkpoint
from keras_vit.checkpoints.resolve import resolve
from keras_vit.checkpoints.task_files import plan_task, whole_of, with_size
from keras_vit.checkpoints.written_json import CannotHold, huggingface_json
from keras_vit.compat.graph import owned_variables
from keras_vit.compat.initial_values import build_deferred
from keras_vit.config import Config
from keras_vit.config.unseen import DECLARED, KEY, differences, to_text, whole
from keras_vit.files import replace_files
from keras_vit.logs import LOGGER
from keras_vit.models import MaskedAutoencoder, TaskModel, build_model
from keras_vit.models.base import ImageModel
from keras_vit.models.copies import check_not_quantized
from keras_vit.models.layer_states import lora_layers
from keras_vit.typing import PathLike
from keras_vit.variants import VARIANTS

_NEEDED_ALWAYS = {"position_placement": "stem", "window": "unset", "head.neck": "unset", "is_flexible": False}
_NEEDED_ALWAYS |= {"head.projection": "unset", "head.normalize": False}  # of zero-shot classifiers
_MOST_LABELS = 50_000  # maximum number of bytes; a zip file's comment has at most 65,535
_MAE = "vit_mae"  # written with a decoder, see `_of_autoencoder`
_HF_HEADS = ("classifier.", "cls_classifier.", "distillation_classifier.", "visual_projection.")  # without a prefix


def save_weights(model: ImageModel | MaskedAutoencoder | TaskModel, path: PathLike, layout: str = "official") -> None:
    """Write the weights of a model in a format of other libraries.

    The files are written completely, and compared with the model as `load` reads them, before they replace existing
    ones. Their metadata holds the config without its dtype, the preprocessing and the class names. Only this package
    reads it. LoRA is merged into the kernels. A preprocessor_config.json cannot distinguish TensorFlow's bilinear
    interpolation from Pillow's, which is antialiased; this case is logged.

    Args:
        model: a model of this package; of a `MaskedAutoencoder`, encoder and decoder are written. A task model must be
            one that `load` built from a file, and needs the layout of that file, `huggingface` or `original`, and a
            folder, which gets all arrays of that file, also those that the model does not use, and its JSON files with
            the labels and the image size of the model. An array keeps the dtype of the file if it holds the values
            exactly. The files of a tokenizer are not written.
        path: `official`: an `.npz` file with the array names of the published files (of vit_jax, or of BiT for a BiT).
            `timm`, `original` and `microsoft`: a `.safetensors` file. `huggingface`: a `.safetensors` file, or a folder
            that gets `model.safetensors`, `config.json` and `preprocessor_config.json` and that transformers reads.
        layout: `official` (ViT, hybrids, BiT), `huggingface`, `timm`, `microsoft` (Swin), or `original`: the names of
            the authors of DINOv2, DINOv3, CLIP, Perception Encoder, EVA-02, BEiT, DeiT-III, AIMv2 and SAM, else
            `official` or `microsoft`. A `MaskedAutoencoder` needs `original` or `huggingface`.

    Raises:
        ValueError: if the layout cannot represent the model (such as registers in an official file), so that `load`
            would return another one, the model is quantised, or the suffix of the path is wrong. The message names a
            field and the layouts that can represent the model.
    """
    autoencoder = model if isinstance(model, MaskedAutoencoder) else None
    model = model if autoencoder is None else autoencoder.encoder
    if not names.LAYOUTS[model.config.network]:
        raise ValueError(f"no other library reads weights of {model.config.name} (use model.save)")
    checks.check_choice("layout", layout, dict.fromkeys(_libraries(model)))
    path = checks.check_path("path", path)
    check_not_quantized(model, "save_weights, as other libraries read float weights (save it before quantize)")
    try:
        _write(model, autoencoder, path, layout)
    except CannotHold as error:
        raise ValueError(f"{error} ({_advice(model)})") from None


def _libraries(model):
    if isinstance(model, TaskModel):
        return [model.origin.layout.library if model.origin else "huggingface"]  # that of its file
    return [*(rules.library for rules in names.LAYOUTS[model.config.network].values()), "original"]


def _write(model, autoencoder, path, layout):
    rules, arrays, metadata, texts = _contents(model, autoencoder, path, layout)
    is_folder, layout = bool(texts), rules.library
    if is_folder and (path / PROCESSOR).exists() and PROCESSOR not in texts:
        reason = f"{PROCESSOR}, which takes precedence over the {IMAGE_PROCESSOR} that is written"
        raise ValueError(f"path must be a folder without {reason}; got {str(path)!r} (use another folder)")
    weights = path / "model.safetensors" if is_folder else path
    if rules.suffix == ".npz":
        writers = {weights: lambda file: _write_npz(file, arrays, metadata)}
    else:
        writers = {weights: lambda file: safetensors.numpy.save_file(arrays, file, {"format": "pt", **metadata})}
    writers |= {
        path / name: functools.partial(pathlib.Path.write_text, data=json.dumps(values, indent=2))
        for name, values in texts.items()
    }

    def check(partials):
        config, processor = [*json.loads(json.dumps([*texts.values()])), None, None][:2]
        about = {"path": weights, "config_json": config, "processor": processor}
        _check_readable(model, dataclasses.replace(open_checkpoint(partials[weights]), **about))

    with contextlib.ExitStack() as undo:
        if is_folder and not path.is_dir():
            path.mkdir(parents=True)
            undo.callback(path.rmdir)
        replace_files(writers, check if autoencoder is None else None)
        undo.pop_all()
    if isinstance(model, TaskModel):
        return
    if is_folder and model.preprocessing_source == "assumed":
        warnings.warn(
            f"preprocessor_config.json states {model.preprocessing}, which is assumed, as the weights came without "
            "preprocessing. Set model.preprocessing to the one that they were trained with",
            stacklevel=3,
        )
    if not is_folder:
        LOGGER.info(f"Saved {path}; its preprocessing is in the metadata, which other libraries do not read")
    elif model.preprocessing.interpolation == "bilinear":
        LOGGER.warning(
            f"Saved {path}. The model resizes images without antialiasing, which preprocessor_config.json cannot "
            "state: other libraries resize images differently, with antialiasing (keras_vit reads the metadata)"
        )


def _contents(model, autoencoder, path, layout):
    """Return the `Layout`, {name: array}, {key: text of the metadata} and {name: values of a JSON file} to write.

    Raises:
        CannotHold: if the layout cannot represent the model.
        ValueError: if the suffix of the path is wrong.
    """
    if isinstance(model, TaskModel):
        return _of_task(model, path)
    rules, hf_type = _chosen(model.config, layout, path.suffix, autoencoder is not None)
    layout = rules.library
    is_folder = layout == "huggingface" and path.suffix == ""
    if not is_folder and path.suffix != rules.suffix:
        raise ValueError(f"path must end in {rules.suffix} for layout={layout!r}; got {str(path)!r}")
    arrays = _arrays(model, rules, hf_type, autoencoder._unused if autoencoder else ())
    preprocessing = None if model.preprocessing_source == "assumed" else model.preprocessing
    labels = model.labels and dict(enumerate(model.labels))
    if rules.suffix == ".npz" and len(json.dumps(labels)) > _MOST_LABELS:
        LOGGER.warning(f"the labels of the model are too long for the metadata of {path}, which does not hold them")
        labels = None
    about = {} if autoencoder is None else decoder.config_values(autoencoder.settings)
    texts = huggingface_json(model, hf_type, about) if is_folder else {}
    more = {"processor": texts.get("preprocessor_config.json")}
    more |= {"model": whole(model.config), "labels": labels} if autoencoder is None else {}
    metadata = {KEY: to_text(model.config, preprocessing, **more)}
    if autoencoder is not None:
        of_decoder = names.LAYOUTS[decoder.NETWORK]["huggingface" if layout == "huggingface" else "original"]
        arrays |= _arrays(autoencoder.get_layer("decoder"), of_decoder, None)
        metadata[decoder.KEY] = json.dumps(autoencoder.settings)
    return rules, arrays, metadata, texts


def _of_task(model, path):
    """Return the same as `_contents`, for a task model."""
    if (origin := model.origin) is None:
        raise CannotHold(
            f"layout 'huggingface' needs {model.name} as keras_vit.load builds it from a file of transformers, with "
            "the config.json and buffers of the file, which other models do not have: load such a file of the same "
            "sizes, and call its set_weights(model.get_weights())"
        )
    if path.suffix:
        raise ValueError(f"path must be a folder for a task model, which needs its config.json; got {str(path)!r}")
    texts = origin.texts(model)
    return origin.layout, origin.named(_arrays(model, origin.layout, None, known=origin.pieces)), {}, texts


def _check_readable(model, checkpoint):
    """Raise `CannotHold` if `load` would build another model from a file than the one that it was written from."""
    config, ours = model.config, model.preprocessing.replace(in_model=False)
    try:
        evidence = read_evidence(checkpoint)
        for field, theirs, value in differences(evidence.stated, config):
            raise CannotHold(f"the file cannot state {field}={value!r}; it would be read as {theirs!r}")
        if isinstance(model, TaskModel):
            resolved, whole = resolve(evidence, None, {"image_size": config.fixed_size}), whole_of(evidence)
            read, *_ = plan_task(with_size(resolved, whole, config.fixed_size), whole)
            if (theirs := read.preprocessing.replace(in_model=False)) != ours:
                raise CannotHold(f"the file cannot state preprocessing={ours}; it states {theirs}")
            return
        if model.preprocessing_source != "assumed" and evidence.preprocessing != ours:
            raise CannotHold(f"the file cannot state preprocessing={ours}; it states {evidence.preprocessing}")
        if lora_layers(model):  # the file holds the merged kernels
            model, _ = build_deferred(lambda: build_model(config))
        make_plan(model, evidence, head="load" if config.include_top else "auto")
    except ValueError as error:
        if isinstance(error, CannotHold):
            raise
        fields = ", ".join(_unusual(config))
        raise CannotHold(
            f"no file of this layout holds a model with all of {fields}, as its names show others: {error}"
        ) from None


def _unusual(config, prefix=""):
    """Yield the fields of an architecture whose values are not the defaults, as `name=value`."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Config):
            yield from _unusual(value, f"{prefix}{field.name}.")
        elif value != field.default and (prefix or field.default is not dataclasses.MISSING):
            name = f"{prefix}{field.name}"
            yield from () if DECLARED[name].close or name in ("classes", "dtype") else (f"{name}={value!r}",)


def _advice(model):
    """Return what to do with a model that a layout cannot hold: the layouts that can, and Keras's own format."""
    holding = []
    for layout, suffix in itertools.product(dict.fromkeys(_libraries(model)), (".safetensors", ".npz")):
        with contextlib.suppress(ValueError):
            path = pathlib.Path(f"a{suffix}")
            _, arrays, metadata, _ = _contents(model, None, path, layout)
            entries = {
                name: Entry(name, array.shape, str(array.dtype), lambda array=array: array)
                for name, array in arrays.items()
            }
            _check_readable(model, Checkpoint(path, suffix[1:], entries, metadata))
            holding.append(f"layout={layout!r} in a {suffix} file")
    return f"use {' or '.join([*holding, 'model.save'])}"


def _chosen(config, library, suffix, is_autoencoder):
    """Return the `Layout` of a library to write, and the model type of transformers that it is written as, or None.

    It is the first one that can hold the model; that of the model's family and those with files of this suffix come
    first.

    Raises:
        CannotHold: if none can hold the model; the message names a field.
    """
    layouts = names.LAYOUTS[config.network]
    if is_autoencoder:
        checks.check_choice("layout", library, names.LAYOUTS[decoder.NETWORK])
        found = [(layouts["timm" if library == "original" else library], _MAE)]
    elif library == "huggingface":
        types = [name for name, row in HF_TYPES.items() if row["network"] == config.network and "architectures" in row]
        found = [(layouts[HF_TYPES[name]["layout"]], name) for name in types if name != _MAE]
    else:
        wanted = (library, "official", "microsoft") if library == "original" else (library,)
        family = VARIANTS[config.name].family if config.name in VARIANTS else config.name
        known = [rules for rules in layouts.values() if rules.library in wanted and not rules.of_task]
        known.sort(key=lambda rules: (family not in rules.families, wanted.index(rules.library), len(rules.families)))
        known = [rules for rules in known if rules.suffix == suffix] or known
        found = [(rules, None) for rules in known]
    problems = {}
    for rules, hf_type in found:
        holds = rules.holds if hf_type is None else HF_TYPES[hf_type].get("holds", {})
        problems[hf_type] = _problem(library if is_autoencoder else rules.library, _NEEDED_ALWAYS | holds, config)
        if problems[hf_type] is None:
            return rules, hf_type
    usual = "deit" if config.field("distilled") else config.network
    raise CannotHold(problems.get(usual, problems[hf_type]))


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
            # transformers has one size of windows, and needs tables of the whole window
            if not isinstance(config.window_size, int) or min(rows, columns) < config.window_size:
                return (
                    "layout 'huggingface' needs one window_size and maps of at least this size in every stage; "
                    f"got window_size={config.window_size} and a map of {rows} x {columns} in stage {stage + 1}"
                )
        needed = {**needed, **({"representation_size": None} if config.include_top else {})}
    if getattr(config, "position_embedding", None) == "relative_2d":  # its names show the placement
        needed = {name: value for name, value in needed.items() if name != "position_placement"}
    for name, value in needed.items():
        if hasattr(config, name.partition(".")[0]) and not fits(value, config.field(name)):
            return f"layout {library!r} needs {name}={value!r}; the model has {config.field(name)!r}"
    return None


def _arrays(model, rules, hf_type, skipped=(), known=None):
    """Return {name in the file: array}; raise an error if the layout has no name for a variable.

    Variables whose ids are in `skipped` are left out. With `known`, the names that the rules use in a file, those
    are returned.
    """
    config = model.config
    arrays, homeless = {}, []
    for owned in owned_variables(model):
        variable, has_lora = owned.variable, getattr(owned.layer, "lora_enabled", False)
        if id(variable) in skipped or has_lora and "lora" in variable.name:
            continue  # LoRA is merged into the kernel
        value = keras.ops.convert_to_numpy(owned.layer.kernel if has_lora and variable.name == "kernel" else variable)
        rule = names.find_rule(rules, variable.path, config, known)
        if variable.path == "position_embs/embedding" and rules.position_tables:
            arrays[next(iter(rules.position_tables))] = value
        elif rule is None:
            homeless.append(variable.path)
        else:
            for name, piece in zip(rule.theirs, np.split(value, len(rule.theirs), axis=rule.axis), strict=True):
                arrays[name] = np.ascontiguousarray(to_theirs(piece, rule.form, config.field("num_heads")))
    if homeless:
        raise CannotHold(f"layout {rules.library!r} must have names for every variable; it has none for {homeless}")
    if rules.library == "timm" and config.network == "vit":
        _as_timm(arrays, config)
    for name, array in arrays.items():
        if (rank := rules.rank_of(name)) is not None:
            shape = array.shape[3 - rank :] if rank < 3 else (1, *config.table_grid, array.shape[2])[4 - rank :]
            arrays[name] = array.reshape(shape)
    if known is not None:
        return arrays
    arrays = _joined(arrays)
    prefix = _prefix(model, rules, hf_type)
    return {name if name.startswith(_HF_HEADS) else prefix + name: value for name, value in arrays.items()}


def _joined(arrays):
    """Join the pieces of each array, see `Layout.cuts`; a piece that is absent, a masked bias, is zero."""
    pieces, joined = {}, {}
    for name, array in arrays.items():
        if match := re.fullmatch(r"(.+)([#%])(\d+)", name):
            pieces.setdefault(match.group(1, 2), {})[int(match[3])] = array
        else:
            joined[name] = array
    for (stem, sign), parts in pieces.items():
        blank = np.zeros_like(next(iter(parts.values())))
        in_order = [parts.get(index, blank) for index in range(max(parts) + 1)]
        joined[stem] = np.concatenate(in_order, axis="#%".index(sign))
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
        for index, name in enumerate(("cls_token", "dist_token")[: class_rows.shape[1]]):
            arrays[name] = arrays[name] + class_rows[:, index : index + 1]
    if "head.weight" in arrays and "head.bias" not in arrays:
        arrays["head.bias"] = np.zeros(len(arrays["head.weight"]), arrays["head.weight"].dtype)


def _write_npz(path, arrays, metadata):
    np.savez(path, **arrays)
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = json.dumps(metadata).encode()
