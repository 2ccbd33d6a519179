"""`keras-vit demo`: which model is offered, where the page is, and what is refused."""

import types

import pytest
from command_line import SAVED, error_of, run
from faults import for_each

import keras_vit


@pytest.fixture
def launched(monkeypatch):
    """The arguments of `launch`; nothing is served."""
    calls = []

    def launch(model=None, weights=None, **arguments):
        calls.append({"model": model, "weights": weights, **arguments})
        return types.SimpleNamespace(local_url="http://127.0.0.1:7860/", share_url=None)

    monkeypatch.setattr(keras_vit.demo, "launch", launch)
    monkeypatch.setattr(keras_vit.demo, "wait", lambda page: None)
    return calls


def test_without_a_model_and_with_nothing_said(here, capsys, launched):
    assert run(capsys, "demo")[:2] == (0, "http://127.0.0.1:7860/\n")
    settings = {"host": "127.0.0.1", "port": None, "browser": True, "share": False, "block": False}
    assert launched == [{"model": None, "weights": "", **settings}]


def test_a_model_is_offered_by_its_file(here, capsys, launched):
    code, _, err = run(capsys, "demo", *SAVED, "--port", "7999", "--host", "0.0.0.0", "--no-browser", "--share")
    (call,) = launched
    assert code == 0, err
    assert call.pop("model").config.name == "small"
    expected = {"host": "0.0.0.0", "port": 7999, "browser": False, "share": True, "block": False}
    assert call == {"weights": "model.keras", **expected}


def test_weights_are_called_by_the_name_of_their_file_alone(here, capsys, launched):
    weights = str(here / "ViT-Ti_16.npz")
    assert run(capsys, "demo", "--model", "ViT-Ti_16", "--weights", weights)[0] == 0
    assert launched[0]["weights"] == "ViT-Ti_16.npz"


@for_each(
    ("words", "message"),
    [
        (["--weights", "ViT-Ti_16.npz"], "--weights requires --model"),
        (["--image-size", "64"], "--image-size requires --model"),
        (["--crop", "64"], "--crop requires --model"),
        (["--model", "ViT-Ti_16"], "--weights must be given with --model ViT-Ti_16"),
        (["--port", "x"], "argument --port: expected an integer of at least 1; got 'x'"),
    ],
)
def test_mistakes_are_one_line(here, capsys, launched, words, message):
    assert message in error_of(run(capsys, "demo", *words))
    assert launched == []
