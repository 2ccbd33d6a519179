"""Links: between files of the repository, as they are written, and from names in the text to their reference."""

import pathlib
import posixpath
import re

from repository import FILES, REPOSITORY

_LINK = re.compile(r"\[([^\[\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)]*)?\)")
_NAME = re.compile(r"(<a [^>]*>)?<code>([A-Za-z][\w.]*)(?:\([^<]*\))?</code>")
_LONG = re.compile(r"<code>[^<\n]{30,}</code>")
_PAGES = {file: page for page, file in FILES.items()}


def within_the_site(markdown, page):
    """Turns links to files of the repository into links to their pages; a file that is no page is only named.

    Args:
        markdown: text of the page.
        page: its path within the site, such as `guides/speed.md`.
    """
    here = posixpath.dirname(f"docs/{page}" if page not in FILES else FILES[page])

    def rewritten(match):
        text, target, anchor = match.groups()
        file = posixpath.normpath(posixpath.join(here, target))
        if not pathlib.Path(REPOSITORY, file).exists():
            return match[0]  # a generated page, or a mistake, which Zensical reports
        place = _PAGES.get(file) or (file.removeprefix("docs/") if file.startswith("docs/") else None)
        if place is None:
            return text
        return f"[{text}]({posixpath.relpath(place, posixpath.dirname(page) or '.')}{anchor or ''})"

    return _LINK.sub(rewritten, markdown)


def to_the_reference(html, names):
    """Links names in code to their entries, such as `keras_vit.load_weights` and `analysis.overlay(...)`.

    Args:
        html: text of the page.
        names: dict from a name as it is written to its identifier in the reference.
    """

    def linked(match):
        link, name = match.groups()
        if link or name not in names:
            return match[0]
        return f'<autoref identifier="{names[name]}" optional>{match[0]}</autoref>'

    return _NAME.sub(linked, html)


def with_breaks(html):
    """Allows long code in a line of text to wrap after punctuation, so that no word of it is broken."""
    return _LONG.sub(lambda match: re.sub(r"(?<=[.(=/,])(?=\w|&quot;|\")(?!/?code>)", "<wbr>", match[0]), html)
