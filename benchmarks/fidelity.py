"""Compare the outputs of each library with the authors', at image sizes other than that of training.

It needs `pip install -e '.[tensorflow,bench]' scipy`, and compares ZeroModels if `pip install zeromodels` was run. It
downloads nothing: the models are small and random.
"""

import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import inspect
import json
import logging
import math
import os
import pathlib
import tempfile
import warnings
from collections.abc import Callable

import numpy as np

from benchmarks import authors
from benchmarks.contenders import quietly, random_images
from benchmarks.report import Table, is_installed

WIDTH, LAYERS, HEADS, MLP, CLASSES = 128, 2, 2, 512, 64
POSITIONS = 0.1  # standard deviation of the position tables
NEEDED = ("torch", "timm", "transformers", "scipy")
NOTE = (
    "Each figure is the largest difference from the authors' output, relative to the largest value of that output: all "
    "tokens of the DINO models, the embeddings or logits of the others. The first row of each family is at the size of "
    "training, where nothing is resized. A dash: the library has no such model, or the model has only one size.\n\n"
    f"The models have {LAYERS} blocks, a width of {WIDTH}, the family's patches and grid, and random weights; there "
    "are 2 random images. The authors' positions come from the functions of torch and scipy that their code calls, or "
    "from their formula of the rotary angles. The rest of the authors' output is the model of transformers, or of timm "
    "where transformers has none, in float64. The values of the position tables are independent, with a standard "
    f"deviation of {POSITIONS}. Trained tables are smoother, so the differences of trained models are smaller."
)


