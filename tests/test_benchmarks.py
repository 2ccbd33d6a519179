"""Those of benchmarks/ that measure numbers; the others measure time."""

import importlib.util
import pathlib
import re
import shlex
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from faults import for_each

import keras_vit

REPOSITORY = pathlib.Path(__file__).parents[1]
GUIDE = (REPOSITORY / "docs" / "guides" / "finetune.md").read_text(encoding="utf-8").replace("\\\n", "")
COMMANDS = re.findall(r"^python -m benchmarks\.finetune (.*)$", GUIDE, re.MULTILINE)
LOSSES = re.compile(r"^(\w+): loss ([\d.]+), marginal ([\d.]+), chance ([\d.]+)$", re.MULTILINE)
WEIGHTS = "ViT-Ti_16-imagenet2012-224.npz"


def run(monkeypatch, capsys, *words, name="finetune"):
    """What `python -m benchmarks.finetune`, or another of that folder, prints and logs."""
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "benchmarks" / f"{name}.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
    program.main()
    return "".join(capsys.readouterr())


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """List that gets (recipe, size of the source, model, weights) of each training, none of which takes place: the
    model of seed 0 answers class 0, and so on. `cifar10.npz` is in the current folder."""
    calls = []

    def train(recipe, source, workdir, *, model, weights, verbose):
        calls.append((recipe, source.size, model, weights))
        config = {"patch_size": 4, "hidden_dim": 8, "num_layers": 1, "num_heads": 2, "mlp_dim": 8, "classes": 3}
        model = keras_vit.VisionTransformer(keras_vit.ViTConfig(name="toy", image_size=8, **config))
        model.layers[-1].bias.assign(np.eye(3)[recipe.seed] * 100)
        return SimpleNamespace(model=model)

    monkeypatch.setattr(keras_vit, "train", train)
    monkeypatch.chdir(tmp_path)
    labels = {"y_train": np.arange(6) % 3, "y_test": np.array([0, 0, 0, 1])}
    images = {f"x_{part}": np.zeros((len(labels[f"y_{part}"]), 8, 8, 3), "uint8") for part in ("train", "test")}
    np.savez("cifar10.npz", **labels, **images)
    return calls


@pytest.mark.slow
def test_each_seed_and_their_mean_are_printed(trained, monkeypatch, capsys):
    words = ("--weights", "w.npz", "--data", "cifar10.npz", "--seeds", 2, "--steps", 7, "--set", "warmup_steps=2")
    out = run(monkeypatch, capsys, *words)
    assert "seed 0: top-1 accuracy 75.00 %" in out and "seed 1: top-1 accuracy 25.00 %" in out
    assert "mean of 2 seeds: 50.00 %" in out
    assert [(r.seed, r.steps, r.warmup_steps, r.augment, *others) for r, *others in trained] == [
        (seed, 7, 2, ("random_crop(256)", "flip"), 6, "ViT-Ti_16", "w.npz") for seed in range(2)
    ]


@pytest.mark.docs
def test_commands_of_the_guide(trained, monkeypatch, capsys):
    for command in COMMANDS:
        assert "mean of " in run(monkeypatch, capsys, *shlex.split(command))
    runs = [(recipe.image_size, recipe.augment[0], recipe.learning_rate) for recipe, *_ in trained]
    assert runs == [((224, 224), "random_crop(256)", 0.01)] * 3 + [((96, 96), "random_crop(109)", 0.01)]


@for_each("words", [["--workdir", "run"], ["--set", "seed=5"], ["--recipe", "quickstart"]])
def test_words_without_effect_are_refused(monkeypatch, capsys, words):
    with pytest.raises(SystemExit):
        run(monkeypatch, capsys, "--weights", "w.npz", "--data", "cifar10.npz", *words)
    assert "only changes of the recipe" in capsys.readouterr().err


@pytest.mark.slow
def test_a_real_model_learns_at_96_pixels(real_data, monkeypatch, capsys, caplog):
    """In six minutes; the guide has the figures at 224 pixels, which take an hour."""
    files = {"ViT-Ti_16.npz": real_data / "weights" / WEIGHTS, "cifar10.npz": real_data / "cifar10_small.npz"}
    out = run(monkeypatch, capsys, *[files.get(word, word) for word in shlex.split(COMMANDS[1])])
    assert "14 x 14 -> 6 x 6" in caplog.text
    assert float(out.rsplit("mean of 1 seeds: ", 1)[1].split()[0]) > 86


@pytest.mark.slow
@pytest.mark.usefixtures("eagerly")
def test_masked_patches_on_the_digits(monkeypatch, capsys):
    """All that the program does, in a few steps: too few to learn anything."""
    sizes = ("--hidden-dim", 8, "--num-layers", 1, "--num-heads", 2, "--mlp-dim", 8, "--batch-size", 180)
    steps = ("--pretraining-steps", 2, "--steps", 1, "--labels", 180, "--seeds", 1)
    out = run(monkeypatch, capsys, *steps, *sizes, name="masked_patches")
    [(target, *figures)] = LOSSES.findall(out)
    loss, marginal, chance = map(float, figures)
    assert target == "mean_color" and chance == pytest.approx(np.log(8), abs=1e-4)
    assert marginal < chance and abs(loss - chance) < 0.2
    assert re.search(r"^gains of mean_color: [+-]\d+\.\d\d$", out, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.usefixtures("eagerly")
def test_masked_autoencoder_in_a_few_steps(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    arrays = {f"x_{part}": rng.integers(0, 256, (16, 8, 8, 3), dtype="uint8") for part in ("train", "test")}
    np.savez(tmp_path / "data.npz", **arrays, y_train=np.arange(16) % 2, y_test=np.arange(16) % 2)
    steps = ("--pretraining-steps", 2, "--steps", 2, "--labels", 8, "--seeds", 0, "--batch-size", 8)
    out = run(monkeypatch, capsys, "--cifar", tmp_path / "data.npz", *steps, name="masked_autoencoder")
    assert re.search(r"^gains: [+-]\d+\.\d\d$", out, re.MULTILINE)


@pytest.mark.slow
def test_masked_patches_of_the_digits_help(monkeypatch, capsys):
    """1,438 images without labels, then 100 with, in two minutes: a gain for each of three seeds."""
    sizes = ("--hidden-dim", 64, "--mlp-dim", 128, "--labels", 100)
    out = run(monkeypatch, capsys, "--pretraining-steps", 800, "--steps", 150, *sizes, name="masked_patches")
    loss, marginal, _ = map(float, LOSSES.findall(out)[0][1:])
    assert loss < 0.85 * marginal
    gains = [float(gain) for gain in re.search(r"gains of mean_color: (.*)", out)[1].split()]
    assert len(gains) == 3 and min(gains) > 0, gains


@pytest.mark.slow
def test_masked_patches_of_cifar_help(real_data, monkeypatch, capsys):
    """In fewer steps than the program takes by itself, a few minutes."""
    steps = ("--pretraining-steps", 600, "--steps", 150, "--seeds", 1)
    out = run(monkeypatch, capsys, "--data", real_data / "cifar10_small.npz", *steps, name="masked_patches")
    loss, marginal, chance = map(float, LOSSES.findall(out)[0][1:])
    assert chance == pytest.approx(np.log(512), abs=1e-4) and loss < 0.75 * marginal < 0.6 * chance
    assert float(re.search(r"gains of mean_color: (\S+)", out)[1]) > 1
