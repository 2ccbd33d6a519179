"""Public names of `keras_vit` for type checkers; docs/generate/stub.py writes this file."""

from collections.abc import Sequence
from os import PathLike
from typing import Literal, Protocol

from keras_vit import analysis as analysis
from keras_vit import checkpoints as checkpoints
from keras_vit import config as config
from keras_vit import data as data
from keras_vit import demo as demo
from keras_vit import evaluation as evaluation
from keras_vit import layers as layers
from keras_vit import models as models
from keras_vit import serving as serving
from keras_vit import tasks as tasks
from keras_vit import training as training
from keras_vit import zoo as zoo
from keras_vit.autoencoders import load_masked_autoencoder as load_masked_autoencoder
from keras_vit.checkpoints.description import Description as Description
from keras_vit.checkpoints.head_files import load_heads as load_heads
from keras_vit.checkpoints.load import load_weights as load_weights
from keras_vit.checkpoints.match import LoadReport as LoadReport
from keras_vit.checkpoints.save import save_weights as save_weights
from keras_vit.config import AxialResNetConfig as AxialResNetConfig
from keras_vit.config import BiTConfig as BiTConfig
from keras_vit.config import BlockConfig as BlockConfig
from keras_vit.config import DecoderConfig as DecoderConfig
from keras_vit.config import EmbeddingConfig as EmbeddingConfig
from keras_vit.config import HeadConfig as HeadConfig
from keras_vit.config import Preprocessing as Preprocessing
from keras_vit.config import ResNetConfig as ResNetConfig
from keras_vit.config import RotaryConfig as RotaryConfig
from keras_vit.config import SwinConfig as SwinConfig
from keras_vit.config import ViTConfig as ViTConfig
from keras_vit.config import WindowConfig as WindowConfig
from keras_vit.data.images import preprocess as preprocess
from keras_vit.evaluation import evaluate as evaluate
from keras_vit.evaluation import predict as predict
from keras_vit.explanation import Explanation as Explanation
from keras_vit.explanation import explain as explain
from keras_vit.layers import *  # noqa: F403 - its __all__ lists the public layers
from keras_vit.layers.position_grid import resize_position_embedding as resize_position_embedding
from keras_vit.models import DPT as DPT
from keras_vit.models import OWL as OWL
from keras_vit.models import SAM as SAM
from keras_vit.models import YOLOS as YOLOS
from keras_vit.models import AxialResNet as AxialResNet
from keras_vit.models import BiTResNet as BiTResNet
from keras_vit.models import CLIPSeg as CLIPSeg
from keras_vit.models import Distiller as Distiller
from keras_vit.models import DPTSegmentation as DPTSegmentation
from keras_vit.models import EoMT as EoMT
from keras_vit.models import EoMTTraining as EoMTTraining
from keras_vit.models import LinearSegmentation as LinearSegmentation
from keras_vit.models import LoraReport as LoraReport
from keras_vit.models import MaskedAutoencoder as MaskedAutoencoder
from keras_vit.models import MaskedPatchPrediction as MaskedPatchPrediction
from keras_vit.models import Model as Model
from keras_vit.models import SelfDistillation as SelfDistillation
from keras_vit.models import SwinTransformer as SwinTransformer
from keras_vit.models import TaskModel as TaskModel
from keras_vit.models import VisionTransformer as VisionTransformer
from keras_vit.models import ViTPose as ViTPose
from keras_vit.models import add_lora as add_lora
from keras_vit.models import clone as clone
from keras_vit.models import feature_extractor as feature_extractor
from keras_vit.models import freeze as freeze
from keras_vit.models import merge_lora as merge_lora
from keras_vit.models import resize as resize
from keras_vit.serving import export as export
from keras_vit.training import train as train
from keras_vit.training.distribution import distribution as distribution
from keras_vit.zeroshot import TextEncoder as TextEncoder
from keras_vit.zeroshot import zero_shot as zero_shot
from keras_vit.zoo import create_model as create_model
from keras_vit.zoo import describe as describe
from keras_vit.zoo import list_models as list_models
from keras_vit.zoo import list_weights as list_weights
from keras_vit.zoo import load as load

__version__: str

