"""The layers that the models consist of, from the image to the pooled features."""

from keras_vit.layers.axial_block import AxialTransformerBlock
from keras_vit.layers.axial_resnet import AxialAttention, AxialBottleneck, AxialStage
from keras_vit.layers.bottleneck import BottleneckUnit, PreActivationUnit, ResNetStage, StdConv2D
from keras_vit.layers.differential_attention import DifferentialSelfAttention
from keras_vit.layers.embedding import AddPositionEmbs, ClassToken, PatchEncoder
from keras_vit.layers.feature_pyramid import FeaturePyramid
from keras_vit.layers.grid_attention import GridSelfAttention
from keras_vit.layers.neck import Neck
from keras_vit.layers.patch_dropout import PatchDropout
from keras_vit.layers.pooling import AttentionPooling, GlobalAveragePooling, TokenAndAveragePooling, TokenPooling
from keras_vit.layers.projection_head import ProjectionHead
from keras_vit.layers.self_attention import MultiHeadSelfAttention
from keras_vit.layers.swin_block import PatchMerging, SwinBlock, WindowAttention
from keras_vit.layers.transformer_block import DropPath, LayerScale, MlpBlock, TransformerBlock

__all__ = [
    "AddPositionEmbs",
    "AxialAttention",
    "AxialBottleneck",
    "AxialStage",
    "AxialTransformerBlock",
    "BottleneckUnit",
    "ClassToken",
    "DifferentialSelfAttention",
    "DropPath",
    "FeaturePyramid",
    "GlobalAveragePooling",
    "GridSelfAttention",
    "LayerScale",
    "AttentionPooling",
    "MlpBlock",
    "MultiHeadSelfAttention",
    "Neck",
    "PatchDropout",
    "PatchEncoder",
    "PatchMerging",
    "PreActivationUnit",
    "ProjectionHead",
    "ResNetStage",
    "StdConv2D",
    "SwinBlock",
    "TokenAndAveragePooling",
    "TokenPooling",
    "TransformerBlock",
    "WindowAttention",
]
