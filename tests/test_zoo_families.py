"""The zoo: variants of published families, names of other libraries, and `pretrained`."""

import pytest
from faults import for_each
from slow_rows import slow_after

import keras_vit
from keras_vit import zoo
from keras_vit.checkpoints.foreign_names import foreign_names
from keras_vit.compat.initial_values import build_deferred
from keras_vit.config.base import flattened

# what the authors of a family chose, where it differs from a plain ViT: fields of the default config
OF_FAMILIES = {
    "DINO-S_16": {"include_top": False, "pooling": "token", "gelu": "erf", "epsilon": 1e-6},
    "DINOv2-B_14": {"num_heads": 12, "gelu": "erf", "epsilon": 1e-6, "block.gated": False, "image_size": (224, 224)},
    "DINOv2-g_14-reg4": {"num_heads": 24, "num_registers": 4, "block.gated": True},
    "DINOv3-S_16": {"block.rotary.kind": "dinov3", "num_registers": 4, "block.key_bias": False, "epsilon": 1e-5},
    "CLIP-B_16": {"gelu": "quick", "embedding.pre_norm": True, "embedding.patch_bias": False, "head.bias": False},
    "OpenCLIP-L_14": {"gelu": "erf", "epsilon": 1e-5, "classes": 768, "num_heads": 16},
    "SigLIP-So400m_14": {"pooling": "map", "gelu": "tanh", "num_heads": 16, "num_layers": 27, "mlp_dim": 4304},
    "EVA02-B_14": {"block.gated": True, "block.mlp_norm": True, "block.rotary.kind": "eva02", "image_size": (448, 448)},
    "EVA02-CLIP-E_14": {"block.order": "post_norm", "block.rotary": None, "num_layers": 64},
    "BEiT-B_16": {"position_embedding": "relative_2d", "block.key_bias": False, "position_placement": "every"},
    "MAE-B_16": {"gelu": "erf", "epsilon": 1e-6, "num_heads": 12, "layer_scale_init": None},
    "DeiT3-B_16": {"embedding.class_position": False, "gelu": "erf"},
    "AIMv2-L_14": {"block.norm": "rms", "block.gated": True, "block.bias": False, "qkv_bias": False, "num_heads": 8},
    "PE-core-L_14": {"block.rotary.kind": "pe", "head.map_prefix": True, "image_size": (336, 336), "head.map_heads": 8},
    "ViT-22B_14": {"block.order": "parallel", "qk_norm": True, "num_heads": 48},
}


@for_each("name", OF_FAMILIES)
def test_variants_of_families_are_what_their_authors_trained(name):
    config = zoo.VARIANTS[name].config(image_size=zoo.VARIANTS[name].image_size)
    assert {field: config.field(field) for field in OF_FAMILIES[name]} == OF_FAMILIES[name]


@pytest.mark.parametrize(
    ("foreign", "variant", "changes"),
    slow_after(
        5,
        [
            ("vit_base_patch14_dinov2.lvd142m", "DINOv2-B_14", {"image_size": (518, 518)}),
            ("hf-hub:timm/vit_small_patch16_dinov3.lvd1689m", "DINOv3-S_16", {"num_registers": 4}),
            # the first tag is timm's own choice
            ("vit_base_patch16_siglip_256", "SigLIP2-B_16", {"gelu": "erf"}),
            ("openai/clip-vit-base-patch32", "CLIP-B_32", {"gelu": "quick", "classes": 512}),
            ("hf://google/siglip-base-patch16-224", "SigLIP-B_16", {"gelu": "tanh"}),
            ("vit_base_patch14_dinov2", "DINOv2-B_14", {"image_size": (518, 518)}),
            ("timm/vit_small_patch14_reg4_dinov2.lvd142m", "DINOv2-S_14-reg4", {"num_registers": 4}),
            ("vit_small_patch16_224", "ViT-S_16", {"classes": 1000}),
            ("beit_base_patch16_224", "BEiT-B_16", {"classes": 1000}),
            ("facebook/dinov2-base", "DINOv2-B_14", {"pooling": "token"}),
        ],
    ),
)
def test_names_of_timm_and_the_hub(foreign, variant, changes):
    assert zoo.variant_name("variant", foreign) == variant
    model, _ = build_deferred(lambda: keras_vit.create_model(foreign))
    assert model.config.name == variant
    assert {field: model.config.field(field) for field in changes} == changes
    smaller, _ = build_deferred(lambda: keras_vit.create_model(foreign, image_size=model.config.patch_size))
    assert smaller.config.grid_size == (1, 1)


def test_every_name_of_the_table_builds_a_config():
    for row in foreign_names():
        arguments = flattened(row.arguments)
        zoo._check_arguments(row.variant, arguments, zoo._signature(row.variant).parameters, keras_vit.ViTConfig)
        config = zoo.VARIANTS[row.variant].config(image_size=row.image_size, **arguments)
        assert config.image_size == (row.image_size, row.image_size), row.name


def test_list_weights_names_the_repositories_of_a_family():
    assert "hf://facebook/dinov2-base" in keras_vit.list_weights("DINOv2_B14")


class TestPretrained:
    def test_stands_for_weights(self, monkeypatch):
        located = []

        def locate(weights, variant, image_size):
            located.append((weights, variant, image_size))
            raise FileNotFoundError

        monkeypatch.setattr(zoo, "locate", locate)
        for name in ("ViT-B_16", "ViT_H14", "vit_base_patch14_dinov2.lvd142m", "facebook/dinov2-base"):
            with pytest.raises(FileNotFoundError):
                keras_vit.create_model(name, pretrained=True)
        assert located == [
            ("imagenet", "ViT-B_16", 224),
            ("imagenet21k", "ViT-H_14", 224),
            ("hf://timm/vit_base_patch14_dinov2.lvd142m", "DINOv2-B_14", 518),
            ("hf://facebook/dinov2-base", "DINOv2-B_14", 224),  # the crop of its preprocessor_config.json
        ]

    def test_false_is_a_model_with_random_weights(self):
        model, _ = build_deferred(lambda: keras_vit.create_model("ViT-Ti_16", pretrained=False))
        assert model.weights_source is None

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"pretrained": 1}, "pretrained must be True or False; got pretrained=1"),
            ({"pretrained": True, "weights": "imagenet"}, "so weights must be None; got 'imagenet'"),
        ],
    )
    def test_wrong_values_are_refused(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            keras_vit.create_model("ViT-B_16", **arguments)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("DINOv2_B14", "hf://timm/vit_base_patch14_dinov2.lvd142m"),
        ("facebook/dinov2-base", "hf://facebook/dinov2-base"),
        ("ViT_B16", "imagenet"),
    ],
)
def test_pretrained_chooses_the_weights(name, weights, monkeypatch):
    asked = []
    monkeypatch.setattr(zoo, "locate", lambda *arguments: asked.append(arguments[0]) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        keras_vit.create_model(name, pretrained=True)
    assert asked == [weights]


def test_a_head_without_the_bias_of_its_file_is_refused(tmp_path):
    path = tmp_path / "weights.npz"
    saved = keras_vit.create_model("ViT-Ti_16", image_size=32, classes=3)
    saved.get_layer("head").bias.assign([1.0, 2.0, 3.0])
    keras_vit.save_weights(saved, path)
    with pytest.raises(ValueError, match="extra head/bias"):
        keras_vit.create_model("ViT-Ti_16", image_size=32, classes=3, weights=path, head={"bias": False})