class _ViT_Ti16(Protocol):
    def __call__(
        self,
        *,
        weights: str | PathLike[str] | None = None,
        preprocessing: Preprocessing | None = None,
        labels: Sequence[str] | None = None,
        name: str | None = None,
        image_size: int | tuple[int, int] | list[int] | Literal["any", "native"] = 224,
        classes: int = 1000,
        include_top: bool = True,
        classifier_activation: str | None = None,
        channels: int = 3,
        dtype: str | None = None,
        include_preprocessing: bool = False,
        pooling: str = "token",
        class_token: bool | None = None,
        norm_position: str = "before_pooling",
        representation_size: int | None = None,
        position_embedding: str = "learned",
        position_placement: str = "stem",
        dropout_rate: float = 0.0,
        attention_dropout_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        layer_scale_init: float | None = None,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        num_registers: int = 0,
        gelu: str | None = None,
        epsilon: float | None = None,
        remat: str | None = None,
        scan_layers: bool = False,
        token_merging: int = 0,
        distilled: bool = False,
    ) -> VisionTransformer:
        """Build the model; see `help(keras_vit.ViT_Ti16)`."""

class _AxialViT_B16(Protocol):
    def __call__(
        self,
        *,
        weights: str | PathLike[str] | None = None,
        preprocessing: Preprocessing | None = None,
        labels: Sequence[str] | None = None,
        name: str | None = None,
        image_size: int | tuple[int, int] | list[int] | Literal["any", "native"] = 224,
        classes: int = 1000,
        include_top: bool = True,
        classifier_activation: str | None = None,
        channels: int = 3,
        dtype: str | None = None,
        include_preprocessing: bool = False,
        pooling: str = "gap",
        class_token: bool | None = None,
        norm_position: str = "before_pooling",
        representation_size: int | None = None,
        position_embedding: str = "learned",
        position_placement: str = "stem",
        dropout_rate: float = 0.0,
        attention_dropout_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        layer_scale_init: float | None = None,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        num_registers: int = 0,
        gelu: str | None = None,
        epsilon: float | None = None,
        remat: str | None = None,
        scan_layers: bool = False,
        token_merging: int = 0,
        distilled: bool = False,
    ) -> VisionTransformer:
        """Build the model; see `help(keras_vit.AxialViT_B16)`."""

class _AxialResNet_50(Protocol):
    def __call__(
        self,
        *,
        weights: str | PathLike[str] | None = None,
        preprocessing: Preprocessing | None = None,
        labels: Sequence[str] | None = None,
        name: str | None = None,
        image_size: int | tuple[int, int] | list[int] | Literal["any", "native"] = 224,
        classes: int = 1000,
        include_top: bool = True,
        classifier_activation: str | None = None,
        channels: int = 3,
        dtype: str | None = None,
        include_preprocessing: bool = False,
        width_factor: float = 1.0,
        num_heads: int = 8,
        epsilon: float = 1e-05,
    ) -> AxialResNet:
        """Build the model; see `help(keras_vit.AxialResNet_50)`."""

class _Swin_T(Protocol):
    def __call__(
        self,
        *,
        weights: str | PathLike[str] | None = None,
        preprocessing: Preprocessing | None = None,
        labels: Sequence[str] | None = None,
        name: str | None = None,
        image_size: int | tuple[int, int] | list[int] | Literal["any", "native"] = 224,
        classes: int = 1000,
        include_top: bool = True,
        classifier_activation: str | None = None,
        channels: int = 3,
        dtype: str | None = None,
        include_preprocessing: bool = False,
        patch_size: int | tuple[int, int] | list[int] = (4, 4),
        window_size: int | Sequence[int] = 7,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        dropout_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        gelu: str = "erf",
        epsilon: float = 1e-05,
    ) -> SwinTransformer:
        """Build the model; see `help(keras_vit.Swin_T)`."""

