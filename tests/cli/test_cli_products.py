"""`keras-vit train`, `export`, `bench` and `convert`: what they write and print."""

import json
import os
import pathlib

import keras
import numpy as np
import pytest
from command_line import SAVED, error_of, run

import keras_vit
from keras_vit.cli import commands
from keras_vit.logs import LOGGER
from keras_vit.models.layer_states import lora_layers


class TestTrainAndExport:
    def test_show_prints_the_changed_recipe(self, capsys):
        words = ["--epochs", 3, "--batch-size", 8, "--learning-rate", 0.01, "--weight-decay", 0, "--seed", 5]
        code, out, err = run(capsys, "train", "--recipe", "quickstart", "--show", *words)
        expected = keras_vit.training.RECIPES["quickstart"].replace(
            epochs=3, batch_size=8, learning_rate=0.01, weight_decay=0.0, seed=5
        )
        assert (code, err) == (0, "")
        assert keras_vit.training.Recipe.from_dict(json.loads(out)) == expected

    def test_set_changes_any_field(self, capsys):
        changes = {
            "augment=inception_crop(0.3, max_area=1.0), flip, randaugment(2, 15)": (
                "augment",
                ("inception_crop(0.3, max_area=1.0)", "flip", "randaugment(2, 15)"),
            ),
            'mix=["mixup(0.2)", "cutmix(1.0)"]': ("mix", ("mixup(0.2)", "cutmix(1.0)")),  # as --show prints them
            "clip_norm=none": ("clip_norm", None),
            "dtype=mixed_bfloat16": ("dtype", "mixed_bfloat16"),
            "remat=block": ("remat", "block"),
            "sweep=(1e-3, 3e-3)": ("sweep", (0.001, 0.003)),
            "warmup_steps=7": ("warmup_steps", 7),
        }
        words = ["--steps", 50, "--image-size", "16x24"]
        for text in changes:
            words += ["--set", text]
        code, out, err = run(capsys, "train", "--recipe", "quickstart", "--show", *words)
        assert (code, err) == (0, "")
        shown = keras_vit.training.Recipe.from_dict(json.loads(out))
        expected = dict(changes.values()) | {"steps": 50, "image_size": (16, 24)}
        assert shown == keras_vit.training.RECIPES["quickstart"].replace(**expected)
        assert (shown.epochs, shown.warmup_fraction) == (None, 0.0)

    def test_set_takes_texts_with_tuples(self, capsys):
        text = "augment=keras_cv.RandomZoom(0.3, (0.1, 0.2)), flip, color_jitter(0.3)"
        code, out, err = run(capsys, "train", "--recipe", "quickstart", "--show", "--set", text)
        assert (code, err) == (0, "")
        texts = ["keras_cv.RandomZoom(0.3, (0.1, 0.2))", "flip", "color_jitter(0.3)"]
        assert json.loads(out)["augment"] == texts

    def test_set_ends_a_warm_up(self, capsys):
        out = run(capsys, "train", "--recipe", "quickstart", "--show", "--set", "warmup_steps=0")[1]
        assert json.loads(out)["warmup_fraction"] == json.loads(out)["warmup_steps"] == 0

    def test_set_empties_a_list(self, capsys):
        for text in ("augment=", "augment=none", "augment=()"):
            out = run(capsys, "train", "--recipe", "quickstart", "--show", "--set", text)[1]
            assert json.loads(out)["augment"] == []

    @pytest.mark.slow
    @pytest.mark.usefixtures("eagerly")
    def test_train_writes_a_model_that_predicts(self, here, capsys):
        words = ["--recipe", "quickstart", "--workdir", "digits", "--epochs", "1", "--batch-size", "256"]
        code, out, err = run(capsys, "train", *words)
        assert code == 0 and "val_accuracy" in err
        accuracy, saved, best = out.splitlines()
        report = json.loads(pathlib.Path("digits/history.json").read_text())
        assert accuracy == f"accuracy: {100 * report['accuracy']:.1f} %"
        assert saved == "saved: " + os.path.join("digits", "model.keras")
        assert best == "best: " + os.path.join("digits", "best.keras")
        for model in ("digits/model.keras", "digits/best.keras"):
            assert run(capsys, "predict", "cat.jpg", "--model", model)[0] == 0

    @pytest.mark.slow
    def test_export_prints_the_folder_and_counts_on(self, here, capsys):
        assert run(capsys, "export", *SAVED, "--output", "serving")[:2] == (
            0,
            os.path.join("serving", "1") + "\n",
        )
        words = [
            "export",
            *SAVED,
            "--output",
            "serving",
            "--version",
            "7",
            "--top",
            "1",
            "--resize",
            "20",
            "--no-check",
        ]
        assert run(capsys, *words)[:2] == (0, os.path.join("serving", "7") + "\n")
        assert pathlib.Path("serving/7/saved_model.pb").is_file()
        assert "serving/7 exists" in error_of(run(capsys, *words)).replace(os.sep, "/")

    def test_export_hands_every_option_on(self, here, capsys, monkeypatch):
        given = {}

        def export(model, path, **options):
            LOGGER.info("a line of the export")
            given.update(options, path=path, size=model.preprocessing.size, stated=model.preprocessing_source)
            return pathlib.Path(path, "1")

        monkeypatch.setattr(keras_vit, "export", export)
        words = (
            "--format openvino --quantization int8 --calibration a.jpg b.jpg --check cat.jpg --tolerance 0.5 --force"
        )
        code, out, err = run(capsys, "export", *SAVED, "--output", "out", *words.split())
        assert (code, out) == (0, os.path.join("out", "1") + "\n") and "a line of the export" in err
        assert given == {
            **dict.fromkeys(("version", "signatures", "top", "tokens", "on_error", "max_pixels", "native_pixels")),
            "jit_compile": None,
            "compute_dtype": None,
            "runtime": None,
            "format": "openvino",
            "quantization": "int8",
            "calibration": ["a.jpg", "b.jpg"],
            "check": ["cat.jpg"],
            "tolerance": 0.5,
            "force": True,
            "path": "out",
            "size": (16, 16),
            "stated": "default",
        }
        words = (
            "--signatures images,features --tokens --on-error raise --max-pixels 99 --jit-compile --no-check --top 2"
        )
        assert run(capsys, "export", *SAVED, "--output", "out", *words.split(), "--mean", "0.5")[0] == 0
        assert given["signatures"] == ("images", "features") and given["on_error"] == "raise" and given["top"] == 2
        assert given["tokens"] is given["jit_compile"] is True and given["check"] is False and given["max_pixels"] == 99
        assert given["stated"] == "stated"

    def test_an_export_that_fails_its_check_is_one_line(self, here, capsys, monkeypatch):
        def export(model, path, **options):
            raise keras_vit.serving.ExportError("the exported model must return the same as the model")

        monkeypatch.setattr(keras_vit, "export", export)
        error = error_of(run(capsys, "export", *SAVED, "--output", "out"))
        assert error == "the exported model must return the same as the model"


