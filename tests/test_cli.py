"""The command line: what each verb prints, what it says on mistakes, and the examples of its help."""

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
import warnings

import keras
import numpy as np
import pytest

import keras_vit
import keras_vit_command
from keras_vit import Preprocessing
from keras_vit.checkpoints.releases import list_releases
from keras_vit.cli import VERBS, failures, inventory, main, parser
from keras_vit.cli.models import change_preprocessing
from keras_vit.config import GELUS, INTERPOLATIONS

README = pathlib.Path(__file__).parents[1] / "README.md"
SAVED = ["--model", "model.keras"]
REAL_WEIGHTS = "ViT-Ti_16-imagenet2012-224.npz"
TI16 = ["--model", "ViT-Ti_16", "--weights", "ViT-Ti_16.npz"]


def run(capsys, *words):
    """Exit code, standard output and standard error of a command."""
    code = main([str(word) for word in words])
    output = capsys.readouterr()
    return code, output.out, output.err


def help_of(verb, capsys):
    code, out, _ = run(capsys, *([verb] if verb else []), "--help")
    assert code == 0
    return out


def examples_of(text):
    """The commands below `example:` or `examples:`."""
    text = re.split(r"^examples?:\n", text, flags=re.MULTILINE)[1].replace("\\\n", " ")
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def script(*words, **environment):
    """Runs the console script in a process of its own."""
    command = [sys.executable, keras_vit_command.__file__, *words]
    root = str(pathlib.Path(keras_vit_command.__file__).parent)
    environment = {**os.environ, "PYTHONPATH": root, **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def error_of(result):
    """The one line that a failed command writes."""
    code, out, err = result
    assert (code, out) == (2, ""), (code, out, err)
    lines = [line for line in err.splitlines() if not line.startswith(("Loaded ", "  "))]  # the load report
    assert len(lines) == 1 and lines[0].startswith("keras-vit: error: "), err
    return lines[0].removeprefix("keras-vit: error: ")


class TestListAndInfo:
    def test_list_shows_every_model_with_its_size_cost_and_releases(self, capsys):
        code, out, err = run(capsys, "list")
        assert (code, err) == (0, "")
        rows = [re.split(r"\s{2,}", line) for line in out.splitlines()]
        assert rows[0] == ["model", "parameters", "GMAC@224", "weights"]
        assert [row[0] for row in rows[1:]] == keras_vit.list_models()
        # Parameters as golden in test_zoo.py, costs as computed from the official code
        assert ["ViT-Ti_16", "5,717,416", "1.25", "augreg, augreg+imagenet2012"] in rows
        assert ["ViT-L_32", "306,535,400", "15.38", "imagenet21k, imagenet21k+imagenet2012, sam"] in rows
        assert ["ViT-G_14", "1,844,440,680", "483.75", "-"] in rows
        columns = {line.rindex(row[2]) + len(row[2]) for line, row in zip(out.splitlines(), rows, strict=True)}
        assert len(columns) == 1, "flush right"

    def test_list_prints_row_by_row(self, capsys, monkeypatch):
        def stop(model):
            raise KeyError("counting")

        monkeypatch.setattr(inventory, "count_macs", stop)
        with pytest.raises(KeyError, match="counting"):
            main(["list"])
        assert capsys.readouterr().out.startswith("model ")

    def test_list_of_weights_names_files(self, capsys):
        _, out, _ = run(capsys, "list", "ViT-B_1*", "--weights")
        assert "imagenet21k+imagenet2012/ViT-B_16-224.npz" in out and "ViT-B_32" not in out

    def test_list_without_a_match(self, capsys):
        assert "PATTERN must match one of ViT-Ti_16, " in error_of(run(capsys, "list", "vit*"))

    def test_info_without_weights(self, capsys):
        code, out, err = run(capsys, "info", "ViT-B_16", "--image-size", "384", "--classes", "10")
        values = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in out.partition("\n\n")[0].splitlines())
        assert (code, err) == (0, "")
        # Table of FACTS: 85,798,656 without head at 224; 24 * 24 - 14 * 14 more positions, a head of ten
        assert values["parameters"] == f"{85_798_656 + 768 * (24**2 - 14**2) + 7690:,}"
        assert values["image_size"] == "384 384" and values["preprocessing size"] == "384 384"
        assert values["epsilon"] == "1e-06" and values["labels"] == "None"


    def test_info_shows_stages_that_add_up(self, capsys):
        code, out, err = run(capsys, "info", "ViT-B_16")
        assert (code, err) == (0, "")
        values, stages, trainings = out.split("\n\n")
        rows = [re.split(r"\s{2,}", line) for line in stages.splitlines()]
        assert rows[0] == ["layer", "output", "parameters", "multiply-accumulates"]
        names = ["patch_encoder", "class_token", "position_embs", "block_00 ... block_11", "encoder_norm", "pooling"]
        assert [row[0] for row in rows[1:]] == [*names, "head"]
        # 14 x 14 patches of 16 x 16 x 3 numbers to 768; 12 blocks of 4 D^2 + 2 D M weights, 197 tokens
        assert rows[1][1:] == ["196 x 768", f"{(16 * 16 * 3 + 1) * 768:,}", f"{196 * 16 * 16 * 3 * 768:,}"]
        projections, attention = 197 * (4 * 768**2 + 2 * 768 * 3072), 2 * 197**2 * 768
        assert rows[4][1:] == ["197 x 768", f"{12 * 7_087_872:,}", f"{12 * (projections + attention):,}"]
        for column, total in ((2, "parameters"), (3, "multiply-accumulates")):
            stated = re.search(rf"^{total} +([\d,]+)$", values, re.MULTILINE)[1]
            assert sum(int(row[column].replace(",", "")) for row in rows[1:]) == int(stated.replace(",", ""))

    @pytest.mark.parametrize(
        ("name", "epochs", "exaflops"),
        [("ViT-B_16", [7], [224]), ("ViT-L_16", [7, 14], [783, 1567]), ("ViT-H_14", [14], [4262])],
    )
    def test_info_tells_what_the_papers_trainings_cost(self, capsys, name, epochs, exaflops):
        out = run(capsys, "info", name)[1]
        rows = re.findall(r"^arXiv 2010.11929, Table 6  JFT-300M, (\d+) epochs +([\d.]+)$", out, re.MULTILINE)
        assert [int(count) for count, _ in rows] == epochs
        assert [float(cost) for _, cost in rows] == pytest.approx(exaflops, rel=0.003)

    def test_info_of_a_model_without_a_known_training(self, capsys):
        assert "exaFLOPs" not in run(capsys, "info", "ViT-S_16")[1]

    def test_info_tells_what_a_recipe_costs(self, here, capsys):
        recipe = keras_vit.training.RECIPES["quickstart"]
        model = keras_vit.VisionTransformer(recipe.model)
        model.save("digits.keras")
        out = run(capsys, "info", "digits.keras")[1]
        pictures, epochs, cost = re.search(
            r"^recipe quickstart +([\d,]+), (\d+) epochs +([\d.e-]+)$", out, re.MULTILINE
        ).groups()
        train, _ = keras_vit.data.from_digits()
        assert (int(pictures.replace(",", "")), int(epochs)) == (train.size, recipe.epochs)
        macs = int(re.search(r"^multiply-accumulates +([\d,]+)$", out, re.MULTILINE)[1].replace(",", ""))
        assert float(cost) == pytest.approx(6 * macs * train.size * recipe.epochs / 1e18, rel=1e-3)

    @pytest.mark.parametrize(
        ("changes", "expected", "examples"),
        [
            ({"steps": 10, "epochs": None}, "10 x 64", 640),
            ({"dataset": None}, "each million, 100 epochs", 1e8),
        ],
    )
    def test_info_lists_recipes_for_every_model(self, capsys, monkeypatch, changes, expected, examples):
        recipe = keras_vit.training.RECIPES["quickstart"].replace(name="mine", model=None, **changes)
        monkeypatch.setitem(keras_vit.training.RECIPES, "mine", recipe)
        out = run(capsys, "info", "ViT-Ti_16")[1]
        cost = re.search(rf"^recipe mine +{expected} +([\d.e-]+)$", out, re.MULTILINE)[1]
        assert float(cost) == pytest.approx(6 * 1.2537e9 * examples / 1e18, rel=1e-3)

    def test_info_reports_how_weights_fit(self, here, capsys):
        code, out, err = run(capsys, "info", "ViT-Ti_16", "--weights", "ViT-Ti_16.npz", "--image-size", "96")
        assert (code, err) == (0, "")
        assert "Loaded 200 arrays of ViT-Ti_16.npz" in out and "14 x 14 -> 6 x 6" in out
        assert "tench, goldfish, " in out and "(1000)" in out

    def test_info_of_published_weights(self, here, capsys, monkeypatch):
        file = list_releases("ViT-Ti_16")[-1].path  # of 384 pixels, as published; the content has 224
        (here / "bucket" / file).parent.mkdir(parents=True)
        (here / "bucket" / file).write_bytes((here / "ViT-Ti_16.npz").read_bytes())
        monkeypatch.setenv("KERAS_VIT_WEIGHTS_URL", (here / "bucket").as_uri())
        monkeypatch.setenv("KERAS_HOME", str(here / "cache"))
        words = ["--weights", "augreg+imagenet2012", "--image-size", "64"]
        code, out, err = run(capsys, "info", "ViT-Ti_16", *words)
        assert code == 0 and "Loaded 200 arrays" in out
        assert "Downloading data from file:" in err and "Downloading" not in out

    def test_info_of_a_saved_model_with_changes(self, here, capsys):
        code, out, _ = run(capsys, "info", "model.keras", "--image-size", 32, "--gelu", "erf", "--classes", 7)
        assert code == 0
        assert re.search(r"^gelu +erf$", out, re.MULTILINE) and re.search(r"^classes +7$", out, re.MULTILINE)
        assert "2 x 2 -> 4 x 4" in out and "the file was trained with gelu='tanh'" in out