class _BiT_R50x1(Protocol):
    def __call__(
        self,
        *,
        weights: str | PathLike[str] | None = None,
        preprocessing: Preprocessing | None = None,
        labels: Sequence[str] | None = None,
        name: str | None = None,
        image_size: int | tuple[int, int] | list[int] | Literal["any", "native"] = 224,
        classes: int = 1000,
        include_top: bool = True,
        classifier_activation: str | None = None,
        channels: int = 3,
        dtype: str | None = None,
        include_preprocessing: bool = False,
        gn_epsilon: float = 1e-05,
        std_epsilon: float = 1e-10,
        max_pool_padding: str = "zeros",
    ) -> BiTResNet:
        """Build the model; see `help(keras_vit.BiT_R50x1)`."""

class _DINO_S16(Protocol):
    def __call__(
        self,
        *,
        weights: str | PathLike[str] | None = ...,
        preprocessing: Preprocessing | None = ...,
        labels: Sequence[str] | None = ...,
        name: str | None = ...,
        image_size: int | tuple[int, int] | list[int] | Literal["any", "native"] = ...,
        classes: int = ...,
        include_top: bool = ...,
        classifier_activation: str | None = ...,
        channels: int = ...,
        dtype: str | None = ...,
        include_preprocessing: bool = ...,
        pooling: str = ...,
        class_token: bool | None = ...,
        norm_position: str = ...,
        representation_size: int | None = ...,
        position_embedding: str = ...,
        dropout_rate: float = ...,
        attention_dropout_rate: float = ...,
        drop_path_rate: float = ...,
        qkv_bias: bool = ...,
        gelu: str | None = ...,
        epsilon: float | None = ...,
        remat: str | None = ...,
        scan_layers: bool = ...,
        token_merging: int = ...,
    ) -> VisionTransformer:
        """Build the model; see `help(keras_vit.DINO_S16)`."""

