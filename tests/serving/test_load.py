"""Eight threads ask one loaded model hundreds of times: no error, no retracing, no growth of memory."""

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


def run(folder, count, *images):
    search_path = os.pathsep.join([str(HERE.parent), str(pathlib.Path(keras_vit.__file__).parents[1])])
    command = [sys.executable, "-W", "ignore", str(HERE / "load.py"), str(folder), str(count), "8", *map(str, images)]
    environment = {**os.environ, "PYTHONPATH": search_path, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def check(seen, count):
    print(seen)
    assert (seen["requests"], seen["wrong"], seen["traced"]) == (count, 0, 0)
    assert seen["megabytes_end"] - seen["megabytes_settled"] < 60  # of thousands of images; what malloc keeps


@pytest.mark.slow
def test_load(tmp_path):
    check(run(export(make_model(), tmp_path, check=False), 2000), 2000)


@pytest.mark.slow
def test_load_of_a_real_model(real_data, tmp_path):
    weights = real_data / "weights" / "ViT-Ti_16-imagenet2012-224.npz"
    folder = export(keras_vit.ViT_Ti16(weights=weights), tmp_path, check=False)
    check(run(folder, 2000, *sorted((real_data / "imagenet200").glob("*/*"))[:40]), 2000)
