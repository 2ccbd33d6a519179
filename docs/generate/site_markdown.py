"""The Markdown extension of the site: names in code link to the reference, and equations become MathML."""

import equations
import links
from markdown.extensions import Extension
from markdown.postprocessors import Postprocessor


class SiteExtension(Extension):
    """Change the HTML of each page and docstring after all other extensions.

    Args:
        names: dict from a name as it is written to its entry in the reference.
    """

    def __init__(self, **settings):
        self.config = {"names": [{}, "entries of the reference"]}
        super().__init__(**settings)

    def extendMarkdown(self, md):
        md.postprocessors.register(_Linked(self.getConfig("names")), "site", 0)


class _Linked(Postprocessor):
    def __init__(self, names):
        self.names = names

    def run(self, text):
        return equations.to_mathml(links.with_breaks(links.to_the_reference(text, self.names)))


def makeExtension(**settings):
    return SiteExtension(**settings)