class TestPredict:
    def test_prints_what_predict_returns(self, here, capsys):
        code, out, err = run(capsys, "predict", "cat.jpg", *SAVED, "--json")
        assert (code, err) == (0, "")
        [entry] = json.loads(out)
        expected = keras_vit.predict(keras.models.load_model("model.keras"), "cat.jpg")[0]
        assert entry["picture"] == "cat.jpg"
        assert [answer["label"] for answer in entry["answers"]] == [label for label, _ in expected]
        np.testing.assert_allclose(
            [a["score"] for a in entry["answers"]], [s for _, s in expected], rtol=1e-5
        )

    def test_text_has_a_block_per_picture(self, here, capsys):
        picture = "pictures/n02123394_Persian_cat/0.jpg"
        _, out, _ = run(capsys, "predict", "cat.jpg", picture, *SAVED, "--top", "2")
        lines = out.splitlines()
        assert [lines[0], lines[3]] == ["cat.jpg", picture] and len(lines) == 6
        assert re.fullmatch(r"  0\.\d{4}  (cat|dog|fox)", lines[1])

    def test_load_report_goes_to_standard_error(self, here, capsys):
        code, out, err = run(capsys, "predict", "cat.jpg", *TI16, "--image-size", "32", "--top", "1")
        assert code == 0 and len(out.splitlines()) == 2
        assert "Loaded 200 arrays" in err and "14 x 14 -> 2 x 2" in err

    def test_classes_follow_the_file(self, here, capsys):
        model = keras_vit.ViT_Ti16(image_size=32, classes=4)
        model.get_layer("head").set_weights([np.eye(192, 4, dtype="float32"), np.zeros(4, "float32")])
        keras_vit.save_weights(model, "four.npz")
        words = [
            "--model",
            "ViT-Ti_16",
            "--weights",
            "four.npz",
            "--image-size",
            "32",
            "--top",
            "9",
            "--json",
        ]
        [entry] = json.loads(run(capsys, "predict", "cat.jpg", *words)[1])
        assert {answer["label"] for answer in entry["answers"]} == {f"class_{index}" for index in range(4)}

    def test_a_warning_is_one_line(self, here, workplace, capsys):
        workplace.small_model().save("fresh.keras")
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            code, _, err = run(capsys, "predict", "cat.jpg", "--model", "fresh.keras")
        assert code == 0 and len(err.splitlines()) == 1
        assert err.startswith("keras-vit: warning: the head of small has a kernel of zeros")

    @pytest.mark.parametrize(
        "words",
        [
            ["--resize", "20", "--interpolation", "bicubic", "--mean", "0.4", "--std", "0.2,0.3,0.4"],
            [
                "--resize",
                "20x24",
                "--crop",
                "16",
                "16",
                "--mean",
                "0.4",
                "0.4",
                "0.4",
                "--std",
                "0.2,0.3,0.4",
            ],
        ],
    )
    def test_changed_preprocessing_is_used(self, here, capsys, words):
        model = keras.models.load_model("model.keras")
        model.preprocessing = Preprocessing(
            size=20 if words[1] == "20" else (20, 24),
            crop=16,
            interpolation="bicubic" if "bicubic" in words else "bilinear",
            mean=(0.4, 0.4, 0.4),
            std=(0.2, 0.3, 0.4),
        )
        [entry] = json.loads(run(capsys, "predict", *SAVED, *words, "--json", "--top", "1", "cat.jpg")[1])
        [[(label, score)]] = keras_vit.predict(model, "cat.jpg", top=1)
        assert entry["answers"] == [{"label": label, "score": pytest.approx(score, rel=1e-5)}]


