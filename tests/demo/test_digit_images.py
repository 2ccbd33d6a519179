"""Photos and drawings of a digit become what scikit-learn's digits are."""

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.demo.digit_images import digit_image
from keras_vit.demo.drawn_digits import draw_digit, list_digits


def photo(digit, rng, is_light=True):
    """A digit of the data, written larger on a page with a shadow, dust of the sensor and room around it."""
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


@pytest.fixture(scope="module")
def held_out(digits):
    return digits[2:]


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
def test_drawn_digits_have_the_ink_of_the_data(held_out, width):
    """They fill the height, are centred, and have as much ink as the data, whatever the pen."""
    images, _ = held_out
    for name in list_digits():
        found = digit_image(np.asarray(draw_digit(name, width)))
        assert found.shape == (8, 8, 1) and found.dtype == np.uint8
        ink = found[..., 0] / 255
        assert ink[0].max() > 0.3 and ink[-1].max() > 0.3
        assert 0.15 < ink.mean() < 0.5 and abs(ink.mean() - images.mean() / 255) < 0.17
        columns = np.flatnonzero(ink.max(0) > 0.15)
        assert abs(columns.min() - (7 - columns.max())) <= 1


def test_an_image_of_the_data_is_left_as_it_is(held_out):
    images, _ = held_out
    np.testing.assert_array_equal(digit_image(images[0]), images[0])
    np.testing.assert_array_equal(digit_image(images[0].repeat(3, 2)), images[0])


def test_place_and_size_on_the_paper_do_not_matter():
    small, large = np.full((400, 300, 3), 255, "uint8"), np.asarray(draw_digit("5"))
    small[200:280, 20:100] = np.asarray(draw_digit("5").resize((80, 80), Image.Resampling.BOX))
    found = [digit_image(page).ravel() for page in (small, large)]
    assert np.corrcoef(*found)[0, 1] > 0.95


@pytest.mark.parametrize("level", [0, 128, 255])
def test_a_blank_page_is_refused(level):
    with pytest.raises(ValueError, match="must show a digit in ink that stands out from its paper"):
        digit_image(np.full((100, 100, 3), level, "uint8"))


@pytest.mark.parametrize("shape", [(8, 8), (20, 20, 4)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"must be uint8 \(height, width, 1 or 3\); got uint8 of shape"):
        digit_image(np.zeros(shape, "uint8"))


@pytest.mark.parametrize("shape", [(1, 60, 3), (60, 1, 3), (2, 2, 1)])
def test_slivers_are_images(shape):
    image = np.full(shape, 255, "uint8")
    image.reshape(-1)[: image.size // 4] = 0
    assert digit_image(image).shape == (8, 8, 1)
