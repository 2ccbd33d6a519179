"""Configs drawn at random over all families, and what becomes of their models in every layout of files."""

import contextlib
import functools
import json
import pathlib
import sys
import tempfile
import warnings

import keras
import numpy as np
from families import CLASSES, FAMILIES
from filled import filled

import keras_vit
from keras_vit.checkpoints import names
from keras_vit.logs import LOGGER
from keras_vit.models import build_model

_SIZES = {"image_size": 32, "patch_size": 8, "hidden_dim": 48, "num_layers": 2, "num_heads": 3, "mlp_dim": 64}


def _vit(**changes):
    return keras_vit.ViTConfig(name="tiny", classes=CLASSES, **{**_SIZES, **changes})


_FLEXI = {"class_position": False, "position_grid": 4, "kernel_size": 8, "resize": "bilinear_antialias"}
_NAFLEX = {"class_position": False, "position_grid": 4, "resize": "bicubic_antialias"}
_SIGLIP2 = {"position_grid": 4, "resize": "bilinear_antialias"}
_PE = {"patch_bias": False, "pre_norm": True, "resize": "bilinear"}
# configs to start from: those of families.py, and published ones that differ from them in more than a field
BASES = {
    **{name: family.config for name, family in FAMILIES.items() if family.stem is None},
    "MAE": _vit(gelu="erf", include_top=False, embedding={"position_init": "sincos2d_mae"}),
    "FlexiViT": _vit(image_size=48, patch_size=12, embedding=_FLEXI),
    "NaFlexViT": _vit(
        image_size="any", pooling="gap", num_registers=2, norm_position="after_pooling", layer_scale_init=0.1,
        gelu="erf", embedding=_NAFLEX,
    ),
    "SigLIP 2 NaFlex": _vit(image_size="any", pooling="map", include_top=False, embedding=_SIGLIP2),
    "AIMv2 native": _vit(
        image_size="any", pooling="aim", include_top=False, qkv_bias=False, epsilon=1e-5,
        position_embedding="sincos2d_mae", embedding={"patch_norm": True, "position_grid": 4},
        block={"norm": "rms", "gated": True, "bias": False},
    ),
    "TIPS": _vit(gelu="erf", layer_scale_init=1.0, num_registers=1, include_top=False),
    "PE spatial": _vit(
        pooling="gap", class_token=True, norm_position="none", include_top=False, embedding=_PE,
        block={"rotary": {"kind": "pe"}}, gelu="erf", epsilon=1e-5,
    ),
    "SigLIP": _vit(pooling="map", include_top=False, embedding={"resize": "bicubic"}),
    "SAM backbone": FAMILIES["SAM"].config.replace(pooling="unpooled", include_top=False),
    "EVA": _vit(
        pooling="gap", class_token=True, norm_position="after_pooling", gelu="erf", block={"key_bias": False}
    ),
    "I-JEPA": _vit(pooling="gap", include_top=False, gelu="erf", epsilon=1e-12),
    "relative position MLP": _vit(
        pooling="gap", norm_position="after_pooling", layer_scale_init=0.1, qkv_bias=False, gelu="erf",
        position_embedding="relative_mlp", position_placement="every", embedding={"position_mlp_dim": 24},
    ),
    "differential attention": _vit(
        pooling="gap", num_registers=1, layer_scale_init=0.1, gelu="erf", attention="differential",
        embedding={"class_position": False}, block={"order": "parallel", "attention_bias": False},
    ),
}  # fmt: skip

