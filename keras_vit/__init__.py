"""Vision Transformers for Keras and TensorFlow.

The core (configs, layers, models, checkpoints, zoo) is imported at once, so that `keras.models.load_model` finds its
classes. The other packages (`data`, `tasks`, `analysis` and so on) are imported on first use.
"""

# ruff: noqa: F401, F403 - the imported names are public

import importlib
import sys

try:
    import keras
except ModuleNotFoundError as error:  # this error names only the missing module
    raise ModuleNotFoundError(
        f"keras_vit needs the backend of Keras, and {error.name} is not installed: "
        "pip install tensorflow, or pip install jax and KERAS_BACKEND=jax",
        name=error.name,
    ) from error
else:  # checked first, because the imports below can fail with another version
    from keras_vit import versions as _versions

    _versions.check_version("keras", keras.__version__)
    if keras.backend.backend() == "tensorflow":
        _versions.check_version("tensorflow", sys.modules["tensorflow"].__version__)

from keras_vit import checks as _checks
from keras_vit import logs as _logs
from keras_vit import words as _words
from keras_vit.autoencoders import load_masked_autoencoder
from keras_vit.checkpoints.description import Description
from keras_vit.checkpoints.head_files import load_heads
from keras_vit.checkpoints.load import load_weights
from keras_vit.checkpoints.match import LoadReport
from keras_vit.checkpoints.save import save_weights
from keras_vit.config import (
    AxialResNetConfig,
    BiTConfig,
    BlockConfig,
    DecoderConfig,
    EmbeddingConfig,
    HeadConfig,
    Preprocessing,
    ResNetConfig,
    RotaryConfig,
    SwinConfig,
    ViTConfig,
    WindowConfig,
)
from keras_vit.layers import *
from keras_vit.layers.position_grid import resize_position_embedding
from keras_vit.models import (
    DPT,
    OWL,
    SAM,
    YOLOS,
    AxialResNet,
    BiTResNet,
    CLIPSeg,
    Distiller,
    DPTSegmentation,
    EoMT,
    EoMTTraining,
    LinearSegmentation,
    LoraReport,
    MaskedAutoencoder,
    MaskedPatchPrediction,
    Model,
    SelfDistillation,
    SwinTransformer,
    TaskModel,
    VisionTransformer,
    ViTPose,
    add_lora,
    clone,
    feature_extractor,
    freeze,
    merge_lora,
    resize,
)
from keras_vit.zeroshot import TextEncoder, zero_shot
from keras_vit.zoo import CONSTRUCTORS as _CONSTRUCTORS
from keras_vit.zoo import constructor as _constructor
from keras_vit.zoo import create_model, describe, list_models, list_weights, load

_logs.set_up()

__version__ = "0.1.0"

# packages and names that are imported on first use; a name -> its module
_PACKAGES = ("analysis", "data", "demo", "evaluation", "serving", "tasks", "training")
_FUNCTIONS = {
    "Explanation": "keras_vit.explanation",
    "distribution": "keras_vit.training.distribution",
    "evaluate": "keras_vit.evaluation",
    "explain": "keras_vit.explanation",
    "export": "keras_vit.serving",
    "predict": "keras_vit.evaluation",
    "preprocess": "keras_vit.data.images",
    "train": "keras_vit.training",
}

# the classes and functions imported above, the constructors, and the names that are imported on first use
__all__ = [name for name, value in globals().items() if callable(value) and not name.startswith("_")]
__all__.extend((*_CONSTRUCTORS, *_PACKAGES, *_FUNCTIONS))


def __getattr__(name):
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")  # the import also makes it an attribute of this module
    if name in _CONSTRUCTORS:
        return globals().setdefault(name, _constructor(name))
    if name in _FUNCTIONS:
        return globals().setdefault(name, getattr(importlib.import_module(_FUNCTIONS[name]), name))
    # Python would suggest similar names, too, but `ViT_B16` for `ViT_T16`
    answer = _words.answer("name", name) or _checks.suggestion(name, __all__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{answer}")


def __dir__():
    return sorted({*globals(), *__all__})
