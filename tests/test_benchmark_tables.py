"""`python -m benchmarks`: the table of benchmarks, how results are shown, and one that is run."""

import importlib
import json
import shutil
import sys

import pytest

from benchmarks import __main__ as program
from benchmarks import gpu
from benchmarks.contest import Result
from benchmarks.report import Table, machine, ratio


def test_a_table_is_markdown():
    table = Table("Speed", "What it is.", ("", "images/s"), [("ours", 5.25), ("theirs", "4")])
    assert str(table).splitlines() == [
        "### Speed",
        "",
        "What it is.",
        "",
        "|        | images/s |",
        "|--------|----------|",
        "| ours   | 5.25     |",
        "| theirs | 4        |",
    ]


def test_ratios_are_of_turns_that_followed_each_other():
    ours, theirs = Result("ours", turns=[1.0, 2.0, 4.0]), Result("theirs", turns=[2.0, 2.0, 20.0])
    assert ours.times_faster_than(theirs) == (2.0, 1.0, 5.0)
    assert ratio(ours.times_faster_than(theirs)) == "2.00 (1.00 to 5.00)"


def test_the_machine_is_told():
    assert "cores" in machine() and "keras 3" in machine()


@pytest.mark.parametrize("module", [*program.BENCHMARKS.values(), *program.ON_REQUEST.values()])
def test_every_benchmark_is_there(module):
    assert callable(importlib.import_module(f"benchmarks.{module}").run)


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a GPU")
def test_without_a_gpu_its_benchmark_says_so():
    with pytest.raises(SystemExit, match="needs an NVIDIA GPU"):
        list(gpu.run(program.Options()))


def test_an_unknown_name_is_refused_with_the_list(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "speed"])
    with pytest.raises(SystemExit):
        program.main()
    assert "training_step" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inference", "operations", "startup", "load", "merging"])
def test_tables_without_peers(name, monkeypatch, capsys, tmp_path):
    file = tmp_path / "tables.json"
    words = ["--no-peers", "--rounds", "1", "--sizes", "1", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["benchmarks", name, *words])
    program.main()
    tables = json.loads(file.read_text())["tables"]
    assert tables and all(table["rows"] for table in tables)
    assert all(f"### {table['title']}" in capsys.readouterr().out for table in tables[:1])