class TestPretrain:
    """What `keras_vit.train` gets; the example of the help is a whole run."""

    @pytest.fixture
    def given(self, here, capsys, monkeypatch):
        """A function from words to the arguments of `keras_vit.train`, by name."""

        def train(recipe, source, workdir, **options):
            found.update(options, recipe=recipe, source=source, workdir=workdir)
            return keras_vit.training.TrainResult(None, {}, None)

        def arguments(*words):
            found.clear()
            code, _, err = run(capsys, "pretrain", "images", "--from", "model.keras", "--workdir", "run", *words)
            assert code == 0, err
            return dict(found)

        found = {}
        monkeypatch.setattr(keras_vit, "train", train)
        return arguments

    def test_lora_is_the_default(self, given):
        found = given("--batch-size", 2, "--quiet")
        encoder = found["model"]
        assert len(lora_layers(encoder)) == 2 * encoder.config.num_layers and not encoder.config.include_top
        expected = keras_vit.training.continued_pretraining(encoder, found["source"].size, 2)
        assert found["recipe"] == expected and found["validation"] is None and found["verbose"] == 0
        assert found["source"].size == len(list(pathlib.Path("images").rglob("*.jpg"))) and found["workdir"] == "run"

    def test_the_seed_decides_lora(self, given):
        first, same, other = (
            lora_layers(given("--batch-size", 2, "--seed", seed)["model"])[0].lora_kernel_a for seed in (1, 1, 2)
        )
        assert (first.numpy() == same.numpy()).all() and (first.numpy() != other.numpy()).any()

    def test_every_option_is_handed_on(self, given):
        words = ["--batch-size", 2, "--epochs", 3, "--learning-rate", 0.5, "--set", "patch_rate=0.25", "--seed", 7]
        words += ["--trained", "1", "--labels", "images", "--checkpoint-every", 9, "--max-corrupt", 0.5]
        saved = keras.models.load_model("model.keras")
        config = saved.config.replace(num_layers=2, image_size=(16, 16))
        keras_vit.VisionTransformer(config).save("two.keras")
        found = given(*words, "--crop-size", "8x16", "--from", "two.keras")
        encoder, recipe = found["model"], found["recipe"]
        assert (recipe.batch_size, recipe.epochs, recipe.learning_rate, recipe.patch_rate) == (2, 3, 0.5, 0.25)
        assert (recipe.seed, found["checkpoint_every"], found["max_corrupt"]) == (7, 9, 0.5)
        assert encoder.preprocessing.image_size == (8, 16) and encoder.config.fixed_size is None
        frozen = [layer.name for layer in encoder.layers if layer.weights and not layer.trainable]
        blocks = [f"block_{place:02d}" for place in range(encoder.config.num_layers)]
        assert set(blocks[:-1]) <= set(frozen) and blocks[-1] not in frozen
        assert len(found["validation"].class_names) == len(list(pathlib.Path("images").iterdir()))
        encoder = given("--trained", "all", "--batch-size", 2, "--measure")["model"]
        assert all(layer.trainable for layer in encoder.layers)
        measured = keras_vit.data.measured_preprocessing(found["source"], saved.preprocessing)
        assert encoder.preprocessing == measured != saved.preprocessing

    def test_what_a_file_freezes_is_trained(self, given):
        model = keras.models.load_model("model.keras")
        keras_vit.freeze(model)
        model.get_layer("head").trainable = False
        model.save("frozen.keras")
        encoder = given("--batch-size", 2, "--trained", "all", "--from", "frozen.keras")["model"]
        assert len(encoder.trainable_variables) == len(encoder.variables)

    def test_the_model_has_the_settings_of_the_recipe(self, given):
        words = ["dtype=mixed_bfloat16", "drop_path_rate=0.5", "image_size=24"]
        found = given("--batch-size", 2, "--steps", 40, *(word for field in words for word in ("--set", field)))
        encoder = found["model"]
        assert (encoder.config.dtype, encoder.config.drop_path_rate) == ("mixed_bfloat16", 0.5)
        assert encoder.preprocessing.image_size == (24, 24)
        assert found["recipe"].steps == 40 and found["recipe"].pretraining["teacher_momentum"] == 0.9
        assert found["recipe"].warmup_steps == 4 and found["recipe"].crops["local_size"] == [8, 8]

    def test_unreadable_images_are_not_measured(self, given):
        clean = given("--batch-size", 2, "--measure")["model"].preprocessing
        pathlib.Path("images", "broken.png").write_bytes(b"no image")
        assert given("--batch-size", 2, "--measure", "--max-corrupt", 0.5)["model"].preprocessing == clean
        pathlib.Path("images", "broken.png").unlink()

    def test_mistakes(self, here, capsys):
        detector = "hub/hustvl/yolos-tiny"
        for words, message in {
            (
                "--from",
                detector,
            ): "--from must be an encoder; got the task model yolos (save keras_vit",
            ("--epochs", "1", "--steps", "9", "--batch-size", "2"): "exactly one of epochs and steps must be given",
            ("--trained", "x", "--batch-size", "2"): "--trained must be lora, all or a number of blocks above 0",
            ("--from", "no.keras"): "--from: file no.keras does not exist",
            ("--trained", "1", "--batch-size", "2"): "and below 1; got '1'",
            ("--batch-size", "9999"): "batch_size must be at most",
        }.items():
            found = run(capsys, "pretrain", "images", "--workdir", "run", "--from", "model.keras", *words)
            assert message in error_of(found)


