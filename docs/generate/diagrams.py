"""Diagrams of models as SVG inside a page: the parts in order, with what differs from another model marked.

The colours are those of the site (docs/style.css), so that a diagram fits light and dark mode.
"""

import html
import textwrap

from parts import Blocks, parts_of

_WIDTH, _LEFT, _BOX = 360, 46, 292  # of the drawing; of a box: its place and its width
_LABEL, _LINE, _PAD, _GAP = 18, 15, 6, 14  # heights: of the label, of other lines, around the text, between boxes
_CENTRE = _LEFT + _BOX // 2  # where the arrows are
_PER_CHARACTER = 6.3  # the width of a character of 12 px


def diagram(config, title, other=None):
    """Return a figure with the parts of a model.

    Args:
        config: config of the model.
        title: its name, below the diagram.
        other: config of the model to compare with; labels and facts that it does not have are marked. None marks none.
    """
    parts = parts_of(config)
    known = None if other is None else {(part.kind, text) for part in _flat(parts_of(other)) for text in _texts(part)}
    drawing = _Drawing(known)
    for index, part in enumerate(parts):
        drawing.arrow(index > 0)
        drawing.blocks(part) if isinstance(part, Blocks) else drawing.box(part)
    names = ", ".join(part.label for part in _flat(parts))
    name, place = html.escape(title), html.escape(title.replace(", ", "-"))
    shown = "\n".join(drawing.shapes)
    return (
        f'<figure class="diagram" id="diagram-{place}">\n<svg viewBox="0 0 {_WIDTH} {drawing.y + 2}" '
        f'role="img" aria-label="{html.escape(f"{title}: {names}")}">\n{shown}\n</svg>\n'
        f"<figcaption>{name}</figcaption>\n</figure>\n"
    )


def _flat(parts):
    """Return all parts, those of blocks as well."""
    found = []
    for part in parts:
        if isinstance(part, Blocks):
            found += _flat(inner for branch in part.branches for inner in branch)
        elif isinstance(part, tuple):
            found += part
        else:
            found.append(part)
    return found


def _texts(part):
    return part.label, *part.facts


class _Drawing:
    """Shapes from top to bottom; `y` is where the next one starts."""

    def __init__(self, known):
        self.known, self.y, self.shapes = known, 2, []

    def box(self, part, left=_LEFT, width=_BOX):
        """Draw a part and move below it."""
        lines = self._lines(part, width)
        height = 2 * _PAD + _LABEL + _LINE * (len(lines) - 1)
        style = ' class="new"' if any(is_new for _, _, is_new in lines) else ""
        self.shapes.append(f'<rect{style} x="{left}" y="{self.y}" width="{width}" height="{height}" rx="4"/>')
        below = self.y + _PAD + 13
        for text, style, is_new in lines:
            style += " new" if is_new else ""
            self.shapes.append(f'<text class="{style}" x="{left + width / 2:g}" y="{below}">{html.escape(text)}</text>')
            below += _LABEL if style.startswith("label") else _LINE
        self.y += height

    def _lines(self, part, width):
        """Return the (text, style, is_new) of each line of a box."""
        lines = []
        for style, text in [("label", part.label), *(("fact", fact) for fact in part.facts), ("size", part.size)]:
            is_new = style != "size" and self.known is not None and (part.kind, text) not in self.known
            per_line = int((width - 12) / _PER_CHARACTER * (0.85 if style == "label" else 1))
            lines += [(line, style, is_new) for line in textwrap.wrap(text, per_line)]
        return lines

    def arrow(self, is_drawn=True):
        """Draw an arrow from the last shape to the next one."""
        if is_drawn:
            self._path(f"M{_CENTRE} {self.y}v{_GAP - 1}m-3 -4l3 4l3 -4")
            self.y += _GAP

    def blocks(self, blocks):
        """Draw the frame of repeated parts with the residual branches in it."""
        top = self.y
        self.shapes.append(f'<text class="title" x="14" y="{top + 17}">{html.escape(blocks.title)}</text>')
        self.y += 26
        for branch in blocks.branches:
            self._branch(branch)
        self.y += 6
        self.shapes.append(f'<rect class="frame" x="4" y="{top}" width="{_WIDTH - 8}" height="{self.y - top}" rx="8"/>')

    def _branch(self, branch):
        """Draw the parts of a branch, and the line around them that ends in their sum."""
        start = self.y
        self._path(f"M{_CENTRE} {start}v4")
        self.y += 4
        for part in branch:
            self._beside(part) if isinstance(part, tuple) else self._below(part)
        self.arrow()
        self.shapes.append(f'<circle cx="{_CENTRE}" cy="{self.y + 8}" r="8"/>')
        self._path(f"M{_CENTRE - 4} {self.y + 8}h8m-4 -4v8")
        self._path(f"M{_CENTRE} {start + 2}H24V{self.y + 8}H{_CENTRE - 9}m-4 -3l4 3l-4 3")
        self.y += 16

    def _below(self, part):
        self.arrow()
        self.box(part)

    def _beside(self, parts):
        """Draw parts that read the same input and whose outputs are added."""
        width = _BOX // len(parts) - 4
        lefts = [_LEFT + index * (_BOX - width) // (len(parts) - 1) for index in range(len(parts))]
        centres, top, bottoms = [left + width // 2 for left in lefts], self.y + _GAP, []
        for centre in centres:
            self._path(f"M{_CENTRE} {self.y}v4H{centre}v{_GAP - 5}m-3 -4l3 4l3 -4")
        for left, part in zip(lefts, parts, strict=True):
            self.y = top
            self.box(part, left, width)
            bottoms.append(self.y)
        self.y = max(bottoms) + 6
        for centre, bottom in zip(centres, bottoms, strict=True):
            self._path(f"M{centre} {bottom}V{self.y}H{_CENTRE}")

    def _path(self, path):
        self.shapes.append(f'<path d="{path}"/>')