# values that a flipped field may get
FLIPS = {
    "pooling": ("token", "gap", "token_gap", "map", "aim", "first", "unpooled", "token_unpooled"),
    "class_token": (None, True, False),
    "norm_position": ("before_pooling", "after_pooling", "none"),
    "representation_size": (None, 16),
    "position_embedding": (
        *("learned", "learned_2d", "factorized", "sincos2d", "sincos2d_mae", "relative", "relative_mlp", "none"),
    ),
    "position_placement": ("stem", "every", "shared"),
    "layer_scale_init": (None, 0.1),
    "qkv_bias": (True, False),
    "qk_norm": (True, False),
    "num_registers": (0, 1, 4),
    "gelu": ("tanh", "erf", "quick"),
    "epsilon": (1e-3, 1e-5, 1e-6, 1e-12),
    "distilled": (True, False),
    "attention": ("global", "axial", "differential"),
    "token_merging": (0, 2),
    "dropout_rate": (0.0, 0.1),
    "include_top": (True, False),
    "classifier_activation": (None, "sigmoid", "softmax"),
    "channels": (3, 1, 4),
    "image_size": (32, (16, 48), 48, None),
    "num_heads": (3, 6, 1),
    "num_layers": (2, 1),
    "window": (None, {"size": 3, "global_blocks": (1,)}, {"size": 4}, {"size": 2, "relative_positions": False}),
    "stem": (None, {"class_name": "ResNetConfig", "stage_sizes": (1, 1), "width_factor": 0.5, "style": "timm"}),
    "embedding.patch_bias": (True, False),
    "embedding.patch_norm": (True, False),
    "embedding.pre_norm": (True, False),
    "embedding.class_position": (True, False),
    "embedding.resize": (None, "bicubic", "bilinear_antialias"),
    "embedding.position_grid": (None, 4),
    "embedding.square_positions": (True, False),
    "embedding.pad": (True, False),
    "block.order": ("pre_norm", "post_norm", "parallel"),
    "block.norm": ("layer", "rms"),
    "block.gated": (True, False),
    "block.bias": (True, False),
    "block.attention_bias": (True, False),
    "block.key_bias": (True, False),
    "block.attention_norm": (True, False),
    "block.mlp_norm": (True, False),
    "block.rotary": (
        *(None, {"kind": "dinov3"}, {"kind": "eva02"}, {"kind": "pe"}, {"kind": "dinov3", "theta": 50.0}),
        {"kind": "eva02", "reference_grid": (16, 16)},
    ),
    "head.neck": (None, 16),
    "head.projection": (None, 24),
    "head.normalize": (True, False),
    "head.bias": (True, False),
    "head.map_heads": (None, 1, 6),
    "head.map_mlp_dim": (None, 40),
    "head.map_prefix": (True, False),
    "head.num_blocks": (1, 2),
    # of Swin, BiT and AxialResNet
    "window_size": (4, 2, 7, (2, 4)),
    "mlp_ratio": (4.0, 2.0),
    "gn_epsilon": (1e-5, 1e-3),
    "std_epsilon": (1e-10, 1e-5),
    "max_pool_padding": ("zeros", "minus_infinity"),
    "width_factor": (0.5, 1.0),
    "stem.style": ("vit", "timm"),
    "stem.gn_epsilon": (1e-5, 1e-3),
}
# fields that do not change what a trained model returns, and the name
FREE = {
    *("name", "dtype", "remat", "scan_layers", "dropout_rate", "attention_dropout_rate", "drop_path_rate"),
    *("include_preprocessing", "layer_scale_init", "embedding.patch_drop_rate", "embedding.position_init"),
}
PROCESSED = keras_vit.Preprocessing(size=40, crop=32, interpolation="bicubic", mean=(0.4, 0.5, 0.6), std=(0.2,) * 3)


@functools.cache
def draw(seed):
    """Return (name of the base, its config with one to three flipped fields); the same for the same seed."""
    rng = np.random.default_rng(seed)
    base = list(BASES)[seed % len(BASES)]
    while True:
        config = BASES[base]
        fields = [name for name in FLIPS if _has(config, name)]
        for name in rng.choice(fields, rng.integers(1, 4), replace=False):
            value = FLIPS[name][rng.integers(len(FLIPS[name]))]
            with contextlib.suppress(ValueError):  # what contradicts the rest is left as it was
                config = config.replace(**{str(name): value})
        with contextlib.suppress(ValueError):
            config = config.resolve() if hasattr(config, "resolve") else config
            if config != BASES[base]:
                return base, config


def _has(config, name):
    owner, dot, field = name.partition(".")
    return hasattr(config, owner) and (not dot or hasattr(getattr(config, owner), field))


def model_of(config, seed):
    """Return a model of random weights, with labels and preprocessing of its own where it has RGB images."""
    model = filled(lambda: build_model(config), seed, 0.02, 0.3)
    if seed % 2 and config.channels == 3 and config.field("embedding.images_per_sequence") is None:
        size = config.fixed_size or config.usual_size
        model.preprocessing = PROCESSED.at(size)
        if config.include_top:
            model.labels = [f"class {index}" for index in range(config.classes)]
    return model