@pytest.mark.parametrize(
    ("words", "size", "crop"),
    [
        ([], (16, 16), None),
        (["--resize", "20"], 20, (16, 16)),
        (["--resize", "20", "--crop", "16"], 20, (16, 16)),
        (["--resize", "16"], 16, (16, 16)),
        (["--resize", "16x16"], (16, 16), None),
        (["--resize", "20x18"], (20, 18), (16, 16)),
        (["--resize", "20", "18"], (20, 18), (16, 16)),
        (["--crop", "16"], (16, 16), (16, 16)),
    ],
)
def test_resize_and_crop(words, size, crop):
    args = parser.parse(["predict", "cat.jpg", *SAVED, *words])
    changed = change_preprocessing(Preprocessing(size=16), (16, 16), args)
    assert (changed.size, changed.crop) == (size, crop)


def test_one_mean_serves_every_channel():
    args = parser.parse(["predict", "cat.jpg", *SAVED, "--mean", "0.25", "--std", "2"])
    grey = Preprocessing(size=16, mean=(0.5,), std=(0.5,))
    assert change_preprocessing(grey, (16, 16), args) == grey.replace(mean=(0.25,), std=(2.0,))
    colour = change_preprocessing(Preprocessing(size=16), (16, 16), args)
    assert (colour.mean, colour.std) == ((0.25,) * 3, (2.0,) * 3)


