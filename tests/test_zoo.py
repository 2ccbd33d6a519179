"""The zoo: golden parameter counts, and the functions that users call by name."""

import inspect
import pathlib
import tracemalloc

import pytest

import keras_vit
from keras_vit import VisionTransformer, zoo
from keras_vit.compat.initial_values import build_deferred

# Parameters at 224 pixels: without head, with 1000 classes, with 21843 classes, with these behind pre_logits.
# The second column is that of google-research/vision_transformer's own test, the others come from its code.
PARAMETERS = {
    "ViT-Ti_16": (5_524_416, 5_717_416, 9_740_115, 9_777_171),
    "ViT-S_16": (21_665_664, 22_050_664, 30_075_219, 30_223_059),
    "ViT-S_32": (22_493_952, 22_878_952, 30_903_507, 31_051_347),
    "ViT-B_8": (85_807_872, 86_576_872, 102_605_139, 103_195_731),
    "ViT-B_16": (85_798_656, 86_567_656, 102_595_923, 103_186_515),
    "ViT-B_32": (87_455_232, 88_224_232, 104_252_499, 104_843_091),
    "ViT-L_16": (303_301_632, 304_326_632, 325_690_707, 326_740_307),
    "ViT-L_32": (305_510_400, 306_535_400, 327_899_475, 328_949_075),
    "ViT-H_14": (630_764_800, 632_045_800, 658_745_683, 660_385_363),
    "ViT-g_14": (1_011_202_432, 1_012_611_432, 1_041_979_219, None),
    "ViT-G_14": (1_842_775_680, 1_844_440_680, 1_879_144_275, None),
}

# at 384 pixels with 1000 classes
PARAMETERS_384 = {
    "ViT-B_8": 87_744_232,
    "ViT-B_16": 86_859_496,
    "ViT-B_32": 88_297_192,
    "ViT-L_16": 304_715_752,
    "ViT-L_32": 306_632_680,
}


@pytest.mark.parametrize("name", zoo.VARIANTS)
def test_golden_parameter_counts(name):
    assert name in PARAMETERS, f"{name} has no golden parameter count"
    headless, imagenet, imagenet21k, pre_logits = PARAMETERS[name]
    model, _ = build_deferred(getattr(keras_vit, zoo.constructor_name(name)))
    assert (model.config.name, model.count_params()) == (name, imagenet)
    assert _count(name, include_top=False) == headless
    assert _count(name, classes=21843) == imagenet21k
    if pre_logits is not None:
        width = zoo.VARIANTS[name].architecture["hidden_dim"]
        assert _count(name, classes=21843, representation_size=width) == pre_logits


# heads, which no count shows, and layers; arXiv 2010.11929, 2106.10270 and 2106.04560
HEADS_AND_LAYERS = {
    "ViT-Ti": (3, 12),
    "ViT-S": (6, 12),
    "ViT-B": (12, 12),
    "ViT-L": (16, 24),
    "ViT-H": (16, 32),
    "ViT-g": (16, 40),
    "ViT-G": (16, 48),
}


@pytest.mark.parametrize("name", zoo.VARIANTS)
def test_heads_layers_and_patches(name):
    config = zoo.VARIANTS[name].config(image_size=224)
    size, patch = name.split("_")
    assert (config.num_heads, config.num_layers) == HEADS_AND_LAYERS[size]
    assert config.patch_size == (int(patch), int(patch))


def test_variant_without_a_golden_count_fails(monkeypatch):
    monkeypatch.setitem(zoo.VARIANTS, "ViT-New_16", zoo.VARIANTS["ViT-Ti_16"])
    with pytest.raises(AssertionError, match="ViT-New_16 has no golden parameter count"):
        test_golden_parameter_counts("ViT-New_16")


@pytest.mark.parametrize("name", PARAMETERS_384)
def test_golden_parameter_counts_at_384_pixels(name):
    assert _count(name, image_size=384) == PARAMETERS_384[name]


def test_mean_of_patches_needs_two_rows_less():
    # neither a class token nor its position
    assert _count("ViT-B_16", classifier="gap") == PARAMETERS["ViT-B_16"][1] - 2 * 768


def _count(name, image_size=224, **arguments):
    config = zoo.VARIANTS[name].config(image_size=image_size, **arguments)
    model, _ = build_deferred(lambda: VisionTransformer(config))
    return model.count_params()


def test_counting_the_giant_costs_no_memory():
    tracemalloc.start()
    resident = _resident_bytes()
    try:
        model, pending = build_deferred(
            lambda: VisionTransformer(zoo.VARIANTS["ViT-G_14"].config(image_size=224))
        )
        assert model.count_params() == PARAMETERS["ViT-G_14"][1]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200e6
    assert _resident_bytes() - resident < 200e6  # 7.4 GB if it were allocated
    assert len(pending) >= len(model.weights)


