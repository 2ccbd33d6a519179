"""The recipe of a command: `--set FIELD=VALUE` and its short forms."""

import ast

import keras_vit
from keras_vit import checks

_SHORT_FORMS = ("epochs", "steps", "batch_size", "learning_rate", "weight_decay", "seed", "image_size")
_WORDS = {"none": None, "null": None, "true": True, "false": False}
_TEXTS = ("augment", "mix")


def open_recipe(args):
    """Return the recipe of `--recipe` with the changes of the other arguments."""
    return _find(args.recipe).replace(**read_changes(args))


def read_changes(args):
    """Return the changed fields by name, from all arguments but `--recipe`."""
    changes = {name: getattr(args, name) for name in _SHORT_FORMS if getattr(args, name) is not None}
    for name, text in args.set:
        if name in changes:
            raise ValueError(f"{name} must be given once; --set {name}={text} gives it again")
        changes[name] = _texts(text) if name in _TEXTS else _value(text)
    return changes


def _find(name):
    recipes = keras_vit.training.RECIPES
    if name not in recipes:
        hint = checks.suggestion(name, recipes, most=3, cutoff=0.4)
        raise ValueError(f"--recipe must be one that keras-vit list --recipes shows; got {name!r}{hint}")
    return recipes[name]


def _value(text):
    """Convert `"0.01"` to 0.01, `"(0.3, 0.6)"` to a tuple and `"none"` to None; return other words unchanged."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _texts(text):
    """Convert `"flip, randaugment(2, 15)"`, or `'["flip", "randaugment(2, 15)"]'` as printed by `--show`, to two
    strings; `""` and `"none"` become no strings."""
    if text.lower() in ("", "none"):
        return ()
    try:
        parsed = ast.parse(text, mode="eval").body  # distinguishes commas between calls from those inside
    except SyntaxError:
        return (text,)  # the recipe reports what is wrong
    parts = parsed.elts if isinstance(parsed, (ast.Tuple, ast.List)) else [parsed]
    return tuple(part.value if _is_quoted(part) else ast.get_source_segment(text, part) for part in parts)


def _is_quoted(part):
    return isinstance(part, ast.Constant) and isinstance(part.value, str)
