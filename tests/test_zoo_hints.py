"""Values of other libraries are refused with a hint at ours; test_words.py is about their names."""

import pytest

from keras_vit import checks
from keras_vit.checkpoints.evidence import LAYOUT_CHOICES
from keras_vit.config.needs import values_of
from keras_vit.serving.formats import FORMATS


@pytest.mark.parametrize(
    ("name", "theirs", "ours"), [(name, *row) for name, rows in checks.FOREIGN_VALUES.items() for row in rows.items()]
)
def test_values_of_other_libraries_are_answered_with_ours(name, theirs, ours):
    choices = {"pooling": values_of("pooling"), "format": FORMATS, "layout": LAYOUT_CHOICES}[name]
    assert checks.check_choice(name, ours, choices) == ours
    with pytest.raises(ValueError, match=rf"{name} must be one of .*={theirs!r} \(keras_vit calls it {ours!r}\)"):
        checks.check_choice(name, theirs, choices)