class TestBench:
    FOUND = {"folder": "serving/3", "format": "onnx"}

    def test_it_prints_a_table(self, capsys, monkeypatch):
        asked = []
        speeds = [
            {"batch_size": n, "images_per_second": 51.26 * n, "p50_ms": 1, "p90_ms": 2.345, "p99_ms": n}
            for n in (1, 32)
        ]
        monkeypatch.setattr(commands, "measure", lambda *words: asked.append(words) or {**self.FOUND, "speeds": speeds})
        code, out, err = run(capsys, "bench", "serving", "--batch-size", "32", "--seconds", "2.5")
        assert (code, err, asked) == (0, "", [("serving", [1, 32], 2.5)])
        assert [line.split() for line in out.splitlines()] == [
            ["serving/3", "(onnx)"],
            ["batch", "images/s", "p50", "ms", "p90", "ms", "p99", "ms"],
            ["1", "51.3", "1.0", "2.3", "1.0"],
            ["32", "1640.3", "1.0", "2.3", "32.0"],
        ]
        for words, batch_sizes in (([], [1, 8]), (["--batch-size", "1"], [1])):
            assert run(capsys, "bench", "serving", *words)[0] == 0
            assert asked[-1] == ("serving", batch_sizes, 10.0)

    def test_mistakes(self, tmp_path, capsys, monkeypatch):
        assert error_of(run(capsys, "bench", tmp_path)).endswith("it has no model_card.json")

        def measure(*words):
            raise keras_vit.serving.ExportError("the exported model must run in a fresh process")

        monkeypatch.setattr(commands, "measure", measure)
        assert error_of(run(capsys, "bench", "serving")) == "the exported model must run in a fresh process"


