"""The package as a thing: its files, its names, its version, what is installed with it."""

import ast
import importlib.metadata
import itertools
import json
import os
import pathlib
import re
import runpy
import subprocess
import sys
import types

import pytest
import yaml
from built import setup_arguments
from faults import assert_no_faults, for_each

import keras_vit
from keras_vit import versions

REPOSITORY = pathlib.Path(__file__).parents[1]
SOURCES = sorted([*REPOSITORY.glob("keras_vit/**/*.py"), REPOSITORY / "keras_vit_command.py"])
FOLDERS = ("tests", "examples", "benchmarks")
FILES = sorted(
    [*SOURCES, REPOSITORY / "setup.py", *(p for name in FOLDERS for p in REPOSITORY.glob(f"{name}/**/*.py"))]
)
MAX_LINES = 400

# where the name to import is not the name to install
DISTRIBUTIONS = {
    "PIL": "pillow",
    "ai_edge_litert": "ai-edge-litert",
    "apache_beam": "apache-beam",
    "google": "protobuf",
    "grpc": "grpcio",
    "keras_cv": "keras-cv",
    "ml_dtypes": "ml-dtypes",
    "orbax": "orbax-checkpoint",
    "sklearn": "scikit-learn",
    "tensorflow_datasets": "tensorflow-datasets",
    "tensorflow_serving": "tensorflow-serving-api",
    "websocket": "websocket-client",
    "yaml": "pyyaml",
}
# by ipykernel, by tensorflow, whose messages it reads, by what serves it, and by nncf, which draws its bars with it
BROUGHT_BY_OTHERS = {"IPython", "protobuf", "grpcio", "rich"}


@pytest.fixture(scope="module")
def metadata():
    return setup_arguments()


def test_files_are_short():
    def rule(path):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        return lines > MAX_LINES and f"it has {lines} lines, above {MAX_LINES}"

    assert_no_faults(rule, {str(path.relative_to(REPOSITORY)): path for path in FILES})


def test_files_say_what_they_are_for():
    def rule(path):
        first_line = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0]
        return len(first_line) <= 20 and f"the first line of its docstring is {first_line!r}"

    assert_no_faults(rule, {str(path.relative_to(REPOSITORY)): path for path in SOURCES})


def test_public_names_exist():
    listed = dir(keras_vit)
    assert [name for name in keras_vit.__all__ if not hasattr(keras_vit, name) or name not in listed] == []


def test_public_names_are_listed_once():
    assert len(keras_vit.__all__) == len(set(keras_vit.__all__))


def test_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="module 'keras_vit' has no attribute 'ViT_X16' .did you mean"):
        _ = keras_vit.ViT_X16


