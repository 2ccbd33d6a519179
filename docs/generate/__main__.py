"""Build the site or show it while you write.

    pip install -e '.[tensorflow,docs]'
    python docs/generate build --strict      # writes build/site
    python docs/generate serve               # http://localhost:8000; run it again after a change

The pages of docs/ and the generated ones are written to build/docs, with the links of a site. Zensical makes HTML of
them, with the settings of docs/site.yml.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).parents[2]
BUILD = REPOSITORY / "build"


def write_pages():
    """Write all pages, and the settings, in which the generated pages have their places in the navigation."""
    # here, as `--help` does not wait for keras_vit
    import links
    import models
    import notebooks
    import recipes
    import reference
    import repository
    import words
    import yaml

    # Each has `pages()`, a dict from path to Markdown text (or bytes of an image), in the order of the navigation.
    generators = (models, recipes, reference, repository, words, notebooks)
    shutil.rmtree(BUILD / "docs", ignore_errors=True)
    shutil.copytree(REPOSITORY / "docs", BUILD / "docs", ignore=shutil.ignore_patterns("generate", "*.yml"))
    generated = {path: content for generator in generators for path, content in generator.pages().items()}
    for path, content in generated.items():
        place = BUILD / "docs" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else content.encode())
    for place in (BUILD / "docs").rglob("*.md"):
        page = place.relative_to(BUILD / "docs").as_posix()
        place.write_text(links.within_the_site(place.read_text(encoding="utf-8"), page), encoding="utf-8")
    settings = yaml.safe_load((REPOSITORY / "docs" / "site.yml").read_text(encoding="utf-8"))
    settings["nav"] = [{title: _expanded(place, generated) for title, place in row.items()} for row in settings["nav"]]
    settings["markdown_extensions"].append({"site_markdown": {"names": reference.public_names()}})
    (BUILD / "site.yml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


def _expanded(place, generated):
    """Return the generated pages of a folder such as `notebooks/`; other entries as they are."""
    if isinstance(place, str) and place.endswith("/"):
        return [path for path in generated if path.startswith(place) and path.endswith(".md")]
    return place


def _parse():
    """Return the command and the options of Zensical."""
    parser = argparse.ArgumentParser(
        prog="python docs/generate",
        description="Write the pages of the documentation to build/docs, and call Zensical, which makes the site.",
        epilog="Other options, such as build --strict and serve -a localhost:8000, are those of Zensical.",
    )
    parser.add_argument("command", choices=("build", "serve"), help="write the site to build/site, or show it")
    parsed, options = parser.parse_known_args()
    return [parsed.command, *options]


if __name__ == "__main__":
    command = _parse()
    write_pages()
    here = pathlib.Path(__file__).parent
    paths = [str(here), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    call = [sys.executable, "-m", "zensical", *command, "-f", str(BUILD / "site.yml")]
    raise SystemExit(subprocess.run(call, env=environment, cwd=BUILD).returncode)
