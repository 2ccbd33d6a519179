"""ResNetConfig and BiTConfig: what they state, what they refuse, and their way through JSON."""

import json

import pytest
from faults import for_each

from keras_vit.config import BiTConfig, ResNetConfig

BIT = {"name": "BiT-R50x1", "image_size": 224, "stage_sizes": (3, 4, 6, 3), "width_factor": 1}


@for_each(
    "config",
    [
        ResNetConfig(stage_sizes=()),
        ResNetConfig(stage_sizes=[3, 4, 9], width_factor=0.5, style="timm", gn_epsilon=1e-3, std_epsilon=1e-4),
        BiTConfig(**BIT),
        BiTConfig(**BIT, classes=7, include_top=False, gn_epsilon=1e-4, max_pool_padding="minus_infinity"),
    ],
)
def test_round_trip_through_json(config):
    again = type(config).from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert hash(again) == hash(config)


@pytest.mark.parametrize(
    ("style", "epsilons"), [("vit", (1e-6, 1e-5, "deviation")), ("timm", (1e-5, 1e-8, "variance"))]
)
def test_resolve_states_the_epsilons_of_the_style(style, epsilons):
    config = ResNetConfig(stage_sizes=(2,), style=style)
    assert (config.gn_epsilon, config.std_epsilon) == (None, None)
    resolved = config.resolve()
    assert (resolved.gn_epsilon, resolved.std_epsilon, resolved.std_form) == epsilons
    assert resolved.resolve() == resolved


def test_resolve_keeps_given_epsilons():
    config = ResNetConfig(stage_sizes=(2,), style="timm", gn_epsilon=0.25, std_epsilon=0.5).resolve()
    assert (config.gn_epsilon, config.std_epsilon, config.std_form) == (0.25, 0.5, "variance")


def test_bit_has_the_epsilons_of_its_authors():
    config = BiTConfig(**BIT)
    assert (config.gn_epsilon, config.std_epsilon, config.max_pool_padding) == (1e-5, 1e-10, "zeros")
    assert config.image_size == (224, 224)


@for_each(
    ("stage_sizes", "image_size", "feature_size"),
    [
        ((), (224, 224), (56, 56)),
        ((3,), (224, 160), (56, 40)),
        ((3, 4, 9), (224, 224), (14, 14)),
        ((3, 4, 9), (225, 241), (15, 16)),
        ((3, 4, 6, 3), (384, 224), (12, 7)),
        ((2, 2, 2, 2), (33, 1), (2, 1)),
    ],
)
def test_feature_size_rounds_up(stage_sizes, image_size, feature_size):
    assert ResNetConfig(stage_sizes=stage_sizes).feature_size(image_size) == feature_size


@for_each(("width_factor", "width"), [(0.5, 32), (1, 64), (1.5, 96), (4, 256)])
def test_width_of_the_root(width_factor, width):
    assert ResNetConfig(stage_sizes=(), width_factor=width_factor).width == width
    assert BiTConfig(**{**BIT, "width_factor": width_factor}).width == width


# changes, piece of the message
REFUSED_BY_BOTH = [
    ({"stage_sizes": 3}, "stage_sizes must be a sequence of integers; got stage_sizes=3"),
    ({"stage_sizes": (3, 0)}, "stage_sizes[1] must be an integer of at least 1; got stage_sizes[1]=0"),
    ({"stage_sizes": (True,)}, "stage_sizes[0] must be an integer of at least 1; got stage_sizes[0]=True"),
    ({"width_factor": 0.75}, "width_factor must be a multiple of 0.5"),
    ({"width_factor": 0}, "width_factor must be a finite number above 0; got width_factor=0"),
    ({"gn_epsilon": 0.0}, "gn_epsilon must be a finite number above 0; got gn_epsilon=0.0"),
    ({"std_epsilon": -1e-5}, "std_epsilon must be a finite number above 0; got std_epsilon=-1e-05"),
]


@for_each(
    ("changes", "message"),
    [*REFUSED_BY_BOTH, ({"style": "bit"}, "style must be one of 'vit', 'timm'; got style='bit'")],
)
def test_stem_refuses(changes, message):
    with pytest.raises(ValueError) as error:
        ResNetConfig(**{"stage_sizes": (3, 4, 9), **changes})
    assert message in str(error.value)


@for_each(
    ("changes", "message"),
    [
        *REFUSED_BY_BOTH,
        ({"stage_sizes": ()}, "stage_sizes must have at least one stage; got stage_sizes=()"),
        ({"max_pool_padding": "same"}, "max_pool_padding must be one of 'zeros', 'minus_infinity'; got"),
        ({"image_size": 0}, "image_size must be one positive integer or a pair"),
        ({"classes": 0}, "classes must be an integer of at least 1; got classes=0"),
    ],
)
def test_bit_refuses(changes, message):
    with pytest.raises(ValueError) as error:
        BiTConfig(**{**BIT, **changes})
    assert message in str(error.value)


def test_unknown_key_is_refused_with_a_hint():
    with pytest.raises(ValueError, match="did you mean 'max_pool_padding'"):
        BiTConfig(**BIT).replace(pool_padding="zeros")
