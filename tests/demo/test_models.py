"""Visitors choose among the offered models and open nothing else; photos of digits become like the data."""

import numpy as np
import pytest
from families import FAMILIES
from faults import for_each
from page_models import NAME, small_digit_model
from PIL import Image, ImageDraw

import keras_vit
from keras_vit.checkpoints.releases import find_release, list_releases
from keras_vit.demo import models
from keras_vit.demo.models import Offers, digit_image


def test_without_a_model_the_digits_come_first():
    offered = Offers()
    assert next(iter(offered.choices)) == "ViT-digits" and offered.choices["ViT-digits"] == ["trained here"]
    assert list(offered.choices)[1:] == [name for name in keras_vit.list_models() if list_releases(name)]


def test_every_choice_is_a_published_file_whose_classes_are_known():
    for name, published in list(Offers().choices.items())[1:]:
        assert all(find_release(name, weights, (224, 224)).classes for weights in published)


def test_weights_are_the_published_ones_those_of_imagenet_first():
    found = Offers().choices["ViT-B_16"]
    assert sorted(found) == sorted(w for w in keras_vit.list_weights("ViT-B_16") if not w.startswith("hf://"))
    assert found[0] == "imagenet21k+imagenet2012" and found.index("augreg+imagenet2012") < found.index("imagenet21k")


def test_a_given_model_comes_first_and_keeps_its_releases():
    model = keras_vit.ViT_Ti16()
    offered = Offers(model, "mine.npz")
    assert list(offered.choices)[:2] == ["ViT-Ti_16", "ViT-digits"]
    assert offered.choices["ViT-Ti_16"][:2] == ["mine.npz", "augreg+imagenet2012"]
    assert offered.open("ViT-Ti_16", "mine.npz", report=pytest.fail) is model
    assert not offered.reads_digits("ViT-Ti_16", "mine.npz")


def test_a_given_model_of_digits_reads_digits():
    offered = Offers(small_digit_model(), "model.keras")
    assert offered.reads_digits(NAME, "model.keras") and offered.choices[NAME] == ["model.keras"]
    assert not offered.reads_digits("ViT-Ti_16", "augreg")
    assert not Offers(FAMILIES["plain"].build(), "x").reads_digits("tiny", "x")


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
    monkeypatch.setattr(models, "create_model", pytest.fail)
    with pytest.raises(ValueError, match="must be one of"):
        Offers(FAMILIES["plain"].build(), "x").open(name, weights)


def test_few_models_stay_in_memory(monkeypatch):
    opened, reports = [], []
    monkeypatch.setattr(models, "create_model", lambda name, **arguments: opened.append((name, arguments)) or object())
    offered = Offers()
    first = offered.open("ViT-B_16", "imagenet21k", reports.append)
    assert offered.open("ViT-B_16", "imagenet21k", reports.append) is first
    assert len(reports) == 1 and reports[0].startswith("ViT-B_16 is being loaded.")
    assert opened == [("ViT-B_16", {"weights": "imagenet21k", "classes": 21843})]
    offered.open("DeiT-Ti_16", "imagenet2012")
    assert opened[-1][1]["classes"] == 1000
    offered.open("Swin-T", "imagenet2012")
    assert offered.open("ViT-B_16", "imagenet21k") is not first


