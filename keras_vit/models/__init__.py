"""The models: layers combined into functional Keras models."""

from typing import Any

from keras_vit.config import ImageConfig
from keras_vit.models.base import ImageModel, Model
from keras_vit.models.clipseg import CLIPSeg
from keras_vit.models.copies import check_not_quantized, clone, merge_lora
from keras_vit.models.derived import (
    check_pools,
    feature_extractor,
    resize,
    with_dtype,
    with_head,
)
from keras_vit.models.distillation import Distiller
from keras_vit.models.dpt import DPT, DPTSegmentation
from keras_vit.models.eomt import EoMT
from keras_vit.models.eomt_training import EoMTTraining
from keras_vit.models.layer_states import freeze
from keras_vit.models.linear_segmentation import LinearSegmentation
from keras_vit.models.lora import LoraReport, add_lora
from keras_vit.models.masked_autoencoder import MaskedAutoencoder
from keras_vit.models.masked_images import Reconstruction
from keras_vit.models.masked_patches import MaskedPatchPrediction
from keras_vit.models.owl import OWL
from keras_vit.models.resnet import AxialResNet, BiTResNet
from keras_vit.models.sam import SAM
from keras_vit.models.self_distillation import SelfDistillation
from keras_vit.models.swin import SwinTransformer
from keras_vit.models.task_model import TaskModel
from keras_vit.models.vit import VisionTransformer
from keras_vit.models.vitpose import ViTPose
from keras_vit.models.yolos import YOLOS

# class of a config -> class of its model
MODELS: dict[type[ImageConfig], type[ImageModel]] = {
    model.config_class: model for model in (VisionTransformer, SwinTransformer, BiTResNet, AxialResNet)
}


def build_model(config: ImageConfig, **about: Any) -> ImageModel:
    """Build the model of a config, with random weights.

    Args:
        config: a config of one of the classes in `MODELS`.
        **about: further arguments of the model's constructor, such as `labels`.

    Returns:
        A `VisionTransformer`, `SwinTransformer`, `BiTResNet` or `AxialResNet`.
    """
    return MODELS[type(config)](config, **about)
