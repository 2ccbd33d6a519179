"""The help of every verb: descriptions, choices, and examples that work."""

import pathlib
import re
import shlex
import types

import pytest
from command_line import SAVED, examples_of, help_of, run
from faults import for_each

import keras_vit
from keras_vit.checkpoints.evidence import LAYOUT_CHOICES
from keras_vit.cli import VERBS, parser
from keras_vit.config.base import GELUS
from keras_vit.config.preprocessing import INTERPOLATIONS
from keras_vit.serving.formats import FORMATS

LONG = dict.fromkeys(("evaluate", "export", "pretrain", "train"), pytest.mark.slow)  # the guides show more of these
REPOSITORY = pathlib.Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", *REPOSITORY.glob("docs/**/*.md")]


@pytest.fixture
def demo_is_not_served(monkeypatch):
    """A server would go on for ever; tests/demo/test_page_in_a_browser.py starts and ends one."""
    page = types.SimpleNamespace(local_url="http://127.0.0.1:7860/", share_url=None)
    monkeypatch.setattr(keras_vit.demo, "launch", lambda *arguments, **options: page)
    monkeypatch.setattr(keras_vit.demo, "wait", lambda page: None)


class TestHelp:
    @for_each("verb", VERBS)
    def test_every_verb_has_a_description_and_examples(self, capsys, verb):
        text = help_of(verb, capsys)
        for example in examples_of(text):
            assert example.split()[:2] == ["keras-vit", verb]
            assert parser.parse(shlex.split(example)[1:]).verb == verb
        description = text.split("\n\n")[1]
        assert len(description) > 15 and description.rstrip().endswith(".")

    def test_every_verb_is_listed(self, capsys):
        text = help_of(None, capsys)
        assert all(re.search(rf"^    {verb}\b", text, re.MULTILINE) for verb in VERBS)

    @pytest.mark.docs
    @pytest.mark.usefixtures("demo_is_not_served")
    @pytest.mark.parametrize("verb", [None, *(pytest.param(verb, marks=LONG.get(verb, ())) for verb in VERBS)])
    def test_examples_work(self, here, capsys, verb):
        pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
        documented = "".join(re.findall(r"^```bash\n(.*?)^```$", pages, re.MULTILINE | re.DOTALL)).splitlines()
        commands = [command for command in examples_of(help_of(verb, capsys)) if command not in documented]
        commands = [command for command in commands if "--published" not in command and "--all" not in command]
        for command in commands:  # the documented ones run in test_readme.py, and those left out download files
            code, out, err = run(capsys, *shlex.split(command.replace("hf://", "hub/"))[1:])  # of tests/workplace.py
            assert code == 0 and out, (command, err)

    def test_choices_in_the_help_are_those_of_the_package(self, capsys):
        text = " ".join(help_of("predict", capsys).split())
        assert f"--interpolation NAME {', '.join(INTERPOLATIONS[:-1])} or {INTERPOLATIONS[-1]}" in text
        assert f"{', '.join(GELUS[:-1])} or {GELUS[-1]}" in text
        assert f"--format NAME format: {', '.join(FORMATS)} (default" in " ".join(help_of("export", capsys).split())
        with pytest.raises(ValueError) as error, keras_vit.distribution("bogus"):
            pass
        strategies = re.search(r"devices: (.*) \(default: auto\)", " ".join(help_of("train", capsys).split()))[1]
        assert ", ".join(map(repr, strategies.split(", "))) in str(error.value)
        for layout in set(LAYOUT_CHOICES) - {"auto"}:
            assert parser.parse(["convert", *SAVED, "--layout", layout, "--output", "x"]).layout == layout
