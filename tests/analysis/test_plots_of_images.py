"""Figures of images, read back by the pixel."""

import io

import numpy as np
import pytest
from faults import for_each
from PIL import Image
from rendered import bytes_of, find, pixels_of

from keras_vit.analysis import heat_map, overlay, plots


def _images(count=2, size=(224, 224)):
    small = np.random.default_rng(0).integers(0, 256, (count, size[0] // 8, size[1] // 8, 3)).astype("uint8")
    return small.repeat(8, 1).repeat(8, 2)


def _patterns(count=2, grid=(14, 14)):
    """A bright cell in each, somewhere else."""
    maps = np.full((count, *grid), 0.01)
    for index in range(count):
        maps[index, 3 + 5 * index, 9 - 4 * index] = 1
    return maps


@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize(("size", "grid"), [((224, 224), (14, 14)), ((224, 256), (14, 16))])
def test_overlays_and_heat_maps_stand_beside_their_images_to_the_pixel(size, grid, smooth):
    images, maps = _images(size=size), _patterns(grid=grid)
    figure = plots.attention_overlay(images, maps, smooth=smooth)
    pixels = pixels_of(figure)
    tops = []
    for image, attention in zip(images, maps, strict=True):
        top, left = find(pixels, image)
        beside = find(pixels, overlay(image, attention, smooth=smooth))
        assert beside == (top, left + size[1] + 8)
        assert find(pixels, heat_map(image, attention, smooth=smooth)) == (top, left + 2 * (size[1] + 8))
        tops.append(top)
    assert tops[1] == tops[0] + size[0] + 8 and pixels.shape[1] == 3 * size[1] + 32


def test_the_bright_cell_of_a_sheet_is_where_its_patch_is():
    """White images: the brightest pixels of the overlay are those of the pattern's patch."""
    maps = _patterns()
    white = np.full((2, 224, 224, 3), 255, "uint8")
    pixels = pixels_of(plots.attention_overlay(white, maps, smooth=False))
    for index in range(2):
        top = pixels.shape[0] - (2 - index) * (224 + 8)
        right = pixels[top : top + 224, 224 + 16 : 2 * 224 + 16, 0]
        row, column = 3 + 5 * index, 9 - 4 * index
        bright = np.argwhere(right == 255)
        assert bright.min(0).tolist() == [16 * row, 16 * column]
        assert bright.max(0).tolist() == [16 * row + 15, 16 * column + 15]


def test_small_images_are_enlarged_by_a_whole_number():
    images = np.random.default_rng(1).integers(0, 256, (1, 32, 32, 3)).astype("uint8")
    pixels = pixels_of(plots.attention_overlay(images, np.ones((1, 4, 4))))
    assert pixels.shape[1] == 3 * 32 * 7 + 32
    tile = images[0].repeat(7, 0).repeat(7, 1)
    top = pixels.shape[0] - 8 - 224
    np.testing.assert_array_equal(pixels[top : top + 224, 8 : 8 + 224], tile)
    np.testing.assert_array_equal(pixels[top : top + 224, 16 + 224 : 16 + 448], tile)  # an even map


def test_filters_are_tiles_with_zero_in_grey():
    filters = np.random.default_rng(0).normal(size=(9, 8, 8, 3))
    filters[4] = 0
    pixels = pixels_of(plots.embedding_filters(filters, columns=4))
    assert pixels.shape == (8 + 3 * 64, 8 + 4 * 64, 3)  # three rows, the last of one filter
    for index in range(9):
        row, column = divmod(index, 4)
        tile = pixels[8 + 64 * row : 64 + 64 * row, 8 + 64 * column : 64 + 64 * column]
        largest = np.abs(filters[index]).max() or 1
        expected = np.rint(255 * (0.5 + 0.5 * filters[index] / largest))
        np.testing.assert_array_equal(tile[3::7, 3::7], expected)
    assert (pixels[8 + 128 :, 8 + 64 :] == 255).all()


def test_reconstructions_stand_in_a_row():
    images = _images(2, (64, 64))
    corrupted, predicted = images // 2, 255 - images
    pixels = pixels_of(plots.reconstruction(images, corrupted, predicted))
    for tiles in zip(images, corrupted, predicted, strict=True):
        places = [find(pixels, tile.repeat(2, 0).repeat(2, 1)) for tile in tiles]
        assert [left for _, left in places] == [8, 144, 280] and len({top for top, _ in places}) == 1


def test_neighbours_stand_beside_their_query():
    images = _images(6, (64, 64))
    pixels = pixels_of(plots.nearest_images(images[:2], images[2:].reshape(2, 2, 64, 64, 3)))
    for row in ([0, 2, 3], [1, 4, 5]):
        places = [find(pixels, images[index].repeat(2, 0).repeat(2, 1)) for index in row]
        assert [left for _, left in places] == [8, 144, 280] and len({top for top, _ in places}) == 1
    with pytest.raises(ValueError, match="queries and images must have the same number, at least 1; got 2, 1"):
        plots.nearest_images(images[:2], images[None, :3])


class TestExplanation:
    answers = (("Egyptian cat", 0.75), ("tabby", 0.25), ("a label of very many words that would not fit", 0.0))

    def sheet(self, heads=3, **options):
        heads = np.concatenate([_patterns(2), np.ones((heads - 2, 14, 14))])
        return plots.explanation(_images(1)[0], self.answers, _patterns(1)[0], heads, title="model: cat.jpg", **options)

    def test_image_attention_and_heads_to_the_pixel(self):
        image, heads = _images(1)[0], _patterns(2)
        pixels = pixels_of(self.sheet())
        height, width = pixels.shape[:2]
        assert (width, height) == (5 * 8 + 4 * 224, 3 * 8 + 3 * 20 + 2 * 224)
        upper, lower = 8 + 20 + 20, height - 8 - 224
        for tile, top, left in (
            (image, upper, 8),
            (overlay(image, heads[0]), upper, 16 + 224),
            (heat_map(image, heads[0]), upper, 24 + 448),
            (heat_map(image, heads[0]), lower, 8),
            (heat_map(image, heads[1]), lower, 16 + 224),
            (heat_map(image, np.ones((14, 14))), lower, 24 + 448),  # the even head comes last
        ):
            np.testing.assert_array_equal(pixels[top : top + 224, left : left + 224], tile)

    def test_bars_are_as_long_as_their_scores(self):
        pixels = pixels_of(self.sheet())[48 : 48 + 224, 32 + 672 : 32 + 672 + 224, 0]
        dark = [(row == 89).sum() for row in pixels]  # "0.35" of 255
        lengths = [length for length in sorted(set(dark)) if dark.count(length) > 10]
        assert lengths == [0, 56, 168]

    def test_few_answers_stand_as_the_first_of_five(self):
        two, five = (
            plots.explanation(_images(1)[0], answers, _patterns(1)[0], _patterns(2))
            for answers in (self.answers[:2], [*self.answers[:2], *[("another", 0.0)] * 3])
        )
        upper = [pixels_of(sheet)[48 : 48 + 84, 32 + 672 : 32 + 672 + 224] for sheet in (two, five)]
        np.testing.assert_array_equal(*upper)  # 224 / 5.25 pixels a step: the third begins at 96
        assert (pixels_of(two)[148 : 48 + 224, 32 + 672 : 32 + 672 + 224] == 255).all()

    def test_texts(self):
        texts = [text.get_text() for text in self.sheet().axes[0].texts]
        heads = ["head 1, focus 33 %", "head 2, focus 33 %", "head 3, focus 0 %"]
        assert texts[0] == "model: cat.jpg" and texts[4:7] == heads
        assert texts[8] == "75.0 %  Egyptian cat" and texts[-1].endswith("…")

    def test_more_heads_than_are_shown(self):
        narrow, wide = (pixels_of(self.sheet(6, num_heads=count)).shape[1] for count in (2, 5))
        assert (narrow, wide) == (5 * 8 + 4 * 224, 6 * 8 + 5 * 224)
        assert bytes_of(self.sheet()) < 400_000


@for_each(
    ("call", "message"),
    [
        (lambda: plots.attention_overlay(_images(2), _patterns(1)), "have the same number, at least 1; got 2 and 1"),
        (lambda: plots.embedding_filters(np.ones((2, 4, 4, 3)), columns=0), "columns must be an integer of at least 1"),
        (lambda: plots.reconstruction(_images(1), _images(1), np.full((1, 4, 4, 3), 2.0)), "reconstructed must be"),
    ],
)
def test_arguments_are_checked(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_notebook_shows_a_figure_pixel_by_pixel():
    """IPython asks an object for this image where pyplot has not told it how to draw figures."""
    figure = plots.attention_overlay(np.linspace(0, 1, 64).reshape(1, 8, 8, 1), np.ones((1, 2, 2)))
    shown = Image.open(io.BytesIO(figure._repr_png_()))
    assert shown.size == tuple(np.rint(figure.get_size_inches() * figure.dpi))
    written = io.BytesIO()
    figure.savefig(written, format="png")
    np.testing.assert_array_equal(np.asarray(shown), np.asarray(Image.open(written)))
    assert np.asarray(shown.convert("L")).std() > 10
