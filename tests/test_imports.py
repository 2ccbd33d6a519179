"""The arrows of CONTRIBUTING.md: a module imports only from levels below its own. Read from the sources."""

import ast
import json
import pathlib
import subprocess
import sys

import pytest
from faults import for_each

import keras_vit

PACKAGE = pathlib.Path(keras_vit.__file__).parent
LAUNCHER = pathlib.Path(__file__).parents[1] / "keras_vit_command.py"

# From the bottom up. Packages of one level do not import each other, but for config, which uses checks.
LEVELS = (
    ("checks", "files", "logs", "typing", "versions"),
    ("progress", "words"),
    ("config",),
    ("layers",),
    ("compat", "losses"),
    ("models",),
    ("variants",),
    ("checkpoints",),
    ("zeroshot", "zoo"),
    ("autoencoders", "tasks"),
    ("data",),
    ("evaluation", "analysis"),
    ("explanation", "training", "serving"),
    ("demo",),
    ("cli",),
    ("__main__",),
)
RANKS = {package: rank for rank, level in enumerate(LEVELS) for package in level}
WITHOUT_TENSORFLOW = (
    *LEVELS[0],
    *LEVELS[1],
    "config",
    "layers",
    "losses",
    "models",
    "checkpoints",
    "variants",
    "zeroshot",
    "zoo",
    "autoencoders",
    "analysis",
    "tasks",
)
WITH_FORMS_FOR_TENSORFLOW = ("keras_vit.layers.attend", "keras_vit.layers.forms")  # which is imported in functions
STANDARD_LIBRARY_ONLY = (  # `--help`, `doctor` and `completion` do not wait for Keras
    "keras_vit.cli.answers",
    "keras_vit.cli.completion",
    "keras_vit.cli.doctor",
    "keras_vit.cli.failures",
    "keras_vit.cli.parser",
    "keras_vit.files",
    "keras_vit.logs",
    "keras_vit.versions",
)
MODULES = sorted(PACKAGE.rglob("*.py"))


def _module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@for_each("path", MODULES)
def test_module_obeys_the_arrows(path):
    is_package = path.name == "__init__.py"
    assert violations(_module_name(path), path.read_text(encoding="utf-8"), is_package) == []


def test_launcher_needs_nothing_at_import():
    source = LAUNCHER.read_text(encoding="utf-8")
    found = list(imports("keras_vit_command", source))
    assert [(name, inside) for name, inside in found if not _is_standard(name)] == [("keras_vit.cli", True)]


