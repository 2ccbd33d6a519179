"""`keras-vit evaluate` of task models: which answers it reads, what it prints and saves, and refusals."""

import json
from unittest import mock

import numpy as np
import PIL.Image
import pytest
from command_line import error_of, run
from conftest import TESTS
from faults import for_each

import keras_vit
from keras_vit.evaluation import TaskScores

pytestmark = pytest.mark.usefixtures("eagerly")
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with images, label maps, depths, COCO's annotations and a model."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("images", "maps", "depths"):
        (folder / name).mkdir()
    objects = []
    for number in (1, 2):
        pixels = RNG.integers(0, 256, (40, 56, 3), "uint8")
        PIL.Image.fromarray(pixels).save(folder / f"images/{number}.png")
        PIL.Image.fromarray(RNG.integers(0, 4, (40, 56), "uint8")).save(folder / f"maps/{number}.png")
        PIL.Image.fromarray(RNG.integers(256, 9 * 256, (40, 56), "uint16")).save(folder / f"depths/{number}.png")
        box = {"id": number, "image_id": number, "category_id": 1, "bbox": [3, 4, 20, 30], "area": 600, "iscrowd": 0}
        objects.append(box)
    images = [{"id": n, "file_name": f"{n}.png", "height": 40, "width": 56} for n in (1, 2)]
    categories = [{"id": n + 1, "name": f"{n}"} for n in range(4)]
    content = {"images": images, "annotations": objects, "categories": categories}
    (folder / "boxes.json").write_text(json.dumps(content))
    model = keras_vit.load(TESTS / "golden_tasks" / "yolos_mid")
    model.preprocessing = model.preprocessing.replace(sizing="shortest", size=48, longest=64, multiple=16)
    model.save(folder / "yolos.keras")
    (folder / "names.txt").write_text("0\n1\n2\n")
    return folder


@pytest.fixture
def any_model(monkeypatch):
    """A model of the class that `--model` names, without labels and weights."""

    def made(args):
        return mock.Mock(spec=getattr(keras_vit, args.model), labels=None)

    monkeypatch.setattr("keras_vit.cli.commands.open_model", made)


def test_boxes(data, capsys, tmp_path, monkeypatch):
    pytest.importorskip("pycocotools", reason="needs the extra [coco]")
    spy = mock.Mock(wraps=keras_vit.evaluate)
    monkeypatch.setattr(keras_vit, "evaluate", spy)
    words = ["--folder", data / "images", "--annotations", data / "boxes.json", "--model", data / "yolos.keras"]
    code, out, err = run(capsys, "evaluate", *words, "--save", tmp_path / "new", "--json", "--report")
    assert code == 0, err
    values = json.loads(out)
    assert {"images", "task", "AP", "AP50", "classes"} <= values.keys() and values["images"] == 2
    assert values["task"] == "boxes" and [*values["classes"]] == ["0"]
    [row, *_] = json.loads((tmp_path / "new" / "results.json").read_text())
    assert row.keys() == {"image_id", "category_id", "score", "bbox"}
    ((_, source), options) = spy.call_args
    assert (source.kind, source.size, options) == ("boxes", 2, {})


def test_depths_and_label_maps(data, capsys, monkeypatch, any_model):
    scores = TaskScores("depth", 2, {"abs_rel": 0.5}, {}, {})
    fake = mock.Mock(return_value=scores)
    monkeypatch.setattr(keras_vit, "evaluate", fake)
    words = ["--folder", data / "images", "--depths", data / "depths", "--model", "DPT"]
    code, out, _ = run(capsys, "evaluate", *words, "--scale", "256", "--max-depth", "10", "--batch-size", "3")
    assert (code, out) == (0, "abs_rel 0.5000 (2 images)\n")
    ((_, source), options) = fake.call_args
    assert options == {"max_depth": 10.0, "batch_size": 3} and 1 <= source.answer(0).depth.min() < 9
    words = ["--folder", data / "images", "--label-maps", data / "maps", "--model", "DPTSegmentation"]
    assert "--class-names must be given" in error_of(run(capsys, "evaluate", *words))
    code, _, err = run(capsys, "evaluate", *words, "--class-names", data / "names.txt", "--label-offset", 1)
    ((_, source), options) = fake.call_args
    assert code == 0 and source.class_names == ("0", "1", "2") and source.category_ids == (1, 2, 3), err
    with PIL.Image.open(data / "maps/1.png") as image:
        values = np.asarray(image).astype(int)
    np.testing.assert_array_equal(source.answer(0).label_map, np.where(values == 0, 255, values - 1))


@for_each(
    "words, text",
    [
        (["--depths", "d", "--annotations", "a"], "not allowed with argument"),
        (["--depths", "d", "--real-labels", "r"], "--real-labels cannot be used with --depths"),
        (["--depths", "d", "--save", "images"], "--save must not exist yet"),
        (["--label-maps", "d", "--scale", "2"], "--scale requires --depths; got --label-maps"),
        (["--save", "new"], "--save requires --annotations or --label-maps or --depths; got --folder"),
        (
            ["--annotations", "boxes.json", "--model", "DPT"],
            "--annotations requires a YOLOS, ViTPose or EoMT; got a",
        ),
    ],
)
def test_refusals(words, text, data, capsys, monkeypatch, any_model):
    monkeypatch.chdir(data)
    model = [] if "--model" in words else ["--model", "YOLOS"]
    assert text in error_of(run(capsys, "evaluate", "--folder", "images", *words, *model))


def test_images_are_in_a_folder(data, capsys, monkeypatch, any_model):
    monkeypatch.chdir(data)
    words = ["--arrays", "images", "--depths", "depths", "--model", "DPT"]
    assert "--depths requires --folder" in error_of(run(capsys, "evaluate", *words))
