"""The zoo: the functions that users call by name; its numbers are in test_zoo_parameters.py."""

import dataclasses
import inspect
import itertools
import pathlib
import re

import pytest
from faults import for_each
from slow_rows import slow_after

import keras_vit
from keras_vit import VisionTransformer, zoo
from keras_vit.cli import main
from keras_vit.compat.initial_values import build_deferred
from keras_vit.files import read_table
from keras_vit.variants import FAMILIES

NAMES = [
    "ViT-Ti_16",
    "ViT-S_16",
    "ViT-S_32",
    "ViT-B_8",
    "ViT-B_16",
    "ViT-B_32",
    "ViT-L_16",
    "ViT-L_32",
    "ViT-H_14",
    "ViT-g_14",
    "ViT-G_14",
]


@for_each(
    ("pattern", "names"),
    [
        ("ViT-L_*", ["ViT-L_16", "ViT-L_32"]),
        ("ViT-?_14", ["ViT-H_14", "ViT-g_14", "ViT-G_14"]),
        ("DINOv2-?_14-reg4", [f"DINOv2-{size}_14-reg4" for size in "SBLg"]),
        ("vit-g_*", ["ViT-g_14", "ViT-G_14"]),
        ("ViT_S??", ["ViT-S_16", "ViT-S_32"]),  # constructors
        ("vit_base_patch16_224.*", ["ViT-B_16", "DINO-B_16", "MAE-B_16"]),  # names in timm
        ("Facebook/dino-vit*", ["DINO-S_16", "DINO-S_8", "DINO-B_16", "DINO-B_8"]),  # and on the hub
        ("+ViT-B_", ["R26+ViT-B_32", "R50+ViT-B_16", "R50+ViT-B_32"]),  # a part of a name
        ("jepa", ["IJEPA-H_14", "IJEPA-H_16", "IJEPA-g_16"]),
        ("no such", []),
    ],
)
def test_list_models(pattern, names):
    assert keras_vit.list_models(pattern) == names


@for_each("pattern", ["vit_*", "*dinov2*", "dino"])
def test_list_models_finds_what_other_libraries_find(pattern):
    assert set(keras_vit.list_models("DINOv2-*")) <= set(keras_vit.list_models(pattern)) < set(keras_vit.list_models())


@for_each(
    ("name", "meant"),
    [
        ("vit_bse_patch16_224", "'vit_base_patch16_224' or '"),
        ("facebook/dinov2-bas", "'facebook/dinov2-base' or '"),
        ("hf://facebook/dinov2-bas", "'facebook/dinov2-base' or '"),
        ("ViT-B-16", "'ViT-B_16' or '"),
        ("vit_b16", "'ViT-B_16' or '"),
        ("resnet50", "'AxialResNet-50'"),
        ("convnext_huge", None),
    ],
)
def test_an_unknown_name_is_answered_with_three_others(name, meant):
    """The name comes first, and the error says how many there are and where."""
    for call in (keras_vit.create_model, keras_vit.list_weights):
        with pytest.raises(ValueError, match=f"^(variant|model)={name!r} is the name of no model") as caught:
            call(name)
        message = str(caught.value)
        assert f"one of the {len(zoo.VARIANTS)} of keras_vit.list_models(), as keras-vit list shows them" in message
        assert (f" (did you mean {meant}" in message) if meant else ("did you mean" not in message)
        assert message.count(" or '") <= 2 and len(message) < 350


def test_list_models_starts_with_the_plain_vits_in_order_of_size():
    assert keras_vit.list_models()[: len(NAMES)] == NAMES
    assert keras_vit.list_models() == list(zoo.VARIANTS)


B16_WEIGHTS = ["imagenet", "imagenet21k", "imagenet21k+imagenet2012", "sam", "augreg", "augreg+imagenet2012"]


