"""The families of models as the pages show them: the tables of the package, grouped as in families.toml."""

import dataclasses
import functools
import json
import pathlib
import re
import tomllib

from repository import REPOSITORY

from keras_vit.checkpoints.foreign_names import foreign_names
from keras_vit.checkpoints.releases import list_releases
from keras_vit.variants import FAMILIES, VARIANTS

_ARXIV = re.compile(r"arXiv (\d+\.\d+)")
_CODE = re.compile(r"github\.com/[\w.-]+/[\w.-]+")


@dataclasses.dataclass(frozen=True)
class Group:
    """The models of a page.

    Attributes:
        key: name of the page.
        prose: section of families.toml.
        variants: rows of variants.tsv.
        releases, names: rows of the tables of published files and of foreign names that belong to these variants.
        cases: contents of the `case.json` files of tests/golden that compare such models.
    """

    key: str
    prose: dict
    variants: tuple
    releases: tuple
    names: tuple
    cases: tuple

    @property
    def families(self):
        """Return its sections of keras_vit/families.toml; none for the models that are in no section."""
        return [FAMILIES[name] for name in self.prose.get("families", ())]

    @property
    def papers(self):
        """Return the arXiv ids that its tables and its prose state, the oldest first."""
        return sorted({*_ARXIV.findall(" ".join(self._sources())), *self.prose.get("papers", ())})

    @property
    def code(self):
        """Return the addresses of the authors' code."""
        return [*dict.fromkeys(_CODE.findall(" ".join(self._sources())))]

    def _sources(self):
        return [row.source for row in (*self.families, *self.variants, *self.releases)]

    @property
    def licences(self):
        """Return the licences of the published weights; none if no weights are published."""
        return [*dict.fromkeys(row.licence for row in (*self.families, *self.releases))]

    @property
    def is_gated(self):
        """Return whether downloads require accepted conditions."""
        return any(family.gated for family in self.families)

    @property
    def best(self):
        """Return the highest published accuracy and how it was measured; None if none is known."""
        found = [result.strip() for row in self.variants for result in (results(row) or "").split(";") if result]
        return max(found, key=lambda result: float(result.split()[0]), default=None)


def results(variant):
    """Return the published accuracies of a variant, or the best one of its files; None if none is known."""
    best = max((row for row in list_releases(variant.name) if row.top1), key=lambda row: row.top1, default=None)
    return variant.result or (best and f"{best.top1:.1f} % top-1, {best.image_size} px")


def reference(name, **arguments):
    """Return the config of a variant at its own image size."""
    return VARIANTS[name].config(image_size=VARIANTS[name].image_size, **arguments)


@functools.cache
def sections():
    """Return the sections of families.toml, `papers` included."""
    return tomllib.loads(pathlib.Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@functools.cache
def groups():
    """Return the `Group` of each page, in the order of families.toml."""
    return [_group(key, prose) for key, prose in sections().items() if key != "papers"]


def _group(key, prose):
    families, pattern = prose.get("families", ()), prose.get("names")
    variants = tuple(
        row
        for row in VARIANTS.values()
        if (row.family in families if row.family else pattern and re.match(pattern, row.name))
    )
    names = {row.name for row in variants}
    releases = tuple(row for row in list_releases() if row.model in names)
    foreign = tuple(row for row in foreign_names() if row.variant in names)
    return Group(key, prose, variants, releases, foreign, tuple(_cases(prose.get("golden"))))


def _cases(pattern):
    for path in sorted(REPOSITORY.glob("tests/golden/*/case.json")):
        if pattern is not None and re.match(pattern, path.parent.name):
            yield json.loads(path.read_text(encoding="utf-8"))
