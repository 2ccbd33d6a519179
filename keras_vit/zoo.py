"""The zoo: ONE table of named variants, the constructors made from it, and create_model."""

import dataclasses
import difflib
import fnmatch
import functools
import inspect
import re

from keras_vit import checks
from keras_vit.checkpoints import labels as label_sets
from keras_vit.checkpoints.description import describe
from keras_vit.checkpoints.load import make_plan
from keras_vit.checkpoints.locate import locate
from keras_vit.checkpoints.read_ahead import read_ahead
from keras_vit.checkpoints.readers import open_checkpoint
from keras_vit.checkpoints.releases import list_releases
from keras_vit.compat.initial_values import build_deferred, initialise
from keras_vit.config import ViTConfig
from keras_vit.models import VisionTransformer

_PAPER = "arXiv 2010.11929, Table 1"
_AUGREG = "arXiv 2106.10270, Table 2"
_SCALING = "arXiv 2106.04560, Table 2"

# letter -> width, MLP width, heads, layers, source
_SIZES = {
    "Ti": (192, 768, 3, 12, _AUGREG),
    "S": (384, 1536, 6, 12, _AUGREG),
    "B": (768, 3072, 12, 12, _PAPER),
    "L": (1024, 4096, 16, 24, _PAPER),
    "H": (1280, 5120, 16, 32, _PAPER),
    "g": (1408, 6144, 16, 40, _SCALING),
    "G": (1664, 8192, 16, 48, _SCALING),
}


@dataclasses.dataclass(frozen=True)
class Variant:
    """A named architecture: the numbers of its config and where they stand."""

    name: str
    architecture: dict
    source: str

    def config(self, **arguments):
        """The variant's `ViTConfig` with these arguments."""
        return ViTConfig(name=self.name, **self.architecture, **arguments)


def _vit(size, patch):
    hidden_dim, mlp_dim, num_heads, num_layers, source = _SIZES[size]
    architecture = {
        "patch_size": patch,
        "hidden_dim": hidden_dim,
        "num_layers": num_layers,
        "num_heads": num_heads,
        "mlp_dim": mlp_dim,
    }
    return Variant(f"ViT-{size}_{patch}", architecture, source)


VARIANTS = {
    variant.name: variant
    for variant in (
        _vit("Ti", 16),
        _vit("S", 16),
        _vit("S", 32),
        _vit("B", 8),
        _vit("B", 16),
        _vit("B", 32),
        _vit("L", 16),
        _vit("L", 32),
        _vit("H", 14),
        _vit("g", 14),
        _vit("G", 14),
    )
}


def list_models(pattern="*"):
    """Returns the names of the zoo's models that match a pattern such as `"ViT-*"`, in the order of the table."""
    return [name for name in VARIANTS if fnmatch.fnmatchcase(name, pattern)]


def list_weights(model):
    """Returns the names that `weights=` takes for a model: short names of releases, then the published files."""
    checks.check_choice("model", model, VARIANTS)
    return [*_aliases(model), *(release.path for release in list_releases(model))]


def _aliases(model):
    return list(dict.fromkeys(release.alias for release in list_releases(model) if release.alias))


def create_model(variant, /, *, weights=None, preprocessing=None, labels=None, name=None, image_size=224, **arguments):
    """Builds a model of the zoo, with random weights or those of a file.

    Args:
        variant: name of the model, one of `list_models()`.
        weights: None for random weights; a path (`.npz`, `.safetensors`, `.weights.h5`, `.keras` or a folder with
            `config.json` and `model.safetensors`); a release (`imagenet21k`, `imagenet21k+imagenet2012`, `sam`,
            `augreg`, `augreg+imagenet2012`) or any published file's name; or `hf://org/repo`.
        preprocessing: `Preprocessing` of the pictures; None takes that of the weights, else the official one.
        labels: names of the classes; None takes those of the weights.
        name: name of the keras model.
        image_size: (height, width) of the input in pixels, or one integer; the position table is resized to it.
        **arguments: the other fields of `ViTConfig`, such as `classes` and `include_top`. `gelu` and `epsilon` left at
            None take what the weights were trained with.

    Returns:
        A `VisionTransformer`, ready for `fit`.

    Raises:
        ValueError: on an unknown variant, a contradiction between arguments or weights that do not fit.
        TypeError: on an argument that no field of `ViTConfig` has.
    """
    checks.check_choice("variant", variant, VARIANTS)
    _check_arguments(variant, arguments)
    config = VARIANTS[variant].config(image_size=image_size, **arguments)
    if weights is None:
        return VisionTransformer(config, preprocessing=preprocessing, labels=labels, name=name)
    path, release = locate(weights, variant, config.image_size)
    checkpoint = open_checkpoint(path)
    description = describe(checkpoint)
    preprocessing = preprocessing or _preprocessing(config, description, release)
    model, pending = build_deferred(
        lambda: VisionTransformer(_follow(config, description), preprocessing=preprocessing, labels=labels, name=name)
    )
    plan = make_plan(model, checkpoint)
    order = [id(variable) for variable in pending if id(variable) in plan.values]
    initialise(pending, read_ahead(plan.values, order))
    report = plan.report
    if labels is None and plan.head_loaded:
        model.labels, note = _labels(config, description, release)
        report = dataclasses.replace(report, notes=report.notes + note)
    print(report)
    return model


