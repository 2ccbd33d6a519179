"""What mkdocs asks while it builds the site: the generated pages, the links between all of them, the equations."""

import equations
import links
import models
import notebooks
import recipes
import reference
import repository
from mkdocs.structure.files import File

# Each has `pages()`, a dict from path to Markdown text (or bytes of an image), in the order of the navigation.
GENERATORS = (models, recipes, reference, repository, notebooks)


def on_config(config):
    """Gives the sections whose pages are generated their place in the navigation."""
    sections = {"notebooks/": notebooks.pages(), "reference/": reference.pages()}
    sections = {place: [path for path in made if path.endswith(".md")] for place, made in sections.items()}
    for entry in config.nav:
        for title, place in entry.items():
            if isinstance(place, str) and place in sections:
                entry[title] = sections[place]
    return config


def on_files(files, config):
    for generator in GENERATORS:
        for path, content in generator.pages().items():
            files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown, page, config, files):
    return links.within_the_site(markdown, page.file.src_uri)


def on_page_content(html, page, config, files):
    return equations.to_mathml(links.to_the_reference(html, reference.public_names()))