@for_each(
    ("name", "short", "published"),
    [
        ("ViT-B_16", B16_WEIGHTS, 7),
        ("ViT_B16", B16_WEIGHTS, 7),
        ("ViT-H_14", ["imagenet21k"], 1),
        ("ViT-G_14", [], 0),
    ],
)
def test_list_weights_gives_short_names_then_files(name, short, published):
    weights = keras_vit.list_weights(name)
    assert weights[: len(short)] == short
    files = weights[len(short) :]
    assert len(files) == published == len(set(files))
    assert all(file.endswith(".npz") for file in files)


def test_list_weights_of_an_unknown_model_is_refused():
    with pytest.raises(ValueError, match="model='ViT-X_16' is the name of no model"):
        keras_vit.list_weights("ViT-X_16")


# what every constructor takes, with its default
ARGUMENTS = {
    "weights": None,
    "image_size": 224,
    "classes": 1000,
    "include_top": True,
    "pooling": "token",
    "class_token": None,
    "norm_position": "before_pooling",
    "representation_size": None,
    "classifier_activation": None,
    "position_embedding": "learned",
    "position_placement": "stem",
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
    "drop_path_rate": 0.0,
    "layer_scale_init": None,
    "qkv_bias": True,
    "qk_norm": False,
    "num_registers": 0,
    "gelu": None,
    "epsilon": None,
    "remat": None,
    "scan_layers": False,
    "token_merging": 0,
    "channels": 3,
    "preprocessing": None,
    "labels": None,
    "name": None,
    "dtype": None,
    "include_preprocessing": False,
    "distilled": False,
}
COMMON = ("weights", "image_size", "classes", "include_top", "classifier_activation", "channels", "preprocessing")
COMMON += ("labels", "name", "dtype", "include_preprocessing")
OF_ALL = {name: ARGUMENTS[name] for name in COMMON}
SWIN_ARGUMENTS = {
    **OF_ALL,
    "patch_size": (4, 4),
    "window_size": 7,
    "mlp_ratio": 4.0,
    "qkv_bias": True,
    "dropout_rate": 0.0,
    "drop_path_rate": 0.0,
    "gelu": "erf",
    "epsilon": 1e-5,
}
BIT_ARGUMENTS = {**OF_ALL, "gn_epsilon": 1e-5, "std_epsilon": 1e-10, "max_pool_padding": "zeros"}
AXIAL_RESNET_ARGUMENTS = {**OF_ALL, "width_factor": 1.0, "num_heads": 8, "epsilon": 1e-5}

# name -> name of its constructor, class, arguments
CONSTRUCTORS = {
    **{name: (f"ViT_{name[4:].replace('_', '')}", "VisionTransformer", ARGUMENTS) for name in NAMES},
    "R+ViT-Ti_16": ("R_ViT_Ti16", "VisionTransformer", ARGUMENTS),
    "R26+ViT-S_32": ("R26_ViT_S32", "VisionTransformer", ARGUMENTS),
    "R26+ViT-B_32": ("R26_ViT_B32", "VisionTransformer", ARGUMENTS),
    "R50+ViT-B_16": ("R50_ViT_B16", "VisionTransformer", ARGUMENTS),
    "R50+ViT-B_32": ("R50_ViT_B32", "VisionTransformer", ARGUMENTS),
    "R50+ViT-L_16": ("R50_ViT_L16", "VisionTransformer", ARGUMENTS),
    "R50+ViT-L_32": ("R50_ViT_L32", "VisionTransformer", ARGUMENTS),
    "AxialViT-B_16": ("AxialViT_B16", "VisionTransformer", {**ARGUMENTS, "pooling": "gap"}),
    "AxialViT-B_32": ("AxialViT_B32", "VisionTransformer", {**ARGUMENTS, "pooling": "gap"}),
    "AxialResNet-50": ("AxialResNet_50", "AxialResNet", AXIAL_RESNET_ARGUMENTS),
    "DeiT-Ti_16": ("DeiT_Ti16", "VisionTransformer", ARGUMENTS),
    "DeiT-S_16": ("DeiT_S16", "VisionTransformer", ARGUMENTS),
    "DeiT-B_16": ("DeiT_B16", "VisionTransformer", ARGUMENTS),
    **{f"Swin-{size}": (f"Swin_{size}", "SwinTransformer", SWIN_ARGUMENTS) for size in "TSBL"},
    **{
        f"BiT-R{size}": (f"BiT_R{size}", "BiTResNet", BIT_ARGUMENTS)
        for size in ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")
    },
}