def _resident_bytes():
    status = pathlib.Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs /proc/self/status to read the memory in use")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


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


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("ViT-L_*", ["ViT-L_16", "ViT-L_32"]),
        ("*_14", ["ViT-H_14", "ViT-g_14", "ViT-G_14"]),
        ("ViT-[gG]_14", ["ViT-g_14", "ViT-G_14"]),
        ("ViT-B_16", ["ViT-B_16"]),
        ("vit-*", []),  # g and G are two models, so case counts
        ("", []),
    ],
)
def test_list_models(pattern, names):
    assert keras_vit.list_models(pattern) == names


def test_list_models_starts_with_the_plain_vits_in_order_of_size():
    assert [name for name in keras_vit.list_models() if name.startswith("ViT-")] == NAMES
    assert keras_vit.list_models() == list(zoo.VARIANTS)


@pytest.mark.parametrize(
    ("name", "short", "published"),
    [
        ("ViT-B_16", ["imagenet21k", "imagenet21k+imagenet2012", "sam", "augreg", "augreg+imagenet2012"], 6),
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
    with pytest.raises(ValueError, match="model must be one of 'ViT-Ti_16', .* got model='ViT-X_16'"):
        keras_vit.list_weights("ViT-X_16")


# what every constructor takes, with its default
ARGUMENTS = {
    "weights": None,
    "image_size": 224,
    "classes": 1000,
    "include_top": True,
    "classifier": "token",
    "class_token": None,
    "norm_position": "before_pooling",
    "representation_size": None,
    "classifier_activation": None,
    "position_embedding": "learned",
    "position_placement": "stem",
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
    "stochastic_depth_rate": 0.0,
    "layer_scale_init": None,
    "qkv_bias": True,
    "qk_norm": False,
    "num_registers": 0,
    "gelu": None,
    "epsilon": None,
    "remat": False,
    "channels": 3,
    "preprocessing": None,
    "labels": None,
    "name": None,
    "dtype": None,
}


@pytest.mark.parametrize("name", NAMES)
def test_constructors_have_name_signature_and_docstring(name):
    folded = (
        name.replace("-", "_", 1).replace("_", "?", 1).replace("_", "").replace("?", "_")
    )  # ViT-B_16 -> ViT_B16
    constructor = getattr(keras_vit, folded)
    assert constructor.__name__ == constructor.__qualname__ == folded
    assert folded in keras_vit.__all__
    signature = inspect.signature(constructor)
    assert {p.name: p.default for p in signature.parameters.values()} == ARGUMENTS
    assert {p.kind for p in signature.parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert signature.return_annotation is VisionTransformer
    architecture = zoo.VARIANTS[name].architecture
    first, *_ = inspect.getdoc(constructor).splitlines()
    assert first.startswith(
        f"Builds {name}: width {architecture['hidden_dim']}, {architecture['num_layers']} layers"
    )
    assert zoo.VARIANTS[name].source in first
    short_names = [weights for weights in keras_vit.list_weights(name) if "/" not in weights]
    assert f"Published weights: {', '.join(short_names) or 'none'};" in inspect.getdoc(constructor)


@pytest.mark.parametrize(
    ("variant", "constructor"),
    [
        ("ViT-Ti_16", "ViT_Ti16"),
        ("R50+ViT-B_16", "R50_ViT_B16"),
        ("R+ViT-Ti_16", "R_ViT_Ti16"),
        ("AxialViT-B_32", "AxialViT_B32"),
        ("Swin-T", "Swin_T"),
        ("BiT-R50x1", "BiT_R50x1"),
    ],
)
def test_names_fold_to_those_of_constructors(variant, constructor):
    assert zoo.constructor_name(variant) == constructor


SMALL = {"image_size": 32, "classes": 7}


def test_constructor_and_create_model_build_the_same():
    arguments = {**SMALL, "classifier": "gap", "dropout_rate": 0.1, "labels": list("abcdefg"), "name": "mine"}
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
    model, _ = build_deferred(
        lambda: keras_vit.create_model("ViT-Ti_16", **SMALL, preprocessing=preprocessing)
    )
    assert model.preprocessing == preprocessing


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    ("variant", "arguments", "error", "message"),
    [
        ("ViT-B16", {}, ValueError, "variant must be one of 'ViT-Ti_16', .* got variant='ViT-B16'"),
        (None, {}, ValueError, "variant must be one of 'ViT-Ti_16', .* got variant=None"),
        ("ViT-Ti_16", {"clases": 3}, TypeError, "unexpected keyword argument 'clases'"),
        ("ViT-Ti_16", {"hidden_dim": 8}, TypeError, "'hidden_dim'"),
        (
            "ViT-Ti_16",
            {"image_size": 225},
            ValueError,
            r"image_size must be divisible by patch_size; .*\(225, 225\)",
        ),
        ("ViT-Ti_16", {"classes": 0}, ValueError, "classes must be an integer of at least 1; got classes=0"),
        (
            "ViT-Ti_16",
            {"classifier": "tokn"},
            ValueError,
            "classifier must be one of 'token', .* got classifier='tokn'",
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


def test_constructors_document_every_argument():
    for name in keras_vit.zoo.CONSTRUCTORS:
        constructor = getattr(keras_vit, name)
        for argument in inspect.signature(constructor).parameters:
            assert f"\n    {argument}: " in constructor.__doc__, (name, argument)
