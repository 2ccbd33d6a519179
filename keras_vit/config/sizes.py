"""Rules by which the size of an image becomes that of the input of a task model."""

from collections.abc import Callable

# name of the rule -> function of (height, width) of the image, of `size`, `longest` and `multiple`, to (height, width)
Rule = Callable[[tuple[int, int], tuple[int, int], int | None, int], tuple[int, int]]


def _stretched(size, target, longest, multiple):
    """Each side becomes the wanted one."""
    height, width = (max(round(wanted / multiple), 1) * multiple for wanted in target)
    return height, width


def _nearest(size, target, longest, multiple):
    """Both sides are scaled by the factor that is nearer to 1; of equal distances, by that of the height."""
    scale = min((wanted / side for wanted, side in zip(target, size, strict=True)), key=lambda scale: abs(1 - scale))
    height, width = (max(round(scale * side / multiple), 1) * multiple for side in size)
    return height, width


def _lower_bound(size, target, longest, multiple):
    """Both sides are scaled by the larger factor, and no side is below the wanted one."""
    scale = max(wanted / side for wanted, side in zip(target, size, strict=True))
    sides = ((scale * side / multiple, wanted) for side, wanted in zip(size, target, strict=True))
    height, width = (
        multiple * (round(count) if round(count) * multiple >= wanted else -int(-count // 1)) for count, wanted in sides
    )
    return height, width


def _shortest(size, target, longest, multiple):
    """The shorter side becomes the wanted one, or, if the longer one would exceed `longest`, the longer one does.

    The order of the operations is that of transformers, whose rounding shows in the sizes.
    """
    short, long = sorted(size)
    wanted = exact = min(target)
    if longest is not None and long / short * wanted > longest:
        exact = longest * short / long
        wanted = round(exact)
    other = long if wanted == short else int(exact * long / short)
    sides = (wanted, other if longest is None else min(other, longest))
    height, width = (max(side // multiple, 1) * multiple for side in (sides if size[0] <= size[1] else sides[::-1]))
    return height, width


def padded(size: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    """Return the largest size inside the wanted one, halves rounded up.

    Args:
        size: (height, width) of the image.
        target: (height, width) that is wanted.
    """
    scale = min(wanted / side for wanted, side in zip(target, size, strict=True))
    height, width = (max(int(side * scale + 0.5), 1) for side in size)
    return height, width


RULES: dict[str, Rule] = {
    "stretch": _stretched,
    "nearest": _nearest,
    "lower_bound": _lower_bound,
    "shortest": _shortest,
    "longest": lambda size, target, longest, multiple: _shortest(size, target, max(target), multiple),
    "windows": _shortest,
    "center_padding": lambda size, target, longest, multiple: size,
    "square": _stretched,
    "box": _stretched,
}