class TestDigitModel:
    @pytest.fixture(autouse=True)
    def path(self, tmp_path, monkeypatch):
        monkeypatch.setenv("KERAS_HOME", str(tmp_path))
        return tmp_path / "models" / "keras_vit" / "demo" / "ViT-digits-1.keras"

    @pytest.mark.usefixtures("eagerly")
    def test_it_is_trained_once_and_kept(self, monkeypatch, path):
        reports = []
        trained = models.open_digit_model(reports.append, steps=2)
        assert path.is_file() and sorted(path.parent.iterdir()) == [path]
        assert len(reports) == 1 and "trained to read handwritten digits" in reports[0]
        monkeypatch.setattr(models, "_train_digits", pytest.fail)
        kept = Offers().open("ViT-digits", "trained here", report=pytest.fail)
        for mine, theirs in zip(kept.get_weights(), trained.get_weights(), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        assert kept.labels == tuple("0123456789") and kept.config.grid_size == (4, 4)

    @pytest.mark.parametrize("contents", [b"", b"no model", b"PK\x03\x04"])
    def test_a_damaged_file_is_replaced(self, monkeypatch, path, contents):
        trained = small_digit_model()
        monkeypatch.setattr(models, "_train_digits", lambda steps: trained)
        path.parent.mkdir(parents=True)
        path.write_bytes(contents)
        assert models.open_digit_model() is trained
        kept = models.open_digit_model()
        assert kept is not trained and kept.config == trained.config

    @pytest.mark.slow
    def test_it_classifies_held_out_digits_and_photos_of_them(self, digits):
        model = models.open_digit_model()
        _, held_out = keras_vit.data.from_digits()
        assert keras_vit.evaluate(model, held_out).top[1] > 0.95  # 97 %
        rng = np.random.default_rng(0)
        photos = [digit_image(photo(image, rng)) for image in digits[2][:100]]
        found = [answers[0][0] for answers in keras_vit.predict(model, photos)]
        assert np.mean(np.array(found) == digits[3][:100].astype(str)) > 0.9


def photo(digit, rng, is_light=True):
    """A digit of the data, written larger on a page with a shadow, dust of the sensor and space around it."""
    large = Image.fromarray(digit[..., 0]).resize((160, 160), Image.Resampling.BICUBIC)
    page = np.ones((300, 400))
    top, left = rng.integers(10, 130), rng.integers(10, 230)
    page[top : top + 160, left : left + 160] -= 0.8 * np.asarray(large) / 255
    page = page * np.linspace(0.65, 0.95, 400) + rng.normal(0, 0.02, page.shape)
    page = page if is_light else 1 - page
    return np.rint(255 * page.clip(0, 1)).astype("uint8")[..., None].repeat(3, 2)


@pytest.fixture(scope="module")
def digits():
    """(images, labels) of the digits to learn from, and of the held-out ones."""
    parts = []
    for source in keras_vit.data.from_digits():
        elements = list(source.dataset.as_numpy_iterator())
        parts += [np.stack([e["image"] for e in elements]), np.array([e["label"] for e in elements])]
    return parts


@pytest.mark.slow
@pytest.mark.parametrize("is_light", [True, False], ids=["dark on light", "light on dark"])
def test_photos_of_digits_are_like_the_digits_of_their_kind(digits, is_light):
    """The nearest digit of another writer is of the same class, nearly as often as without a photo (98 %)."""
    known, known_labels, images, labels = digits
    known = known.reshape(len(known), -1).astype("float64")
    rng = np.random.default_rng(0)
    found = np.stack([digit_image(photo(image, rng, is_light)).ravel() for image in images[:100]]).astype("float64")
    nearest = ((known[None] - found[:, None]) ** 2).sum(-1).argmin(1)
    assert (known_labels[nearest] == labels[:100]).mean() >= 0.9


@pytest.mark.parametrize("width", [5, 14, 26])
def test_a_drawn_digit_has_the_ink_of_the_data(digits, width):
    """It fills the height, is centred, and has as much ink as the data, with any pen, size and place."""
    seven = Image.new("RGB", (200, 160), (250, 248, 242))
    ImageDraw.Draw(seven).line([(30, 24), (110, 24), (60, 136)], (30, 40, 90), width, joint="curve")
    found = digit_image(np.asarray(seven))
    assert found.shape == (8, 8, 1) and found.dtype == np.uint8
    ink = found[..., 0] / 255
    assert ink[0].max() > 0.3 and ink[-1].max() > 0.3
    assert abs(ink.mean() - digits[2].mean() / 255) < 0.17
    columns = np.flatnonzero(ink.max(0) > 0.15)
    assert abs(columns.min() - (7 - columns.max())) <= 1
    page = np.full((400, 300, 3), 245, "uint8")
    page[200:280, 20:120] = np.asarray(seven.resize((100, 80), Image.Resampling.BOX))
    assert np.corrcoef(digit_image(page).ravel(), found.ravel())[0, 1] > 0.9


def test_an_image_of_the_data_is_not_changed(digits):
    image = digits[2][0]
    np.testing.assert_array_equal(digit_image(image), image)
    np.testing.assert_array_equal(digit_image(image.repeat(3, 2)), image)


def test_the_examples_are_held_out_images_of_each_digit(digits):
    _, _, images, labels = digits
    examples = models.example_digits()
    assert list(examples) == list("0123456789")
    for name, example in examples.items():
        assert any((image == example).all() for image in images[labels == int(name)])


@for_each("level", [0, 128, 255])
def test_a_blank_page_is_refused(level):
    with pytest.raises(ValueError, match="must show a digit in ink that differs from its paper"):
        digit_image(np.full((100, 100, 3), level, "uint8"))


@pytest.mark.parametrize("shape", [(1, 60, 3), (60, 1, 3), (2, 2, 1)])
def test_slivers_are_images(shape):
    image = np.full(shape, 255, "uint8")
    image.reshape(-1)[: image.size // 4] = 0
    assert digit_image(image).shape == (8, 8, 1)