class TestConvert:
    def test_there_and_back(self, here, capsys):
        code, out, _ = run(capsys, "convert", *SAVED, "--layout", "keras", "--output", "copy.keras")
        assert (code, out) == (0, "copy.keras\n")
        expected = keras.models.load_model("model.keras").get_weights()
        copied = keras.models.load_model("copy.keras")
        assert copied.labels == ("cat", "dog", "fox")
        for name, layout in (
            ("w.npz", "official"),
            ("w.safetensors", "timm"),
            ("w.weights.h5", "keras"),
            ("hf", "huggingface"),
        ):
            assert run(capsys, "convert", *SAVED, "--layout", layout, "--output", name)[:2] == (0, f"{name}\n")
            keras_vit.load_weights(copied, name)
            for given, wanted in zip(copied.get_weights(), expected, strict=True):
                np.testing.assert_array_equal(given, wanted)
        assert sorted(path.name for path in pathlib.Path().iterdir() if path.name.startswith(".")) == []

    @pytest.mark.skipif(os.name != "posix", reason="needs the limits of POSIX")
    def test_a_full_disk_is_one_line_and_leaves_no_file(self, here, capsys, monkeypatch):
        """The system refuses to write more than 1,000 bytes, as on a full disk; HDF5 would end the process."""
        import resource

        model = keras.models.load_model("model.keras")
        monkeypatch.setattr(commands, "build_model", lambda args: model)
        before, limits = set(os.listdir()), resource.getrlimit(resource.RLIMIT_FSIZE)
        convert = ["convert", *SAVED, "--layout"]
        commands_and_files = (
            [*convert, "official", "--output", "a.npz"],
            [*convert, "timm", "--output", "a.safetensors"],
            [*convert, "huggingface", "--output", "folder"],
            [*convert, "keras", "--output", "a.keras"],
            [*convert, "keras", "--output", "a.weights.h5"],
            ["explain", "cat.jpg", *SAVED, "-o", "a.png"],
        )
        for words in commands_and_files:
            try:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
                result = run(capsys, *words)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert "File too large" in error_of(result)
            assert set(os.listdir()) - before <= {"folder"} and not any(pathlib.Path().rglob(".partial-*")), words

    def test_mistakes(self, here, capsys):
        words = ["convert", *SAVED, "--layout"]
        assert "--output must end in .keras or .weights.h5" in error_of(
            run(capsys, *words, "keras", "--output", "w.npz")
        )
        assert "path must end in .npz" in error_of(run(capsys, *words, "official", "--output", "w.keras"))
        words = ["convert", "--model", "ViT-Ti_16", "--layout", "official", "--output", "w.npz"]
        assert "--weights must be given" in error_of(run(capsys, *words))
        assert not pathlib.Path("w.npz").exists()
