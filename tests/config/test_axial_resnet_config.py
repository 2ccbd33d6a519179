"""AxialResNetConfig: what it refuses and the widths that follow from it."""

import json

import pytest
from faults import for_each

from keras_vit.config import AxialResNetConfig

CONFIG = {"name": "AxialResNet-50", "image_size": 224, "stage_sizes": (3, 4, 6, 3)}


def test_defaults_and_widths():
    config = AxialResNetConfig(**CONFIG)
    assert (config.image_size, config.width_factor, config.num_heads, config.epsilon) == ((224, 224), 1.0, 8, 1e-5)
    assert config.width == 64
    assert [config.stage_width(index) for index in range(4)] == [128, 256, 512, 1024]
    narrow = config.replace(width_factor=0.75)
    assert (narrow.width, narrow.stage_width(0), narrow.stage_width(3)) == (48, 96, 768)


def test_survives_json():
    config = AxialResNetConfig(**CONFIG | {"width_factor": 0.5, "num_heads": 4, "epsilon": 1e-3, "classes": 7})
    assert AxialResNetConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@for_each(
    ("changes", "message"),
    [
        ({"stage_sizes": ()}, r"stage_sizes must have at least one stage; got stage_sizes=\(\)"),
        ({"stage_sizes": (3, 0)}, r"stage_sizes\[1\] must be an integer of at least 1"),
        ({"stage_sizes": 3}, "stage_sizes must be a sequence of integers; got stage_sizes=3"),
        ({"width_factor": 0}, "width_factor must be a finite number above 0; got width_factor=0"),
        ({"num_heads": 0}, "num_heads must be an integer of at least 1; got num_heads=0"),
        ({"num_heads": 3}, "64 [*] width_factor must be an integer divisible by num_heads; got .*, num_heads=3"),
        # 64 * 0.51 = 32.64 would round to 33, which one head divides
        ({"width_factor": 0.51, "num_heads": 1}, "must be an integer divisible by num_heads; got width_factor=0.51"),
        ({"epsilon": 0}, "epsilon must be a finite number above 0; got epsilon=0"),
        ({"image_size": (224, 0)}, "image_size must be one positive integer or a pair"),
    ],
)
def test_wrong_values_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        AxialResNetConfig(**{**CONFIG, **changes})
