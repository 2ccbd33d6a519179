"""The site is built without a warning, its links lead somewhere, and each public name has an entry and an example."""

import html.parser
import os
import pathlib
import re
import subprocess
import sys
import urllib.parse

import pytest
import site_browser

import keras_vit
from keras_vit import analysis, data, demo, evaluation, serving, tasks, training
from keras_vit.analysis import plots
from keras_vit.checkpoints.foreign_names import foreign_names
from keras_vit.checkpoints.releases import list_releases
from keras_vit.cli import VERBS
from keras_vit.files import read_table
from keras_vit.variants import FAMILIES
from keras_vit.zoo import CONSTRUCTORS

for package in ("zensical", "mkdocstrings", "latex2mathml"):
    pytest.importorskip(package, reason="needs the extra [test-docs]")

pytestmark = pytest.mark.docs
REPOSITORY = pathlib.Path(__file__).parents[2]
# what a diagram marks as different from ViT-B/16, as the papers and the authors' code state it
MARKED = {
    "ViT-B_16": set(),
    "DeiT-B_16": {"GELU (exact)"},
    "DeiT-B_16-distilled": {
        *("GELU (exact)", "Class and distillation token", "and distillation token, each with a head"),
        "Mean of two heads",
    },
    "DINOv2-B_14": {"Patches of 14 × 14 pixels", "LayerScale", "GELU (exact)", "No head"},
    "DINOv3-B_16": {
        *("4 registers, without positions", "No position table", "no bias in keys", "rotary positions (dinov3)"),
        *("LayerScale", "GELU (exact)", "No head"),
    },
    "SigLIP-B_16": {
        *("No class token", "of the patches", "Attention pooling", "learned query, then an MLP", "No head"),
    },
    "CLIP-B_16": {"no bias", "LayerNorm", "before the first block", "QuickGELU", "Projection"},
    "DeiT3-B_16": {"of the patches", "LayerScale", "GELU (exact)"},
    "SAM-B_16": {
        *("No class token", "of the patches", "inside windows of 14 × 14", "whole grid in blocks 3, 6, 9, 12"),
        *(
            "learned keys for row and column offsets",
            "GELU (exact)",
            "Neck",
            "convolutions 1 × 1 and 3 × 3, with norms",
        ),
        *("No final norm", "No pooling", "No head"),
    },
    "EVA02-CLIP-E_14": {"Patches of 14 × 14 pixels", "no bias in keys", "after attention or MLP", "GELU (exact)"},
    "R50+ViT-B_16": {
        *("ResNet", "group norm, standardised weights", "bottleneck units per stage: 3, 4, 9"),
        "Patches of 1 × 1 cells",
    },
}
# what people type into the search -> the section that must come first
SEARCHED = {
    "attention map": "guides/inside/#attention-maps-where-does-the-model-look",
    "mixed precision": "guides/speed/#mixed-precision",
    "num_classes": "guides/pretrained/#number-of-classes-num_classes-and-image-size",
    "out of memory": "guides/speed/#out-of-memory-how-do-i-save-memory-in-training",
    "offline": "guides/pretrained/#offline-use-without-a-network",
}
CONSTRUCTOR_PAGES = ("constructors", "family_constructors")
NO_MODELS = ("analysis", "fewshot_dual", "fewshot_primal")  # golden cases of functions that work for any model
PACKAGES = (keras_vit, analysis, plots, data, demo, evaluation, serving, tasks, training)


