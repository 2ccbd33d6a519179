"""The smallest sizes of each family, at a small image: what tests/test_families.py runs through."""

import dataclasses
import functools

import keras
import numpy as np

from keras_vit import (
    AxialResNetConfig,
    BiTConfig,
    BlockConfig,
    EmbeddingConfig,
    HeadConfig,
    ResNetConfig,
    RotaryConfig,
    SwinConfig,
    VisionTransformer,
    ViTConfig,
    WindowConfig,
)
from keras_vit.models import build_model

CLASSES = 5
_VIT = {"image_size": 32, "patch_size": 8, "hidden_dim": 48, "num_layers": 2, "num_heads": 3, "mlp_dim": 64}
_SWIN = {"patch_size": 2, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4}
_TOKENS = {"patch_encoder": (4, 4, 48), "block_00": (4, 4, 48), "block_01": (4, 4, 48), "encoder_norm": (4, 4, 48)}
_ROOT = {"root_conv": (16, 16, 32), "root_norm": (16, 16, 32), "root_pool": (8, 8, 32)}
_PATCHES = "must be at least patch_size"


def tiny_cnn():
    """A CNN of a user, for images of any size."""
    inputs = keras.Input((None, None, 3))
    x = keras.layers.Conv2D(8, 3, 2, "same", name="conv")(inputs)
    x = keras.layers.ReLU(name="relu")(keras.layers.BatchNormalization(name="norm")(x))
    return keras.Model(inputs, keras.layers.Conv2D(12, 3, 2, "same", name="maps")(x), name="cnn")


def resnet50():
    """The CNN of Keras that a hybrid can stand on; a map of 1 x 1 for images of 32."""
    return keras.applications.ResNet50(weights=None, include_top=False)


@dataclasses.dataclass(frozen=True)
class Family:
    """One family.

    Attributes:
        config: of a tiny model.
        maps: name of a layer -> (rows, columns, dim) of its map at the config's image size.
        lora: the dense projections that get LoRA, by name; none in a BiT, which has convolutions only.
        refused: changes to the config that it refuses, with a part of what it says.
        rectangle: a size that is not square.
        stem: function that makes the stem of the user, or None.
    """

    config: object
    maps: dict
    refused: tuple = ()
    lora: tuple = ("qkv", "proj", "dense1", "dense2")
    rectangle: tuple = (24, 48)
    stem: object = None

    def build(self, **changes):
        """A model of random weights, none of them zero: zero heads would hide the rest."""
        config = self.config.replace(**changes)
        model = VisionTransformer(config, stem=self.stem()) if self.stem else build_model(config)
        rng = np.random.default_rng(3)
        for weight in model.trainable_weights:
            values = keras.ops.convert_to_numpy(weight)
            weight.assign(values + 0.1 * rng.normal(size=values.shape))
        return model


def _vit(**changes):
    return ViTConfig(name="tiny", classes=CLASSES, **{**_VIT, **changes})


