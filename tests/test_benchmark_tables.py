"""`python -m benchmarks`: the table of benchmarks, how results are shown, and one that is run."""

import importlib
import json
import re
import shutil
import sys

import pytest
from faults import for_each

from benchmarks import __main__ as program
from benchmarks import gpu, plot
from benchmarks.contest import Result
from benchmarks.report import Table, is_installed, machine, ratio


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


@for_each("module", [*program.BENCHMARKS.values(), *program.ON_REQUEST.values()])
def test_every_benchmark_is_there(module):
    assert callable(importlib.import_module(f"benchmarks.{module}").run)


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a GPU")
def test_without_a_gpu_its_benchmark_says_so():
    with pytest.raises(SystemExit, match="needs an NVIDIA GPU"):
        list(gpu.run(program.Options()))


def test_figures_of_a_gpu(monkeypatch):
    """Products at 10 TFLOP/s, 100 ms per step, and a first call that takes 5 s longer than the others."""

    def contest(contenders, rounds, seconds, warm_up=2):
        [contender] = contenders
        if contender.name == "cuBLAS, remat block":
            raise RuntimeError("no memory")
        work = {"device": "H200"} if contender.name == "matrix product" else {"macs": 10**9}
        turn = gpu.GPU.steps * 2 * 8192**3 / 1e13 if contender.name == "matrix product" else gpu.GPU.steps / 10
        turn *= 1.5 if contender.name == gpu.TIMM else 1
        figures = {} if contender.name == gpu.TIMM else work
        return {contender.name: Result(contender.name, 0, turn + 5, [turn] * rounds, peak=2**31, figures=figures)}

    monkeypatch.setattr(gpu, "contest", contest)
    monkeypatch.setattr(gpu, "is_installed", lambda name: True)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    inference, training = gpu.run(program.Options(rounds=2, sizes=(24,)))
    assert training.title == "ViT-L_16, training, batch 128, H200 (10 TFLOP/s)"
    assert inference.rows[0] == ("keras_vit", "2560.0", "1.50 (1.50 to 1.50)", "51.2%", "2.00", "5.1")
    assert inference.rows[-1] == (gpu.TIMM, "1706.7", "", "34.1%", "2.00", "5.2")
    assert training.rows[0] == ("keras_vit", "1280.0", "1.50 (1.50 to 1.50)", "76.8%", "2.00", "5.1")
    assert training.rows[-3] == ("cuBLAS, remat block", "failed", "", "", "", "")


def test_the_plot_shows_every_row_of_the_first_table():
    rows = plot.rows(plot.RESULTS.read_text(encoding="utf-8"))
    assert ("GPU, inference, ViT-L/16, batch 256", "timm, torch.compile", 1.16, 1.15, 1.17) in rows
    labels = [label.get_text() for label in plot.draw(rows).axes[0].get_yticklabels()]
    assert labels == list(dict.fromkeys(row[0] for row in rows)) and len(rows) == 34


def show_the_dry_run(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words, "--dry-run", "--rounds", "1"])
    program.main()
    return capsys.readouterr().out


def test_a_dry_run_is_of_the_gpu_alone(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        show_the_dry_run(monkeypatch, capsys, "load")
    assert "--dry-run is an option of the benchmark gpu; got load" in capsys.readouterr().err


@pytest.mark.slow
def test_dry_run_of_the_gpu(monkeypatch, capsys):
    """Two minutes. MFU is checked with the formula of one block of ViT-B/16 and 7 x 7 patches."""
    peers = "--peers" if is_installed("timm") and is_installed("torchvision") else "--no-peers"  # timm imports it
    tables = show_the_dry_run(monkeypatch, capsys, "gpu", "--sizes", "12", peers).split("### ")[1:]
    macs = 49 * 768**2 + 50 * 12 * 768**2 + 2 * 50**2 * 768 + 768 * 1000
    for table, (work, forms) in zip(tables, gpu.FORMS.items(), strict=True):
        assert f"ViT-B_16, {work}, batch 2, cpu" in table
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line[:1] == "|"][2:]
        assert [row[0] for row in rows] == [*forms, *[gpu.TIMM] * (peers == "--peers")]
        product = 1e12 * float(re.search(r"\((\S+) TFLOP/s\)", table)[1])
        for _, speed, _, utilisation, peak, first in rows:
            expected = 2 * gpu.PASSES[work] * macs * float(speed) / product
            assert float(utilisation[:-1]) / 100 == pytest.approx(expected, rel=0.02)
            assert 0.1 < float(peak) < 4 and float(first) > 0


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
