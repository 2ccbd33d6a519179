"""What visitors choose from, and that nothing else is opened."""

import numpy as np
import pytest
from families import FAMILIES
from page_models import NAME, small_digit_model

import keras_vit
from keras_vit.demo import digit_model, offers
from keras_vit.demo.offers import Offers


def test_without_a_model_the_digits_come_first():
    offered = Offers()
    assert offered.models()[0] == "ViT-digits" and len(offered.weights("ViT-digits")) == 1
    assert offered.models()[1:] == [name for name in keras_vit.list_models() if keras_vit.list_weights(name)]


def test_weights_are_the_published_ones_those_of_imagenet_first():
    found = Offers().weights("ViT-B_16")
    assert sorted(found) == sorted(keras_vit.list_weights("ViT-B_16"))
    assert found[0] == "imagenet21k+imagenet2012" and found.index("augreg+imagenet2012") < found.index("imagenet21k")


def test_a_given_model_comes_first_and_keeps_its_releases():
    model = keras_vit.ViT_Ti16()
    offered = Offers(model, "mine.npz")
    assert offered.models()[0] == "ViT-Ti_16" and offered.models().count("ViT-Ti_16") == 1
    assert offered.weights("ViT-Ti_16")[:2] == ["mine.npz", "augreg+imagenet2012"]
    assert offered.open("ViT-Ti_16", "mine.npz") is model and offered.wait("ViT-Ti_16", "mine.npz") == ""
    assert offered.wait("ViT-Ti_16", "augreg").startswith("ViT-Ti_16 is being loaded")
    assert not offered.has_digits("ViT-Ti_16", "mine.npz")


def test_a_given_model_of_digits_reads_digits():
    offered = Offers(small_digit_model(), "model.keras")
    assert offered.has_digits(NAME, "model.keras") and offered.weights(NAME) == ["model.keras"]
    assert not offered.has_digits("ViT-Ti_16", "augreg")
    assert not Offers(FAMILIES["plain"].build(), "x").has_digits("tiny", "x")


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("ViT-Ti_16", "/etc/passwd"),
        ("ViT-Ti_16", "hf://someone/something"),
        ("ViT-Ti_16", None),
        ("/etc/passwd", "augreg"),
        ("AxialResNet-50", "augreg"),
        ("tiny", "y"),
    ],
)
def test_nothing_else_is_opened(monkeypatch, name, weights):
    monkeypatch.setattr(offers, "create_model", pytest.fail)
    with pytest.raises(ValueError, match="must be one of"):
        Offers(FAMILIES["plain"].build(), "x").open(name, weights)


def test_few_models_stay_in_memory(monkeypatch):
    opened = []
    monkeypatch.setattr(offers, "create_model", lambda name, **arguments: opened.append((name, arguments)) or object())
    offered = Offers()
    first = offered.open("ViT-B_16", "imagenet21k")
    assert offered.open("ViT-B_16", "imagenet21k") is first and offered.wait("ViT-B_16", "imagenet21k") == ""
    assert opened == [("ViT-B_16", {"weights": "imagenet21k", "classes": 21843})]
    offered.open("DeiT-Ti_16", "imagenet2012")
    assert opened[-1][1]["classes"] == 1000
    offered.open("Swin-T", "imagenet2012")
    assert offered.open("ViT-B_16", "imagenet21k") is not first


class TestDigits:
    @pytest.fixture(autouse=True)
    def _cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("KERAS_HOME", str(tmp_path))

    @pytest.mark.usefixtures("eagerly")
    def test_they_are_learnt_once_and_kept(self, monkeypatch):
        path = digit_model.digit_file()
        assert "learns to read handwritten digits first" in Offers().wait("ViT-digits", "trained here")
        learnt = digit_model.open_digit_model(steps=2)
        assert path.is_file() and sorted(path.parent.iterdir()) == [path]
        assert Offers().wait("ViT-digits", "trained here") == ""
        monkeypatch.setattr(digit_model, "_train", pytest.fail)
        kept = Offers().open("ViT-digits", "trained here")
        for mine, theirs in zip(kept.get_weights(), learnt.get_weights(), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        assert kept.labels == tuple("0123456789") and kept.config.grid_size == (4, 4)

    @pytest.mark.usefixtures("eagerly")
    @pytest.mark.parametrize("contents", [b"", b"no model", b"PK\x03\x04"])
    def test_a_damaged_file_is_made_anew(self, contents):
        path = digit_model.digit_file()
        path.parent.mkdir(parents=True)
        path.write_bytes(contents)
        assert keras_vit.predict(digit_model.open_digit_model(steps=1), np.zeros((8, 8), "uint8"))
        assert path.stat().st_size > 100_000

    @pytest.mark.slow
    def test_they_are_read_rightly(self):
        _, held_out = keras_vit.data.from_digits()
        assert keras_vit.evaluate(digit_model.open_digit_model(), held_out).top[1] > 0.95  # 97 %
