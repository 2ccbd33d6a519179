"""The arguments of `keras-vit` and their help. Standard library only, so that `--help` does not wait for Keras."""

import argparse
import contextlib
import difflib
import pathlib
import re
import sys
import tomllib

_OPTION = re.compile(r"--?[A-Za-z][^ ]*")  # an argument with a space, or -1, is a value
_FOREIGN = {"finetune": "train", "fit": "train", "tflite": "litert"}  # words of other libraries -> our choices
_INVALID = re.compile(r"invalid choice: '(.*?)' \(choose from (.*)\)")  # a message of argparse
_NEAR = 0.75  # as in keras_vit.checks.suggestion


def parse(argv=None):
    """Return the parsed arguments (`argparse.Namespace`); exit with 2 and one line on an error.

    The file `commands.toml` states the commands, their arguments and their help.

    Args:
        argv: list of arguments; None uses those of the process.
    """
    return build().parse_args(sys.argv[1:] if argv is None else list(argv))


def build(completions=None):
    """Return the `argparse.ArgumentParser` of all commands.

    Args:
        completions: dict from the metavar of an argument to its completion, for shtab.
    """
    parser = _Parser(
        prog="keras-vit",
        description="Vision Transformers for Keras and TensorFlow.",
        epilog="example:\n  keras-vit predict cat.jpg --model ViT-Ti_16 --weights ViT-Ti_16.npz",
    )
    parser.add_argument("--version", action="version", version=f"keras-vit {version()}")
    commands = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True, parser_class=_CommandParser)
    described = tomllib.loads(pathlib.Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
    tables = described.pop("shared"), completions or {}
    for name, command in described.items():
        text, _, examples = command["help"].partition("\n\n")
        summary = re.split(r"\.\s", text)[0].rstrip(".")
        _add(commands.add_parser(name, help=summary, description=text, epilog=examples), command["takes"], *tables)
    return parser


def numbers(text):
    """Convert `"0.5"` to (0.5,), and `"0.485,0.456,0.406"` to three numbers; argparse shows the function's name."""
    return tuple(float(part) for part in text.split(","))


def version():
    """Return the package's `__version__` without importing it."""
    source = pathlib.Path(__file__).parents[1].joinpath("__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)[1]


def _add(command, takes, *tables):
    """Add arguments to a command or to a group of its arguments, see commands.toml and `build` for the tables."""
    shared, completions = tables
    for item in takes:
        if isinstance(item, str):
            _add(command, shared[item], *tables)
        elif "group" in item:
            _add(command.add_argument_group(item["group"]), item["takes"], *tables)
        elif "one_of" in item:
            _add(command.add_mutually_exclusive_group(required=item.get("required", False)), item["one_of"], *tables)
        else:
            keywords = dict(item)
            names = keywords.pop("name").split()
            if "type" in keywords:
                keywords["type"] = _TYPES[keywords["type"]]
            action = command.add_argument(*names, **keywords)
            if action.metavar in completions:
                action.complete = completions[action.metavar]


def _size(text):
    """Convert `"224"` to 224, and `"160x224"` to (160, 224)."""
    sides = text.split("x")
    if len(sides) > 2 or not all(side.isdecimal() for side in sides):
        raise argparse.ArgumentTypeError(f"expected N or HEIGHTxWIDTH in pixels; got {text!r}")
    return int(text) if len(sides) == 1 else (int(sides[0]), int(sides[1]))


def _count(text):
    """Convert `"500"` to 500; the minimum is 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1; got {text!r}")
    return int(text)


def _counts(text):
    """Convert `"1,5,10"` to (1, 5, 10); the minimum is 1."""
    return tuple(_count(part.strip()) for part in text.split(","))


def _share(text):
    """Convert `"0.1"` to 0.1, from 0 to 1."""
    with contextlib.suppress(ValueError):
        if 0.0 <= float(text) <= 1.0:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected a share from 0 to 1; got {text!r}")


def _field(text):
    """Convert `"learning_rate=0.01"` to ("learning_rate", "0.01")."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"expected FIELD=VALUE; got {text!r}")
    return name.strip(), value.strip()


def _names(text):
    """Convert `"images,features"` to ("images", "features")."""
    return tuple(part.strip() for part in text.split(","))


# name in commands.toml -> function that converts the text of an argument
_CONVERTERS = (int, float, _size, _count, _counts, numbers, _share, _field, _names)
_TYPES = {function.__name__.removeprefix("_"): function for function in _CONVERTERS}


class _Parser(argparse.ArgumentParser):
    """Report errors in one line, with the command that shows the usage."""

    def __init__(self, **kwargs):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **kwargs)

    def error(self, message):
        found = _INVALID.search(message)
        word = found and _FOREIGN.get(found[1], found[1])
        near = found and difflib.get_close_matches(word, re.findall(r"[\w-]+", found[2]), 1, _NEAR)
        message += f" (did you mean {near[0]!r}?)" if near else ""
        self.exit(2, f"keras-vit: error: {message} ({self.prog} --help shows the usage)\n")


class _CommandParser(_Parser):
    """Report a misspelt option before a missing required argument, because it may be that argument.

    An empty argument is an error: as a path it would mean the current folder.
    """

    def parse_known_args(self, args=None, namespace=None):
        """Parse as argparse does, but report an unexpected argument here, where the command is known."""
        name = self.prog.split()[-1]
        before = anything = f"an argument of {name}"
        for word in args[: args.index("--")] if "--" in args else args:
            option, equals, value = word.partition("=")
            is_known = not {option, word[:2]}.isdisjoint(self._option_string_actions)
            if not word or (is_known and equals and not value):
                self.error(f"{option or before} must not be empty; got {word!r}")
            if _OPTION.fullmatch(word) and not is_known:
                self.error(f"{name} has no option {option!r}{_suggestion(option, self._option_string_actions)}")
            before = word if word.startswith("-") else anything
        parsed, surplus = super().parse_known_args(args, namespace)
        if surplus:
            self.error(f"{name} takes no further argument; got {surplus[0]!r}")
        return parsed, surplus


def _suggestion(option, options):
    """Return a hint that names an option with similar spelling, beginning or initials; otherwise an empty string."""
    word = option.lstrip("-").lower().replace("_", "-")
    names = [name[2:] for name in options if name.startswith("--")]
    near = difflib.get_close_matches(word, names, 1, _NEAR) + [name for name in names if name.startswith(word)]
    near += [name for name in names if "".join(part[0] for part in name.split("-")) == word]
    return f" (did you mean '--{near[0]}'?)" if near else ""