ViT_Ti16: _ViT_Ti16
ViT_S16: _ViT_Ti16
ViT_S32: _ViT_Ti16
ViT_B8: _ViT_Ti16
ViT_B16: _ViT_Ti16
ViT_B32: _ViT_Ti16
ViT_L16: _ViT_Ti16
ViT_L32: _ViT_Ti16
ViT_H14: _ViT_Ti16
ViT_g14: _ViT_Ti16
ViT_G14: _ViT_Ti16
R_ViT_Ti16: _ViT_Ti16
R26_ViT_S32: _ViT_Ti16
R26_ViT_B32: _ViT_Ti16
R50_ViT_B16: _ViT_Ti16
R50_ViT_B32: _ViT_Ti16
R50_ViT_L16: _ViT_Ti16
R50_ViT_L32: _ViT_Ti16
AxialViT_B16: _AxialViT_B16
AxialViT_B32: _AxialViT_B16
AxialResNet_50: _AxialResNet_50
DeiT_Ti16: _ViT_Ti16
DeiT_S16: _ViT_Ti16
DeiT_B16: _ViT_Ti16
Swin_T: _Swin_T
Swin_S: _Swin_T
Swin_B: _Swin_T
Swin_L: _Swin_T
BiT_R50x1: _BiT_R50x1
BiT_R50x3: _BiT_R50x1
BiT_R101x1: _BiT_R50x1
BiT_R101x3: _BiT_R50x1
BiT_R152x2: _BiT_R50x1
BiT_R152x4: _BiT_R50x1
DINO_S16: _DINO_S16
DINO_S8: _DINO_S16
DINO_B16: _DINO_S16
DINO_B8: _DINO_S16
DINOv2_S14: _DINO_S16
DINOv2_B14: _DINO_S16
DINOv2_L14: _DINO_S16
DINOv2_g14: _DINO_S16
DINOv2_S14_reg4: _DINO_S16
DINOv2_B14_reg4: _DINO_S16
DINOv2_L14_reg4: _DINO_S16
DINOv2_g14_reg4: _DINO_S16
DINOv3_S16: _DINO_S16
DINOv3_Splus16: _DINO_S16
DINOv3_B16: _DINO_S16
DINOv3_L16: _DINO_S16
DINOv3_Hplus16: _DINO_S16
DINOv3_7B16: _DINO_S16
SigLIP_B16: _DINO_S16
SigLIP_L16: _DINO_S16
SigLIP_So400m14: _DINO_S16
SigLIP_So400m16: _DINO_S16
SigLIP2_B16: _DINO_S16
SigLIP2_B32: _DINO_S16
SigLIP2_L16: _DINO_S16
SigLIP2_So400m14: _DINO_S16
SigLIP2_So400m16: _DINO_S16
SigLIP2_g16: _DINO_S16
SigLIP2_B16_NaFlex: _DINO_S16
SigLIP2_So400m16_NaFlex: _DINO_S16
FlexiViT_S: _DINO_S16
FlexiViT_B: _DINO_S16
FlexiViT_L: _DINO_S16
NaFlexViT_B16_gap: _DINO_S16
NaFlexViT_B16_par_gap: _DINO_S16
NaFlexViT_B16_parfac_gap: _DINO_S16
CLIP_B32: _DINO_S16
CLIP_B16: _DINO_S16
CLIP_L14: _DINO_S16
OpenCLIP_B32: _DINO_S16
OpenCLIP_B16: _DINO_S16
OpenCLIP_B16_plus: _DINO_S16
OpenCLIP_L14: _DINO_S16
OpenCLIP_H14: _DINO_S16
OpenCLIP_g14: _DINO_S16
OpenCLIP_bigG14: _DINO_S16
MetaCLIP_B32: _DINO_S16
MetaCLIP_B16: _DINO_S16
MetaCLIP_L14: _DINO_S16
MetaCLIP_H14: _DINO_S16
DFN_B16: _DINO_S16
DFN_L14: _DINO_S16
DFN_H14: _DINO_S16
CLIPA_L14: _DINO_S16
CLIPA_H14: _DINO_S16
CLIPA_bigG14: _DINO_S16
EVA_g14: _DINO_S16
EVA02_Ti14: _DINO_S16
EVA02_S14: _DINO_S16
EVA02_B14: _DINO_S16
EVA02_L14: _DINO_S16
EVA02_CLIP_B16: _DINO_S16
EVA02_CLIP_L14: _DINO_S16
EVA02_CLIP_E14: _DINO_S16
MAE_B16: _DINO_S16
MAE_L16: _DINO_S16
MAE_H14: _DINO_S16
BEiT_B16: _DINO_S16
BEiT_L16: _DINO_S16
BEiTv2_B16: _DINO_S16
BEiTv2_L16: _DINO_S16
DeiT3_S16: _DINO_S16
DeiT3_M16: _DINO_S16
DeiT3_B16: _DINO_S16
DeiT3_L16: _DINO_S16
DeiT3_H14: _DINO_S16
AIMv2_L14: _DINO_S16
AIMv2_H14: _DINO_S16
AIMv2_1B14: _DINO_S16
AIMv2_3B14: _DINO_S16
PE_core_T16: _DINO_S16
PE_core_S16: _DINO_S16
PE_core_B16: _DINO_S16
PE_core_L14: _DINO_S16
PE_core_G14: _DINO_S16
PE_lang_L14: _DINO_S16
PE_lang_G14: _DINO_S16
PE_spatial_T16: _DINO_S16
PE_spatial_S16: _DINO_S16
PE_spatial_B16: _DINO_S16
PE_spatial_L14: _DINO_S16
PE_spatial_G14: _DINO_S16
TIPS_S14: _DINO_S16
TIPS_B14: _DINO_S16
TIPS_L14: _DINO_S16
TIPS_So400m14: _DINO_S16
TIPS_g14: _DINO_S16
TIPSv2_B14: _DINO_S16
TIPSv2_L14: _DINO_S16
TIPSv2_So400m14: _DINO_S16
TIPSv2_g14: _DINO_S16
IJEPA_H14: _DINO_S16
IJEPA_H16: _DINO_S16
IJEPA_g16: _DINO_S16
SAM_B16: _DINO_S16
SAM_L16: _DINO_S16
SAM_H16: _DINO_S16
ViT_wee16_reg1: _DINO_S16
ViT_little16_reg1: _DINO_S16
ViT_little16_reg4: _DINO_S16
ViT_medium16_reg1: _DINO_S16
ViT_medium16_reg4: _DINO_S16
ViT_mediumd16_reg4: _DINO_S16
ViT_betwixt16_reg1: _DINO_S16
ViT_betwixt16_reg4: _DINO_S16
ViT_so150m16_reg4: _DINO_S16
ViT_22B14: _DINO_S16