def forms(config):
    """Return the (layout, file name) pairs that a model can be written in."""
    layouts = names.LAYOUTS[config.network].values()
    found = {(rules.library, f"a{rules.suffix}") for rules in layouts}
    if found:
        found |= {("original", "a.npz"), ("original", "a.safetensors")}
    found |= {("huggingface", "folder")} if any(form[0] == "huggingface" for form in found) else set()
    return [*sorted(found), ("keras", "a.keras"), ("keras", "a.weights.h5")]


def outcome(model, layout, name, folder):
    """Write a model and read it back: return `held`, `refused: ...` or `wrong: ...`."""
    path = folder / name
    try:
        if layout == "keras":
            (model.save if name.endswith(".keras") else model.save_weights)(path)
        else:
            keras_vit.save_weights(model, path, layout)
    except ValueError as error:
        left = sorted(path.name for path in folder.iterdir() if not path.is_dir() or any(path.iterdir()))
        return f"wrong: refused, but {left} exist" if left else f"refused: {error}"
    try:
        if name.endswith(".weights.h5"):
            read = filled(lambda: build_model(model.config), 7, 0.0, 0.1)
            read.load_weights(path)
            read.labels, read.preprocessing = model.labels, model.preprocessing
        else:
            read = keras_vit.load(path)
    except Exception as error:  # any error is a fault of the writer
        return f"wrong: {type(error).__name__}: {error}"
    return difference(model, read)


def is_loaded(model, path):
    """Return whether `load_weights` reads a file into a model of the same config, with equal outputs."""
    other = filled(lambda: build_model(model.config), 7, 0.0, 0.1)
    try:
        keras_vit.load_weights(other, path)
    except Exception:  # any error says no
        return False
    other.labels, other.preprocessing = model.labels, model.preprocessing
    return difference(model, other) == "held"


def difference(model, read):
    """Return `held`, or `wrong: ...` for a model that does not come back as it was."""
    ours, theirs = (fields(model.config) for model in (model, read))
    pairs = {field: (value, theirs.get(field)) for field, value in ours.items() if value != theirs.get(field)}
    differing = [f"{field}: {value!r} -> {other!r}" for field, (value, other) in pairs.items()]
    if differing:
        return f"wrong: {', '.join(differing)}"
    if read.labels != model.labels:
        return f"wrong: labels {model.labels} -> {read.labels}"
    stated = [one.preprocessing.replace(in_model=False) for one in (model, read)]
    if model.preprocessing_source != "assumed" and stated[0] != stated[1]:
        return f"wrong: preprocessing {stated[0]} -> {stated[1]}"
    got, expected = logits(read), logits(model)
    gap = max(np.abs(a - b).max() for a, b in zip(got, expected, strict=True))
    scale = max(1.0, *(np.abs(b).max() for b in expected))
    return "held" if gap <= 1e-5 * scale else f"wrong: outputs differ by {gap} of {scale}"


def fields(config):
    """Return {field: value} of what changes the outputs of a config, with dots for nested fields."""
    found = keras_vit.config.base.flattened(config.to_dict())
    return {name: value for name, value in found.items() if name not in FREE}


def logits(model):
    size = model.config.fixed_size or (24, 40)
    images = np.random.default_rng(0).normal(size=(2, *size, model.config.channels)).astype("float32")
    return [keras.ops.convert_to_numpy(output) for output in model.call_heads(images)]


def outcomes(seed, chosen=None):
    """Yield (layout, file name, outcome) of the config of a seed, for all forms or those that `chosen` selects."""
    _, config = draw(seed)
    model = model_of(config, seed)
    found = forms(config)
    for layout, name in found if chosen is None else [found[index % len(found)] for index in chosen]:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield layout, name, outcome(model, layout, name, pathlib.Path(folder))


if __name__ == "__main__":  # python tests/walked.py FIRST LAST FILE: writes all outcomes as JSON lines
    LOGGER.setLevel("ERROR")
    with open(sys.argv[3], "a") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(int(sys.argv[1]), int(sys.argv[2])):
            base, config = draw(seed)
            model = model_of(config, seed)
            for layout, name in forms(config):
                with tempfile.TemporaryDirectory() as folder:
                    found, path = outcome(model, layout, name, pathlib.Path(folder)), pathlib.Path(folder, name)
                    is_read = found == "held" or (path.exists() and layout != "keras" and is_loaded(model, path))
                print(json.dumps([seed, base, layout, name, found, is_read]), file=file, flush=True)
