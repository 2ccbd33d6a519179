"""Mistakes for test_bad_inputs.py in configs, names and architectures."""

from bad_input_files import config

import keras_vit

# name -> (function of the result of `make_files`, its error, words of the message: argument, expectation, value)
ROWS = {
    # Configs and names
    "wrong pooling": (
        lambda files: config(pooling="tokn"),
        ValueError,
        "pooling 'token' 'gap' 'tokn'",
    ),
    "wrong gelu": (lambda files: config(gelu="relu"), ValueError, "gelu 'tanh' 'erf' 'relu'"),
    "wrong position embedding": (
        lambda files: config(position_embedding="sincos"),
        ValueError,
        "position_embedding 'sincos2d' 'sincos'",
    ),
    "indivisible image": (
        lambda files: keras_vit.DINOv2_S14(image_size=225),
        ValueError,
        "image_size divisible patch_size (225,225) (14,14)",
    ),
    "indivisible width": (lambda files: config(num_heads=3), ValueError, "hidden_dim divisible num_heads 8 3"),
    "image size of three": (
        lambda files: config(image_size=(16, 16, 3)),
        ValueError,
        "image_size pair (16,16,3)",
    ),
    # Architectures
    "axial with a class token": (
        lambda files: keras_vit.create_model("AxialViT-B_32", pooling="token"),
        ValueError,
        "attention='axial' patch tokens alone pooling 'gap' 'token'",
    ),
    "relative positions in the stem": (
        lambda files: keras_vit.create_model("ViT-Ti_16", position_embedding="relative"),
        ValueError,
        "position_embedding='relative' position_placement 'every' 'shared' 'stem'",
    ),
    "distilled without class token": (
        lambda files: keras_vit.DeiT_Ti16(distilled=True, pooling="gap"),
        ValueError,
        "distilled=True pooling 'token' 'gap'",
    ),
    "indivisible image of Swin": (
        lambda files: keras_vit.Swin_T(image_size=(226, 224)),
        ValueError,
        "image_size divisible patch_size (226,224) (4,4)",
    ),
    "heads for each stage of Swin": (
        lambda files: keras_vit.SwinConfig(
            name="s", image_size=32, embed_dim=24, depths=(2, 2), num_heads=(2,), window_size=4
        ),
        ValueError,
        "depths num_heads one per stage (2,2) (2,)",
    ),
    "argument of another architecture": (
        lambda files: keras_vit.BiT_R50x1(qkv_bias=False),
        TypeError,
        "BiT_R50x1 unexpected 'qkv_bias' classes gn_epsilon",
    ),
    "width of a ResNet": (
        lambda files: keras_vit.ResNetConfig(stage_sizes=(2,), width_factor=0.3),
        ValueError,
        "width_factor multiple 0.5 0.3",
    ),
    "config of another architecture": (
        lambda files: keras_vit.SwinTransformer(config()),
        TypeError,
        "config keras_vit.SwinConfig ViTConfig",
    ),
    "stem that is no model": (
        lambda files: keras_vit.VisionTransformer(config(), stem="resnet50"),
        TypeError,
        "stem keras model feature map str",
    ),
    "file of another architecture": (
        lambda files: keras_vit.Swin_T(weights=files.folder / "good.npz", image_size=64),
        ValueError,
        "good.npz Swin Transformer huggingface timm microsoft Vision Transformer",
    ),
    "layout of another architecture": (
        lambda files: keras_vit.save_weights(files.model, files.folder / "a.safetensors", "microsoft"),
        ValueError,
        "layout 'official' 'timm' 'huggingface' 'microsoft'",
    ),
    "unknown layer to freeze": (
        lambda files: keras_vit.freeze(files.model, up_to="block_07"),
        ValueError,
        "up_to block_00 'block_07'",
    ),
    "no layers": (lambda files: config(num_layers=0), ValueError, "num_layers integer least 1 0"),
    "negative dropout": (lambda files: config(dropout_rate=-0.1), ValueError, "dropout_rate [0,1) -0.1"),
    "certain stochastic depth": (
        lambda files: config(drop_path_rate=1.0),
        ValueError,
        "drop_path_rate [0,1) 1.0",
    ),
    "flag as text": (lambda files: config(qkv_bias="no"), ValueError, "qkv_bias True False 'no'"),
    "class token where none is": (
        lambda files: config(pooling="unpooled", class_token=True),
        ValueError,
        "pooling='unpooled' class_token=True",
    ),
    "sincos of an odd width": (
        lambda files: config(position_embedding="sincos2d", hidden_dim=6),
        ValueError,
        "hidden_dim divisible 4 6",
    ),
    "unknown model": (
        lambda files: keras_vit.create_model("ViT-B16"),
        ValueError,
        "variant 'ViT-S_16' 'ViT-B_16' 'ViT-B16'",
    ),
    "unknown keyword": (
        lambda files: keras_vit.create_model("ViT-Ti_16", dropot_rate=0.1),
        TypeError,
        "'dropot_rate' 'dropout_rate' epsilon",
    ),
    **{
        f"unknown keyword with the value {value}": (
            lambda files, value=value: keras_vit.create_model("ViT-Ti_16", foo=value),
            TypeError,
            "ViT_Ti16 unexpected 'foo'",
        )
        for value in ({}, {"a": {}}, {"class_name": "a"}, {0: "a"})
    },
    "unknown keyword of load": (
        lambda files: keras_vit.load(files.folder / "good.npz", foo={}),
        TypeError,
        "load unexpected 'foo'",
    ),
    "unknown field of a part": (
        lambda files: keras_vit.ViT_Ti16(block={"foo": {}}),
        ValueError,
        "BlockConfig keys 'gated' 'foo'",
    ),
    "part of another architecture": (
        lambda files: keras_vit.create_model("BiT-R50x1", head={}),
        TypeError,
        "BiT_R50x1 unexpected 'head'",
    ),
    "config of another part": (
        lambda files: keras_vit.ViT_Ti16(block={"class_name": "HeadConfig"}),
        ValueError,
        "class_name block 'BlockConfig' 'HeadConfig'",
    ),
    "dict for a value": (lambda files: keras_vit.ViT_Ti16(pooling={}), ValueError, "pooling 'gap' {}"),
    "dict for a flag of a part": (
        lambda files: keras_vit.ViT_Ti16(head={"bias": {}}),
        ValueError,
        "bias True False {}",
    ),
    "labels by the name of transformers": (
        lambda files: keras_vit.create_model("ViT-Ti_16", id2label={0: "a"}),
        TypeError,
        "ViT_Ti16 unexpected 'id2label' 'labels'",
    ),
    "labels in a dict": (
        lambda files: setattr(files.model, "labels", {"a": 0, "b": 1, "c": 2}),
        TypeError,
        "labels sequence {'a':",
    ),
    "labels in a set": (lambda files: setattr(files.model, "labels", {"a", "b", "c"}), TypeError, "labels sequence {"),
    "epsilon above every variance": (lambda files: config(epsilon=1e308), ValueError, "epsilon 1e-30 1 1e+308"),
    "unknown keyword of a constructor": (
        lambda files: keras_vit.ViT_Ti16(dropot_rate=0.1),
        TypeError,
        "ViT_Ti16 'dropot_rate' dropout_rate",
    ),
    "unknown release": (
        lambda files: keras_vit.ViT_Ti16(weights="jft300m"),
        ValueError,
        "weights='jft300m' ViT-Ti_16 published 'augreg/",
    ),
    "release of another model": (
        lambda files: keras_vit.ViT_Ti16(weights="sam"),
        ValueError,
        "weights='sam' ViT-Ti_16 published",
    ),
    "weights of a wrong type": (
        lambda files: keras_vit.ViT_Ti16(weights=True),
        TypeError,
        "weights path release hf:// True",
    ),
    "address of no repository": (
        lambda files: files.load("hf://org"),
        ValueError,
        "hub hf://org/repo 'hf://org'",
    ),
    "too few labels": (
        lambda files: setattr(files.model, "labels", ["a", "b"]),
        ValueError,
        "labels 3 classes 2 names",
    ),
    "labels that are a text": (
        lambda files: setattr(files.model, "labels", "abc"),
        TypeError,
        "labels sequence 'abc'",
    ),
    "preprocessing of another size": (
        lambda files: setattr(files.model, "preprocessing", keras_vit.Preprocessing(size=32)),
        ValueError,
        "preprocessing image_size (16,16) (32,32)",
    ),
    "preprocessing as text": (
        lambda files: keras_vit.VisionTransformer(config(), preprocessing="bicubic"),
        TypeError,
        "preprocessing Preprocessing 'bicubic'",
    ),
    "crop above size": (
        lambda files: keras_vit.Preprocessing(size=200, crop=224),
        ValueError,
        "crop exceed size (224,224) 200",
    ),
    "std of zero": (
        lambda files: keras_vit.Preprocessing(std=(0, 1, 1)),
        ValueError,
        "std above 0 (0.0,1.0,1.0)",
    ),
    "resize to half a patch": (
        lambda files: keras_vit.resize(files.model, 4),
        ValueError,
        "image_size at least patch_size (4,4)",
    ),
    "features of no layer": (
        lambda files: keras_vit.feature_extractor(files.model, "block_7"),
        ValueError,
        "names 'block_00' 'block_7'",
    ),
}
