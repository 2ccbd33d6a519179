"""ViTPose++: the experts of the data sets, against transformers."""

import json

import keras
import numpy as np
import pytest
from conftest import TESTS
from golden_arrays import stored_in
from golden_task_models import with_config

import keras_vit

FOLDER = TESTS / "golden_tasks" / "vitpose_plus"


@pytest.mark.parametrize("expert", [1, 3])
def test_a_file_has_the_experts_of_all_data_sets(expert):
    arrays, case = stored_in(FOLDER / "io.npz"), json.loads((FOLDER / "case.json").read_text())
    model = keras_vit.load(FOLDER, block={"expert": expert})
    key, heatmaps = f"heatmaps_{expert}", keras.ops.convert_to_numpy(model(arrays["images"]))
    np.testing.assert_allclose(heatmaps, arrays[key], rtol=0, atol=case["tolerance"]["per_key_atol"][key])
    assert model.count_params() == case["num_params"]
    again = type(model).from_config(model.get_config())
    assert again.config.block.expert == expert


def test_an_unknown_data_set_is_refused():
    with pytest.raises(ValueError, match="expert must be below num_experts; got expert=4, num_experts=4"):
        keras_vit.load(FOLDER, block={"expert": 4})


def test_config_json_and_arrays_must_have_the_same_experts(tmp_path):
    values = json.loads((FOLDER / "config.json").read_text())["backbone_config"]
    folder = with_config(FOLDER, tmp_path, backbone_config={**values, "num_experts": 5})
    with pytest.raises(ValueError, match="the file states block.num_experts=5; the model has 4"):
        keras_vit.load(folder)
