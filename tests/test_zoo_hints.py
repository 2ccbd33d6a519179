"""Values of other libraries are refused with a hint at ours; test_words.py is about their names."""

import pytest

import keras_vit
from keras_vit import checks

TINY = {
    "name": "tiny",
    "image_size": 8,
    "patch_size": 4,
    "hidden_dim": 8,
    "num_layers": 1,
    "num_heads": 2,
    "mlp_dim": 8,
}


@pytest.mark.parametrize(
    ("name", "theirs", "ours"), [(name, *row) for name, rows in checks.FOREIGN_VALUES.items() for row in rows.items()]
)
def test_values_of_other_libraries_are_answered_with_ours(name, theirs, ours):
    assert getattr(keras_vit.ViTConfig(**TINY, **{name: ours}), name) == ours
    with pytest.raises(ValueError, match=rf"{name} must be one of .*={theirs!r} \(keras_vit calls it {ours!r}\)"):
        keras_vit.ViTConfig(**TINY, **{name: theirs})
