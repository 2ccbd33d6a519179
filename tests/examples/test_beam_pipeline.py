"""The Beam pipeline gives for each image what the exported model gives, and for each bad one the reason."""

import contextlib
import gzip
import importlib.util
import os
import pathlib
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
import tensorflow as tf
from drawn import draw, encode
from served import make_model

import keras_vit
from keras_vit.serving import export

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # theirs
    pytest.importorskip("apache_beam")
    pytest.importorskip("tensorflow_hub")
pq = pytest.importorskip("pyarrow.parquet")

PROGRAM = pathlib.Path(__file__).parents[2] / "examples" / "beam_pipeline.py"
GOOD = {f"{seed}.{kind.lower()}": encode(draw(seed), kind) for seed, kind in enumerate(("PNG", "JPEG", "BMP", "GIF"))}
BAD = {"text.jpg": b"hello world", "empty.jpg": b"", "cut.jpg": GOOD["1.jpeg"][:300]}
SEVERAL = ("--direct_running_mode", "multi_processing", "--direct_num_workers", "2")


@pytest.fixture(scope="module")
def beam():
    """The program as a module."""
    spec = importlib.util.spec_from_file_location(PROGRAM.stem, PROGRAM)
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    """Exports: 1 has all, 2 no `features`, 3 no `error`."""
    path = tmp_path_factory.mktemp("serving")
    for options in ({}, {"signatures": ["serving_default"]}, {"on_error": "raise"}):
        export(make_model(), path, check=False, **options)
    return path


@pytest.fixture
def images(tmp_path):
    """Folder with the images in two folders."""
    for place, files in (("good", GOOD), ("good/bad", BAD)):
        (tmp_path / "images" / place).mkdir(parents=True)
        for name, contents in files.items():
            (tmp_path / "images" / place / name).write_bytes(contents)
    return tmp_path / "images"


def command(*words):
    return [sys.executable, str(PROGRAM), *map(str, words)]


def run(*words, **options):
    """Exit code and what the command said."""
    done = subprocess.run(command(*words), capture_output=True, text=True, errors="replace", **options)
    return done.returncode, done.stderr


def rows_of(prefix):
    """{path: row} of all shards, in which no path is twice."""
    shards = sorted(prefix.parent.glob(f"{prefix.name}-*"))
    rows = [row for shard in shards for row in pq.read_table(shard).to_pylist()]
    assert len({row["path"] for row in rows}) == len(rows)
    return {row["path"]: row for row in rows}


def check_answers(rows, files, signatures):
    """Compares rows with the signatures, called with `files`: {path: contents}."""
    for name in signatures:
        answers = {key: value.numpy() for key, value in name(image_bytes=tf.constant(list(files.values()))).items()}
        for index, path in enumerate(files):
            row, error = rows[path], answers["error"][index].decode()
            assert row["error"] == error
            if "features" in answers:
                expected = [] if error else answers["features"][index]
                np.testing.assert_allclose(row["features"], expected, rtol=1e-5, atol=1e-6)
            else:
                assert row["classes"] == ([] if error else [label.decode() for label in answers["classes"][index]])
                np.testing.assert_allclose(row["scores"], [] if error else answers["scores"][index], rtol=1e-5)


def example(**features):
    lists = {key: tf.train.Feature(bytes_list=tf.train.BytesList(value=values)) for key, values in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=lists)).SerializeToString()


def write_records(path, records, compression=""):
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)