class TestEvaluate:
    WORDS = ["evaluate", "--folder", "pictures", *TI16, "--image-size", "32", "--batch-size", "3"]

    def test_counts_by_wordnet_id(self, here, capsys):
        code, out, _ = run(capsys, *self.WORDS, "--json")
        value = json.loads(out)
        assert code == 0 and value["pictures"] == 4 and value["matching"] == "by WordNet id"
        assert value["accuracy"] == {k: right / 4 for k, right in value["correct"].items()}
        assert list(value["correct"]) == ["1", "5"]

    def test_text_is_one_line(self, here, capsys):
        _, out, err = run(capsys, *self.WORDS)
        assert len(out.splitlines()) == 1 and out.startswith("top-1 accuracy ")
        assert "Loaded 200 arrays" in err

    def test_folder_that_does_not_match(self, here, capsys):
        message = error_of(run(capsys, "evaluate", "--folder", "pictures", *SAVED))
        assert message.startswith("class names must match the model's labels")


class TestRealWeights:
    """The figures of an independent reference; tests/test_real_data.py has more of them."""

    @pytest.fixture
    def words(self, real_data):
        return ["--model", "ViT-Ti_16", "--weights", str(real_data / "weights" / REAL_WEIGHTS)]

    def test_pictures_are_named(self, words, real_data, capsys):
        expected = {"chelsea.png": "Egyptian cat", "coffee.png": "espresso", "camera.png": "tripod"}
        pictures = [str(real_data / "pictures" / name) for name in expected]
        entries = json.loads(run(capsys, "predict", *pictures, *words, "--top", "1", "--json")[1])
        assert [entry["answers"][0]["label"] for entry in entries] == list(expected.values())

    def test_accuracy_with_the_reference_protocol(self, words, real_data, capsys):
        words += ["--resize", "248", "--crop", "224", "--interpolation", "bicubic", "--json"]
        value = json.loads(run(capsys, "evaluate", "--folder", real_data / "imagenet200", *words)[1])
        assert value["pictures"] == 200
        assert value["correct"]["1"] >= 168 and value["correct"]["5"] >= 193  # the reference has 169 and 194


