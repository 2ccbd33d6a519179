"""Vision Transformers for Keras and TensorFlow.

The core (configs, layers, models, checkpoints, zoo) is here on import, so that `keras.models.load_model` finds it. The
rooms above it (`data`, `analysis`, `evaluation`, `training`, `serving`, `demo`) open on first touch.
"""

import importlib
import sys

try:
    import keras
except ModuleNotFoundError as error:  # it names no more than the module of the backend
    raise ModuleNotFoundError(
        f"keras_vit needs the backend of Keras, and {error.name} is not installed: "
        "pip install tensorflow, or pip install jax and KERAS_BACKEND=jax",
        name=error.name,
    ) from error
else:  # before anything that another version may have moved is imported
    from keras_vit import versions as _versions

    _versions.check_version("keras", keras.__version__)
    if keras.backend.backend() == "tensorflow":
        _versions.check_version("tensorflow", sys.modules["tensorflow"].__version__)

from keras_vit import logs as _logs
from keras_vit.checkpoints.load import load_weights
from keras_vit.checkpoints.match import LoadReport
from keras_vit.checkpoints.save import save_weights
from keras_vit.config import AxialResNetConfig, BiTConfig, Preprocessing, ResNetConfig, SwinConfig, ViTConfig
from keras_vit.layers import *  # noqa: F403 - its __all__ are the public layers
from keras_vit.layers import __all__ as _layers
from keras_vit.layers.position_grid import resize_position_embedding
from keras_vit.models import (
    AxialResNet,
    BiTResNet,
    Distiller,
    MaskedPatchPrediction,
    Model,
    SwinTransformer,
    VisionTransformer,
    clone,
    feature_extractor,
    freeze,
    resize,
)
from keras_vit.zoo import CONSTRUCTORS as _CONSTRUCTORS
from keras_vit.zoo import create_model, list_models, list_weights

globals().update(_CONSTRUCTORS)
_logs.set_up()

__version__ = "0.1.0"

# name -> module that is imported when the name is first used
_ON_FIRST_TOUCH = {
    "analysis": "keras_vit.analysis",
    "data": "keras_vit.data",
    "demo": "keras_vit.demo",
    "distribution": "keras_vit.training.distribution",
    "evaluation": "keras_vit.evaluation",
    "evaluate": "keras_vit.evaluation",
    "export": "keras_vit.serving",
    "predict": "keras_vit.evaluation",
    "preprocess": "keras_vit.data.images",
    "serving": "keras_vit.serving",
    "train": "keras_vit.training",
    "training": "keras_vit.training",
}

__all__ = [
    "AxialResNet",
    "AxialResNetConfig",
    "BiTConfig",
    "BiTResNet",
    "Distiller",
    "LoadReport",
    "MaskedPatchPrediction",
    "Model",
    "Preprocessing",
    "ResNetConfig",
    "SwinConfig",
    "SwinTransformer",
    "ViTConfig",
    "VisionTransformer",
    "clone",
    "create_model",
    "feature_extractor",
    "freeze",
    "list_models",
    "list_weights",
    "load_weights",
    "resize",
    "resize_position_embedding",
    "save_weights",
]
__all__ += list(_layers) + list(_CONSTRUCTORS) + list(_ON_FIRST_TOUCH)


def __getattr__(name):
    if name not in _ON_FIRST_TOUCH:
        # with its name and this module, Python adds what may have been meant
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    module = importlib.import_module(_ON_FIRST_TOUCH[name])
    value = module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