def _check_arguments(variant, arguments):
    known = list(_signature().parameters)
    for name in arguments:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise TypeError(
                f"{constructor_name(variant)} got an unexpected keyword argument {name!r}{hint}; "
                f"the arguments are {', '.join(known)}"
            )


@functools.cache
def _signature():
    """The signature of every constructor: what `create_model` takes and the fields of `ViTConfig` with a default."""
    parameters = list(inspect.signature(create_model).parameters.values())[1:-1]
    fields = [field for field in dataclasses.fields(ViTConfig) if field.default is not dataclasses.MISSING]
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters += [inspect.Parameter(field.name, keyword, default=field.default) for field in fields]
    return inspect.Signature(parameters, return_annotation=VisionTransformer)


def _follow(config, description):
    """Takes from the weights what the arguments leave open."""
    changes = {
        "gelu": config.gelu or description.gelu,
        "epsilon": config.epsilon or description.epsilon,
    }
    # A head that read pre_logits is only right behind them; a new head does without, as the paper's fine-tuning.
    if config.representation_size is None and config.include_top and config.classes == description.classes:
        changes["representation_size"] = description.representation_size
    return config.replace(**changes)


def _preprocessing(config, description, release):
    known = description.preprocessing or (release.preprocessing if release else None)
    return known.at(config.image_size) if known and known.channels == config.channels else None


def _labels(config, description, release):
    """The labels of a loaded head and a note where they are assumed."""
    if description.labels is not None and len(description.labels) == config.classes:
        return description.labels, ()
    if release is not None:
        return release.labels, ()
    imagenet = label_sets.label_set("imagenet2012")
    if description.layout != "keras" and config.classes == len(imagenet):
        return imagenet, ("1000 classes: the labels are taken to be ImageNet-2012's",)
    return None, ()


def _constructor(variant):
    """The function that builds one variant, with a signature and docstring of its own for `help()` and completion."""

    def construct(**arguments):
        return create_model(variant.name, **arguments)

    construct.__name__ = construct.__qualname__ = constructor_name(variant.name)
    construct.__signature__ = _signature()
    width, layers, heads = (variant.architecture[key] for key in ("hidden_dim", "num_layers", "num_heads"))
    construct.__doc__ = (
        f"Builds {variant.name}: width {width}, {layers} layers, {heads} heads ({variant.source}).\n\n"
        f"Published weights: {', '.join(_aliases(variant.name)) or 'none'}; `keras_vit.list_weights({variant.name!r})` "
        f"lists the files.\n\nArgs:\n{_argument_docs()}\n\nReturns:\n    A `keras_vit.VisionTransformer`.\n"
    )
    return construct


@functools.cache
def _argument_docs():
    """What the docstrings of `create_model` and `ViTConfig` say of each argument of a constructor."""
    docs = {}
    for documented in (ViTConfig, create_model):
        # `python -OO` has no docstrings
        arguments = (inspect.getdoc(documented) or "").partition("Args:\n")[2].partition("\n\n")[0]
        for entry in re.split(r"\n(?=    [\w*])", arguments):
            docs[entry.split(":")[0].strip()] = entry
    return "\n".join(docs.get(name, f"    {name}") for name in _signature().parameters)


def constructor_name(variant):
    """Folds a variant's name to that of its constructor: `"R50+ViT-B_16"` -> `"R50_ViT_B16"`."""
    return variant.replace("_", "").replace("-", "_").replace("+", "_")


CONSTRUCTORS = {constructor_name(name): _constructor(variant) for name, variant in VARIANTS.items()}
