"""The oldest and the newest Keras and TensorFlow that are allowed, and keras-nightly, each in its own environment.

The package index must be reached. An environment takes about three minutes on two quiet cores and two gigabytes.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import pytest
from built import setup_arguments

from keras_vit import versions

REPOSITORY = pathlib.Path(__file__).parents[1]
MODELS = ("axial_resnet", "resnet", "swin", "vit", "vit_distilled")
TESTS = ("tests/layers", *(f"tests/models/test_{name}.py" for name in MODELS), "tests/test_golden.py")
NEEDED = ("pytest", "scipy")  # of the extra test, by these tests
VERSIONS = "import keras, tensorflow; print(keras.__version__, tensorflow.__version__)"
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
def python(tmp_path):
    """The interpreter of a new environment, which is deleted in the end."""
    folder = tmp_path / "environment"
    run(sys.executable, "-m", "venv", folder)
    yield folder / "bin" / "python"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["oldest", "newest", "nightly"])
def test_layers_models_golden_numbers_and_a_fit(which, python):
    arguments = setup_arguments()
    tools = [bound for bound in arguments["extras_require"]["test"] if re.match(r"[\w-]+", bound)[0] in NEEDED]
    required = [*arguments["install_requires"], *arguments["extras_require"]["tensorflow"], *tools]
    if which == "oldest":
        required += [f"{package}=={oldest}.*" for package, (oldest, _) in versions.TESTED.items()]
    run(python, "-m", "pip", "install", "--quiet", *required)
    if which == "nightly":  # the same modules in another package
        run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "keras")
        run(python, "-m", "pip", "install", "--quiet", "--pre", "keras-nightly")
    keras, tensorflow = run(python, "-c", VERSIONS).split()
    start = time.monotonic()
    for package, version in {"keras": keras, "tensorflow": tensorflow}.items():
        versions.check_version(package, version)
        if which == "oldest":
            assert version.startswith(f"{versions.TESTED[package][0]}.")
    assert ("dev" in keras) == (which == "nightly")
    run(python, "-c", FIT)
    done = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS)
    print(f"{which}: Keras {keras}, TensorFlow {tensorflow}, {time.monotonic() - start:.0f} s, {done.splitlines()[-1]}")


def run(*words):
    """What a command prints; it must end well."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KERAS", "TF_"))}
    environment = {**kept, "PYTHONPATH": str(REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(words, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return done.stdout