FAMILIES = {
    "plain": Family(
        _vit(),
        {**_TOKENS, "class_token": (4, 4, 48), "position_embs": (4, 4, 48)},
        (({"image_size": (32, 6)}, _PATCHES),),
    ),
    "registers": Family(
        _vit(num_registers=3, qk_norm=True, position_embedding="learned_2d", position_placement="every", pooling="map"),
        {**_TOKENS, "class_token": (4, 4, 48), "position_embs_01": (4, 4, 48)},
        (({"pooling": "first"}, "num_registers must be 0"),),
    ),
    "merging": Family(
        _vit(token_merging=5),
        {**_TOKENS, "unmerging": (4, 4, 48), "position_embs": (4, 4, 48)},
        (({"position_placement": "every"}, "position_placement must be 'stem'"),),
    ),
    "hybrid": Family(
        _vit(patch_size=1, stem=ResNetConfig(stage_sizes=(1, 1), width_factor=0.5)),
        {**_ROOT, **_TOKENS, "stage_1": (8, 8, 128), "stage_2": (4, 4, 256)},
        (({"patch_size": 5}, _PATCHES),),
        rectangle=(19, 41),  # SAME padding takes any
    ),
    "hybrid on the root": Family(
        _vit(patch_size=2, stem=ResNetConfig(stage_sizes=(), width_factor=0.5)),
        {**_ROOT, **_TOKENS},
        (({"image_size": (32, 4)}, _PATCHES),),
    ),
    "hybrid on a CNN": Family(
        _vit(patch_size=2), {**_TOKENS, "cnn": (8, 8, 12)}, (({"image_size": (32, 4)}, _PATCHES),), stem=tiny_cnn
    ),
    "RoPE-Mixed": Family(
        _vit(block=BlockConfig(rotary=RotaryConfig(kind="mixed")), layer_scale_init=0.1),
        {**_TOKENS, "class_token": (4, 4, 48), "position_embs": (4, 4, 48)},
        (({"embedding": {"position_grid": (4, 4)}}, "of kind 'mixed' has other positions in each block"),),
    ),
    "axial": Family(
        _vit(attention="axial", pooling="gap"),
        _TOKENS,
        (
            ({"pooling": "token"}, "attention='axial' needs patch tokens alone, but pooling='token' adds"),
            ({"image_size": (7, 32)}, _PATCHES),
        ),
    ),
    "axial ResNet": Family(
        AxialResNetConfig(
            name="tiny", image_size=32, stage_sizes=(1, 1), width_factor=0.25, num_heads=2, classes=CLASSES
        ),
        {"root_conv": (16, 16, 16), "root_pool": (8, 8, 16), "stage_1": (8, 8, 64), "stage_2": (4, 4, 128)},
        (({"num_heads": 3}, "divisible by num_heads"),),
        lora=("qkv", "down", "up"),
        rectangle=(19, 41),
    ),
    "DeiT": Family(_vit(gelu="erf", epsilon=1e-6), _TOKENS, (({"image_size": 7}, _PATCHES),)),
    "DeiT distilled": Family(
        _vit(gelu="erf", distilled=True),
        {**_TOKENS, "class_token": (4, 4, 48), "position_embs": (4, 4, 48)},
        (({"pooling": "gap"}, "distilled needs a pooling that returns the class token"),),
    ),
    "DeiT-III": Family(_vit(gelu="erf", layer_scale_init=1e-4), _TOKENS, (({"image_size": (4, 32)}, _PATCHES),)),
    "DINOv2": Family(
        _vit(
            gelu="erf",
            layer_scale_init=0.1,
            num_registers=2,
            pooling="token_gap",
            head=HeadConfig(num_blocks=2),
            embedding=EmbeddingConfig(resize="bicubic_antialias"),
        ),
        {name: shape for name, shape in _TOKENS.items() if name != "encoder_norm"},
        (({"head": HeadConfig(num_blocks=3)}, "must be at most num_layers"),),
    ),
    "DINOv3": Family(
        _vit(
            gelu="erf",
            epsilon=1e-5,
            layer_scale_init=0.1,
            num_registers=4,
            position_embedding="none",
            block=BlockConfig(rotary=RotaryConfig(kind="dinov3"), gated=True, key_bias=False),
        ),
        _TOKENS,
        (({"num_heads": 8}, "hidden_dim / num_heads divisible by 4"),),
    ),
    "CLIP": Family(
        _vit(
            gelu="quick",
            embedding=EmbeddingConfig(patch_bias=False, pre_norm=True, resize="bicubic"),
            head=HeadConfig(bias=False),
        ),
        {**_TOKENS, "pre_norm": (4, 4, 48)},
        (({"image_size": 7}, _PATCHES),),
    ),
    "SigLIP": Family(_vit(pooling="map"), _TOKENS, (({"image_size": 7}, _PATCHES),)),
    "EVA-02": Family(
        _vit(
            pooling="gap",
            class_token=True,
            norm_position="after_pooling",
            block=BlockConfig(
                rotary=RotaryConfig(kind="eva02", reference_grid=16),
                gated=True,
                key_bias=False,
                mlp_norm=True,
                attention_norm=True,
            ),
        ),
        {name: shape for name, shape in _TOKENS.items() if name != "encoder_norm"},
        (({"token_merging": 2}, "block.rotary needs a token for each place of the patch grid"),),
    ),
    "BEiT": Family(
        _vit(
            gelu="erf",
            layer_scale_init=0.1,
            position_embedding="relative_2d",
            position_placement="every",
            pooling="gap",
            class_token=True,
            norm_position="after_pooling",
            block=BlockConfig(key_bias=False),
        ),
        {name: shape for name, shape in _TOKENS.items() if name != "encoder_norm"},
        (({"position_placement": "stem"}, "needs positions in the blocks"),),
    ),
    "AIMv2": Family(
        _vit(
            pooling="aim",
            qkv_bias=False,
            block=BlockConfig(norm="rms", gated=True, bias=False),
            embedding=EmbeddingConfig(patch_norm=True),
        ),
        {**_TOKENS, "patch_norm": (4, 4, 48)},
        (({"image_size": 7}, _PATCHES),),
    ),
    "Perception Encoder": Family(
        _vit(
            pooling="map",
            class_token=True,
            block=BlockConfig(rotary=RotaryConfig(kind="pe")),
            embedding=EmbeddingConfig(patch_bias=False, pre_norm=True, resize="bilinear"),
            head=HeadConfig(map_heads=4, map_prefix=True, map_mlp_dim=96),
        ),
        {**_TOKENS, "pre_norm": (4, 4, 48)},
        (({"image_size": 7}, _PATCHES),),
    ),
    "SAM": Family(
        _vit(
            gelu="erf",
            pooling="gap",
            norm_position="none",
            window=WindowConfig(size=3, global_blocks=(1,)),
            head=HeadConfig(neck=16),
            embedding=EmbeddingConfig(resize="bicubic"),
        ),
        {**{name: shape for name, shape in _TOKENS.items() if name != "encoder_norm"}, "neck": (4, 4, 16)},
        (({"num_registers": 1}, "window needs patch tokens alone"),),
    ),
    "ViT-22B": Family(
        _vit(qk_norm=True, qkv_bias=False, block=BlockConfig(order="parallel"), pooling="map"),
        _TOKENS,
        (({"layer_scale_init": 0.1}, "layer_scale_init needs blocks with two branches"),),
    ),
    "post-norm": Family(
        _vit(block=BlockConfig(order="post_norm", norm="rms"), norm_position="none"),
        {name: shape for name, shape in _TOKENS.items() if name != "encoder_norm"},
        (({"norm_position": "first"}, "norm_position must be one of"),),
    ),
    "Swin": Family(
        SwinConfig(name="tiny", image_size=32, classes=CLASSES, **_SWIN),
        {
            "patch_encoder": (16, 16, 24),
            "patch_map": (16, 16, 24),
            "stage_1_block_01": (16, 16, 24),
            "stage_1": (16, 16, 24),
            "stage_1_downsample": (8, 8, 48),
            "stage_2_block_01": (8, 8, 48),
            "stage_2": (8, 8, 48),
            "encoder_norm": (8, 8, 48),
            "encoder_tokens": (8, 8, 48),
        },
        (
            ({"image_size": (32, 31)}, "must be divisible by patch_size"),
            ({"num_heads": (5, 4)}, "num_heads must divide the widths"),
        ),
        lora=("qkv", "proj", "dense1", "dense2", "reduction"),
        rectangle=(22, 36),  # 11 x 18 patches, which the windows do not divide
    ),
    "BiT": Family(
        BiTConfig(name="tiny", image_size=32, stage_sizes=(1, 1), width_factor=0.5, classes=CLASSES),
        {"root_conv": (16, 16, 32), "root_pool": (8, 8, 32), "stage_1": (8, 8, 128), "final_relu": (4, 4, 256)},
        (({"width_factor": 0.25}, "width_factor must be a multiple of 0.5"),),
        lora=(),
        rectangle=(19, 41),
    ),
}


@functools.cache
def built(name):
    """Return the model of a family, the same one for all tests; they must leave it as it is."""
    return FAMILIES[name].build()
