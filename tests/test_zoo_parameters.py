"""The zoo's numbers: golden parameter counts of every variant, heads and layers; a variant without them fails."""

import pathlib
import tracemalloc

import pytest
from faults import for_each
from slow_rows import slow_after

import keras_vit
from keras_vit import ViTConfig, zoo
from keras_vit.compat.initial_values import build_deferred
from keras_vit.files import read_table

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
    "R+ViT-Ti_16": (6_144_704, 6_337_704, 10_360_403, 10_397_459),
    "R26+ViT-S_32": (36_046_912, 36_431_912, 44_456_467, 44_604_307),
    "R26+ViT-B_32": (100_614_976, 101_383_976, 117_412_243, 118_002_835),
    "R50+ViT-B_16": (97_890_112, 98_659_112, 114_687_379, 115_277_971),
    "R50+ViT-B_32": (None, 110_945_832, 126_974_099, None),
    "R50+ViT-L_16": (None, 316_483_624, 337_847_699, None),
    "R50+ViT-L_32": (327_969_856, 328_994_856, 350_358_931, 351_408_531),
}

# with 1000 classes at 224 pixels: DeiT's and Swin's authors' code, BiT's authors' code
IMAGENET_PARAMETERS = {
    "DeiT-Ti_16": 5_717_416,
    "DeiT-S_16": 22_050_664,
    "DeiT-B_16": 86_567_656,
    "Swin-T": 28_288_354,
    "Swin-S": 49_606_258,
    "Swin-B": 87_768_224,
    "Swin-L": 196_532_476,
    "BiT-R50x1": 25_549_352,
    "BiT-R50x3": 217_319_080,
    "BiT-R101x1": 44_541_480,
    "BiT-R101x3": 387_934_888,
    "BiT-R152x2": 236_335_208,
    "BiT-R152x4": 936_533_224,
}
DISTILLED_PARAMETERS = {"DeiT-Ti_16": 5_910_800, "DeiT-S_16": 22_436_432, "DeiT-B_16": 87_338_192}


def axial_vit(patch):
    """A ViT-B of which every block is two, a row block and a column block, and which has no class token."""
    dim, mlp_dim, layers, classes = 768, 3072, 12, 1000
    block = 4 * dim * dim + 4 * dim + 2 * dim * mlp_dim + mlp_dim + dim + 4 * dim
    embedding = patch * patch * 3 * dim + dim + (224 // patch) ** 2 * dim
    return embedding + 2 * layers * block + 2 * dim + dim * classes + classes


def axial_resnet(stage_sizes=(3, 4, 6, 3), heads=8, side=224, classes=1000):
    """A ResNet whose 3 x 3 convolutions are height then width attention; every norm has scale and offset.

    Width C of an attention, in units whose output is 2 C wide; K positions along its axis. Moving averages of the
    norms, as many again, are counted as Keras does.
    """

    def norm(channels):
        return 4 * channels

    def attention(channels, length):
        relative_positions = (2 * length - 1) * 2 * channels // heads
        qkv = channels * 2 * channels + norm(2 * channels)
        return qkv + relative_positions + norm(3 * heads) + norm(2 * channels)

    def unit(inputs, channels, length, is_first):
        outputs = 2 * channels
        down, up = inputs * channels + norm(channels), channels * outputs + norm(outputs)
        shortcut = inputs * outputs + norm(outputs) if is_first else 0
        return down + 2 * attention(channels, length) + up + shortcut

    total, inputs, length = 7 * 7 * 3 * 64 + norm(64), 64, side // 4
    for stage, units in enumerate(stage_sizes):
        channels = 128 * 2**stage
        for index in range(units):
            total += unit(inputs, channels, length, index == 0)
            inputs = 2 * channels
            if index == 0 and stage > 0:  # the first unit attends before it halves the map
                length //= 2
    return total + inputs * classes + classes


# by formula: nothing is published
FORMULAS = {
    "AxialViT-B_16": axial_vit(16),
    "AxialViT-B_32": axial_vit(32),
    "AxialResNet-50": axial_resnet(),
}


# variant of a family -> its row, with the parameters at the default arguments and where they come from
OF_FAMILIES = {
    row["variant"]: row
    for row in read_table(pathlib.Path(__file__).with_name("family_parameters.tsv"), ("parameters", "image_size"))
}
# the smallest variant of each family, if it has at most 24 blocks, and those with parts of their own; to build the
# others is slow
_FIRST = {variant.family: name for name, variant in reversed(zoo.VARIANTS.items()) if variant.family is not None}
_FIRST = {key: name for key, name in _FIRST.items() if zoo.VARIANTS[name].architecture["num_layers"] <= 24}
QUICK = {
    *_FIRST.values(),
    *("ViT-Ti_16", "R+ViT-Ti_16", "DeiT-Ti_16", "Swin-T", "BiT-R50x1"),
    *("AxialViT-B_16", "AxialResNet-50"),
    *("DINOv3-Splus_16", "EVA02-B_14"),
}
GOLDEN = {
    **FORMULAS,
    **IMAGENET_PARAMETERS,
    **{name: row[1] for name, row in PARAMETERS.items()},
    **{name: row["parameters"] for name, row in OF_FAMILIES.items()},
}


def test_every_variant_states_its_golden_count():
    assert {name: variant.parameters for name, variant in zoo.VARIANTS.items()} == GOLDEN


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in zoo.VARIANTS],
)
def test_golden_parameter_counts(name):
    model, _ = build_deferred(getattr(keras_vit, zoo.constructor_name(name)))
    assert (model.config.name, model.count_params()) == (name, GOLDEN[name])
    size = OF_FAMILIES[name]["image_size"] if name in OF_FAMILIES else 224
    assert model.config.image_size == (size, size)


