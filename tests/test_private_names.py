"""The table of private names: complete, in CONTRIBUTING.md, and what happens without a name."""

import inspect
import pathlib

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
NAMED = [row for row in table.TABLE if row.holder and row.holder.partition(":")[0] not in ("jax", "tensorflow")]
if keras.backend.backend() == "tensorflow":
    NAMED += [row for row in table.TABLE if row.holder.startswith("tensorflow:")]


def test_the_sources_use_what_the_table_names():
    assert private_names() == set(ROWS)


def test_there_are_fewer_than_forty():
    assert len(table.TABLE) == len(ROWS) < 40
    assert {row.needed for row in table.TABLE} == {"speed", "always", "replicas"}


@for_each("row", table.TABLE)
def test_the_installed_keras_has_it_and_a_test_watches_it(row):
    assert table.exists(row)
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
    path = row.holder.split(":")[-1]
    holder = table.find(path)
    if inspect.ismodule(holder):  # Keras itself needs it there
        find = table.find
        monkeypatch.setattr(table, "find", lambda path: None if path.endswith(f".{row.name}") else find(path))
        return
    for kind in holder.__mro__:
        if row.name in vars(kind):
            monkeypatch.setattr(kind, f"new{row.name}", vars(kind)[row.name], raising=False)
            monkeypatch.delattr(kind, row.name)
        for method in map(inspect.unwrap, list(vars(kind).values())):
            if inspect.isfunction(method) and row.name in method.__code__.co_names:
                names = tuple(f"new{name}" if name == row.name else name for name in method.__code__.co_names)
                monkeypatch.setattr(method, "__code__", method.__code__.replace(co_names=names))


@pytest.mark.parametrize("row", NAMED, ids=[row.name for row in NAMED])
def test_without_it_keras_vit_is_slower_or_compile_raises_an_error(monkeypatch, row):
    images, labels = np.ones((2, 16, 16, 3), "float32"), np.zeros((2, 1), "float32")
    inputs = keras.Input((16, 16, 3))
    model = keras_vit.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(inputs)))
    if row.needed == "replicas" and keras.backend.backend() == "tensorflow":
        monkeypatch.setattr(keras_vit.Model, "_replicas", 2)
    if row.needed == "speed":
        remove(monkeypatch, row)
        keras_vit.VisionTransformer(TINY)
        model.compile("adam", "mse")
        assert np.isfinite(model.train_on_batch(images, labels))
        assert np.isfinite(model.predict(images, verbose=0)).all()
        return
    model.compile("adam", "mse")  # with the name
    with monkeypatch.context() as patch:
        remove(patch, row)
        with pytest.raises(ImportError) as raised:
            model.compile("adam", "mse")
    assert str(raised.value).startswith(f"keras_vit needs {row.name} of ")
    assert f"Keras {keras.__version__} does not have it" in str(raised.value)