def test_version_is_stated_once(metadata):
    assert re.fullmatch(r"\d+\.\d+\.\d+", keras_vit.__version__)
    assert metadata["version"] == keras_vit.__version__
    newest = re.search(r"^## (\S+)", (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest[1] == keras_vit.__version__
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == keras_vit.__version__


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_without_its_backend_the_import_says_what_to_install(tmp_path, backend):
    """tests/test_extras.py does so in an environment without any."""
    message = f"No module named '{backend}'"
    (tmp_path / f"{backend}.py").write_text(f'raise ModuleNotFoundError("{message}", name="{backend}")')
    paths = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    environment = {**os.environ, "PYTHONPATH": paths, "KERAS_BACKEND": backend}
    done = subprocess.run([sys.executable, "-c", "import keras_vit"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: keras_vit needs the backend of Keras, and {backend} is not installed: "
        "pip install tensorflow, or pip install jax and KERAS_BACKEND=jax"
    )


def test_console_script_points_to_the_launcher(metadata):
    assert metadata["entry_points"] == {"console_scripts": ["keras-vit = keras_vit_command:main"]}


def test_installation_brings_what_the_package_imports(metadata):
    extras = metadata["extras_require"]
    rooms = [
        bound for name in ("tensorflow", "jax", "demo", "hosts", "text", "train", "export") for bound in extras[name]
    ]
    optional = {"huggingface_hub", *BROUGHT_BY_OTHERS, *_names(rooms)}
    assert _third_party(SOURCES) - optional == _names(metadata["install_requires"])


def test_test_extra_brings_what_the_tests_import(metadata):
    extras = metadata["extras_require"]
    installed = _names(metadata["install_requires"]) | _names(extras["tensorflow"]) | _names(extras["test"])
    missing = _third_party(sorted(REPOSITORY.glob("tests/**/*.py"))) - installed - BROUGHT_BY_OTHERS
    # test files that are skipped without them: documents, tests/test_peers.py, tests/examples/test_beam_pipeline.py
    assert missing <= _names([*extras["test-docs"], *extras["bench"], *extras["beam"]])
    assert {"pytest", "ruff", "scikit-learn"} <= installed


def test_every_bound_is_a_lower_one_or_explained(metadata):
    """An upper bound needs its reason on the same line of setup.py."""
    source = (REPOSITORY / "setup.py").read_text(encoding="utf-8")
    bounds = [text for texts in metadata["extras_require"].values() for text in texts] + metadata["install_requires"]
    for bound in bounds:
        if "<" in bound or "==" in bound:
            assert re.search(rf'"{re.escape(bound)}".*#', source), f"{bound} needs a reason beside it"


def test_keras_and_tensorflow_are_bounded_as_the_import_checks(metadata):
    extras = metadata["extras_require"]
    bounds = {*metadata["install_requires"], *itertools.chain.from_iterable(extras.values())}
    for package, (oldest, end) in versions.TESTED.items():
        own = {bound for bound in bounds if re.match(rf"{package}(-cpu|-tpu|-serving-api)?[<>=]", bound)}
        assert f"{package}>={oldest},<{end}" in own
        assert all(bound.endswith(f",<{end}") for bound in own), own
        versions.check_version(package, f"{oldest}.0")


def test_untested_versions_are_refused():
    refused = {"keras": ("3.17.0.dev2027020304", "3.11.3", "2.15.0", "4.0"), "tensorflow": ("2.22.0-rc1", "2.19.1")}
    for package, given in refused.items():
        oldest, end = versions.TESTED[package]
        tested = f"{package}>={oldest},<{end}"
        for version in given:
            with pytest.raises(ImportError) as caught:
                versions.check_version(package, version)
            assert str(caught.value) == f"keras_vit needs {tested}; got {package} {version} (pip install '{tested}')"


@for_each(
    ("direct_url", "expected"),
    [
        (None, "pip install 'keras-vit-models[jax]'"),
        (
            {"url": "https://a.org/me/vit.git", "vcs_info": {"vcs": "git", "commit_id": "ab12"}, "subdirectory": "p"},
            "pip install 'keras-vit-models[jax] @ git+https://a.org/me/vit.git@ab12#subdirectory=p'",
        ),
        (
            {"url": "https://a.org/vit-0.1.0.tar.gz", "archive_info": {}},
            "pip install 'keras-vit-models[jax] @ https://a.org/vit-0.1.0.tar.gz'",
        ),
        ({"url": "file:///home/me/vit", "dir_info": {}}, "pip install 'keras-vit-models[jax] @ file:///home/me/vit'"),
        ({"url": "file:///my%20vit", "dir_info": {"editable": True}}, "pip install -e '/my vit[jax]'"),
    ],
)
def test_an_extra_is_installed_from_where_the_package_is(monkeypatch, tmp_path, direct_url, expected):
    """`direct_url.json` has the form that packaging.python.org describes."""
    found = types.SimpleNamespace(read_text=lambda name: direct_url and json.dumps(direct_url))
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: found)
    assert versions.install_command("jax") == f"pip install -e '{REPOSITORY}[jax]'"  # a checkout is used as it is
    monkeypatch.setattr(versions, "_CHECKOUT", tmp_path)
    assert versions.install_command("jax") == expected
    (tmp_path / "setup.py").touch()
    assert versions.install_command("jax") == f"pip install -e '{tmp_path}[jax]'"
    assert versions.install_command("") == f"pip install -e {tmp_path}"
    monkeypatch.undo()


def test_every_extra_that_the_code_names_is_installed_by_that_command(metadata):
    """An extra in quotes is in `install_command`, and exists."""
    named = {}
    for path in SOURCES:
        source = path.read_text(encoding="utf-8")
        named |= dict.fromkeys(re.findall(r"install_command\(['\"](\w+)['\"]\)", source), path.name)
        assert not re.search(r"pip install.*keras-vit-models\[", source), path
    assert named.keys() >= {"hosts", "text"} and named.keys() <= metadata["extras_require"].keys()


def test_python_runs_the_package_as_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["keras_vit", "--version"])
    monkeypatch.delitem(sys.modules, "keras_vit.__main__", raising=False)
    with pytest.raises(SystemExit) as end:
        runpy.run_module("keras_vit", run_name="__main__")
    assert end.value.code == 0 and capsys.readouterr().out == f"keras-vit {keras_vit.__version__}\n"


@pytest.mark.parametrize("package", versions.TESTED)
def test_an_untested_version_is_one_clear_sentence_at_import(package, tmp_path):
    """A module in the place of Keras states versions, of which that of `package` is too new."""
    stated = {name: "99.0" if name == package else f"{oldest}.0" for name, (oldest, _) in versions.TESTED.items()}
    (tmp_path / "keras.py").write_text(
        "import sys, types\n"
        f"__version__ = {stated['keras']!r}\n"
        f"sys.modules['tensorflow'] = types.SimpleNamespace(__version__={stated['tensorflow']!r})\n"
        "backend = types.SimpleNamespace(backend=lambda: 'tensorflow')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])}
    done = subprocess.run([sys.executable, "-c", "import keras_vit"], env=environment, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: keras_vit needs {package}>="), done.stderr


def _names(requirements):
    return {re.match(r"[A-Za-z0-9_.-]+", requirement)[0] for requirement in requirements}


def _third_party(paths):
    """Distributions that these files import, also inside functions."""
    found = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module.split(".")[0])
    ours = {"keras_vit", "keras_vit_command", "benchmarks", *(path.stem for path in REPOSITORY.glob("tests/**/*.py"))}
    return {DISTRIBUTIONS.get(name, name) for name in found - ours if name not in sys.stdlib_module_names}