class TestTrainAndExport:
    def test_show_prints_the_changed_recipe(self, capsys):
        words = ["--epochs", 3, "--batch-size", 8, "--learning-rate", 0.01, "--weight-decay", 0, "--seed", 5]
        code, out, err = run(capsys, "train", "--recipe", "quickstart", "--show", *words)
        expected = keras_vit.training.RECIPES["quickstart"].replace(
            epochs=3, batch_size=8, learning_rate=0.01, weight_decay=0.0, seed=5
        )
        assert (code, err) == (0, "")
        assert keras_vit.training.Recipe.from_dict(json.loads(out)) == expected

    def test_train_writes_a_model_that_predicts(self, here, capsys):
        words = ["--recipe", "quickstart", "--workdir", "digits", "--epochs", "1", "--batch-size", "256"]
        code, out, err = run(capsys, "train", *words)
        assert code == 0 and "val_accuracy" in err
        accuracy, saved = out.splitlines()
        report = json.loads(pathlib.Path("digits/history.json").read_text())
        assert accuracy == f"accuracy: {100 * report['accuracy']:.1f} %"
        assert saved == "saved: " + os.path.join("digits", "model.keras")
        assert run(capsys, "predict", "cat.jpg", "--model", "digits/model.keras")[0] == 0

    def test_export_prints_the_folder_and_counts_on(self, here, capsys):
        assert run(capsys, "export", *SAVED, "--output", "serving")[:2] == (
            0,
            os.path.join("serving", "1") + "\n",
        )
        words = ["export", *SAVED, "--output", "serving", "--version", "7", "--top", "1", "--resize", "20"]
        assert run(capsys, *words)[:2] == (0, os.path.join("serving", "7") + "\n")
        assert pathlib.Path("serving/7/saved_model.pb").is_file()
        assert "serving/7 exists" in error_of(run(capsys, *words)).replace(os.sep, "/")


