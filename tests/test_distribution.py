"""The archives that are published: the wheel and the source archive hold what they should, and say what they are."""

import email
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import built
import pytest

import keras_vit

REPOSITORY = pathlib.Path(__file__).parents[1]
STEM = f"keras_vit_models-{keras_vit.__version__}"
LEFT_OUT = (".ci/", ".github/", ".gitignore", ".pre-commit-config.yaml")  # of the repository, in the source archive
GENERATED = r"PKG-INFO|setup\.cfg|keras_vit_models\.egg-info/.*"
DIST_INFO = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt")
MAX_BYTES = 1_000_000


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The folder of the source archive."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(built.build(folder, "sdist")) as archive:
        archive.extractall(folder, filter="data")
    return folder / STEM


@pytest.fixture(scope="module")
def wheel(unpacked, tmp_path_factory):
    """Name -> bytes of the wheel, built from the source archive as `python -m build` does and a distributor does."""
    folder = tmp_path_factory.mktemp("wheel")
    source = shutil.copytree(unpacked, folder / "source")  # the build leaves files in it
    with zipfile.ZipFile(built.build(folder, "wheel", source)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def metadata(wheel):
    return email.message_from_bytes(wheel[f"{STEM}.dist-info/METADATA"])


def test_wheel_holds_the_package_and_nothing_else(wheel):
    package = {path.as_posix() for path in built.tree() if path.parts[0] == "keras_vit"}
    assert any(name.endswith(".tsv") for name in package)
    about = {f"{STEM}.dist-info/{name}" for name in DIST_INFO}
    assert set(wheel) == {*package, "keras_vit_command.py", *about}


def test_source_archive_holds_the_repository_but_for_its_own_machinery(unpacked):
    held = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    names = {path.as_posix() for path in built.tree()}
    expected = {name for name in names if not name.startswith(LEFT_OUT)}
    assert {name for name in held if not re.fullmatch(GENERATED, name)} == expected
    assert {"CITATION.cff", "CHANGELOG.md", "LICENSE", "tests/conftest.py", "examples/quickstart.py"} <= expected


def test_archives_hold_the_bytes_of_the_repository(unpacked, wheel):
    for path in built.tree():
        content = (REPOSITORY / path).read_bytes()
        if (unpacked / path).exists():
            assert (unpacked / path).read_bytes() == content, path
        if path.as_posix() in wheel:
            assert wheel[path.as_posix()] == content, path


def test_no_file_is_large(unpacked):
    assert [path for path in unpacked.rglob("*") if path.stat().st_size > MAX_BYTES] == []


def test_files_are_found_without_git(unpacked, monkeypatch):
    """The unpacked source archive is such a checkout."""
    with_git = {path for path in built.tree() if not path.as_posix().startswith(LEFT_OUT)}
    monkeypatch.setattr(built, "REPOSITORY", unpacked)
    assert built.tree() == with_git


def test_the_folder_that_holds_a_clone_does_not_hide_the_package(tmp_path):
    (tmp_path / "keras_vit" / "tests").mkdir(parents=True)  # as a clone, which has no __init__.py
    command = "import importlib.util as u; print(u.find_spec('keras_vit').origin)"
    found = subprocess.run([sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert pathlib.Path(found.stdout.strip()).samefile(keras_vit.__file__)


def test_metadata_are_complete(metadata):
    assert (metadata["Name"], metadata["Version"]) == ("keras-vit-models", keras_vit.__version__)
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    for field in ("Author", "Keywords", "Requires-Python", "Summary"):
        assert metadata[field], field
    extras = built.setup_arguments()["extras_require"]
    assert sorted(metadata.get_all("Provides-Extra")) == sorted(extras)


def test_classifiers_say_what_is_so(metadata):
    classifiers = metadata.get_all("Classifier")
    assert len(classifiers) == len(set(classifiers))
    oldest = metadata["Requires-Python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {oldest}" in classifiers
    assert ("Typing :: Typed" in classifiers) == (REPOSITORY / "keras_vit" / "py.typed").exists()
    # The licence is an expression; an index refuses both.
    assert not any(classifier.startswith("License ::") for classifier in classifiers)


def test_description_is_the_readme(metadata):
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload(decode=True).decode() == (REPOSITORY / "README.md").read_text(encoding="utf-8")