def test_every_package_has_a_level():
    packages = {path.stem for path in PACKAGE.glob("*.py")}
    packages |= {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert sorted(packages - {"__init__"} - set(RANKS)) == []


@for_each(
    ("module", "source", "expected"),
    [
        ("keras_vit.layers.toy", "from keras_vit.models import resize", "keras_vit.models"),
        ("keras_vit.layers.toy", "def f():\n    import keras_vit.zoo", "keras_vit.zoo"),
        ("keras_vit.layers.toy", "from ..models.vit import VisionTransformer", "keras_vit.models.vit"),
        ("keras_vit.layers.toy", "from keras_vit import zoo", "keras_vit.zoo"),
        (
            "keras_vit.layers.toy",
            "import importlib\nimportlib.import_module('keras_vit.data')",
            "keras_vit.data",
        ),
        ("keras_vit.layers.toy", "import keras_vit", "the whole package"),
        ("keras_vit.serving.toy", "from keras_vit.training import train", "keras_vit.training"),
        ("keras_vit.zoo", "import tensorflow as tf", "TensorFlow"),
        ("keras_vit.layers.toy", "def f():\n    import tensorflow as tf", "TensorFlow"),
        ("keras_vit.compat.toy", "import tensorflow as tf", "TensorFlow"),
        ("keras_vit.layers.forms", "import tensorflow as tf", "TensorFlow"),
        ("keras_vit.layers.toy", "from keras_vit.compat.fit import DistributedFit", "keras_vit.compat"),
        ("keras_vit.models.toy", "from keras.src.models import functional", "keras.src"),
        ("keras_vit.checkpoints.toy", "import pickle", "pickle"),
        ("keras_vit.cli.parser", "import keras", "standard library"),
        ("keras_vit.models.toy", "def f():\n    from keras_vit.models.base import Model", "a circle"),
        ("keras_vit.attic.toy", "import math", "keras_vit.attic.toy has no level"),
        ("keras_vit", "import keras_vit.data", "on first access"),
    ],
)
def test_wrong_import_is_found(module, source, expected):
    found = violations(module, source, is_package=False)
    assert len(found) == 1 and expected in found[0], found


def test_right_imports_are_left_alone():
    source = "import math\nimport keras\nfrom keras_vit import checks\nfrom . import position_grid\n"
    assert violations("keras_vit.layers.toy", source, is_package=False) == []
    inside = "def f():\n    import tensorflow as tf\n"
    assert violations("keras_vit.compat.toy", inside, is_package=False) == []
    assert violations("keras_vit.layers.forms", inside, is_package=False) == []


@pytest.fixture(scope="module")
def loaded():
    """Names of the modules that `import keras_vit` brings beyond those of `import keras`, in a new process.

    Keras brings its backend, and TensorFlow brings JAX where that is installed.
    """
    code = (
        "import json, sys, keras; before = set(sys.modules); import keras_vit; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout))


@for_each(
    "name",
    ["tensorflow_datasets", "keras_cv", "matplotlib", "jax", "torch", "sklearn", "PIL", "huggingface_hub", "gradio"],
)
def test_import_brings_no_heavy_company(loaded, name):
    assert name not in loaded


def test_packages_that_need_tensorflow_load_on_first_access(loaded):
    core = {
        "keras_vit.config",
        "keras_vit.layers",
        "keras_vit.models",
        "keras_vit.checkpoints",
        "keras_vit.zoo",
    }
    assert core <= loaded
    packages = ("data", "evaluation", "analysis", "training", "serving", "demo", "cli")
    assert [name for name in loaded if name.startswith(tuple(f"keras_vit.{package}" for package in packages))] == []


def violations(module, source, is_package):
    """Lists in words what `module` must not import; also what it imports inside functions.

    Args:
        module: full name of the module.
        source: its text.
        is_package: whether it is an `__init__.py`, which matters to relative imports.
    """
    package = (module.split(".") + [None])[1]
    if package is not None and package not in RANKS:
        return [f"{module} has no level in LEVELS"]
    found = []
    for name, in_function in imports(module, source, is_package):
        problem = _problem(module, package, name, in_function)
        if problem:
            found.append(f"{module} must not import {name}: {problem}")
    return found


def _problem(module, package, name, in_function):
    top = name.split(".")[0]
    if module in STANDARD_LIBRARY_ONLY:
        is_free = _is_standard(name) or name in STANDARD_LIBRARY_ONLY
        return None if is_free else "it may use the standard library alone"
    if top in ("pickle", "dill", "cloudpickle", "joblib"):
        return "pickle runs code when it is read"
    if name.startswith("keras.src") and package != "compat":
        return "keras.src is private to Keras; compat/ is the place for it"
    if top == "tensorflow":
        is_free = package not in WITHOUT_TENSORFLOW and package is not None
        if package == "compat" or module in WITH_FORMS_FOR_TENSORFLOW:
            is_free = in_function or module.startswith("keras_vit.compat.tensorflow_")
        return None if is_free else "TensorFlow is imported only in the packages above it"
    if top != "keras_vit":
        return None
    if package == "models" and in_function:
        return "an import inside a function hides a circle"
    return _arrow(package, name)


def _arrow(package, name):
    target = (name.split(".") + [None])[1]
    if package is None:  # keras_vit/__init__.py
        is_core = target is not None and RANKS[target] <= RANKS["autoencoders"]
        return None if is_core else "it is loaded on first access"
    if target is None:
        return None if package == "cli" else "the whole package is above it"
    if target == package or RANKS[target] < RANKS[package]:
        return None
    return "it is on the same level or above"


def imports(module, source, is_package=False):
    """Yields (full name, whether inside a function) for every import in a source."""
    tree = ast.parse(source)
    inside = {
        child
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        for name in _names(node, module, is_package):
            yield name, node in inside


def _names(node, module, is_package):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = module.split(".")[: len(module.split(".")) - node.level + is_package]
            base = ".".join([*above, *([base] if base else [])])
        if base == "keras_vit":  # a package, or a public name of the whole package
            return [f"{base}.{alias.name}" if alias.name in RANKS else base for alias in node.names]
        return [base if node.module else f"{base}.{alias.name}" for alias in node.names][
            : None if not node.module else 1
        ]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
            return [node.args[0].value]
    return []


def _is_standard(name):
    return name.split(".")[0] in sys.stdlib_module_names