MISTAKES = [
    ("predict cat.jpg --model ViT-Ti_16", "--weights must be given with --model ViT-Ti_16"),
    ("predict cat.jpg --model ViT-Ti_17 --weights ViT-Ti_16.npz", "or one of ViT-Ti_16, .*got 'ViT-Ti_17'"),
    ("predict cat.jpg --model ViT-S_16 --weights ViT-Ti_16.npz", r"shape \(192,\).* and \d+ lines more"),
    ("predict cat.jpg --model ViT-Ti_16 --weights no/such.npz", "existing file or a published one; got 'no/such.npz'"),
    ("predict cat.jpg --model model.keras --weights ViT-Ti_16.npz", "--weights must be left out"),
    ("predict cat.jpg --model other.keras", "existing file or folder; got 'other.keras'"),
    ("predict cat.jpg --model text.keras", "must be a whole .keras file.*b'no model'"),
    ("predict dog.jpg --model model.keras", "there is no picture file dog.jpg"),
    ("predict text.keras --model model.keras", "must be a picture"),
    ("predict cat.jpg --model model.keras --top 0", "top must be an integer of at least 1"),
    ("predict cat.jpg --model model.keras --crop 8", "must be the model's image size 16 x 16; got 8 x 8"),
    ("predict cat.jpg --model model.keras --resize 8", "crop must not exceed size"),
    ("predict cat.jpg --model model.keras --resize 8x8x8", "argument --resize: expected N or HEIGHTxWIDTH"),
    ("predict cat.jpg --model model.keras --interpolation cubic", "interpolation must be one of 'bilinear'"),
    ("predict cat.jpg --model model.keras --mean 0.5,0.5", "expected 1 or 3 numbers; got '0.5,0.5'"),
    ("predict cat.jpg --model model.keras --std 0", "std must be above 0"),
    ("predict cat.jpg --model model.keras --image-size 20", "image_size must be divisible by patch_size"),
    ("predict cat.jpg --model model.keras --gelu exact", "gelu must be one of 'tanh', 'erf'"),
    ("predict --model model.keras", "arguments are required: PICTURE .*predict --help"),
    ("predict cat.jpg --modle model.keras", "required: --model"),
    ("evaluate --folder nowhere --model model.keras", "there is no nowhere"),
    ("evaluate --folder pictures --model model.keras --batch-size 0", "batch_size must be an integer"),
    ("train --recipe slowstart --show", "--recipe must be one of 'quickstart'"),
    ("train --recipe quickstart", "--workdir must be given"),
    ("train --recipe quickstart --epochs 0 --show", "epochs must be an integer of at least 1"),
    ("export --model model.keras --output text.keras", "text.keras is a file"),
    ("export --model model.keras --output serving --version 0", "version must be an integer"),
    ("", "required: COMMAND"),
    ("explain", "invalid choice: 'explain'"),
]


@pytest.mark.parametrize(
    ("command", "expected"), MISTAKES, ids=[command or "nothing" for command, _ in MISTAKES]
)
def test_mistake_is_one_line_and_exit_code_2(here, capsys, command, expected):
    (here / "text.keras").write_text("no model")
    assert re.search(expected, error_of(run(capsys, *shlex.split(command))))


def test_debug_shows_the_traceback(capsys, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_DEBUG", "1")
    code, _, err = run(capsys, "list", "nothing")
    assert code == 2 and "Traceback" in err and err.splitlines()[-1].startswith("keras-vit: error: PATTERN")


class TestFailures:
    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (ValueError("no"), 2),
            (TypeError("no"), 2),
            (FileNotFoundError(2, "no", "x"), 2),
            (FileExistsError("no"), 2),
            (ConnectionError("no"), 2),
            (ImportError("needs scikit-learn"), 2),
            (KeyboardInterrupt(), 130),
            (SystemExit(2), 2),
            (SystemExit(None), 0),
        ],
    )
    def test_exit_codes(self, capsys, error, expected):
        assert failures.guarded(lambda: _raise(error)) == expected

    @pytest.mark.parametrize("error", [RuntimeError("a fault of ours"), KeyError("x"), AssertionError()])
    def test_a_fault_of_ours_is_raised(self, error):
        with pytest.raises(type(error)):
            failures.guarded(lambda: _raise(error))

    def test_missing_backend_says_what_to_install(self, capsys):
        error = ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")
        assert failures.guarded(lambda: _raise(error)) == 2
        expected = "keras-vit: error: tensorflow is not installed: pip install 'keras_vit[tensorflow]'\n"
        assert capsys.readouterr().err == expected

    def test_long_message_is_cut(self):
        text = failures.one_line("does not fit:\n" + "\n".join(f"  + extra {index}" for index in range(8)))
        assert text.startswith("does not fit: + extra 0; + extra 1; ") and "\n" not in text
        assert text.endswith("; and 3 lines more (KERAS_VIT_DEBUG=1 shows them)")


