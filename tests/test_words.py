"""Words of other libraries: each is answered with what to write, and that runs."""

import dataclasses
import inspect
import pickle
import re

import keras
import numpy as np
import pytest
from faults import assert_no_faults, for_each
from PIL import Image

import keras_vit
from keras_vit import zoo
from keras_vit.files import read_table

ROWS = read_table("words.tsv")
ARGUMENTS = [row for row in ROWS if row["kind"] == "argument"]
LIBRARIES = ("timm", "transformers", "keras-hub", "keras.applications", "torchvision")
NARROW = {"hidden_dim": 12, "num_heads": 2, "mlp_dim": 12}
CHANGES = re.compile(r"\.add_lora|\.load_weights|\.save_weights|\.freeze|\.compile")  # of the model or of its file


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """What the lines of the table name; the variants in them have one narrow block, and nothing is downloaded."""
    folder, patch = tmp_path_factory.mktemp("words"), pytest.MonkeyPatch()
    patch.chdir(folder)
    for name in ("ViT-B_16", "ViT-medium_16-reg4"):
        row, _ = zoo.VARIANTS[name], zoo.constructor(zoo.constructor_name(name))  # which stays as it is for other tests
        narrow = dataclasses.replace(row, architecture={**row.architecture, **NARROW, "num_layers": 1})
        patch.setitem(zoo.VARIANTS, name, narrow)
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype="uint8")
    for path in ("cat.jpg", "images/cat/0.jpg", "images/dog/0.jpg"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / path)
    config = keras_vit.ViTConfig(name="tiny", image_size=16, patch_size=8, num_layers=12, classes=5, **NARROW)
    model, b16 = keras_vit.VisionTransformer(config), keras_vit.ViT_B16()
    for head in (model.get_layer("head"), b16.get_layer("head")):  # zeros would be warned of
        head.kernel.assign(np.random.default_rng(0).normal(size=head.kernel.shape))
    keras_vit.save_weights(b16, folder / "published", layout="huggingface")
    keras_vit.save_weights(b16, folder / "model.safetensors", layout="timm")
    patch.setattr(zoo, "fetch", lambda located: located.path or folder / "published")
    for module, name in ((keras_vit, "train"), (keras_vit.data, "train_pipeline")):  # other tests run them
        patch.setattr(module, name, inspect.signature(getattr(module, name)).bind)
    source = keras_vit.data.from_directory(folder / "images")
    yield {"keras_vit": keras_vit, "model": model, "b16": b16, "source": source}
    patch.undo()


def test_the_table_has_words_of_every_library():
    assert len(ROWS) == len({(row["word"], row["kind"]) for row in ROWS}) >= 60
    assert {row["kind"] for row in ROWS} == {"argument", "name", "method"}
    assert all({"line", "ours"} & row.keys() for row in ROWS)
    counts = {library: sum(library in row["library"] for row in ROWS) for library in LIBRARIES}
    assert min(counts.values()) >= 3, counts


@pytest.mark.usefixtures("eagerly")
def test_every_line_runs(small):
    def rule(line):
        model = small["model" if "block_" in line else "b16"]
        model = keras_vit.clone(model) if CHANGES.search(line) else model
        exec(line, {**small, "model": model, "x": np.zeros((1, *model.config.image_size, 3), "float32")})

    assert_no_faults(rule, {row["line"]: row["line"] for row in ROWS if "line" in row})


def test_every_form_of_an_argument_is_accepted(small, monkeypatch):
    """By the first of these that has the argument; the model is not built, but its config is made."""
    monkeypatch.setattr(zoo, "build_at_once", lambda build: small["b16"])
    places = {
        keras_vit.ViT_B16: known(keras_vit.ViT_B16),
        small["b16"].config.replace: known(keras_vit.ViTConfig),
        zoo.VARIANTS["Swin-T"].reference.replace: known(keras_vit.SwinConfig),
        small["b16"].preprocessing.replace: known(keras_vit.Preprocessing),
    }

    def rule(form):
        given = eval(f"dict({form})")
        accept = next(place for place, names in places.items() if names >= given.keys())
        accept(**given)

    assert_no_faults(rule, {form: form for row in ARGUMENTS for form in row.get("ours", "").split(" | ") if form})


