"""`keras-vit predict` and `evaluate`: what they print, and the preprocessing that they use."""

import io
import json
import re
import sys
import warnings

import keras
import numpy as np
import pytest
from command_line import SAVED, TI16, error_of, run
from faults import for_each

import keras_vit
from keras_vit import Preprocessing, cli
from keras_vit.cli import commands, parser
from keras_vit.cli.models import change_preprocessing

REAL_WEIGHTS = "ViT-Ti_16-imagenet2012-224.npz"


class TestPredict:
    def test_prints_what_predict_returns(self, here, capsys):
        code, out, err = run(capsys, "predict", "cat.jpg", *SAVED, "--json")
        assert (code, err) == (0, "")
        [entry] = json.loads(out)
        expected = keras_vit.predict(keras.models.load_model("model.keras"), "cat.jpg")[0]
        assert entry["image"] == "cat.jpg"
        assert [answer["label"] for answer in entry["answers"]] == [label for label, _ in expected]
        np.testing.assert_allclose([a["score"] for a in entry["answers"]], [s for _, s in expected], rtol=1e-5)

    def test_text_has_a_block_per_image(self, here, capsys):
        image = "images/n02123394_Persian_cat/0.jpg"
        _, out, _ = run(capsys, "predict", "cat.jpg", image, *SAVED, "--top", "2")
        lines = out.splitlines()
        assert [lines[0], lines[3]] == ["cat.jpg", image] and len(lines) == 6
        assert re.fullmatch(r"  [01]\.\d{4}  (cat|dog|fox)", lines[1])

    @pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
    def test_names_of_classes_that_a_console_cannot_show(self, here, capsys, monkeypatch, encoding):
        label = "猫 \x1b[31mé\x9b\u202e\udcff"
        model = keras.models.load_model("model.keras")
        model.labels = [f"{label} {index}" for index in range(3)]
        monkeypatch.setattr(commands, "open_model", lambda args: model)
        shown = {}
        for words in ((), ("--json",)):
            stream = io.TextIOWrapper(io.BytesIO(), encoding)
            monkeypatch.setattr(sys, "stdout", stream)
            assert cli.main(["predict", "cat.jpg", *SAVED, *words]) == 0
            shown[words] = stream.buffer.getvalue().decode(encoding)
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", "".join(shown.values()))
        escaped = "猫 \\u001b[31mé\\u009b\\u202e\\udcff".encode(encoding, "backslashreplace").decode(encoding)
        assert f"  {escaped} " in shown[()]
        [entry] = json.loads(shown["--json",])
        assert {answer["label"] for answer in entry["answers"]} == set(model.labels)

    def test_load_report_goes_to_standard_error(self, here, capsys):
        code, out, err = run(capsys, "predict", "cat.jpg", *TI16, "--image-size", "32", "--top", "1")
        assert code == 0 and len(out.splitlines()) == 2
        assert "Loaded 200 arrays" in err and "14 x 14 -> 2 x 2" in err

    @pytest.mark.slow
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
        # TensorFlow counts how often the models of this process were traced, those of other tests as well.
        [line] = [line for line in err.splitlines() if "tf.function retracing" not in line]
        assert code == 0 and line.startswith("keras-vit: warning: the head of small has a kernel of zeros")

    @pytest.mark.parametrize(
        "words",
        [
            ["--resize", "20", "--interpolation", "bicubic", "--mean", "0.4", "--std", "0.2,0.3,0.4"],
            [
                "--resize",
                "20x24",
                "--crop",
                "16x16",
                "--mean",
                "0.4,0.4,0.4",
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


@for_each(
    ("words", "size", "crop"),
    [
        ([], (16, 16), None),
        (["--resize", "20"], 20, (16, 16)),
        (["--resize", "20", "--crop", "16"], 20, (16, 16)),
        (["--resize", "16"], 16, (16, 16)),
        (["--resize", "16x16"], (16, 16), None),
        (["--resize", "20x18"], (20, 18), (16, 16)),
        (["--crop", "16"], (16, 16), (16, 16)),
    ],
)
def test_resize_and_crop(words, size, crop):
    args = parser.parse(["predict", "cat.jpg", *SAVED, *words])
    changed = change_preprocessing(Preprocessing(size=16), args)
    assert (changed.size, changed.crop) == (size, crop)


def test_one_mean_serves_every_channel():
    args = parser.parse(["predict", "cat.jpg", *SAVED, "--mean", "0.25", "--std", "2"])
    grey = Preprocessing(size=16, mean=(0.5,), std=(0.5,))
    assert change_preprocessing(grey, args) == grey.replace(mean=(0.25,), std=(2.0,))
    colour = change_preprocessing(Preprocessing(size=16), args)
    assert (colour.mean, colour.std) == ((0.25,) * 3, (2.0,) * 3)


class TestEvaluate:
    WORDS = ["evaluate", "--folder", "images", *TI16, "--image-size", "32", "--batch-size", "3"]

    @pytest.mark.slow
    def test_counts_by_wordnet_id(self, here, capsys):
        code, out, err = run(capsys, *self.WORDS, "--json")
        assert "Loaded 200 arrays" in err
        value = json.loads(out)
        assert code == 0 and value["images"] == 4 and value["matching"] == "by WordNet id"
        assert value["accuracy"] == {k: right / 4 for k, right in value["correct"].items()}
        assert list(value["correct"]) == ["1", "5"]

    @pytest.mark.slow
    def test_report_shows_classes_and_calibration(self, here, capsys):
        for name in ("cat/0.jpg", "cat/1.jpg", "dog/0.jpg"):
            (here / "own" / name).parent.mkdir(parents=True, exist_ok=True)
            (here / "own" / name).symlink_to(here / "cat.jpg")
        plain = ["evaluate", "--folder", "own", *SAVED]
        out = run(capsys, *plain)[1]
        assert len(out.splitlines()) == 1 and out.startswith("top-1 accuracy ")
        words = [*plain, "--report"]
        value = json.loads(run(capsys, *words, "--json")[1])
        assert value["images"] == 3 and "left_out" not in value
        assert {row["class"]: row["images"] for row in value["classes"]} == {"cat": 2, "dog": 1}
        answer = keras_vit.predict(keras.models.load_model("model.keras"), "cat.jpg")[0][0]
        confused = {(row["class"], row["answer"], row["images"]) for row in value["confusions"]}
        assert confused == {(name, answer[0], n) for name, n in (("cat", 2), ("dog", 1)) if name != answer[0]}
        assert sum(row["correct"] for row in value["classes"]) == value["correct"]["1"]
        assert value["mean_confidence"] == pytest.approx(answer[1], rel=1e-5)
        assert value["calibration_error"] == pytest.approx(abs(value["accuracy"]["1"] - answer[1]), rel=1e-4)
        assert value["negative_log_likelihood"] > 0
        assert value["mean_class_accuracy"] == {"cat": 0.5, "dog": 0.5}.get(answer[0], 0.0)
        lines = run(capsys, *words)[1].splitlines()
        assert lines[0].startswith("top-1 accuracy ") and lines[4] == "Classes, worst first:" and len(lines) == 8

    @pytest.mark.slow
    def test_real_labels_leave_images_without_an_answer_out(self, here, capsys):
        words = ["evaluate", "--folder", "val", *TI16, "--image-size", "32", "--real-labels", "real.json"]
        value = json.loads(run(capsys, *words, "--json")[1])
        assert (value["images"], value["left_out"]) == (2, 1)
        assert value["matching"] == "by name, images to real.json by the numbers in their names"

    def test_folder_that_does_not_match(self, here, capsys):
        message = error_of(run(capsys, "evaluate", "--folder", "images", *SAVED))
        assert message.startswith("class names must match the model's labels")


class TestRealWeights:
    """The figures of an independent reference; tests/test_real_data.py has more of them."""

    @pytest.fixture
    def words(self, real_data):
        return ["--model", "ViT-Ti_16", "--weights", str(real_data / "weights" / REAL_WEIGHTS)]

    def test_images_are_named(self, words, real_data, capsys):
        expected = {"chelsea.png": "Egyptian cat", "coffee.png": "espresso", "camera.png": "tripod"}
        images = [str(real_data / "pictures" / name) for name in expected]
        entries = json.loads(run(capsys, "predict", *images, *words, "--top", "1", "--json")[1])
        assert [entry["answers"][0]["label"] for entry in entries] == list(expected.values())

    @pytest.mark.slow
    def test_accuracy_with_the_reference_protocol(self, words, real_data, tmp_path, capsys):
        for folder in sorted((real_data / "imagenet200").iterdir())[::10]:
            (tmp_path / folder.name).symlink_to(folder)
        words += ["--resize", "248", "--crop", "224", "--interpolation", "bicubic", "--json"]
        value = json.loads(run(capsys, "evaluate", "--folder", tmp_path, *words)[1])
        assert value["images"] == 20 and value["correct"]["1"] >= 18  # of all 200 in test_real_data.py
