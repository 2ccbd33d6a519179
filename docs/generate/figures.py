"""Draw the figures of accuracy and cost in the guides, from the tables next to them: `python docs/generate/figures.py`.

Requires matplotlib, which the extra `analysis` installs.
"""

import re

import matplotlib.pyplot as plt
from repository import REPOSITORY

# guide -> image
FIGURES = {"choose": "choose_accuracy.png", "zero_shot": "zero_shot_accuracy.png"}
_ROW = re.compile(r"^\| ([^|]+) \| (\d+) \| ([\d.]+) M \| ([\d.]+) \| ([\d.]+) \|$", re.MULTILINE)
_NAME = re.compile(r"(.+?)[- ]((?:Ti|T|S|B|L|g|G|So400m)\b[^,]*)")
# where the labels of each family stand, so that few of them overlap: points to the right and up, alignment
_PLACES = ((0, -14, "center"), (7, -3, "left"), (-6, 3, "right"), (-9, -3, "right"))


def rows(guide):
    """Return (model, image size, million parameters, GMAC, accuracy in percent) for each row of the guide's table."""
    text = (REPOSITORY / "docs" / "guides" / f"{guide}.md").read_text(encoding="utf-8")
    return [(model, *map(float, numbers)) for model, *numbers in _ROW.findall(text)]


def draw(rows):
    """Return a figure with a point per row, a colour per family, and larger points for larger images."""
    families = {}
    for model, size, _, macs, accuracy in rows:
        family, name = _NAME.match(model).groups()
        families.setdefault(family, []).append((name, size, macs, accuracy))
    figure, axes = plt.subplots(figsize=(7.5, 5), layout="constrained")
    for (family, members), (right, up, align) in zip(families.items(), _PLACES, strict=False):
        names, sizes, macs, accuracies = zip(*members, strict=True)
        areas = [28 * (size / 224) ** 2 for size in sizes]
        points = axes.scatter(macs, accuracies, areas, label=family, alpha=0.8, linewidths=0)
        style = {"fontsize": 8, "ha": align, "color": points.get_facecolor()[0], "textcoords": "offset points"}
        for name, *place in zip(names, macs, accuracies, strict=True):
            axes.annotate(name, place, (right, up), **style)
    axes.set(xscale="log", xlabel="GMAC per image", ylabel="top-1 accuracy on ImageNet-1k, %")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.margins(0.08)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
    return figure


if __name__ == "__main__":
    for guide, image in FIGURES.items():
        draw(rows(guide)).savefig(REPOSITORY / "docs" / "images" / image, dpi=110)
