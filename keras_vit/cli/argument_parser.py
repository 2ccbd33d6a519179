"""argparse parser with errors in one line that name the verb and similar options. Standard library only."""

import argparse
import difflib
import re

_OPTION = re.compile(r"--?[A-Za-z][^ ]*")  # a word with a space, or -1, is a value
_NEAR = 0.75  # as in keras_vit.checks.suggestion
_ONE = "takes one {}; got {!r}, too"
_TAKES = {None: _ONE, "?": _ONE, "+": "takes every {} in one place; got {!r} in another"}  # by argparse's nargs


class Parser(argparse.ArgumentParser):
    """Report errors in one line, with the command that shows the usage."""

    def __init__(self, **kwargs):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **kwargs)

    def error(self, message):
        self.exit(2, f"keras-vit: error: {message} ({self.prog} --help shows the usage)\n")

    def parse_known_args(self, args=None, namespace=None):
        """Parse as argparse does, but report a surplus word here, where the verb is known."""
        parsed, surplus = super().parse_known_args(args, namespace)
        if surplus:
            self.error(self._surplus(surplus[0]))
        return parsed, surplus

    def _surplus(self, word):
        if word.startswith("-"):
            return self._unknown(word)
        positional = next((action for action in self._actions if not action.option_strings), None)
        if positional is None:
            return f"{self._name()} takes options alone; got {word!r}"
        return f"{self._name()} {_TAKES[positional.nargs].format(positional.metavar, word)}"

    def _unknown(self, word):
        option = word.partition("=")[0]
        near = _nearest(option, self._option_string_actions)
        return f"{self._name()} has no option {option!r}" + (f" (did you mean {near!r}?)" if near else "")

    def _name(self):
        return self.prog.split()[-1]


class VerbParser(Parser):
    """Report a misspelt option before a missing required argument, because it may be that argument.

    An empty word is an error: as a path it would mean the current folder.
    """

    def parse_known_args(self, args=None, namespace=None):
        words = list(args)
        for before, word in zip([None, *words], words, strict=False):
            option, equals, value = word.partition("=")
            if not word:
                option = before if before and before.startswith("-") else f"a word of {self._name()}"
            if not word or (option in self._option_string_actions and equals and not value):
                self.error(f"{option} must not be empty; got {word!r}")
        for word in words[: words.index("--")] if "--" in words else words:
            if _OPTION.fullmatch(word) and not self._is_known(word):
                self.error(self._unknown(word))
        return super().parse_known_args(args, namespace)

    def _is_known(self, word):
        """Whether argparse knows the option: `--top`, `--top=3`, `-o` or `-ocat.png`."""
        names = {word.partition("=")[0], *([] if word.startswith("--") else [word[:2]])}
        return not names.isdisjoint(self._option_string_actions)


def _nearest(word, options):
    """Return the option with a similar spelling, this prefix or these initials; None if there is none."""
    word = word.lstrip("-").lower().replace("_", "-")
    names = {option.lstrip("-"): option for option in options if option.startswith("--")}
    near = difflib.get_close_matches(word, names, 1, _NEAR)
    near += [name for name in names if name.startswith(word)] + [name for name in names if _initials(name) == word]
    return names[near[0]] if near else None


def _initials(name):
    """Convert `"learning-rate"` to `"lr"`; return None for a single word."""
    words = name.split("-")
    return "".join(word[:1] for word in words) if len(words) > 1 else None
