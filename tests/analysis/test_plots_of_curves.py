"""Figures with axes: what is drawn where, its labels, and whether it can be read in grey."""

import sys

import numpy as np
import pytest
from PIL import Image
from rendered import bytes_of, pixels_of

from keras_vit.analysis import plots, position_similarity, receptive_field
from keras_vit.config import ResNetConfig
from keras_vit.layers.position_grid import sincos2d_table

DISTANCES = np.array([[10.0, 90.0, 40.0], [60.0, np.nan, np.nan], [120.0, 100.0, 80.0]])
SHOTS = {1: (0.4, 0.5), 5: (0.6, 0.65), 25: (0.8, 0.9)}
CURVES = {"depth": [(4e9, 0.6), (1e9, 0.4)], "width": [(1e9, 0.4), (2e9, 0.45)]}
FIGURES = {
    "attention distance": lambda: plots.attention_distance(DISTANCES),
    "scaling": lambda: plots.scaling_curves(CURVES, baseline=(1e9, 0.4)),
    "few shots": lambda: plots.few_shot_curves({"ViT": SHOTS, "ResNet": {1: (0.3,), 10: (0.5,)}}),
    "positions": lambda: plots.position_similarity(
        position_similarity(sincos2d_table((4, 6), 16), grid_size=(4, 6), num_prefix_tokens=0)
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_axes_are_labelled_and_something_is_drawn(name):
    figure = FIGURES[name]()
    axes = figure.axes[0]
    assert axes.get_xlabel() and axes.get_ylabel()
    pixels = pixels_of(figure)
    grey = np.asarray(Image.fromarray(pixels).convert("L"))
    assert 250 < pixels.shape[0] < 700 and 400 < pixels.shape[1] < 900
    assert 0.01 < (grey < 128).mean() < 0.9 and bytes_of(figure) < 100_000


def _lines(figure):
    """label -> (x, y) of the lines of a figure's axes."""
    return {line.get_label(): line.get_data() for line in figure.axes[0].get_lines()}


def test_attention_distance_has_a_dot_per_head_and_a_cnn_beside():
    lines = _lines(plots.attention_distance(DISTANCES))
    x, y = lines["a head"]
    dots = sorted((block, distance) for block, distance in zip(x, y, strict=True) if np.isfinite(distance))
    assert dots == [(1, 10), (1, 40), (1, 90), (2, 60), (3, 80), (3, 100), (3, 120)]
    np.testing.assert_allclose(lines["mean of the heads"], [[1, 2, 3], [140 / 3, 60, 100]])
    x, y = lines["ResNet-50: half the receptive field"]
    assert (x[0], x[-1], y[-1]) == (1, 3, 427 / 2)
    sides = receptive_field(ResNetConfig(stage_sizes=(1, 2)))
    np.testing.assert_allclose(
        _lines(plots.attention_distance(DISTANCES, sides))["CNN: half the receptive field"][1], sides / 2
    )
    assert len(_lines(plots.attention_distance(DISTANCES, None))) == 2


@pytest.mark.parametrize(
    ("costs", "labels"),
    [
        ((225, 4500), ["200", "500", "1k", "2k", "5k"]),
        ((2e5, 2e7), ["200k", "500k", "1M", "2M", "5M", "10M", "20M"]),
        ((1e3, 1e9), ["1k", "10k", "100k", "1M", "10M", "100M", "1G"]),
    ],
)
def test_costs_are_labelled_apart(costs, labels):
    figure = plots.scaling_curves({"all": [(cost, 0.5) for cost in costs]})
    pixels_of(figure)
    axes = figure.axes[0]
    left, right = axes.get_xlim()
    ticks = [tick for tick in axes.xaxis.get_major_ticks() if left <= tick.get_loc() <= right]
    assert [tick.label1.get_text() for tick in ticks] == labels
    boxes = [tick.label1.get_window_extent() for tick in ticks]
    assert all(one.x1 < other.x0 for one, other in zip(boxes, boxes[1:], strict=False))
    assert not any(tick.label1.get_text() for tick in axes.xaxis.get_minor_ticks())


def test_curves_are_sorted_and_told_apart_without_colour():
    figure = plots.scaling_curves({str(index): CURVES["depth"] for index in range(8)})
    lines = figure.axes[0].get_lines()
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines}) == 8
    np.testing.assert_allclose(_lines(figure)["0"], [[1e9, 4e9], [40, 60]])
    assert figure.axes[0].get_xscale() == "log"
    assert _lines(FIGURES["scaling"]())["base"][1] == [40]


