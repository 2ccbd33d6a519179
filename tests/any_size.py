"""The kinds of models that take images of any size, as changes to the tiny config, and images for them."""

import numpy as np

from keras_vit import BlockConfig, EmbeddingConfig, HeadConfig, RotaryConfig, WindowConfig

FAMILIES = {
    "plain": {},
    "SAM": {
        "pooling": "unpooled",
        "norm_position": "none",
        "window": WindowConfig(size=3, global_blocks=(1,)),
        "embedding": EmbeddingConfig(resize="bicubic"),
        "head": HeadConfig(neck=6),
    },
    "DINOv2": {"num_registers": 2, "pooling": "token_gap", "embedding": EmbeddingConfig(resize="bicubic_offset")},
    "DINOv3": {
        "position_embedding": "none",
        "num_registers": 2,
        "block": BlockConfig(rotary=RotaryConfig(kind="dinov3"), gated=True),
    },
    "EVA-02": {
        "pooling": "gap",
        "class_token": True,
        "block": BlockConfig(rotary=RotaryConfig(kind="eva02", reference_grid=16)),
        "embedding": EmbeddingConfig(resize="bicubic_antialias"),
    },
    "Perception Encoder": {
        "pooling": "map",
        "class_token": True,
        "block": BlockConfig(rotary=RotaryConfig(kind="pe")),
        "embedding": EmbeddingConfig(pre_norm=True, resize="bilinear"),
        "head": HeadConfig(map_prefix=True),
    },
    "CLIP": {"embedding": EmbeddingConfig(patch_bias=False, pre_norm=True, resize="bicubic")},
    "TIPS": {"embedding": EmbeddingConfig(resize="bilinear_antialias"), "position_placement": "every"},
    "2-D tables": {"position_embedding": "learned_2d", "num_registers": 1, "position_placement": "shared"},
    "NaFlexViT": {
        "position_embedding": "factorized",
        "num_registers": 1,
        "embedding": EmbeddingConfig(position_grid=(4, 4), square_positions=True, resize="bilinear"),
    },
    "sincos": {"position_embedding": "sincos2d", "pooling": "gap"},
    "sincos of MAE": {"position_embedding": "sincos2d_mae"},
}


def images_of(size, count=2, seed=0):
    return np.random.default_rng(seed).normal(size=(count, *size, 3)).astype("float32")