class Page(html.parser.HTMLParser):
    """What a page links to, loads, and can be linked at."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.loaded, self.text = set(), [], [], ""
        self.figures, self.marked, self.place = {}, {}, (None, "")
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        if tag == "figure":
            self.place = (attributes.get("id"), "")
        if tag == "text":
            self.place = (self.place[0], attributes.get("class", ""))
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        if tag in ("img", "script", "link"):
            self.loaded += [attributes[name] for name in ("src", "href") if attributes.get(name)]

    def handle_data(self, data):
        self.text += data
        figure, style = self.place
        if figure and data.strip():
            self.figures.setdefault(figure, []).append(data)
            if "new" in style:
                self.marked.setdefault(figure, set()).add(data)

    def handle_endtag(self, tag):
        self.place = (None if tag == "figure" else self.place[0], "")


def test_help_does_not_wait_for_the_package(tmp_path):
    (tmp_path / "keras.py").write_text("raise AssertionError('imported')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "docs/generate", "--help"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "{build,serve}" in done.stdout


# One test, as each worker that gets a part of this file would build a site of its own.
def test_site():
    command = [sys.executable, "docs/generate", "build", "--strict"]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    folder = REPOSITORY / "build" / "site"
    site = {path.relative_to(folder): Page(path) for path in folder.rglob("*.html")}
    assert len(site) > 30
    check_links(site, folder)
    check_that_nothing_is_loaded_from_elsewhere(site)
    check_that_public_names_have_an_entry(site)
    check_that_entries_have_an_example(folder)
    check_equations(site)
    check_tables(site)
    check_models(site)
    if not (site_browser.CHROMIUM and site_browser.DRIVER):
        pytest.skip(site_browser.NEEDS)
    with site_browser.opened(folder) as browser:
        check_search(browser)
        check_phone(browser, site)


def check_search(browser):
    found = browser.search(SEARCHED)
    assert {phrase: places[0] for phrase, places in found.items()} == SEARCHED


def check_phone(browser, site):
    """At 390 pixels no word is broken, no column is hidden, and no page scrolls sideways."""
    pages = [path.parent.as_posix() for path in site if path.name == "index.html"]
    misfits = {page: browser.misfits(page) for page in pages}
    assert {page: found[:5] for page, found in misfits.items() if found} == {}


def check_links(site, folder):
    """Each leads to a file, and to an anchor in it."""
    broken = []
    for path, page in site.items():
        if path.name == "404.html":  # its links begin at the root of the server
            continue
        for link in page.links + page.loaded:
            target, anchor = map(urllib.parse.unquote, urllib.parse.urldefrag(link))
            if urllib.parse.urlsplit(target).scheme:
                continue
            found = pathlib.Path(os.path.normpath(path.parent / target)) if target else path
            found = found / "index.html" if (folder / found).is_dir() else found
            if not (folder / found).exists() or (anchor and found in site and anchor not in site[found].anchors):
                broken.append(f"{path}: {link}")
    assert broken == []


def check_that_nothing_is_loaded_from_elsewhere(site):
    loaded = {link for page in site.values() for link in page.loaded if urllib.parse.urlsplit(link).scheme}
    assert loaded == set()


def check_that_public_names_have_an_entry(site):
    anchors = set().union(*(page.anchors for path, page in site.items() if path.parts[0] == "reference"))
    packages = {package.__name__ for package in PACKAGES} | {"keras_vit.layers"}
    names = {f"{package.__name__}.{name}" for package in PACKAGES for name in package.__all__} - packages
    assert len(names) > 150
    elsewhere = {
        "keras_vit.evaluation.predict": "keras_vit.predict",
        "keras_vit.evaluation.evaluate": "keras_vit.evaluate",
        "keras_vit.serving.export": "keras_vit.export",
        "keras_vit.training.train": "keras_vit.train",
    }
    assert {name for name in names if elsewhere.get(name, name) not in anchors} == set()


def check_that_entries_have_an_example(folder):
    """In the Markdown, and as often on the page."""
    without = []
    for path in (REPOSITORY / "docs" / "reference").glob("*.md"):
        _, *entries = re.split(r"^::: ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        without += [entry.split()[0] for entry in entries if "```python\n" not in entry]
        page = (folder / "reference" / path.stem / "index.html").read_text(encoding="utf-8")
        assert page.count("<strong>Example</strong>") == len(entries) > 0, path.name
        assert "doc-symbol-module" not in page, path.name  # an entry is a function, not the module of the same name
    assert without == []


def check_equations(site):
    concepts = _page(site, "concepts").text
    assert all(f"({number})" in concepts for number in range(1, 9))
    assert "\\mathrm" not in concepts and "$" not in concepts


def check_tables(site):
    """The generated pages hold what the tables hold."""
    models, recipes = _page(site, "models/all").text, _page(site, "recipes").text
    assert all(name in models for name in keras_vit.list_models())
    assert "86,567,656" in models and "17.56" in models  # ViT-B/16
    assert all(name in recipes for name in training.RECIPES)
    assert all(row["word"] in _page(site, "words").text for row in read_table("words.tsv"))
    assert all(f"keras-vit {verb}" in _page(site, "reference/command_line").text for verb in VERBS)
    constructors = "".join(_page(site, f"reference/{name}").text for name in CONSTRUCTOR_PAGES)
    assert "pooling='gap'" in constructors and "gelu='erf'" in constructors  # AxialViT and DeiT have their own
    assert "How fast is it on a GPU?" in _page(site, "benchmarks").text


def check_models(site):
    """Every model, family, file, name and golden case is on a page, and the diagrams show the published parts."""
    tables = ("all", "weights", "names", "timm_files", "transformers_files", "field_files", "task_models")
    pages = {path.parts[1]: page for path, page in site.items() if path.parts[0] == "models" and len(path.parts) == 3}
    families = {name: page for name, page in pages.items() if name not in tables}
    assert {f"{name}/" for name in pages} <= set(_page(site, "models").links)
    for constructor in CONSTRUCTORS:
        entries = {f"../../reference/{name}/#keras_vit.{constructor}" for name in CONSTRUCTOR_PAGES}
        assert sum(not entries.isdisjoint(page.links) for page in families.values()) == 1, constructor
    text = "".join(page.text for page in families.values())
    overview = _page(site, "models").text
    assert {family.licence for family in FAMILIES.values() if family.licence not in overview} == set()
    for name in {*(row.name for row in foreign_names()), *(row.path for row in list_releases())}:
        assert name in text and any(name in pages[table].text for table in tables), name
    assert all(name in pages["task_models"].text for name in keras_vit.list_models(task="any"))
    cases = {path.parent.name for path in REPOSITORY.glob("tests/golden/*/case.json")}
    assert {case for case in cases.difference(NO_MODELS) if case not in text} == set()
    assert "accept the licence" in pages["dinov3"].text and "accept the licence" not in pages["dinov2"].text

    figures = {figure: lines for page in families.values() for figure, lines in page.figures.items()}
    assert len(figures) > 30 and all(page.figures for page in families.values())
    marked = {figure: texts for page in families.values() for figure, texts in page.marked.items()}
    assert {name: marked.get(f"diagram-{name}", set()) for name in MARKED} == MARKED
    assert {"12 blocks", "12 heads of width 64", "14 × 14 tokens of width 768"} <= set(figures["diagram-ViT-B_16"])
    assert {"4 stages of 2, 2, 6, 2 blocks", "inside windows of 7 × 7"} <= set(figures["diagram-Swin-T"])


def _page(site, name):
    return site[pathlib.Path(name, "index.html")]
