"""The layers a Vision Transformer is made of, one per file, from the picture to the pooled features."""

from keras_vit.layers.class_token import ClassToken
from keras_vit.layers.drop_path import DropPath
from keras_vit.layers.layer_scale import LayerScale
from keras_vit.layers.mlp import MlpBlock
from keras_vit.layers.patch_encoder import PatchEncoder
from keras_vit.layers.pooling import GlobalAveragePooling, MapPooling, TokenPooling
from keras_vit.layers.position_embs import AddPositionEmbs
from keras_vit.layers.self_attention import MultiHeadSelfAttention
from keras_vit.layers.transformer_block import TransformerBlock

__all__ = [
    "AddPositionEmbs",
    "ClassToken",
    "DropPath",
    "GlobalAveragePooling",
    "LayerScale",
    "MapPooling",
    "MlpBlock",
    "MultiHeadSelfAttention",
    "PatchEncoder",
    "TokenPooling",
    "TransformerBlock",
]