def test_counts_of_families_are_those_of_other_code():
    assert all(row["source"].strip() for row in OF_FAMILIES.values())
    assert [name for name in OF_FAMILIES if name not in zoo.VARIANTS] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", PARAMETERS)
def test_other_heads(name):
    headless, _, imagenet21k, pre_logits = PARAMETERS[name]
    width = zoo.VARIANTS[name].architecture["hidden_dim"]
    assert headless is None or _count(name, include_top=False) == headless
    assert _count(name, classes=21843) == imagenet21k
    assert pre_logits is None or _count(name, classes=21843, representation_size=width) == pre_logits


@pytest.mark.parametrize("name", slow_after(1, DISTILLED_PARAMETERS))
def test_distilled(name):
    assert _count(name, distilled=True) == DISTILLED_PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "count"),
    slow_after(
        2,
        [
            ("ViT-B_16", 86_859_496),
            ("R50+ViT-B_16", 98_950_952),
            ("ViT-B_8", 87_744_232),
            ("ViT-B_32", 88_297_192),
            ("ViT-L_16", 304_715_752),
            ("ViT-L_32", 306_632_680),
        ],
    ),
)
def test_golden_parameter_counts_at_384_pixels(name, count):
    assert _count(name, image_size=384) == count


def test_mean_of_patches_needs_two_rows_less():
    # neither a class token nor its position
    assert _count("ViT-B_16", pooling="gap") == PARAMETERS["ViT-B_16"][1] - 2 * 768


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
_OF_VITS = [
    name for name, variant in zoo.VARIANTS.items() if variant.config_class is ViTConfig and variant.family is None
]


@for_each("name", _OF_VITS)
def test_heads_layers_and_distance_of_patches(name):
    config = zoo.VARIANTS[name].config(image_size=224)
    size, patch = name.partition("+")[2].split("_") if "+" in name else name.split("_")
    size = size.replace("AxialViT", "ViT").replace("DeiT", "ViT")
    assert (config.num_heads, config.num_layers) == HEADS_AND_LAYERS[size]
    stride = 32 if name == "R+ViT-Ti_16" else int(patch)  # which is named after half of its stride
    assert config.grid_size == (224 // stride, 224 // stride)


@for_each(
    ("name", "stage_sizes"),
    [
        ("R+ViT-Ti_16", ()),
        ("R26+ViT-S_32", (2, 2, 2, 2)),
        ("R26+ViT-B_32", (2, 2, 2, 2)),
        ("R50+ViT-B_16", (3, 4, 9)),
        ("R50+ViT-B_32", (3, 4, 6, 3)),
        ("R50+ViT-L_16", (3, 4, 9)),
        ("R50+ViT-L_32", (3, 4, 6, 3)),
    ],
)
def test_stems_of_hybrids(name, stage_sizes):
    assert zoo.VARIANTS[name].config(image_size=224).stem.stage_sizes == stage_sizes


def _count(name, image_size=224, **arguments):
    model, _ = build_deferred(lambda: keras_vit.create_model(name, image_size=image_size, **arguments))
    return model.count_params()


@pytest.mark.slow
def test_counting_the_giant_costs_no_memory():
    tracemalloc.start()
    resident = _resident_bytes()
    try:
        model, pending = build_deferred(keras_vit.ViT_G14)
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
