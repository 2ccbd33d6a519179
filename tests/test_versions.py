"""The oldest and the newest Keras and TensorFlow that are allowed, each pair in an environment of its own.

The package index must be reached; a pair takes about ten minutes on two cores.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from built import setup_arguments

from keras_vit import versions

REPOSITORY = pathlib.Path(__file__).parents[1]
TESTS = ("tests/layers", "tests/models", "tests/compat/test_sublayers.py", "tests/test_golden.py")
NEEDED = ("pytest", "scipy")  # of the extra test, by these tests
FIT = """
import numpy as np

import keras_vit

images = np.random.default_rng(0).normal(size=(8, 32, 32, 3)).astype("float32")
model = keras_vit.ViT_Ti16(image_size=32, classes=2)
before = model.get_layer("block_00").get_weights()
model.compile("adamw", "sparse_categorical_crossentropy")
model.fit(images, np.arange(8) % 2, batch_size=4, epochs=1, verbose=0)  # two steps
changed = model.get_layer("block_00").get_weights()
assert int(model.optimizer.iterations) == 2
assert all(np.isfinite(array).all() for array in changed)
assert any((new != old).any() for new, old in zip(changed, before, strict=True))
"""


@pytest.fixture
def folder(tmp_path):
    """Of the environment, which is deleted in the end: it takes two gigabytes."""
    yield tmp_path / "environment"
    shutil.rmtree(tmp_path / "environment", ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_layers_models_golden_numbers_and_a_fit(which, folder):
    arguments = setup_arguments()
    tools = [bound for bound in arguments["extras_require"]["test"] if re.match(r"[\w-]+", bound)[0] in NEEDED]
    required = [*arguments["install_requires"], *arguments["extras_require"]["tensorflow"], *tools]
    if which == "oldest":
        required += [f"{package}=={oldest}.*" for package, (oldest, _) in versions.TESTED.items()]
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", *required)
    program = "import keras, tensorflow; print(keras.__version__, tensorflow.__version__)"
    found = run(python, "-c", program).splitlines()[-1].split()
    for version, (oldest, end) in zip(found, versions.TESTED.values(), strict=True):
        assert minor(version) == (minor(oldest) if which == "oldest" else before(end))
    run(python, "-c", FIT)
    done = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS)
    print(which, *found, done.splitlines()[-1])


def run(*words):
    """What a command prints; it must end well."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KERAS", "TF_"))}
    environment = {**kept, "PYTHONPATH": str(REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(words, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return done.stdout


def minor(version):
    return tuple(int(number) for number in version.split(".")[:2])


def before(end):
    major, number = minor(end)
    return major, number - 1
