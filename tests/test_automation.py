"""The hosted CI and the hooks before a commit: they run what the project itself says, with the same ruff."""

import os
import pathlib
import re

import pytest
import yaml
from built import setup_arguments

REPOSITORY = pathlib.Path(__file__).parents[1]
WORKFLOW = REPOSITORY / ".github" / "workflows" / "ci.yml"

# the hooks of ruff-pre-commit, as commands
HOOKS = {"ruff-check": "ruff check", "ruff-format": "ruff format"}

pytestmark = pytest.mark.skipif(not WORKFLOW.exists(), reason="the source archive has no machinery of the repository")


def test_the_hooks_are_the_commands_of_ci_with_the_ruff_of_the_test_extra():
    (source,) = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    bound = next(text for text in setup_arguments()["extras_require"]["test"] if text.startswith("ruff>="))
    assert source["rev"] == f"v{bound.removeprefix('ruff>=')}.0"
    commands = re.findall(r"^\.ci/venv/bin/(ruff \w+)", (REPOSITORY / ".ci" / "run").read_text("utf-8"), re.MULTILINE)
    assert [HOOKS[hook["id"]] for hook in source["hooks"]] == commands


def test_the_hosted_ci_runs_the_script_from_the_oldest_python_on():
    (job,) = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"].values()
    scripts = [step["run"] for step in job["steps"] if "run" in step]
    assert scripts == [".ci/run"] and os.access(REPOSITORY / scripts[0], os.X_OK)
    assert f">={job['strategy']['matrix']['python'][0]}" == setup_arguments()["python_requires"]
