"""ONNX files of each family and task model: their nodes, names and metadata, and their outputs in two runtimes."""

import collections
import functools
import json
import tempfile

import numpy as np
import pytest
from conftest import TESTS
from drawn import draw
from families import FAMILIES
from golden_task_models import TASK_CLASSES, write_files
from served import LABELS, make_model
from slow_rows import slow_after

import keras_vit
from keras_vit import Preprocessing
from keras_vit.layers import forms
from keras_vit.models import resize
from keras_vit.serving.tasks import array_specs, call_arrays, example_arrays

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
openvino = pytest.importorskip("openvino")
onnx_file = pytest.importorskip("keras_vit.serving.onnx_file")
onnx_graph = pytest.importorskip("keras_vit.serving.onnx_graph")

PREPROCESSING = Preprocessing(size=32, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
# Families whose images may have any size
OPEN = ("DINOv3", "plain", "registers", "DeiT", "DeiT distilled", "DeiT-III", "DINOv2", "CLIP", "SigLIP", "EVA-02")
OPEN += ("AIMv2", "Perception Encoder", "SAM", "ViT-22B", "post-norm")
# Families with square roots of their own: RMS norms, group norms, vectors of length 1
ROOTS = {"AIMv2", "post-norm", "merging", "hybrid", "hybrid on the root", "BiT"}
ROWS = [("DINOv3", True), ("EVA-02", False)]
ROWS += [(name, False) for name in FAMILIES if name != "EVA-02"] + [(name, True) for name in OPEN[1:]]
CASES = {path.parent.name: json.loads(path.read_text()) for path in TESTS.glob("golden_tasks/*/case.json")}
CASES = {name: case for name, case in CASES.items() if case.get("class") in TASK_CLASSES}
TASKS = sorted(CASES, key=lambda name: name != "owlv2")
TASK_ROOTS = {"dpt_hybrid", "owlv2"}  # group norms; vectors of length 1


def write(model, folder, **options):
    onnx_file.write_onnx(model, folder, **{"compute_dtype": None, **options})
    return folder / "model.onnx"


@functools.cache
def core():
    """One for the process: each sets a stack for signal handlers, and of two, one is freed but stays set."""
    return openvino.Core()


def runtimes(file):
    """Functions of arrays by name that return the outputs by name, in ONNX Runtime and OpenVINO."""
    session = onnxruntime.InferenceSession(file)
    names = [output.name for output in session.get_outputs()]
    hint = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = core().compile_model(str(file), "CPU", hint)
    return (
        lambda arrays: dict(zip(names, session.run(names, arrays), strict=True)),
        lambda arrays: {name: compiled(arrays)[name] for name in names},
    )


def sides(values):
    return {
        value.name: [side.dim_param or side.dim_value for side in value.type.tensor_type.shape.dim] for value in values
    }


def calls_in(call, monkeypatch):
    """Numbers of calls of layer norms and of GELUs in `call()`."""
    numbers, norm = collections.Counter(), forms.LayerNorm.call
    with monkeypatch.context() as patch:
        patch.setattr(forms.LayerNorm, "call", lambda self, x: numbers.update(norms=1) or norm(self, x))
        for approximate, gelu in forms._FORWARD.items():
            counted = lambda x, gelu=gelu: numbers.update(gelus=1) or gelu(x)  # noqa: E731
            patch.setitem(forms._FORWARD, approximate, counted)
        call()
    return numbers


def check_nodes(file, numbers, has_roots):
    """Check that each layer norm and each GELU is one node, and return the file's model."""
    onnx.checker.check_model(file, full_check=True)
    written = onnx.load(file)
    assert [(one.domain, one.version) for one in written.opset_import] == [("", 20)]
    kinds = collections.Counter(node.op_type for node in written.graph.node)
    assert kinds["LayerNormalization"] == numbers["norms"] and kinds["Gelu"] == numbers["gelus"]
    assert not kinds["Erf"] + kinds["Tanh"] and bool(kinds["Sqrt"]) == has_roots
    nodes = [(node.op_type, *node.input, *map(str, node.attribute)) for node in written.graph.node]
    assert len(nodes) == len(set(nodes))  # equal ones are written once
    return written


def check_outputs(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        value = np.asarray(value)
        assert found[name].shape == value.shape and found[name].dtype == value.dtype
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5 * np.abs(value).max(), err_msg=name)


@pytest.mark.parametrize("family, is_open", slow_after(2, ROWS))
def test_each_family(family, is_open, tmp_path, monkeypatch):
    model = FAMILIES[family].build()
    model = resize(model, "any") if is_open else model
    model.preprocessing = PREPROCESSING
    file = write(model, tmp_path / "onnx")
    shapes = [(32, 32), (24, 48), (40, 16)] if is_open else [model.input_shape[1:3]]
    numbers = calls_in(lambda: model(np.zeros((1, *shapes[0], 3), "float32"), training=False), monkeypatch)
    written = check_nodes(file, numbers, family in ROOTS)
    assert sides(written.graph.input) == {"images": ["batch", *(("height", "width") if is_open else shapes[0]), 3]}
    assert sides(written.graph.output) == {"logits": ["batch", 5]}
    for call in runtimes(file):
        for shape in shapes:
            for count in (1, 5):
                images = np.random.default_rng(count).uniform(0, 255, (count, *shape, 3)).astype("float32")
                inputs = (images / 255 - PREPROCESSING.mean) / PREPROCESSING.std
                expected = model(inputs.astype("float32"), training=False)
                check_outputs(call({"images": images}), {"logits": expected})


def load_task(name):
    if CASES[name].get("params_stored", True):
        return keras_vit.load(TESTS / "golden_tasks" / name)
    with tempfile.TemporaryDirectory() as folder:
        write_files(CASES[name], folder)
        return keras_vit.load(folder)


@pytest.mark.parametrize("task", slow_after(1, TASKS))
def test_each_task_model(task, tmp_path, monkeypatch):
    model = load_task(task)
    file = write(model, tmp_path / "onnx")
    specs, example = array_specs(model), example_arrays(model, np.asarray(draw(0, (97, 131))))
    numbers = calls_in(lambda: call_arrays(model, example), monkeypatch)
    written = check_nodes(file, numbers, task in TASK_ROOTS)
    taken, given = (sides(values) for values in (written.graph.input, written.graph.output))
    assert {*taken} == {*specs} and taken["images"][0] == "batch"
    assert taken["images"][1:3] == list(specs["images"].shape[1:3] if specs["images"].shape[1] else ("height", "width"))
    assert all(shape[0] == ("queries" if name == "queries" else "batch") for name, shape in (taken | given).items())
    for call in runtimes(file):
        for count in (1, 5):
            # `queries` have no axis of images: 3 of them
            arrays = {name: np.concatenate([x] * (3 if name == "queries" else count)) for name, x in example.items()}
            arrays["images"] = arrays["images"] + np.arange(count, dtype="float32")[:, None, None, None] / 8
            check_outputs(call(arrays), call_arrays(model, arrays))


def test_what_the_file_says(tmp_path):
    labels = ("Käfer", "蜂", *LABELS[2:])
    written = onnx.load(write(make_model(labels=labels), tmp_path / "toy"))
    said = {entry.key: entry.value for entry in written.metadata_props}
    assert said.keys() == {"name", "labels", "preprocessing"} and said["name"] == "toy"
    assert json.loads(said["labels"]) == list(labels)
    assert Preprocessing.from_dict(json.loads(said["preprocessing"])) == make_model().preprocessing
    assert written.producer_name == "keras_vit"


def test_a_published_model_has_its_licence(tmp_path):
    model = make_model(include_top=False, name="DINOv2-S_14")
    model.weights_source = "facebook/dinov2-small"
    said = {entry.key: entry.value for entry in onnx.load(write(model, tmp_path / "toy")).metadata_props}
    assert said.keys() == {"name", "weights", "licence", "preprocessing"}
    assert said["weights"] == "facebook/dinov2-small" and said["licence"] == "Apache-2.0"


def test_weights_of_more_than_one_file(tmp_path, monkeypatch):
    model, images = make_model(), np.random.default_rng(0).uniform(0, 255, (2, 24, 32, 3)).astype("float32")
    whole = write(model, tmp_path / "whole")
    monkeypatch.setattr(onnx_graph, "_MAX_FILE", 100_000)
    graphs, save = [], onnx_graph.Graph.save
    monkeypatch.setattr(onnx_graph.Graph, "save", lambda graph, *given: save(graph, *given) or graphs.append(graph))
    split = write(model, tmp_path / "split")
    assert [path.name for path in sorted(split.parent.iterdir())] == ["model.onnx", "model.onnx.data"]
    assert split.stat().st_size < 30_000 < 900_000 < (split.parent / "model.onnx.data").stat().st_size
    assert not graphs[0].arrays  # released
    for call, other in zip(runtimes(whole), runtimes(split), strict=True):
        np.testing.assert_array_equal(call({"images": images})["logits"], other({"images": images})["logits"])
