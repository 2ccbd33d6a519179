"""Equations in TeX become MathML, which browsers show by themselves: no script, no other host."""

import html
import re

from latex2mathml.converter import convert

# What pymdownx.arithmatex leaves: \( ... \) within a line, \[ ... \] on lines of its own.
_MARKED = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_TAG = re.compile(r"\\tag\{(.*?)\}")


def to_mathml(page):
    """Returns the HTML of a page with MathML in place of its TeX; `\\tag{1}` stands to the right as (1)."""
    return _MARKED.sub(_equation, page)


def _equation(match):
    kind, tex = match[1], html.unescape(match[2]).strip()
    if kind == "span":
        return convert(tex)
    number = _TAG.search(tex)
    shown = convert(_TAG.sub("", tex), display="block")
    return f'<div class="equation">{shown}<span>{f"({number[1]})" if number else ""}</span></div>'
