"""What the documentation shows is run: every snippet, every command, every figure that the code can tell."""

import importlib.util
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib
from unittest import mock

import keras
import pytest
import tensorflow as tf
from faults import for_each

import keras_vit
from keras_vit.cli import main

REPOSITORY = pathlib.Path(__file__).parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
CHANGELOG = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
CONTRIBUTING = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
CONTENTS = (REPOSITORY / "docs" / "contents.md").read_text(encoding="utf-8")
INSTALL = (REPOSITORY / "docs" / "install.md").read_text(encoding="utf-8")
DOCUMENTS = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted(REPOSITORY.glob("docs/**/*.md")),
]
LANGUAGES = ("python", "bash", "text")
SHORTENED = tomllib.loads((REPOSITORY / "tests" / "docs" / "shortened.toml").read_text(encoding="utf-8"))
needs_ci = pytest.mark.skipif(not (REPOSITORY / ".ci").is_dir(), reason="the source archive has no .ci")


def _blocks(language):
    """(document and line, text) of each fenced block in a language."""
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start()) + 1
            if match[1] == language:
                yield f"{document.relative_to(REPOSITORY).as_posix()}:{line}", match[2]


def _commands():
    """(document and line, command) for each line of the bash blocks; a backslash joins lines."""
    for place, text in _blocks("bash"):
        for line in text.replace("\\\n", " ").splitlines():
            yield place, " ".join(line.split())


def _everything():
    return [*_blocks("python"), *_commands()]


def _shortened(place, source):
    """The source with the values of a short run, and with the folder `hub` of tests/workplace.py as the hub."""
    source = source.replace("hf://", "hub/")
    for shown, run in SHORTENED.get(place.partition(":")[0], {}).items():
        source = source.replace(shown, run)
    return source


DIGITS = re.search(r"## Test the installation.*?```python\n(.*?)```", INSTALL, re.DOTALL)[1]
DEMO = "docs/reference/demo.md"
CODE = [(place, _shortened(place, source)) for place, source in _blocks("python") if source != DIGITS]
SNIPPETS = [(place, source) for place, source in CODE if not place.startswith(DEMO)]
SETUP = [command for _, command in _commands() if not command.startswith("keras-vit ")]
VERBS = [(place, _shortened(place, command)) for place, command in _commands() if command.startswith("keras-vit ")]


def test_there_is_something_of_each_kind():
    assert len(SNIPPETS) >= 4 and len(SETUP) == 2 and len(VERBS) >= 6
    fences = sum(len(re.findall(r"^```", path.read_text(encoding="utf-8"), re.MULTILINE)) for path in DOCUMENTS)
    assert fences == 2 * sum(len(list(_blocks(language))) for language in LANGUAGES)


def test_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_snippets_are_narrow():
    """A wider line gets a scroll bar on the site."""
    blocks = [block for language in LANGUAGES for block in _blocks(language) if not block[0].startswith("CONTRIBUTING")]
    assert [(place, line) for place, text in blocks for line in text.splitlines() if len(line) > 88] == []


def test_what_is_shortened_is_shown():
    """Each substitute is used, and no page shows the values of a test."""
    shown = {name: "".join(t for p, t in _everything() if p.startswith(f"{name}:")) for name in SHORTENED}
    assert [(name, text) for name, texts in SHORTENED.items() for text in texts if text not in shown[name]] == []
    short = re.compile(r"\b(steps|batch_size)=[12]\b(?! \*)|--(steps|batch-size) [12]\b")
    assert [(place, text) for place, text in _everything() if short.search(text)] == []


def test_examples_of_the_reference_are_short():
    reference = [(place, source) for place, source in _blocks("python") if place.startswith("docs/reference/")]
    lines = {place: re.findall(r"^(?!import |from |$).*", source, re.MULTILINE) for place, source in reference}
    assert {place: len(found) for place, found in lines.items() if len(found) > 8} == {}


def test_snippets_import_the_package_before_they_load_a_model():
    """Or Keras does not know its classes."""
    loads = {place: text for place, text in _blocks("python") if "load_model(" in text}
    assert loads and [place for place, text in loads.items() if "import keras_vit\n" not in text] == []


def test_pages_quote_what_keras_says_without_the_package(workplace, tmp_path):
    workplace.small_model().save(tmp_path / "model.keras")
    with mock.patch.dict(keras.saving.get_custom_objects(), clear=True), pytest.raises(TypeError) as error:
        keras.saving.load_model(tmp_path / "model.keras")
    quoted = str(error.value).partition(". ")[0]
    assert quoted == "Could not locate class 'VisionTransformer'"
    for name in ("guides/pretrained.md", "guides/finetune.md", "guides/serving.md", "reference/models.md"):
        assert quoted in " ".join((REPOSITORY / "docs" / name).read_text(encoding="utf-8").split()), name


@pytest.fixture
def here(here, monkeypatch):
    """With `weights="imagenet"` in the cache of Keras, as nothing is downloaded."""
    monkeypatch.setenv("KERAS_HOME", str(here / "keras"))
    return here


@pytest.fixture
def compiled_where_it_pays(request):
    """Two steps of a model of twelve blocks take less time than compiling one; an export needs compiled functions."""
    place, text = request.node.callspec.params.values()
    short = place.startswith("docs/reference/") and "export(" not in text
    tf.config.run_functions_eagerly(short or bool(re.search(r"\bsteps(_per_epoch)?[ =]2\b(?! \*)", text)))
    yield
    tf.config.run_functions_eagerly(False)


