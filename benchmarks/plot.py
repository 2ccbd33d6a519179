"""Draw the first table of RESULTS.md, the speed beside each library: `python -m benchmarks.plot` writes the image."""

import re

import matplotlib.pyplot as plt

from benchmarks.contest import REPOSITORY

RESULTS, IMAGE = REPOSITORY / "RESULTS.md", REPOSITORY / "docs" / "images" / "speed.png"
_ROW = re.compile(r"^\| (.+?) +\| (.+?) +\| ([\d.]+) \(([\d.]+) to ([\d.]+)\) +\|$", re.MULTILINE)


def rows(text):
    """Return (what, library, median, minimum, maximum) for each row of the first table."""
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)[0]
    return [(what, library, *map(float, numbers)) for what, library, *numbers in _ROW.findall(table)]


def draw(rows):
    """Return a figure with a row per work and a colour per library."""
    works = list(dict.fromkeys(what for what, *_ in rows))
    libraries = list(dict.fromkeys(library for _, library, *_ in rows))
    figure, axes = plt.subplots(figsize=(8, 0.34 * len(works) + 1.2), layout="constrained")
    for library in libraries:
        chosen = [row for row in rows if row[1] == library]
        places = [works.index(what) for what, *_ in chosen]
        median, low, high = zip(*(row[2:] for row in chosen), strict=True)
        errors = [[m - x for m, x in zip(median, low, strict=True)], [x - m for m, x in zip(median, high, strict=True)]]
        axes.errorbar(median, places, xerr=errors, fmt="o", markersize=5, capsize=2, label=library, alpha=0.85)
    axes.axvline(1, color="0.4", linewidth=1)
    axes.set(xscale="log", xlabel="times as fast as the other library", yticks=range(len(works)), yticklabels=works)
    ticks = (0.8, 1, 1.25, 1.5, 2, 3)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
    return figure


if __name__ == "__main__":
    draw(rows(RESULTS.read_text(encoding="utf-8"))).savefig(IMAGE, dpi=130)
