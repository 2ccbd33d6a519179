"""The cases of the layer harness in contract.py: each exported layer with sets of arguments and an input."""

from keras_vit import layers
from keras_vit.config import BlockConfig, WindowConfig

# configs are dicts with all fields, as `get_config` returns them
GATED = BlockConfig(gated=True, mlp_norm=True).to_dict()
RMS = BlockConfig(norm="rms", bias=False, attention_norm=True).to_dict()
NO_KEY_BIAS = BlockConfig(key_bias=False, attention_norm=True).to_dict()
POST_NORM = BlockConfig(order="post_norm", norm="rms", gated=True).to_dict()
PARALLEL = BlockConfig(order="parallel").to_dict()
WINDOWS = WindowConfig(size=3).to_dict()
GLOBAL = WindowConfig().to_dict()
PLAIN_WINDOWS = WindowConfig(size=2, relative_positions=False).to_dict()

# layer class, list of its constructor arguments, input shape without the batch
CASES = (
    (
        layers.AddPositionEmbs,
        [{}, *({"position_embedding": kind} for kind in ("none", "learned_2d", "factorized"))],
        (17, 8),
    ),
    (layers.AddPositionEmbs, [{"num_class_tokens": 0}], (9, 8)),
    (
        layers.AddPositionEmbs,
        [
            {"grid_size": (2, 6), "num_class_tokens": 1, "num_registers": 2, "square_positions": True},
            {"position_embedding": "sincos2d", "grid_size": (3, 4), "num_registers": 2},
            {"grid_size": (3, 4), "num_registers": 2, "position_init": "sincos2d_mae"},
            {"position_embedding": "sincos2d_mae", "grid_size": (3, 4), "num_registers": 2, "resize": "bicubic"},
        ],
        (15, 8),
    ),
    (
        layers.ClassToken,
        [{}, {"num_class_tokens": 2, "num_registers": 3}, {"num_class_tokens": 0, "num_registers": 1}],
        (4, 6),
    ),
    (
        layers.ProjectionHead,
        [
            {"out_dim": 6, "hidden_dim": 5, "bottleneck_dim": 4},
            {"out_dim": 3, "hidden_dim": 5, "bottleneck_dim": 4, "num_layers": 1, "norm_last_layer": False},
        ],
        (2, 6),
    ),
    (layers.AxialAttention, [{"axis": "height"}], (3, 4, 16)),
    (layers.AxialAttention, [{"axis": "width", "num_heads": 2, "epsilon": 1e-3}], (3, 4, 8)),
    (
        layers.AxialBottleneck,
        [{"width": 16}, {"width": 8, "strides": 2, "num_heads": 2, "epsilon": 1e-3}],
        (3, 4, 6),
    ),
    (
        layers.AxialStage,
        [
            {"num_units": 1, "width": 16},
            {"num_units": 2, "width": 8, "strides": 2, "num_heads": 2, "epsilon": 1e-3},
        ],
        (3, 4, 6),
    ),
    (
        layers.AxialTransformerBlock,
        [
            {"grid_size": (2, 3), "num_heads": 2, "mlp_dim": 12},
            {
                "grid_size": (3, 2),
                "num_heads": 4,
                "mlp_dim": 6,
                "dropout_rate": 0.1,
                "attention_dropout_rate": 0.2,
                "drop_path_rate": 0.3,
                "layer_scale_init": 0.1,
                "qkv_bias": False,
                "qk_norm": True,
                "gelu": "erf",
                "epsilon": 1e-5,
                "remat": "block",
            },
        ],
        (6, 8),
    ),
    (
        layers.BottleneckUnit,
        [
            {"width": 32},
            {"width": 32, "strides": 2, "gn_epsilon": 1e-5, "std_epsilon": 1e-8, "std_form": "variance"},
        ],
        (5, 4, 128),
    ),
    (
        layers.PreActivationUnit,
        [
            {"width": 32},
            {"width": 32, "strides": 2, "gn_epsilon": 1e-6, "std_epsilon": 1e-5, "std_form": "deviation"},
        ],
        (5, 4, 128),
    ),
    (
        layers.ResNetStage,
        [
            {
                "order": "post_norm",
                "width": 32,
                "num_units": 2,
                "strides": 1,
                "gn_epsilon": 1e-6,
                "std_epsilon": 1e-5,
                "std_form": "deviation",
            },
            {
                "order": "pre_activation",
                "width": 32,
                "num_units": 2,
                "strides": 2,
                "gn_epsilon": 1e-5,
                "std_epsilon": 1e-10,
                "std_form": "variance",
            },
        ],
        (5, 4, 32),
    ),
    (
        layers.StdConv2D,
        [
            {"filters": 6, "kernel_size": (3, 3)},
            {
                "filters": 4,
                "kernel_size": (2, 3),
                "strides": (2, 1),
                "padding": "valid",
                "epsilon": 1e-8,
                "epsilon_form": "variance",
            },
        ],
        (5, 7, 3),
    ),
    (layers.PatchMerging, [{}, {"epsilon": 1e-3}], (4, 6, 3)),
    (layers.PatchMerging, [{}], (3, 5, 4)),
    (
        layers.SwinBlock,
        [
            {"num_heads": 2, "mlp_dim": 12, "window_size": 2},
            {"num_heads": 2, "mlp_dim": 12, "window_size": 3, "shifted": True},
            {
                "num_heads": 4,
                "mlp_dim": 6,
                "window_size": 2,
                "shifted": True,
                "dropout_rate": 0.1,
                "drop_path_rate": 0.3,
                "qkv_bias": False,
                "gelu": "tanh",
                "epsilon": 1e-3,
            },
        ],
        (4, 5, 8),
    ),
    (layers.SwinBlock, [{"num_heads": 2, "mlp_dim": 12, "window_size": 7, "shifted": True}], (2, 3, 8)),
    (
        layers.WindowAttention,
        [{"window_size": (2, 3), "num_heads": 2}, {"window_size": (1, 6), "num_heads": 4, "qkv_bias": False}],
        (4, 6, 8),
    ),
    (layers.DropPath, [{"rate": 0.0}, {"rate": 0.5}, {"rate": 0.25, "seed": 7}], (4, 6)),
    (layers.GlobalAveragePooling, [{}, {"num_prefix_tokens": 2, "images_per_sequence": 1}], (5, 6)),
    (layers.TokenAndAveragePooling, [{}, {"num_prefix_tokens": 2, "images_per_sequence": 1}], (5, 6)),
    (layers.LayerScale, [{}, {"init": 0.5}], (4, 6)),
    (
        layers.AttentionPooling,
        [
            {"num_heads": 2, "mlp_dim": 12},
            {"num_heads": 4, "mlp_dim": 6, "num_prefix_tokens": 2, "gelu": "erf", "epsilon": 1e-5},
            {"num_heads": 2, "mlp_dim": None, "images_per_sequence": 1},
        ],
        (5, 8),
    ),
    (
        layers.MlpBlock,
        [
            {"mlp_dim": 12},
            {"mlp_dim": 5, "dropout_rate": 0.3, "gelu": "erf"},
            {"mlp_dim": 5, "gelu": "quick", "block": GATED, "epsilon": 1e-3},
        ],
        (4, 6),
    ),
    (
        layers.MultiHeadSelfAttention,
        [
            {"num_heads": 2},
            {"num_heads": 4, "dropout_rate": 0.4, "qkv_bias": False},
            {"num_heads": 2, "qk_norm": True, "epsilon": 1e-5},
            {"num_heads": 2, "block": RMS},
            {"num_heads": 2, "block": NO_KEY_BIAS},
        ],
        (5, 8),
    ),
    (
        layers.DifferentialSelfAttention,
        [
            {"lambda_init": 0.2, "num_heads": 2},
            {"lambda_init": 0.5, "num_heads": 1, "dropout_rate": 0.4, "qkv_bias": False},
        ],
        (5, 8),
    ),
    (
        layers.PatchDropout,
        [{"patch_drop_rate": 0.0}, {"patch_drop_rate": 0.5, "num_prefix_tokens": 2, "seed": 3}],
        (6, 4),
    ),
    (
        layers.PatchEncoder,
        [
            {"patch_size": (2, 3), "hidden_dim": 7},
            {"patch_size": (3, 4), "hidden_dim": 7, "use_bias": False, "pad": True},
            {"patch_size": (2, 3), "hidden_dim": 7, "kernel_size": (4, 5)},
            {"patch_size": (2, 3), "hidden_dim": 7, "whole_patches": True},
            {"patch_size": (2, 3), "hidden_dim": 7, "patch_padding": 1},
        ],
        (4, 9, 3),
    ),
    (
        layers.GridSelfAttention,
        [
            {"grid_size": (3, 4), "window": window, "num_heads": 2, **changes}
            for window, changes in (
                (WINDOWS, {}),
                (GLOBAL, {"dropout_rate": 0.4, "qkv_bias": False}),
                (PLAIN_WINDOWS, {"qk_norm": True}),
            )
        ],
        (12, 8),
    ),
    (layers.Neck, [{}, {"filters": 5, "epsilon": 1e-3}], (3, 4, 6)),
    (layers.TokenPooling, [{}, {"index": 2}, {"images_per_sequence": 2, "num_prefix_tokens": 2}], (4, 6)),
    (
        layers.TransformerBlock,
        [
            {"num_heads": 2, "mlp_dim": 12},
            {
                "num_heads": 4,
                "mlp_dim": 6,
                "dropout_rate": 0.1,
                "attention_dropout_rate": 0.2,
                "drop_path_rate": 0.3,
                "layer_scale_init": 0.1,
                "qkv_bias": False,
                "qk_norm": True,
                "gelu": "erf",
                "epsilon": 1e-5,
                "remat": "block",
            },
            {"num_heads": 2, "mlp_dim": 6, "block": POST_NORM, "epsilon": 1e-5},
            {"num_heads": 2, "mlp_dim": 6, "block": PARALLEL, "gelu": "quick"},
            {"num_heads": 2, "mlp_dim": 6, "window": WINDOWS, "grid_size": (5, 1), "remat": "block"},
            {"num_heads": 2, "mlp_dim": 6, "lambda_init": 0.3, "remat": "attention"},
        ],
        (5, 8),
    ),
)
