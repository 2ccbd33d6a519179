"""`keras-vit completion`: the script that completes commands in a shell, without importing Keras."""

from ..files import read_table
from ..versions import import_optional
from .answers import Answer
from .parser import build


def completion(args):
    """Return the script for a shell; the names of models and recipes are a part of it."""
    shtab = import_optional("shtab", "keras-vit completion needs shtab: pip install shtab")
    completions = {
        **dict.fromkeys(("FILE", "IMAGE", "PATH", "WHERE"), shtab.FILE),
        **dict.fromkeys(("DIR", "FOLDER"), shtab.DIRECTORY),
        "MODEL": _names("_keras_vit_model_or_file", "variants.tsv", ('compgen -f -- "$1"', "_files", "f")),
        "RECIPE": _names("_keras_vit_recipe", "training/recipes.tsv"),
    }
    script = shtab.complete(build(completions), args.shell)
    return Answer(script, script)


def _names(function, table, files=("true", "true", None)):
    """Return the completion of the names in a table, and of files if their commands in bash, zsh and tcsh are given."""
    names = " ".join(row["name"] for row in read_table(table))
    bash, zsh, tcsh = files
    return {
        "bash": function,
        "zsh": f"{{compadd {names}; {zsh}}}",
        "tcsh": tcsh or f"({names})",
        "preamble": {"bash": f"""{function}() {{ compgen -W "{names}" -- "$1"; {bash}; }}"""},
    }