def test_few_shot_curves_have_means_bars_and_their_shots():
    figure = FIGURES["few shots"]()
    axes = figure.axes[0]
    container = axes.containers[0]
    np.testing.assert_allclose(np.array(container.lines[0].get_data(), float), [[1, 5, 25], [45, 62.5, 85]])
    (bars,) = container.lines[2]
    np.testing.assert_allclose([np.asarray(bar)[:, 1] for bar in bars.get_segments()], [[40, 50], [60, 65], [80, 90]])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "5", "10", "25"]

    class Result:
        accuracy = SHOTS

    again = plots.few_shot_curves({"ViT": Result()})
    np.testing.assert_allclose(again.axes[0].containers[0].lines[0].get_data()[1], [45, 62.5, 85])


def test_every_tile_of_position_similarity_is_brightest_at_its_own_patch():
    similarity = position_similarity(sincos2d_table((4, 6), 16), grid_size=(4, 6), num_prefix_tokens=0)
    figure = plots.position_similarity(similarity)
    pixels = pixels_of(figure)
    yellow = (253, 231, 36)  # viridis at 1
    factor = (figure.axes[0].get_images()[0].get_array().shape[0]) // (4 * 5 - 1)
    for row, column in np.ndindex(4, 6):
        top, left = 36 + factor * (row * 5 + row), 60 + factor * (column * 7 + column)
        own = pixels[top + 2 : top + factor - 2, left + 2 : left + factor - 2].reshape(-1, 3)
        assert np.abs(own.astype(int) - yellow).max() <= 1
    labels = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert labels == ["1", "2", "3", "4", "5", "6"]


def test_an_unknown_reference_is_refused():
    with pytest.raises(ValueError, match="reference must be one of 'ResNet-50'; got reference='VGG'"):
        plots.attention_distance(DISTANCES, "VGG")


def test_without_matplotlib_the_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="plots need matplotlib: pip install matplotlib$"):
        plots.attention_distance(DISTANCES)


def test_names_are_drawn_as_they_are():
    """matplotlib hides labels that begin with _ and draws $...$ as mathematics."""
    names = ["_hidden", "$x", r"$\bad$", "plain"]
    curves = {name: [(1, 0.5), (2, 0.6)] for name in names}
    for figure, shown in (
        (plots.scaling_curves(curves, baseline=(1, 0.4)), [*names, "base"]),
        (plots.few_shot_curves({name: {1: [0.5], 5: [0.6]} for name in names}), names),
    ):
        pixels_of(figure)
        texts = figure.axes[0].get_legend().get_texts()
        assert [text.get_text() for text in texts] == shown and not any(text.get_parse_math() for text in texts)


def test_curves_are_seen_in_a_dark_style():
    import matplotlib

    with matplotlib.rc_context({"axes.labelcolor": "white", "figure.facecolor": "black", "axes.facecolor": "black"}):
        figures = plots.attention_distance(DISTANCES), plots.scaling_curves({"a": [(1, 0.5)]}, baseline=(1, 0.4))
    colours = [line.get_color() for figure in figures for line in figure.axes[0].get_lines()]
    assert colours.count("white") == 3 and "black" not in colours


def test_a_font_without_the_characters_of_a_name_is_told_with_the_remedy():
    with pytest.warns(UserWarning, match=r"missing from font.* \(set matplotlib\.rcParams\['font\.family'\]"):
        bytes_of(plots.scaling_curves({"猫": [(1, 0.5)]}))
