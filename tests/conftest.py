"""Strictness for every test: warnings are errors (pyproject.toml), seeds are fixed, float32 products are exact."""

import contextlib
import gc
import importlib.util
import os
import pathlib
import sys
from unittest import mock

import pytest

TESTS = pathlib.Path(__file__).parent
REPOSITORY = TESTS.parent

# What `pytest -m quick` runs, without the tests that are slow: it takes less than a minute on two cores.
QUICK = ("config", "layers", "test_golden.py")

# The workers of pytest-xdist share the processors among themselves; more threads than these get in each other's way.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")


def pytest_addoption(parser):
    folders = [TESTS / name for name in ("golden", "golden_tasks", "golden_ssl")]
    about = "folder of golden cases for test_golden.py, instead of the three here"
    parser.addoption("--golden", type=lambda folder: [pathlib.Path(folder)], default=folders, help=about)


def _is_quick(path):
    """Whether a file or folder belongs to the tests of QUICK or contains them."""
    parts = path.relative_to(TESTS).parts
    return not parts or parts[0] in QUICK


def pytest_ignore_collect(collection_path, config):
    """To import only the files of QUICK, where only they are asked for, saves half of the time."""
    return config.option.markexpr == "quick" and not _is_quick(collection_path) or None


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their markers
def pytest_collection_modifyitems(items):
    for item in items:
        if _is_quick(item.path) and not {"slow", "docs"} & {mark.name for mark in item.iter_markers()}:
            item.add_marker("quick")


gc.disable()  # nothing that is imported and collected is garbage


def pytest_collection_finish():
    """Python need not look for garbage among all that was imported, nor so often: it saves a tenth of the time."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)
    gc.enable()


@pytest.fixture(scope="session")
def _seeding():
    """Context without TensorFlow's seed; to set it drops the kernels of all operations, a third of many tests' time."""
    import keras  # here, as the process that only hands out the tests to workers need not import it

    if keras.backend.backend() == "jax":
        import jax

        jax.config.update("jax_default_matmul_precision", "highest")
    keras.utils.set_random_seed(0)
    if "tensorflow" not in sys.modules:
        return contextlib.nullcontext()
    return mock.patch.object(sys.modules["tensorflow"].random, "set_seed", lambda seed: None)


@pytest.fixture(autouse=True)
def _fixed_state(_seeding):
    import keras

    with _seeding:
        keras.utils.set_random_seed(0)
    policy = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(policy)


@pytest.fixture(scope="module")
def eagerly():
    """Functions of TensorFlow run without being compiled, which takes longer than a few steps of a small model."""
    tf = pytest.importorskip("tensorflow")
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture
def compiled():
    """The opposite of `eagerly`, which lasts for the whole file; from some dozens of steps on it takes less time."""
    tf = pytest.importorskip("tensorflow")
    eager = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(False)
    yield
    tf.config.run_functions_eagerly(eager)


@pytest.fixture(scope="session")
def real_data():
    """Folder with real weights and images: KERAS_VIT_REAL_DATA, or `../shared/real` beside the checkout."""
    folder = pathlib.Path(os.environ.get("KERAS_VIT_REAL_DATA", REPOSITORY.parent / "shared" / "real"))
    if not folder.is_dir():
        pytest.skip(f"needs the folder of real weights and images; set KERAS_VIT_REAL_DATA ({folder} is absent)")
    return folder.resolve()


@pytest.fixture(scope="session")
def workplace():
    """The module workplace.py, which makes the files that the examples of the documents name."""
    spec = importlib.util.spec_from_file_location("workplace", TESTS / "workplace.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def example_files(workplace, tmp_path_factory):
    """Folder with those files."""
    folder = tmp_path_factory.mktemp("workplace")
    workplace.make(folder)
    return folder


@pytest.fixture
def here(example_files, tmp_path, monkeypatch):
    """A fresh folder with links to those files; it is the current folder."""
    for file in example_files.iterdir():
        (tmp_path / file.name).symlink_to(file)
    monkeypatch.chdir(tmp_path)
    return tmp_path
