"""The table of private names: complete, in CONTRIBUTING.md, and what happens without a name."""

import builtins
import pathlib
from unittest import mock

import keras
import numpy as np
import pytest
from faults import for_each
from private_uses import private_names

import keras_vit
from keras_vit.compat import private_names as table

REPOSITORY = pathlib.Path(__file__).parents[1]
ROWS = {row.name: row for row in table.TABLE}
TINY = keras_vit.ViTConfig(
    name="tiny", image_size=8, patch_size=4, hidden_dim=8, num_layers=1, num_heads=1, mlp_dim=8, classes=2
)
BACKENDS = ("", keras.backend.backend())
NAMED = [row for row in table.TABLE if row.holder and row.holder.rpartition(":")[0] in BACKENDS]
OF_OBJECTS = [row for row in NAMED if row.holder.endswith("()")]
SPEED = [row for row in NAMED if row.needed == "speed"]
OF_CLASSES = [row for row in NAMED if row not in (*OF_OBJECTS, *SPEED)]


def make_model():
    """A model with a Sequential inside, which is trained for a step."""
    inputs = keras.Input((16, 16, 3))
    model = keras_vit.Model(inputs, keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])(inputs))
    model.compile("adam", "mse", run_eagerly=True)
    images, labels = np.ones((2, 16, 16, 3), "float32"), np.zeros((2, 1), "float32")
    assert np.isfinite(model.train_on_batch(images, labels))
    assert np.isfinite(model.predict(images, verbose=0)).all()
    return model


class Resumed(keras.callbacks.Callback):
    def run_fit(self, model, fit, arguments):
        return fit(arguments, 0)


@pytest.fixture(scope="module")
def owners():
    """Objects whose names `compile` and `fit` check, and others that own private names."""
    found = []
    with mock.patch("keras_vit.compat.fit.check_installed", lambda replicas, *owners: found.extend(owners)):
        model = make_model()
        images, labels = np.ones((2, 16, 16, 3)), np.zeros((2, 1))
        model.fit(images, labels, steps_per_epoch=1, callbacks=[Resumed()], verbose=0)
    return [*found, model.weights[0], keras.callbacks.ModelCheckpoint("a.keras")]


def test_the_sources_use_what_the_table_names():
    assert private_names() == set(ROWS)


def test_there_are_fewer_than_forty():
    assert len(table.TABLE) == len(ROWS) < 40
    assert {row.needed for row in table.TABLE} == {"speed", "always", "replicas"}


@for_each("row", table.TABLE)
def test_the_installed_keras_has_it_and_a_test_watches_it(owners, row):
    assert table.exists(row, *owners)
    if row in OF_OBJECTS:
        kind = table.find(row.holder.rpartition(":")[2].removesuffix("()"))
        assert any(isinstance(owner, kind) for owner in owners)
    assert (REPOSITORY / "tests" / row.test).exists()
    assert row.issue == "none known" or row.issue.startswith("https://github.com/")


def test_contributing_has_the_same_table():
    lines = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()
    start = lines.index("| private name | needed | for | upstream issue | test |")
    assert lines[start + 2 : start + 2 + len(table.TABLE)] == [line_of(row) for row in table.TABLE]
    assert not lines[start + 2 + len(table.TABLE)].startswith("|")


def line_of(row):
    issue = row.issue
    if issue.startswith("https"):
        owner, name, _, number = issue.removeprefix("https://github.com/").split("/")
        issue = f"[{owner}/{name}#{number}]({issue})"
    return f"| `{row.name}` | {row.needed} | {row.why} | {issue} | `{row.test}` |"


def remove(monkeypatch, row):
    """As if Keras had another name for it."""
    has = builtins.hasattr
    monkeypatch.setattr(builtins, "hasattr", lambda owner, name: name != row.name and has(owner, name))


@pytest.mark.parametrize("row", SPEED, ids=[row.name for row in SPEED])
def test_without_it_keras_vit_is_slower(monkeypatch, row):
    remove(monkeypatch, row)
    keras_vit.VisionTransformer(TINY)
    make_model()


@for_each("row", OF_CLASSES)
def test_without_it_compile_raises_an_error(monkeypatch, row):
    model = keras_vit.VisionTransformer(TINY)
    with monkeypatch.context() as patch:
        if row.needed == "replicas":
            patch.setattr(keras_vit.Model, "_replicas", 2)
        remove(patch, row)
        with pytest.raises(ImportError) as raised:
            model.compile("adam", "mse")
    assert str(raised.value).startswith(f"keras_vit needs {row.name} of ")
    assert f"Keras {keras.__version__} does not have it" in str(raised.value)


@for_each("row", [row for row in OF_OBJECTS if row not in SPEED])
def test_without_it_its_object_is_refused(monkeypatch, owners, row):
    table.check_installed(2, *owners)
    with monkeypatch.context() as patch:
        remove(patch, row)
        with pytest.raises(ImportError, match=f"^keras_vit needs {row.name} of "):
            table.check_installed(2, *owners)
