"""Configs of models and of their preprocessing: frozen, validated dataclasses that convert to and from plain dicts."""

from keras_vit.config.base import Config, ImageConfig
from keras_vit.config.parts import BlockConfig, DecoderConfig, EmbeddingConfig, HeadConfig, RotaryConfig, WindowConfig
from keras_vit.config.preprocessing import Preprocessing
from keras_vit.config.resnet import AxialResNetConfig, BiTConfig, FeatureMapConfig, ResNetConfig
from keras_vit.config.swin import SwinConfig
from keras_vit.config.vit import UNPOOLED, ViTConfig

__all__ = [
    "UNPOOLED",
    "AxialResNetConfig",
    "BiTConfig",
    "BlockConfig",
    "Config",
    "DecoderConfig",
    "EmbeddingConfig",
    "FeatureMapConfig",
    "HeadConfig",
    "ImageConfig",
    "Preprocessing",
    "ResNetConfig",
    "RotaryConfig",
    "SwinConfig",
    "ViTConfig",
    "WindowConfig",
]