def known(function):
    """Names of the arguments of a config, of a constructor with what else it takes, or of `load` for a ViT."""
    names = set(inspect.signature(function).parameters)
    if function is keras_vit.load:
        return names | set(inspect.signature(keras_vit.ViTConfig).parameters)
    names |= {"embedding"} if function is keras_vit.ViT_B16 else set()
    return names if inspect.isclass(function) else names | {"pretrained"}


@pytest.mark.usefixtures("small")
@for_each("row", ARGUMENTS)
def test_arguments_are_answered_everywhere(row):
    """By the constructors, which call `create_model`, and configs of every family, and by `load`."""
    name, _, value = row["word"].partition("=")
    given = {name: eval(value) if value else None}
    functions = [getattr(keras_vit, name) for name in ("ViT_B16", "Swin_T", "BiT_R50x1", "AxialResNet_50")]
    functions += [keras_vit.ViTConfig, keras_vit.SwinConfig, keras_vit.BiTConfig, keras_vit.AxialResNetConfig]
    calls = {function.__name__: (function, function) for function in functions}
    calls["load"] = lambda **given: keras_vit.load("model.safetensors", **given), keras_vit.load
    for function, (call, owner) in calls.items():
        if name in known(owner):  # such as mlp_ratio of a Swin
            continue
        forms = {form.partition("=")[0]: form for form in row.get("ours", "").split(" | ")}
        ours = next((ours for ours in forms if ours in known(owner)), None)
        line = row.get("line", "which is no argument here")
        answer = f"(keras_vit calls it {ours!r}: {forms[ours]})" if ours else line
        with pytest.raises(TypeError, match=f"^{function} got an unexpected keyword argument '{name}' ") as caught:
            call(**given)
        assert answer in str(caught.value)


def test_keys_of_a_dict_are_answered():
    message = r"ViTConfig keys must be among .* got 'hidden_size' \(keras_vit calls it 'hidden_dim': hidden_dim=192\)"
    with pytest.raises(ValueError, match=message):
        keras_vit.ViTConfig.from_dict({"hidden_size": 8})
    with pytest.raises(ValueError, match=r"got 'mlp_dims' \(did you mean"):  # not a word of another library
        keras_vit.ViTConfig.from_dict({"mlp_dims": 8})


@for_each("row", [row for row in ROWS if row["kind"] == "name"])
def test_functions_and_classes_are_answered_by_the_package(row):
    with pytest.raises(AttributeError, match=f"^module 'keras_vit' has no attribute '{row['word']}' ") as caught:
        getattr(keras_vit, row["word"])
    assert row["line"] in str(caught.value) and row["library"] in str(caught.value)


@for_each("row", [row for row in ROWS if row["kind"] == "method"])
def test_methods_are_answered_by_models(small, row):
    for model in (small["model"], keras_vit.Model(small["model"].input, small["model"].output)):
        with pytest.raises(AttributeError, match=f"^'{type(model).__name__}' object has no attribute ") as caught:
            getattr(model, row["word"])
        assert row["line"] in str(caught.value) and row["library"] in str(caught.value)
        assert not hasattr(model, row["word"]) and getattr(model, row["word"], None) is None


def test_other_names_and_copies_are_as_before(small):
    class Faulty(keras_vit.Model):
        @property
        def cause(self):
            return self.absent

    model = Faulty(inputs := keras.Input((2,)), inputs)
    for name, told in {"absent": "absent", "cause": "absent", "preprocesing": "preprocesing"}.items():
        with pytest.raises(AttributeError, match=f"'Faulty' object has no attribute '{told}'$"):
            getattr(model, name)
    copied = pickle.loads(pickle.dumps(small["b16"]))
    x = np.random.default_rng(0).normal(size=(1, 224, 224, 3)).astype("float32")
    np.testing.assert_array_equal(copied(x), small["b16"](x))
