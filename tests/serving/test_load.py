"""Eight threads ask one loaded model two thousand times: no error, no retracing, no growth of memory."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from served import make_model

import keras_vit
from keras_vit.serving import export

HERE = pathlib.Path(__file__).parent
pytestmark = pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="needs Linux's /proc")


def run(folder, *pictures):
    search_path = os.pathsep.join([str(HERE.parent), str(pathlib.Path(keras_vit.__file__).parents[1])])
    command = [sys.executable, "-W", "ignore", str(HERE / "load.py"), str(folder), "2000", "8", *map(str, pictures)]
    environment = {**os.environ, "PYTHONPATH": search_path, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def check(seen):
    print(seen)
    assert (seen["requests"], seen["wrong"], seen["traced"]) == (2000, 0, 0)
    assert seen["megabytes_end"] - seen["megabytes_settled"] < 60  # of 2,000 pictures and more; what malloc keeps


def test_load(tmp_path):
    check(run(export(make_model(), tmp_path, check=False)))


@pytest.mark.slow
def test_load_of_a_real_model(real_data, tmp_path):
    weights = real_data / "weights" / "ViT-Ti_16-imagenet2012-224.npz"
    folder = export(keras_vit.ViT_Ti16(weights=weights), tmp_path, check=False)
    check(run(folder, *sorted((real_data / "imagenet200").glob("*/*"))[:40]))
