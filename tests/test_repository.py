"""What other people's tools read from the repository: the citation, the forms of the issue tracker."""

import pathlib
import re

import pytest
import yaml
from faults import assert_no_faults

from keras_vit.cli import VERBS

REPOSITORY = pathlib.Path(__file__).parents[1]
FORMS = sorted(REPOSITORY.glob(".github/ISSUE_TEMPLATE/*.yml"))
# The paper's title page, in its order.
AUTHORS = "Dosovitskiy Beyer Kolesnikov Weissenborn Zhai Unterthiner Dehghani Minderer Heigold Gelly Uszkoreit Houlsby"
FIELDS = {"markdown": {"value"}, "textarea": {"label"}, "input": {"label"}, "dropdown": {"label", "options"}}

needs_forms = pytest.mark.skipif(not FORMS, reason="the source archive has no .github")


def _read(path):
    return yaml.safe_load((REPOSITORY / path).read_text(encoding="utf-8"))


def test_citation_has_what_version_1_2_of_its_format_requires():
    citation = _read("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert {"authors", "message", "title"} <= set(citation)
    assert citation["authors"] == [{"name": "The keras_vit authors"}]
    assert citation["license"] == "Apache-2.0"


def test_citation_refers_to_the_paper():
    (paper,) = _read("CITATION.cff")["references"]
    assert {"authors", "title", "type"} <= set(paper)
    assert " ".join(author["family-names"] for author in paper["authors"]) == AUTHORS
    assert paper["url"].endswith("2010.11929") and paper["year"] == 2021
    assert paper["title"] == "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale"


@needs_forms
def test_forms_can_be_filled_in():
    """By GitHub's rules for forms: a key of its own for each field, what its type needs, and something to fill in."""

    def rule(path):
        form = _read(path)
        assert {"name", "description", "body"} <= set(form)
        keys = [field["id"] for field in form["body"] if field["type"] != "markdown"]
        assert keys and len(keys) == len(set(keys))
        assert all(re.fullmatch(r"[a-z_-]+", key) for key in keys)
        for field in form["body"]:
            assert FIELDS[field["type"]] <= set(field["attributes"]), field
        assert any(field.get("validations", {}).get("required") for field in form["body"])

    assert_no_faults(rule, {path.stem: path for path in FORMS if path.stem != "config"})


@needs_forms
def test_bug_form_asks_for_what_a_bug_needs():
    asked = {field.get("id") for field in _read(".github/ISSUE_TEMPLATE/bug.yml")["body"]}
    assert {"doctor", "devices", "code", "expected", "happened"} <= asked


@needs_forms
def test_forms_name_files_and_commands_that_exist():
    text = "".join(path.read_text(encoding="utf-8") for path in REPOSITORY.glob(".github/**/*.*"))
    files, commands = set(re.findall(r"[\w/.]+\.md\b", text)), set(re.findall(r"keras-vit (\w+)", text))
    assert "docs/contents.md" in files and {name for name in files if not (REPOSITORY / name).is_file()} == set()
    assert "doctor" in commands and commands <= set(VERBS)