@pytest.mark.docs
@pytest.mark.parametrize(("place", "source"), SNIPPETS, ids=[place for place, _ in SNIPPETS])
@pytest.mark.usefixtures("compiled_where_it_pays")
def test_snippet_runs(here, capsys, caplog, place, source):
    for module in re.findall(r"small_digits|numbered_images", source):
        importlib.import_module(module)  # makes the set known to TensorFlow Datasets
    exec(compile(source, place, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out or caplog.messages
    keras.utils.clear_session()


@pytest.mark.docs
def test_snippets_of_the_demo_run(here):
    """In a process of their own, because Gradio does not close its sockets and event loops."""
    sources = [source for place, source in CODE if place.startswith(DEMO)]
    done = subprocess.run([sys.executable, "-c", "\n".join(sources)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("http://127.0.0.1:") == len(sources) - 1 == 2


@pytest.mark.docs
def test_the_first_model_learns(here, capsys):
    exec(compile(DIGITS, "install.md", "exec"), {"__name__": "__main__"})
    measured, shown = (
        float(re.search(r"top-1 accuracy ([\d.]+) %", text)[1]) for text in (capsys.readouterr().out, INSTALL)
    )
    assert measured > 90 and abs(measured - shown) < 4


@pytest.mark.docs
@pytest.mark.parametrize(("place", "command"), VERBS, ids=[command for _, command in VERBS])
@pytest.mark.usefixtures("compiled_where_it_pays")
def test_command_runs(here, capsys, place, command):
    if command.startswith("keras-vit bench"):
        main(["export", "--model", "model.keras", "--output", "serving", "--format", "litert", "--no-check"])
    code = main(shlex.split(command)[1:])
    output = capsys.readouterr()
    assert code == 0 and output.out, output.err


def test_setup_commands_have_the_same_form():
    for command in SETUP:
        venv, install, run = command.split(" && ")
        assert venv == "python3 -m venv .venv"
        extras = re.fullmatch(r"\.venv/bin/pip install -e '\.\[tensorflow,(\w+)\]'", install)
        assert extras[1] == {".venv/bin/pytest -n auto --dist worksteal": "test"}.get(run, "quickstart")


def test_readme_has_one_form_of_each_program():
    """That of the environment which its commands create."""
    assert re.findall(r"(?<!\.venv/bin/)\b(?:pip install|python docs|keras-vit \w)", README) == []


def test_sections_that_the_readme_links_to_exist():
    """Those of the other pages are checked where the site is built."""
    for path, anchor in re.findall(r"\]\((?!http)([^)#]+)#([^)]+)\)", README):
        headings = re.findall(r"^#+ (.*)$", (REPOSITORY / path).read_text(encoding="utf-8"), re.MULTILINE)
        assert anchor in [heading.lower().replace(" ", "-") for heading in headings], (path, anchor)


def test_first_command_runs_the_quickstart():
    """The script itself is run by tests/examples/test_quickstart.py."""
    assert SETUP[0].split(" && ")[-1] == ".venv/bin/python examples/quickstart.py"
    assert (REPOSITORY / "examples/quickstart.py").is_file()


@needs_ci
def test_second_command_is_what_ci_runs():
    lines = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    steps = [step.replace(".venv", ".ci/venv") for step in SETUP[1].split(" && ")]
    positions = [lines.index(step) for step in steps]
    assert positions == sorted(positions)
    assert lines[-1] == steps[-1], "the summary of the tests is the last output"
    assert os.access(REPOSITORY / ".ci" / "run", os.X_OK)


def test_figures():
    cases = list((REPOSITORY / "tests" / "golden").glob("*/case.json"))
    assert f"{len(cases)} cases" in CONTENTS
    assert f"The {len(keras_vit.list_models())} models of the paper and its follow-ups" in CONTENTS
    assert f"Version {keras_vit.__version__} contains" in CONTENTS
    recipes = f"{len(keras_vit.training.list_recipes())} recipes"
    assert recipes in CONTENTS and recipes in CHANGELOG


@needs_ci
def test_tree_names_what_there_is():
    tree = re.search(r"## The tree.*?```text\n(.*?)```", CONTRIBUTING, re.DOTALL)[1]
    rows = [line.split(maxsplit=1) for line in tree.splitlines()]
    assert all(len(row) == 2 for row in rows), "a phrase for each"
    indent = re.findall(r"^( *)\S", tree, re.MULTILINE)
    paths = [("keras_vit/" if space else "") + row[0] for space, row in zip(indent, rows, strict=True)]
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []
    package = REPOSITORY / "keras_vit"
    packages = [f"keras_vit/{p.parent.name}/" for p in package.glob("*/__init__.py")]
    packages += [f"keras_vit/{p.name}" for p in package.glob("*.py") if p.name != "__init__.py"]
    assert sorted(path for path in paths if path.startswith("keras_vit/") and path != "keras_vit/") == sorted(packages)


def test_arrows_are_those_that_the_tests_enforce():
    spec = importlib.util.spec_from_file_location("levels", pathlib.Path(__file__).with_name("test_imports.py"))
    levels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(levels)
    drawn = re.search(r"```text\n(checks, .*?)```", CONTRIBUTING, re.DOTALL)[1]
    assert " -> ".join(", ".join(level) for level in levels.LEVELS) == " ".join(drawn.split())


@for_each("document", DOCUMENTS)
def test_paths_in_the_text_exist(document):
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    named = re.findall(r"`((?:keras_vit|tests|examples|layers|data|cli)/[\w./-]+)`", text)
    generated = re.compile(r"(\.\./)?(models|notebooks)/|(\.\./)?(recipes|words)\.md")  # pages of the site alone
    missing = [path for path in links if not (generated.match(path) or (document.parent / path).exists())]
    roots = (REPOSITORY, REPOSITORY / "keras_vit", REPOSITORY / "tests")
    missing += [path for path in named if not any((root / path).exists() for root in roots)]
    assert missing == []