def test_rows_are_the_answers_of_the_signatures(serving, images, tmp_path):
    (images / "good" / "broken.gz").write_bytes(b"\x1f\x8b and no gzip")
    (images / "good" / "whole.gz").write_bytes(gzip.compress(GOOD["0.png"]))
    records = [example(photo=[contents]) for contents in (*GOOD.values(), *BAD.values())]
    write_records(tmp_path / "a.tfrecord", [*records, example(other=[b"x"], third=[]), b"\xff none", *records[:2]])
    write_records(tmp_path / "b.tfrecord.gz", records[:1], "GZIP")
    write_records(tmp_path / "c.tfrecord", records[:3])
    whole = (tmp_path / "c.tfrecord").read_bytes()
    (tmp_path / "c.tfrecord").write_bytes(whole[:-5])
    words = ["--images", images / "good" / "*", images / "**.jpg", "--images", images / "good" / "bad" / "**"]
    (tmp_path / "d.tfrecord.gz").write_bytes(b"no gzip")
    words += [
        "--tfrecord",
        tmp_path / "d.tfrecord.gz",
        tmp_path / "*.tfrecord*",
        "--image-key",
        "photo",
        "--features",
        "--batch-size",
        3,
    ]
    code, said = run("--model", serving / "1", *words, "--output", tmp_path / "new" / "rows", "--shards", 2)
    assert code == 0, said
    assert sorted(os.listdir(tmp_path / "new")) == [f"rows-0000{n}-of-00002.parquet" for n in range(2)]

    found = rows_of(tmp_path / "new" / "rows")
    a, b, c = (str(tmp_path / name) for name in ("a.tfrecord", "b.tfrecord.gz", "c.tfrecord"))
    contents = {f"{a}#{index}": image for index, image in enumerate((*GOOD.values(), *BAD.values()))}
    contents |= {f"{a}#{9 + index}": image for index, image in enumerate(list(GOOD.values())[:2])}
    contents |= {f"{b}#0": GOOD["0.png"], f"{c}#0": GOOD["0.png"], f"{c}#1": GOOD["1.jpeg"]}
    contents |= {str(images / "good" / name): image for name, image in GOOD.items()}
    contents |= {str(images / "good" / "bad" / name): image for name, image in BAD.items()}
    contents[str(images / "good" / "whole.gz")] = GOOD["0.png"]
    signatures = tf.saved_model.load(str(serving / "1")).signatures
    check_answers(found, contents, [signatures["serving_default"], signatures["features"]])

    unread = {path: found[path] for path in found.keys() - contents}
    reasons = {
        str(images / "good" / "broken.gz"): "not read: ",
        f"{a}#7": "not read: the record must have one string under --image-key photo; its features are other, third",
        f"{a}#8": "not read: the record must be a tf.train.Example",
        f"{tmp_path / 'd.tfrecord.gz'}#0": "not read from here to the end of the file: Error -3 while decompressing",
        f"{c}#2": "not read from here to the end of the file: Not a valid TFRecord.",
    }
    assert unread.keys() == reasons.keys()
    for path, row in unread.items():
        assert row["error"].startswith(reasons[path]) and row["classes"] == row["scores"] == row["features"] == []


def test_without_features_from_another_folder(serving, images, tmp_path):
    words = ["--model", os.path.relpath(serving / "2", images / "good"), "--images", "*", "--output", "rows"]
    code, said = run(*words, cwd=images / "good")
    assert code == 0, said
    (shard,) = (images / "good").glob("rows-*")
    schema = pq.read_schema(shard)
    assert dict(zip(schema.names, map(str, schema.types), strict=True)) == {
        "path": "string",
        "classes": "list<element: string>",
        "scores": "list<element: float>",
        "error": "string",
    }
    contents = {str(images / "good" / name): image for name, image in GOOD.items()}
    found = rows_of(images / "good" / "rows")
    assert found.keys() == contents.keys()
    check_answers(found, contents, [tf.saved_model.load(str(serving / "2")).signatures["serving_default"]])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"--model": "images"}, "--model must be the folder of an exported SavedModel, such as serving/1"),
        ({"--model": "serving/2", "--features": None}, "--model must have the signature 'features'"),
        ({"--model": "serving/3"}, "export it with on_error='row'"),
        ({"--model": "damaged"}, "saved_model.pb is damaged"),
        ({"--images": "images/*.tiff"}, "--images must match files; none matches"),
        ({"--images": "images"}, "images is a folder: name its files, "),
        ({"--images": None}, "--images or --tfrecord must be given; got neither"),
        ({"--tfrecord": "absent-*"}, "--tfrecord must match files; none matches"),
        ({"--tfrecord": "records"}, "under --image-key image/encoded; its features are photo"),
        ({"--batch-size": "0"}, "--batch-size must be an integer of at least 1; got --batch-size=0"),
        ({"--shards": "-1"}, "--shards must be an integer of at least 0; got --shards=-1"),
        ({"--output": "rows/"}, "must be a prefix of file names, such as answers/rows; got 'rows/'"),
        ({"--output": "old/rows"}, "rows-00003-of-00007.parquet exists from an earlier run: remove"),
        ({"--output": None}, "the following arguments are required: --output"),
    ],
)
def test_arguments_are_checked_first(beam, serving, images, tmp_path, monkeypatch, capsys, changes, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "serving").symlink_to(serving)
    for folder, name in (("damaged", "saved_model.pb"), ("old", "rows-00003-of-00007.parquet")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(b"\xff")
    write_records(tmp_path / "records", [example(photo=[b"x"])])
    words = {"--model": "serving/1", "--images": "images/**", "--output": "new/rows"} | changes
    if "--features" in words:
        words["--features"] = ""
    with pytest.raises(SystemExit) as stop:
        beam.main([word for pair in words.items() if pair[1] is not None for word in pair if word])
    assert stop.value.code == 2 and expected in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_failure_leaves_no_shard(serving, images, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "saved_model.pb").write_bytes((serving / "1" / "saved_model.pb").read_bytes())  # without its weights
    words = ["--images", images / "**.jpg", "--output", tmp_path / "new" / "rows"]
    code, said = run("--model", broken, *words)
    assert code == 1 and "variables" in said
    assert not list(tmp_path.glob("new/rows*"))


@pytest.mark.slow
def test_killed_worker_ends_the_run_and_the_same_command_does_it_all(serving, images, tmp_path):
    pipe, output = images / "good" / "pipe.png", tmp_path / "new" / "rows"
    words = ["--model", serving / "1", "--images", images / "**", "--output", output, *SEVERAL]
    kill_a_worker(words, pipe, output, tmp_path / "log")

    pipe.write_bytes(GOOD["0.png"])
    code, said = run(*words)
    assert code == 0, said
    contents = {str(path): path.read_bytes() for path in images.rglob("*.*")}
    found = rows_of(output)
    assert found.keys() == contents.keys() and len(found) == len(GOOD) + len(BAD) + 1
    check_answers(found, contents, [tf.saved_model.load(str(serving / "1")).signatures["serving_default"]])


def kill_a_worker(words, pipe, output, log):
    """Runs the command until one worker waits for an image, a pipe made for that, and kills the other."""
    os.mkfifo(pipe)
    with open(log, "w") as stream, subprocess.Popen(command(*words), stdout=stream, stderr=stream) as process:
        writer = await_reader(pipe, process)
        (waiting,), (other,) = workers(process.pid, pipe)
        assert [path.name[:10] for path in output.parent.iterdir()] == ["beam-temp-"]
        os.kill(other, 9)
        os.close(writer)
        code = process.wait(60)
    await_end(waiting)
    assert code == 1 and "error: a worker process died" in log.read_text()
    assert not list(output.parent.glob(f"{output.name}*"))
    pipe.unlink()


def await_reader(pipe, process):
    """Opens the pipe for writing as soon as a process reads it."""
    for _ in range(600):
        assert process.poll() is None
        with contextlib.suppress(OSError):
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.1)
    raise TimeoutError(pipe)


