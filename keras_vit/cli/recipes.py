"""From the arguments of a command to a recipe: `--set FIELD=VALUE` and its short forms."""

import ast

import keras_vit
from keras_vit import checks

_SHORT_FORMS = ("epochs", "steps", "batch_size", "learning_rate", "weight_decay", "seed", "image_size")
_WORDS = {"none": None, "null": None, "true": True, "false": False}
_TEXTS = ("augment", "mix")


def open_recipe(args):
    """Return the recipe that `--recipe` names, with the changes that the other arguments ask for."""
    return _find(args.recipe).replace(**read_changes(args))


def read_changes(args):
    """Return the fields that the arguments other than `--recipe` ask to change, by name."""
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
    """`"0.01"` -> 0.01; `"(0.3, 0.6)"` -> the tuple; `"none"` -> None; any other word stays one."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _texts(text):
    """`"flip, randaugment(2, 15)"` -> the two texts, as `'["flip", "randaugment(2, 15)"]'`, which `--show` prints; `""`
    and `"none"` are no texts."""
    if text.lower() in ("", "none"):
        return ()
    try:
        parsed = ast.parse(text, mode="eval").body  # Python knows which commas stand between two calls
    except SyntaxError:
        return (text,)  # the recipe says what is wrong with it
    parts = parsed.elts if isinstance(parsed, (ast.Tuple, ast.List)) else [parsed]
    return tuple(part.value if _is_quoted(part) else ast.get_source_segment(text, part) for part in parts)


def _is_quoted(part):
    return isinstance(part, ast.Constant) and isinstance(part.value, str)