def test_34_variants_come_first_and_then_those_of_the_families():
    assert keras_vit.list_models()[:34] == list(CONSTRUCTORS) and len(CONSTRUCTORS) == 34
    rows = read_table(pathlib.Path(__file__).with_name("family_parameters.tsv"))
    assert sorted(keras_vit.list_models()[34:]) == sorted(row["variant"] for row in rows)
    assert [zoo.VARIANTS[name].family for name in CONSTRUCTORS] == [None] * 34
    families = [zoo.VARIANTS[name].family for name in keras_vit.list_models()[34:]]
    assert [family for family, _ in itertools.groupby(families)] == list(FAMILIES)  # each in one place


@for_each("name", CONSTRUCTORS)
def test_constructors_have_name_signature_and_docstring(name):
    folded, model_class, arguments = CONSTRUCTORS[name]
    constructor = getattr(keras_vit, folded)
    assert constructor.__name__ == constructor.__qualname__ == folded
    assert folded in keras_vit.__all__
    signature = inspect.signature(constructor)
    assert {p.name: p.default for p in signature.parameters.values()} == arguments
    assert {p.kind for p in signature.parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert signature.return_annotation is getattr(keras_vit, model_class)
    first, _, architecture, *_ = inspect.getdoc(constructor).splitlines()
    assert first == f"Build the model {name}."
    assert architecture.startswith(f"Source: {zoo.VARIANTS[name].source}. ")
    for number in zoo.VARIANTS[name].architecture.values():
        assert number is None or str(number) in architecture
    short_names = [weights for weights in keras_vit.list_weights(name) if not re.search("/|^hf:", weights)]
    assert f"Published weights: {', '.join(short_names) or 'none'};" in inspect.getdoc(constructor)


def test_a_row_of_the_table_is_all_that_a_variant_needs(monkeypatch, capsys):
    # the widths of Ti on a ResNet-26: nowhere else in the table
    tiny, hybrid = zoo.VARIANTS["ViT-Ti_16"], zoo.VARIANTS["R26+ViT-S_32"]
    architecture = {**tiny.architecture, "patch_size": 1, "stem": hybrid.architecture["stem"]}
    row = dataclasses.replace(hybrid, name="R26+ViT-Ti_32", architecture=architecture)
    monkeypatch.setitem(zoo.VARIANTS, row.name, row)
    assert keras_vit.list_models("R26*") == ["R26+ViT-S_32", "R26+ViT-B_32", "R26+ViT-Ti_32"]
    assert keras_vit.list_weights(row.name) == []
    monkeypatch.setitem(zoo.CONSTRUCTORS, "R26_ViT_Ti32", row.name)
    constructor = keras_vit.R26_ViT_Ti32
    monkeypatch.delattr(keras_vit, "R26_ViT_Ti32")
    assert constructor.__name__ == "R26_ViT_Ti32"
    for make in (constructor, lambda **arguments: keras_vit.create_model(row.name, **arguments)):
        model, _ = build_deferred(lambda make=make: make(image_size=(64, 96), classes=3))
        assert (model.name, model.config.grid_size, model.output.shape) == ("r26_vit_ti32", (2, 3), (None, 3))
    assert main(["list", row.name]) == 0
    assert row.name in capsys.readouterr().out


def test_deit_and_swin_are_what_their_authors_trained():
    deit, _ = build_deferred(lambda: keras_vit.DeiT_Ti16(gelu=None))
    assert (deit.config.gelu, deit.config.epsilon) == ("erf", 1e-6)
    swin, _ = build_deferred(lambda: keras_vit.Swin_T(image_size=448))
    statistics = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    imagenet = keras_vit.Preprocessing(
        size=256, crop=224, interpolation="bicubic", rounding="torchvision", **statistics
    )
    assert deit.preprocessing == imagenet
    assert swin.preprocessing == imagenet.replace(size=512, crop=448)
    grey, _ = build_deferred(lambda: keras_vit.DeiT_Ti16(channels=1))
    assert grey.preprocessing.channels == 1


SMALL = {"image_size": 32, "classes": 7}


def replace_variants(variants):
    """Change the table itself, which several modules share."""
    zoo.VARIANTS.clear()
    zoo.VARIANTS.update(variants)


class TestWeightsOfAnotherModel:
    @pytest.fixture
    def tiny(self, tmp_path):
        """A file of the variant tiny; wide, deep, twin and a Swin Transformer are there beside it."""
        plain = zoo.VARIANTS["ViT-B_8"]
        tiny = {**plain.architecture, "hidden_dim": 8, "mlp_dim": 16, "num_heads": 2, "num_layers": 1}
        rows = {"tiny": tiny, "wide": {**tiny, "hidden_dim": 16}, "deep": {**tiny, "num_layers": 2}, "twin": tiny}
        variants = {name: dataclasses.replace(plain, name=name, architecture=row) for name, row in rows.items()}
        variants["Swin-T"] = zoo.VARIANTS["Swin-T"]
        before = dict(zoo.VARIANTS)
        replace_variants(variants)
        path = tmp_path / "tiny.npz"
        keras_vit.save_weights(keras_vit.create_model("tiny", **SMALL), path)
        yield path
        replace_variants(before)

    @pytest.mark.parametrize(
        ("variant", "problem"),
        [
            ("wide", "hidden_dim is 8, not 16"),
            ("deep", "num_layers is 1, not 2"),
        ],
    )
    def test_the_error_names_the_models_that_they_fit(self, tiny, variant, problem):
        wanted = rf"tiny.npz' holds the weights of tiny or twin, not of {variant}: {problem}"
        with pytest.raises(ValueError, match=wanted):
            keras_vit.create_model(variant, weights=tiny, **SMALL)

    def test_arguments_that_keep_them_from_fitting(self, tiny):
        wanted = "(?s)does not fit.*missing pre_logits/kernel"
        with pytest.raises(ValueError, match=wanted):
            keras_vit.create_model("tiny", weights=tiny, representation_size=4, **SMALL)

    def test_a_file_that_fits_none(self, tiny, tmp_path):
        path = tmp_path / "other.npz"
        config = keras_vit.create_model("tiny", **SMALL).config
        keras_vit.save_weights(VisionTransformer(config.replace(num_layers=3)), path)
        wanted = "other.npz' must hold the weights of wide: hidden_dim is 8, not 16; num_layers is 3, not 1"
        with pytest.raises(ValueError, match=wanted):
            keras_vit.create_model("wide", weights=path, **SMALL)


def test_constructor_and_create_model_build_the_same():
    arguments = {**SMALL, "pooling": "gap", "dropout_rate": 0.1, "labels": list("abcdefg"), "name": "mine"}
    models = [build_deferred(make)[0] for make in (
        lambda: keras_vit.ViT_Ti16(**arguments),
        lambda: keras_vit.create_model("ViT-Ti_16", **arguments),
    )]  # fmt: skip
    for model in models:
        assert type(model) is VisionTransformer
        assert (model.name, model.labels) == ("mine", tuple("abcdefg"))
        assert (model.config.image_size, model.config.classes, model.config.dropout_rate) == (
            (32, 32),
            7,
            0.1,
        )
        assert model.preprocessing == keras_vit.Preprocessing(size=32)
    assert models[0].config == models[1].config


def test_preprocessing_given_is_taken():
    preprocessing = keras_vit.Preprocessing(size=36, crop=32, interpolation="bicubic")
    model, _ = build_deferred(lambda: keras_vit.create_model("ViT-Ti_16", **SMALL, preprocessing=preprocessing))
    assert model.preprocessing == preprocessing


@for_each(
    ("arguments", "message"),
    [
        (
            {"clases": 3},
            r"unexpected keyword argument 'clases' \(did you mean 'classes'\?\); the arguments are weights, .*, dtype",
        ),
        ({"hidden_dim": 3}, "got an unexpected keyword argument 'hidden_dim'.*; the arguments are"),
        ({"patch_size": 8}, "got an unexpected keyword argument 'patch_size'.*; the arguments are"),
    ],
)
def test_constructors_refuse_unknown_arguments_and_list_theirs(arguments, message):
    with pytest.raises(TypeError, match=message):
        keras_vit.ViT_B16(**arguments)


def test_constructors_take_keywords_only():
    with pytest.raises(TypeError, match="ViT_B16.. takes 0 positional arguments but 1 was given"):
        keras_vit.ViT_B16("imagenet21k")


@for_each(
    ("variant", "arguments", "error", "message"),
    [
        ("ViT-B16", {}, ValueError, "variant='ViT-B16' is the name of no model .did you mean 'ViT-B_16'"),
        (None, {}, ValueError, "variant=None is the name of no model: it must"),
        ("ViT-Ti_16", {"clases": 3}, TypeError, "unexpected keyword argument 'clases'"),
        ("ViT-Ti_16", {"hidden_dim": 8}, TypeError, "'hidden_dim'"),
        (
            "DINOv2-S_14",
            {"image_size": 225},
            ValueError,
            r"image_size must be divisible by patch_size; .*\(225, 225\).*did you mean \(224, 224\)",
        ),
        ("ViT-Ti_16", {"classes": 0}, ValueError, "classes must be an integer of at least 1; got classes=0"),
        (
            "ViT-Ti_16",
            {"pooling": "tokn"},
            ValueError,
            "pooling must be one of 'token', .* got pooling='tokn'",
        ),
        (
            "ViT-Ti_16",
            {"labels": ["a"]},
            ValueError,
            "labels must name each of the 1000 classes; got 1 names",
        ),
        (
            "ViT-Ti_16",
            {"weights": 5},
            TypeError,
            "weights must be a path, the name of a release or .*; got 5",
        ),
        ("ViT-G_14", {"weights": "imagenet21k"}, ValueError, "weights='imagenet21k' is no file of ViT-G_14"),
        ("ViT-Ti_16", {"weights": "sam"}, ValueError, "weights='sam' is no file of ViT-Ti_16; .* 'augreg'"),
    ],
)
def test_create_model_refuses_wrong_arguments(variant, arguments, error, message):
    with pytest.raises(error, match=message):
        build_deferred(lambda: keras_vit.create_model(variant, **arguments))


@pytest.mark.parametrize("name", slow_after(2, ["R50+ViT-B_16", "Swin-T", "ViT-Ti_16", "AxialResNet-50", "BiT-R50x1"]))
def test_a_model_goes_by_the_name_of_its_constructor_too(name):
    model, _ = build_deferred(lambda: keras_vit.create_model(zoo.constructor_name(name), classes=3))
    assert model.config == build_deferred(lambda: keras_vit.create_model(name, classes=3))[0].config


def test_constructors_document_every_argument():
    for name in keras_vit.zoo.CONSTRUCTORS:
        constructor = getattr(keras_vit, name)
        for argument in inspect.signature(constructor).parameters:
            assert f"\n    {argument}: " in constructor.__doc__, (name, argument)