def workers(process, pipe):
    """The worker processes of a run, which its shells started: those that read the pipe, and the others."""
    found = [worker for shell in children(process) for worker in children(shell)]
    for _ in range(100):
        reading = [worker for worker in found if str(pipe) in open_files(worker)]
        if reading:
            return reading, [worker for worker in found if worker not in reading]
        time.sleep(0.1)
    raise TimeoutError(found)


def children(process):
    threads = pathlib.Path(f"/proc/{process}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text().split()]


def open_files(process):
    found = []
    for file in pathlib.Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed in the meantime
            found.append(os.readlink(file))
    return found


def await_end(process):
    for _ in range(300):
        if not os.path.exists(f"/proc/{process}"):
            return
        time.sleep(0.1)
    raise TimeoutError(process)


@pytest.mark.slow
def test_real_images(real_data, tmp_path):
    """200 images of ImageNet and 10 damaged ones, through two worker processes, of which at first one is killed."""
    protocol = keras_vit.Preprocessing(size=248, crop=224, interpolation="bicubic")
    weights = real_data / "weights" / "ViT-Ti_16-imagenet2012-224.npz"
    model = keras_vit.ViT_Ti16(weights=str(weights), preprocessing=protocol)
    folder = export(model, tmp_path / "serving", check=False)
    good = sorted(path for path in (real_data / "imagenet200").glob("*/*"))
    (tmp_path / "bad").mkdir()
    for index, path in enumerate(good[:10]):
        contents = path.read_bytes()
        (tmp_path / "bad" / f"{index}.jpg").write_bytes(contents[: len(contents) // 2 if index % 2 else 100 * index])
    patterns = ["--images", real_data / "imagenet200" / "*" / "*", tmp_path / "bad" / "*"]
    output, last = tmp_path / "new" / "rows", tmp_path / "bad" / "9.jpg"
    words, contents = ["--model", folder, *patterns, "--output", output, *SEVERAL], last.read_bytes()
    last.unlink()
    kill_a_worker(words, last, output, tmp_path / "log")
    last.write_bytes(contents)
    code, said = run(*words)
    assert code == 0, said

    found = rows_of(output)
    assert len(good) == 200 and len(found) == 210
    assert {path for path in found if found[path]["error"]} == set(map(str, (tmp_path / "bad").iterdir()))
    expected = keras_vit.predict(model, [str(path) for path in good], top=1)
    for path, (best,) in zip(good, expected, strict=True):
        assert found[str(path)]["classes"][0] == best[0]
        np.testing.assert_allclose(found[str(path)]["scores"][0], best[1], rtol=1e-3)