class TestHelp:
    @pytest.mark.parametrize("verb", VERBS)
    def test_every_verb_has_a_description_and_examples(self, capsys, verb):
        text = help_of(verb, capsys)
        for example in examples_of(text):
            assert example.startswith(f"keras-vit {verb} ")
            assert parser.parse(shlex.split(example)[1:]).verb == verb
        description = text.split("\n\n")[1]
        assert len(description) > 15 and description.rstrip().endswith(".")

    def test_every_verb_is_listed(self, capsys):
        text = help_of(None, capsys)
        assert all(re.search(rf"^    {verb} ", text, re.MULTILINE) for verb in VERBS)

    @pytest.mark.parametrize("verb", [None, *VERBS])
    def test_examples_work(self, here, capsys, verb):
        examples, readme = examples_of(help_of(verb, capsys)), README.read_text(encoding="utf-8").splitlines()
        commands = [command for command in examples if command not in readme]
        for command in commands:  # those of the README run in test_readme.py
            code, out, err = run(capsys, *shlex.split(command)[1:])
            assert code == 0 and out, (command, err)

    def test_choices_in_the_help_are_those_of_the_package(self, capsys):
        text = " ".join(help_of("predict", capsys).split())
        assert f"--interpolation NAME {', '.join(INTERPOLATIONS[:-1])} or {INTERPOLATIONS[-1]}" in text
        assert " or ".join(GELUS) in text


class TestConsoleScript:
    def test_help_does_not_wait_for_keras(self, tmp_path):
        (tmp_path / "keras.py").write_text("raise AssertionError('imported')")
        done = script("predict", "--help", PYTHONPATH=f"{tmp_path}{os.pathsep}{_root()}")
        assert done.returncode == 0 and "examples:" in done.stdout and done.stderr == ""

    def test_version(self):
        assert script("--version").stdout == f"keras-vit {keras_vit.__version__}\n"

    def test_only_results_are_written(self):
        done = script("list", "ViT-Ti_16")
        assert done.returncode == 0 and done.stderr == "" and len(done.stdout.splitlines()) == 2

    def test_mistake_in_a_process_of_its_own(self, here):
        done = script("predict", "dog.jpg", *SAVED)
        expected = "keras-vit: error: there is no picture file dog.jpg\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)

    def test_without_tensorflow(self, tmp_path):
        message = "No module named 'tensorflow'"
        (tmp_path / "tensorflow.py").write_text(f'raise ModuleNotFoundError("{message}", name="tensorflow")')
        path = f"{tmp_path}{os.pathsep}{_root()}"
        done = script("list", PYTHONPATH=path, KERAS_BACKEND="tensorflow")
        expected = "keras-vit: error: tensorflow is not installed: pip install 'keras_vit[tensorflow]'\n"
        assert (done.returncode, done.stderr) == (2, expected)

    def test_control_c(self, tmp_path):
        (tmp_path / "keras.py").write_text("print('waiting', flush=True)\nimport time\ntime.sleep(60)")
        command = [sys.executable, keras_vit_command.__file__, "list"]
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{_root()}"}
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout.readline() == b"waiting\n"
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130 and process.stderr.read() == b""

    def test_reader_that_leaves(self):
        command = [sys.executable, keras_vit_command.__file__, "--help"]
        buffered = {**os.environ, "PYTHONUNBUFFERED": ""}  # argparse itself swallows the error of a write
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, env=buffered, **pipes) as process:
            process.stdout.close()
            assert process.stderr.read() == b"" and process.wait(30) == 141


def _raise(error):
    raise error


def _root():
    return str(pathlib.Path(keras_vit_command.__file__).parent)
