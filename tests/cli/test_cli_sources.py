"""`keras-vit train` and `evaluate`: which images, model and devices they take from the arguments."""

import json

import pytest
from command_line import SAVED, run

import keras_vit
from keras_vit.cli import parser, sources
from keras_vit.training import CheckpointError, Interrupted, NonFiniteError, Preempted, TrainResult

TRAIN = ("train", "--recipe", "quickstart", "--workdir", "out", "--model", "ViT-Ti_16")


@pytest.fixture
def calls(monkeypatch):
    """Arguments of `keras_vit.train`, which trains nothing here."""
    found = []

    def train(*args, **kwargs):
        found.append((args, kwargs))
        return TrainResult(None, {}, 0.5)

    monkeypatch.setattr(keras_vit, "train", train)
    return found


def read(*words):
    return parser.parse([*TRAIN, *map(str, words)])


def test_train_hands_everything_on(here, calls, capsys):
    words = ["--weights", "ViT-Ti_16.npz", "--strategy", "mirrored", "--checkpoint-every", "7", "--image-size", "32"]
    words += ["--max-corrupt", "0.05"]
    code, out, _ = run(capsys, *TRAIN, "--folder", "images", "--hold-out", "0.5", *words)
    assert code == 0 and out.startswith("accuracy: 50.0 %\nsaved: out")
    [((recipe, source, workdir), options)] = calls
    assert recipe == keras_vit.training.RECIPES["quickstart"].replace(image_size=32)
    assert workdir == "out"
    validation = options.pop("validation")
    assert (source.size, validation.size) == (2, 2) and not set(source.files) & set(validation.files)
    assert options.pop("strategy").name == "mirrored"
    assert options.pop("verbose") == "auto"
    assert options == {"weights": "ViT-Ti_16.npz", "checkpoint_every": 7, "max_corrupt": 0.05, "model": "ViT-Ti_16"}


def test_train_without_images_takes_the_recipe_s_own(calls, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "train", "--recipe", "quickstart", "--workdir", "out")[0] == 0
    [((_, source, _), options)] = calls
    assert source is None and options["validation"] is None and options["model"] is None
    assert options["strategy"].name == "one" and not {"checkpoint_every", "max_corrupt"} & set(options)


def test_the_seed_draws_what_is_held_out(here):
    args = read("--folder", "images", "--hold-out", "0.5")
    held_out = {seed: sources.open_sources(args, seed)[1].files for seed in range(5)}
    assert held_out[1] == sources.open_sources(args, 1)[1].files and len(set(held_out.values())) > 1


def test_validation_is_of_the_same_kind(here):
    source, validation = sources.open_sources(read("--folder", "images", "--validation", "images"), 0)
    assert source.files == validation.files and len(source.files) == 4


def test_tfds(monkeypatch):
    asked = []
    monkeypatch.setattr(keras_vit.data, "from_tfds", lambda *args, **kwargs: asked.append((args, kwargs)))
    words = ["--tfds", "cifar10", "--split", "train[:98%]", "--data-dir", "d"]
    sources.open_sources(read(*words, "--validation", "train[98%:]"), 0)
    keys = ["--image-key", "photo", "--label-key", "class"]
    sources.open_source(parser.parse(["evaluate", *SAVED, "--tfds", "mnist", "--split", "test", *keys]))
    assert asked == [
        (("cifar10", "train[:98%]"), {"data_dir": "d"}),
        (("cifar10", "train[98%:]"), {"data_dir": "d"}),
        (("mnist", "test"), {"data_dir": None, "image_key": "photo", "label_key": "class"}),
    ]


def test_tfrecord(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(keras_vit.data, "from_tfrecord", lambda *args, **kwargs: asked.append((args, kwargs)))
    (tmp_path / "names.txt").write_text("cat\n\n dog \n")
    words = ["--class-names", tmp_path / "names.txt", "--label-offset", 1, "--validation", "val-*"]
    sources.open_sources(read("--tfrecord", "train-*", *words), 0)
    sources.open_source(parser.parse(["evaluate", *SAVED, "--tfrecord", "test-*", "--label-key", "class"]))
    named = {"class_names": ["cat", "dog"], "label_offset": 1}
    plain = {"class_names": None, "label_offset": 0, "label_key": "class"}
    assert asked == [(("train-*",), named), (("val-*",), named), (("test-*",), plain)]


@pytest.mark.slow
def test_evaluate_on_tfrecords(here, capsys):
    tf = pytest.importorskip("tensorflow")
    image = (here / "cat.jpg").read_bytes()
    features = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[2])),
    }
    with tf.io.TFRecordWriter("val-0") as writer:
        for _ in range(3):
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    (here / "names.txt").write_text("cat\ndog\n")
    words = ["--tfrecord", "val-*", "--class-names", "names.txt", "--label-offset", "1", "--json"]
    code, out, err = run(capsys, "evaluate", *SAVED, *words)
    assert code == 0, err
    report = json.loads(out)
    assert report["images"] == 3 and report["correct"]["1"] in (0, 3)


@pytest.mark.parametrize("error", [CheckpointError("no room"), NonFiniteError("step 3 is nan")])
def test_failures_of_a_run_are_one_line(error, capsys, monkeypatch):
    monkeypatch.setattr(keras_vit, "train", lambda *args, **kwargs: _raise(error))
    code, _, err = run(capsys, "train", "--recipe", "quickstart", "--workdir", "out")
    assert (code, err) == (2, f"keras-vit: error: {error}\n")


@pytest.mark.parametrize(("error", "expected"), [(Preempted(7), 75), (Interrupted(7), 130)])
def test_a_run_that_was_asked_to_end_is_an_exit_code_and_one_line(error, expected, capsys, monkeypatch):
    monkeypatch.setattr(keras_vit, "train", lambda *args, **kwargs: _raise(error))
    code, out, err = run(capsys, "train", "--recipe", "quickstart", "--workdir", "out")
    assert (code, out, err) == (expected, "", f"keras-vit: {error}\n") and "saved at step 7" in err


def _raise(error):
    raise error
