"""Parsing strings to operations: a name, or a call with literal arguments. Strings are never executed."""

import ast
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from keras_vit import checks
from keras_vit.data.augment import colour, crops, geometry, keras_cv_layers, mixing, randaugment


class Operation(NamedTuple):
    """Hold one augmentation.

    Args:
        kind: `crop`, `image` or `mix`; it determines the arguments. A seed is an integer tensor (2,).

            - `crop`: `(contents_or_pixels, size, channels, seed)` to float32 (*size, channels) on [0, 255].
              The first argument is an encoded file (scalar string) or pixels (height, width, 1, 3 or 4 channels).
            - `image`: `(image, seed)` to an image of the same shape; float32 (height, width, channels) on [0, 255].
            - `mix`: see `mixing.one_of`.
        function: the function that is called.
    """

    kind: str
    function: Callable

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)


# name -> (kind, function that is called with the arguments in the string and returns the operation)
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
    "grayscale": ("image", colour.grayscale),
    "solarize": ("image", colour.solarize_bright),
    "gaussian_blur": ("image", colour.gaussian_blur),
}
MIXES = {"mixup": ("mix", mixing.mixup), "cutmix": ("mix", mixing.cutmix)}

_LIBRARY = "keras_cv."


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
    operations = parse_all("augment", texts, OPERATIONS, with_functions)
    if any(operation.kind == "crop" for operation in operations[1:]):
        raise ValueError(f"a crop must be the first operation of augment; got {list(texts)!r}")
    return operations


def parse_mix(texts: Sequence[str]) -> Callable | None:
    """Return one operation on batches that combines all mixes of `texts`.

    Args:
        texts: strings such as `("mixup(0.8)", "cutmix(1.0)")`; each batch draws one of them with equal probability.

    Returns:
        A mix, see `mixing.one_of`, or None for no strings.

    Raises:
        ValueError: on an unknown name or wrong arguments; the message names the string.
    """
    mixes = parse_all("mix", texts, MIXES)
    return mixing.one_of([mix.function for mix in mixes]) if mixes else None


def parse_all(argument, texts, table, with_functions=False):
    """Return the operations that strings name, see `parse_augment`; `table` has the form of `OPERATIONS`."""
    is_sequence = isinstance(texts, (tuple, list))
    if not is_sequence or not all(isinstance(text, str) or (with_functions and callable(text)) for text in texts):
        example = "('mixup(0.2)',)" if table is MIXES else "('flip', 'color_jitter(0.4)')"
        raise ValueError(f"{argument} must be a sequence of strings, such as {example}; got {argument}={texts!r}")
    return [
        # The functions of users may need AutoGraph.
        Operation("image", tf.function(text)) if callable(text) else _parse(argument, text, table)
        for text in texts
    ]


def _parse(argument, text, table):
    """Return the `Operation` of a string: NAME, NAME(literals) or keras_cv.NAME(literals)."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        args = [ast.literal_eval(value) for value in call.args]
        kwargs = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        called = ast.unparse(call.func)
        name = called.removeprefix(_LIBRARY)
        if None in kwargs or not name.isidentifier():
            raise ValueError("**arguments, or no name")
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(
            f"{argument} must contain names or calls with literal arguments, such as 'name' or 'name(2, key=0.5)'; "
            f"got {text!r}"
        ) from error
    if called == name:
        kind, factory = table[checks.check_choice(argument, name, tuple(table))]
    elif table is OPERATIONS:
        kind, factory = "image", functools.partial(keras_cv_layers.build, name)
    else:
        raise ValueError(f"{argument} must name {' or '.join(table)}, not a layer of keras_cv; got {text!r}")
    signature = inspect.signature(factory)
    try:
        signature.bind(*args, **kwargs)
        function = factory(*args, **kwargs)
    except (TypeError, ValueError) as error:
        known = f"; the arguments are {signature}" if isinstance(error, TypeError) else ""
        raise ValueError(f"{argument} {text!r}: {error}{known}") from error
    # AutoGraph is not needed, and would warn about code that it cannot convert.
    return Operation(kind, tf.autograph.experimental.do_not_convert(function))
