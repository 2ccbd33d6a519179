"""Pages that are files of the repository: the front page, benchmarks, changes, contributing."""

import pathlib

REPOSITORY = pathlib.Path(__file__).parents[2]

# page -> file
FILES = {
    "index.md": "README.md",
    "benchmarks.md": "RESULTS.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}


def pages():
    return {page: (REPOSITORY / file).read_text(encoding="utf-8") for page, file in FILES.items()}
