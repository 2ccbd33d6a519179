"""Parsing strings to operations: a name, or a call with literal arguments. Strings are never executed."""

import ast
import dataclasses
import inspect
from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_vit import checks
from keras_vit.data.augment import (
    colour,
    crops,
    geometry,
    keras_cv_layers,
    mixing,
    randaugment,
)


@dataclasses.dataclass(frozen=True)
class Operation:
    """One augmentation.

    Args:
        text: the string that it was parsed from.
        kind: `crop` or `image`, the way it is called. A seed is an integer tensor (2,).

            - `crop`: `(contents_or_pixels, size, channels, seed)` to float32 (*size, channels) on [0, 255].
              The first argument is an encoded file (scalar string) or pixels (height, width, 1, 3 or 4 channels).
            - `image`: `(image, seed)`, float32 (height, width, channels) on [0, 255] to the same.
        function: the function that is called.
    """

    text: str
    kind: str
    function: Callable

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)


# name -> (kind, function from the arguments in the string to the function of the operation)
OPERATIONS = {
    "inception_crop": ("crop", crops.inception_crop),
    "random_resized_crop": ("crop", crops.random_resized_crop),
    "random_crop": ("crop", crops.random_crop),
    "flip": ("image", geometry.flip),
    "shift": ("image", geometry.shift),
    "cutout": ("image", geometry.cutout),
    "randaugment": ("image", randaugment.randaugment),
    "timm_randaugment": ("image", randaugment.timm_randaugment),
    "color_jitter": ("image", colour.color_jitter),
    "random_erasing": ("image", geometry.random_erasing),
}
MIXES = {"mixup": mixing.mixup, "cutmix": mixing.cutmix}

_LIBRARY = "keras_cv"


def parse_augment(texts: Sequence[str | Callable], with_functions: bool = False) -> list[Operation]:
    """Return the operations on images, in the order of `texts`.

    Args:
        texts: strings such as `("inception_crop", "flip", "randaugment(2, 15)")`. Each is one of `OPERATIONS`, with the
            arguments of the function of that name, or `keras_cv.LAYER(...)`, a layer of keras-cv. A crop must come
            first.
        with_functions: whether `texts` may contain functions of kind `image` (see `Operation`) besides strings.

    Returns:
        List of `Operation`.

    Raises:
        ValueError: on an unknown name or wrong arguments; the message names the string.
        ImportError: if a string names a layer of keras-cv, and keras-cv is not installed.
    """
    operations = [_operation(text) for text in _texts("augment", texts, with_functions)]
    for operation in operations[1:]:
        if operation.kind == "crop":
            raise ValueError(f"a crop must be the first operation of augment; got {list(texts)!r}")
    return operations


def parse_mix(texts: Sequence[str]) -> mixing.Mix | None:
    """Return one operation on batches that combines all mixes of `texts`.

    Args:
        texts: strings such as `("mixup(0.8)", "cutmix(1.0)")`; each batch draws one of them with equal probability.

    Returns:
        A `Mix`, or None for no strings.

    Raises:
        ValueError: on an unknown name or wrong arguments; the message names the string.
    """
    texts = _texts("mix", texts)
    functions = tuple(_mix(text) for text in texts)
    return mixing.Mix(texts, functions) if functions else None


def _operation(text):
    if callable(text):
        return Operation(getattr(text, "__name__", repr(text)), "image", text)
    library, name, args, kwargs = _read("augment", text, OPERATIONS)
    if library:
        kind, factory, args, kwargs = "image", keras_cv_layers.build, (name, args, kwargs), {}
    else:
        kind, factory = OPERATIONS[name]
    function = _call("augment", text, factory, args, kwargs)
    # AutoGraph is not needed, and would warn about code that it cannot convert.
    return Operation(text, kind, tf.autograph.experimental.do_not_convert(function))


def _mix(text):
    library, name, args, kwargs = _read("mix", text, MIXES)
    if library:
        raise ValueError(f"mix must name {' or '.join(MIXES)}, not a layer of {library}; got mix={text!r}")
    return _call("mix", text, MIXES[name], args, kwargs)


def _texts(argument, texts, with_functions=False):
    is_sequence = isinstance(texts, (tuple, list))
    if is_sequence and all(isinstance(text, str) or (with_functions and callable(text)) for text in texts):
        return tuple(texts)
    example = "('flip', 'randaugment(2, 15)')" if argument == "augment" else "('mixup(0.2)',)"
    raise ValueError(f"{argument} must be a sequence of strings, such as {example}; got {argument}={texts!r}")


def _read(argument, text, table):
    """Return (library or None, name, args, kwargs) of a string, with a checked name."""
    form = f"{argument} must contain names or calls with literal arguments, such as 'name' or 'name(2, key=0.5)'"
    try:
        node = ast.parse(text.strip(), mode="eval").body
        called, args, kwargs = node, (), {}
        if isinstance(node, ast.Call):
            called = node.func
            args = tuple(ast.literal_eval(value) for value in node.args)
            kwargs = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{form}; got {text!r}") from error
    if None in kwargs:  # **arguments
        raise ValueError(f"{form}; got {text!r}")
    if isinstance(called, ast.Name):
        return None, checks.check_choice(argument, called.id, tuple(table)), args, kwargs
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == _LIBRARY:
        return _LIBRARY, called.attr, args, kwargs
    raise ValueError(f"{form}; got {text!r}")


def _call(argument, text, factory, args, kwargs):
    signature = inspect.signature(factory)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ValueError(f"{argument} {text!r}: {error}; the arguments are {signature}") from error
    try:
        return factory(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{argument} {text!r}: {error}") from error
