"""A table of mistakes: each raises (or warns) with words that name the argument, what was expected and what came."""

import bad_input_rows_configs
import bad_input_rows_images
import bad_input_rows_weights
import keras
import pytest
from bad_input_files import make_files
from faults import for_each

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="keras_vit.data needs TensorFlow")

TABLE = {**bad_input_rows_configs.ROWS, **bad_input_rows_weights.ROWS, **bad_input_rows_images.ROWS}


def test_the_table_is_long_enough():
    assert len(TABLE) >= 30


@for_each("case", TABLE)
def test_bad_input(case, tmp_path):
    function, kind, words = TABLE[case]
    files = make_files(tmp_path)
    catch = pytest.warns if issubclass(kind, Warning) else pytest.raises
    with catch(kind) as caught:
        function(files)
    message = str(caught[0].message if issubclass(kind, Warning) else caught.value)
    assert issubclass(kind, Warning) or caught.type is kind
    folded = message.replace(str(files.folder), "").replace(", ", ",")
    missing = [word for word in words.split() if word not in folded]
    assert not missing, f"{missing} should be in: {message}"