@dataclasses.dataclass(frozen=True)
class ZeroModel:
    """A model of ZeroModels: module, class, key of its output, arguments (None: from config.json), prefix of names."""

    module: str
    name: str
    output: str | None = None
    arguments: dict | None = None
    prefix: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A published family and its models in each library.

    Attributes:
        title: its name.
        patch_size: size of a patch in pixels.
        sizes: image sizes; the first is that of training.
        timm: name in timm and further arguments.
        transformers: names of the model and of its config, and further arguments; None if only timm has the model.
        load: arguments of `keras_vit.load`.
        resize: the authors' method, see `authors.set_positions`.
        angles: function of the side of the grid that returns the authors' rotary angles.
        epsilon: the authors' epsilon, if config.json states another.
        keras_hub: name of the backbone in keras-hub, or None.
        zeromodels: `ZeroModel`, or None.
    """

    title: str
    patch_size: int
    sizes: tuple
    timm: tuple
    transformers: tuple | None = None
    load: dict = dataclasses.field(default_factory=dict)
    resize: Callable | None = None
    angles: Callable | None = None
    epsilon: float | None = None
    keras_hub: str | None = None
    zeromodels: ZeroModel | None = None


def run(options):
    missing = [name for name in NEEDED if not is_installed(name)]
    if missing:
        raise SystemExit(f"the benchmark fidelity needs {', '.join(NEEDED)}; missing: {', '.join(missing)}")
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    for name in NEEDED:  # before TensorFlow: triton, which torch may import, crashes after it
        importlib.import_module(name)
    libraries = {"keras_vit": _keras_vit}
    if options.peers:
        libraries |= {"keras-hub": _keras_hub, "ZeroModels": _zeromodels, "timm": _timm, "transformers": _transformers}
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(action="ignore"):
        rows = [row for family in FAMILIES for row in _rows(family, options.choose(family.sizes), libraries)]
    logging.disable(logging.NOTSET)
    packages = ("keras", "keras-hub", "zeromodels", "timm", "transformers", "torch", "scipy")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages if is_installed(name))
    columns = ("family", "trained at", "used at", *libraries)
    yield Table("Differences from the authors' outputs", f"{NOTE}\n\nVersions: {versions}.", columns, rows)


def _rows(family, sizes, libraries):
    with tempfile.TemporaryDirectory() as folder:
        files = pathlib.Path(folder)
        quietly(_write, family, files)
        for size in sizes:
            images = random_images(2, size)[0]
            expected = quietly(_authors, family, files, size, images)
            outputs = [quietly(library, family, files, size, images) for library in libraries.values()]
            yield (family.title, family.sizes[0], size, *(difference(output, expected) for output in outputs))


def difference(output, expected):
    """Format the largest difference, relative to the largest expected value; a dash if there is no output."""
    if output is None:
        return "-"
    if output.shape != expected.shape:
        raise ValueError(f"the outputs must have the shape {expected.shape}; got {output.shape}")
    return f"{np.abs(output - expected).max() / np.abs(expected).max():.0e}"


# --- the files of a family: the folder `model` of transformers, and `timm.safetensors`


def _write(family, files):
    """Write a random model of the family."""
    import safetensors.torch

    import keras_vit

    file = files / "timm.safetensors"
    if family.transformers is None:
        arrays = _randomised(_build_timm(family, family.sizes[0])).state_dict()
        safetensors.torch.save_file({name: array.contiguous() for name, array in arrays.items()}, file)
        return
    _randomised(_build_transformers(family)).save_pretrained(files / "model")
    model = keras_vit.load(files / "model", **{**family.load, "pooling": None})
    keras_vit.save_weights(model, file, layout="timm")


def _randomised(model):
    """Draw every parameter: products keep the size of their inputs, biases are small, scales are near one."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean, deviation = 0.0, 0.1
            if "position" in name or "pos_embed" in name:
                deviation = POSITIONS
            elif parameter.ndim > 1:
                deviation = parameter[0].numel() ** -0.5
            elif not ("bias" in name or "embedding" in name):
                mean = 1.0
            parameter.copy_(mean + deviation * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def _build_transformers(family):
    import transformers

    model, config, arguments = family.transformers
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    sizes |= {"image_size": family.sizes[0], "patch_size": family.patch_size}
    return getattr(transformers, model)(getattr(transformers, config)(**sizes, **arguments))


def _build_timm(family, size, file=None):
    """Build timm's model, with the weights of a file as if they were its published ones."""
    import timm

    name, arguments = family.timm
    arguments = {
        "num_classes": 0,
        "img_size": size,
        "embed_dim": WIDTH,
        "depth": LAYERS,
        "num_heads": HEADS,
    } | arguments
    about = {"file": str(file), "num_classes": arguments["num_classes"]}
    return timm.create_model(name, pretrained=file is not None, pretrained_cfg_overlay=about, **arguments).eval()


def _authors(family, files, size, images):
    """Return the output of the model of transformers or timm in float64, with the authors' positions."""
    import safetensors.torch

    side = size // family.patch_size
    angles = None if family.angles is None else family.angles(side)
    if family.transformers is None:
        arrays = safetensors.torch.load_file(files / "timm.safetensors")
        arrays["pos_embed"] = authors.resized(arrays["pos_embed"], side, family.resize)
        model = _build_timm(family, size)
        model.load_state_dict(arrays)
        authors.set_rotary(model, angles)
        return _output_of_timm(family, model.double(), images)
    model = _load_transformers(family, files).double()
    authors.set_positions(model, side, family.resize, angles, family.epsilon)
    return _output_of_transformers(family, model, images)


# --- the libraries: each function returns the output for the images, or None if there is no model of that size


def _keras_vit(family, files, size, images):
    import keras_vit

    if family.transformers is None:
        model = keras_vit.load(files / "timm.safetensors", image_size=size, num_heads=HEADS, **family.load)
    else:
        model = keras_vit.load(files / "model", image_size=size, **family.load)
    return model.predict_on_batch(images)


def _keras_hub(family, files, size, images):
    if family.keras_hub is None or not is_installed("keras-hub"):
        return None
    import keras_hub

    backbone = getattr(keras_hub.models, family.keras_hub)
    model = backbone.from_preset(str(files / "model"), image_shape=(size, size, 3))
    return model.predict_on_batch(dict.fromkeys(model.input, images))


def _zeromodels(family, files, size, images):
    """Read a file of ZeroModels' own, as it does for its published weights."""
    if family.zeromodels is None or not is_installed("zeromodels"):
        return None
    import safetensors.numpy
    import zeromodels.models

    row, file = family.zeromodels, files / "zeromodels.weights.h5"
    model_class = getattr(getattr(zeromodels.models, row.module), row.name)
    arguments = row.arguments or model_class.config_from_hf(json.loads((files / "model" / "config.json").read_text()))
    if not file.exists():
        trained = model_class(**{**arguments, "image_size": family.sizes[0]})
        arrays = safetensors.numpy.load_file(files / "model" / "model.safetensors")
        model_class.transfer_from_hf(trained, {row.prefix + name: array for name, array in arrays.items()})
        trained.save_weights(file)
    model = model_class(**{**arguments, "image_size": size})
    with contextlib.suppress(ValueError):  # the library does not resize this table
        model.load_weights(file)
        outputs = model.predict_on_batch(images)
        return outputs[row.output] if row.output else outputs
    return None


def _timm(family, files, size, images):
    return _output_of_timm(family, _build_timm(family, size, files / "timm.safetensors"), images)


def _output_of_timm(family, model, images):
    import torch

    with torch.inference_mode():
        return (model.forward_features if family.load == TOKENS else model)(_channels_first(images, model)).numpy()


def _transformers(family, files, size, images):
    if family.transformers is None:
        return None
    return _output_of_transformers(family, _load_transformers(family, files), images)


def _load_transformers(family, files):
    import transformers

    return getattr(transformers, family.transformers[0]).from_pretrained(files / "model", local_files_only=True).eval()


def _output_of_transformers(family, model, images):
    import torch

    resizes = "interpolate_pos_encoding" in inspect.signature(model.forward).parameters
    with torch.inference_mode():
        outputs = model(_channels_first(images, model), **({"interpolate_pos_encoding": True} if resizes else {}))
    names = ("last_hidden_state",) if family.load == TOKENS else ("logits", "image_embeds", "pooler_output")
    return next(outputs[name] for name in names if name in outputs).numpy()


def _channels_first(images, model):
    import torch

    return torch.from_numpy(images.transpose(0, 3, 1, 2).copy()).to(next(model.parameters()).dtype)


TOKENS = {"pooling": "token_unpooled"}
_HF = {"intermediate_size": MLP}
_HF_BEIT = {"use_relative_position_bias": True, "use_mean_pooling": True, "layer_norm_eps": 1e-12}
_ZERO = {"vision_hidden_dim": WIDTH, "vision_num_layers": LAYERS}
FAMILIES = (
    Family(
        title="DINOv2",
        patch_size=14,
        sizes=(518, 224, 336, 560),
        timm=("vit_base_patch14_dinov2", {}),
        transformers=("Dinov2Model", "Dinov2Config", {}),
        load=TOKENS,
        resize=functools.partial(authors.interpolate, offset=0.1, mode="bicubic"),
        keras_hub="DINOV2Backbone",
        zeromodels=ZeroModel("dino_v2", "DinoV2Model"),
    ),
    Family(
        title="DINOv2 with registers",
        patch_size=14,
        sizes=(518, 224, 336, 560),
        timm=("vit_base_patch14_reg4_dinov2", {}),
        transformers=("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", {}),
        load=TOKENS,
        resize=functools.partial(authors.interpolate, mode="bicubic", antialias=True),
        keras_hub="DINOV2Backbone",
    ),
    Family(  # as in the authors' release for transformers; big_vision aligns the corners
        title="SigLIP",
        patch_size=16,
        sizes=(224, 160, 256, 384),
        timm=("vit_base_patch16_siglip_224", {}),
        transformers=("SiglipVisionModel", "SiglipVisionConfig", _HF),
        resize=functools.partial(authors.interpolate, mode="bicubic"),
        zeromodels=ZeroModel(
            "siglip",
            "SigLIPVisionModel",
            "pooler_output",
            {**_ZERO, "vision_num_heads": HEADS, "vision_mlp_dim": MLP},
            "vision_model.",
        ),
    ),
    Family(  # OpenAI publishes no method; this is OpenCLIP's
        title="CLIP",
        patch_size=16,
        sizes=(224, 160, 256, 336),
        timm=("vit_base_patch16_clip_quickgelu_224", {"num_classes": CLASSES}),
        transformers=("CLIPVisionModelWithProjection", "CLIPVisionConfig", {**_HF, "projection_dim": CLASSES}),
        resize=functools.partial(authors.interpolate, mode="bicubic", antialias=True),
        zeromodels=ZeroModel(
            "clip", "CLIPImageEmbed", "image_embeds", {**_ZERO, "vision_patch_size": 16, "embed_dim": CLASSES}
        ),
    ),
    Family(
        title="PE, core",
        patch_size=16,
        sizes=(224, 160, 256, 384),
        timm=("vit_pe_core_base_patch16_224", {"num_classes": CLASSES}),
        load={"variant": "pe_core"},
        resize=functools.partial(authors.interpolate, mode="bilinear"),
        angles=lambda side: authors.rotary_angles(
            np.arange(side) + 1.0, 10000.0, WIDTH // HEADS, is_columns_first=True
        ),
    ),
    Family(
        title="BEiT",
        patch_size=16,
        sizes=(224, 160, 256, 384),
        timm=("beit_base_patch16_224", {"num_classes": CLASSES}),
        transformers=("BeitForImageClassification", "BeitConfig", {**_HF, **_HF_BEIT, "num_labels": CLASSES}),
        resize=authors.spline,
        epsilon=1e-6,
        zeromodels=ZeroModel("beit", "BeitImageClassify"),
    ),
    Family(
        title="DINOv3",
        patch_size=16,
        sizes=(256, 160, 224, 512),
        timm=("vit_base_patch16_dinov3_qkvb", {}),
        transformers=("DINOv3ViTModel", "DINOv3ViTConfig", {**_HF, "num_register_tokens": 4}),
        load=TOKENS,
        angles=lambda side: authors.rotary_angles(
            2 * math.pi * (2 * (np.arange(side) + 0.5) / side - 1), 100.0, WIDTH // HEADS
        ),
        keras_hub="DINOV3Backbone",
        zeromodels=ZeroModel("dino_v3", "DinoV3ViTModel"),
    ),
    Family(
        title="EVA-02",
        patch_size=14,
        sizes=(336, 224, 280, 448),
        timm=("eva02_small_patch14_336", {"num_classes": CLASSES}),
        load={"variant": "eva02"},
        resize=functools.partial(authors.interpolate, mode="bicubic"),
        angles=lambda side: authors.rotary_angles(np.arange(side) / side * 16, 10000.0, WIDTH // HEADS),
    ),
)
