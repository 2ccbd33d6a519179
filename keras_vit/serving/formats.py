"""The table of formats of `keras_vit.export`: how each is checked and written, its options and its packages."""

import collections.abc
import dataclasses
import importlib.util

from keras_vit.serving import portable, saved_model
from keras_vit.serving.signatures import DEFAULT_SIGNATURES


@dataclasses.dataclass(frozen=True)
class Format:
    """One export format.

    Attributes:
        check: function of a model and the options that raises on invalid ones.
        write: function of a model, a folder that does not exist yet and the options.
        options: dict from the name of an option to its default.
        packages: modules that are needed to write it.
        runtime: module that runs the export for the comparison.
    """

    check: collections.abc.Callable
    write: collections.abc.Callable
    options: dict
    packages: tuple = ()
    runtime: str = "tensorflow"


FORMATS = {
    "saved_model": Format(
        saved_model.check_saved_model,
        saved_model.write_saved_model,
        {
            "signatures": DEFAULT_SIGNATURES,
            "top": 5,
            "tokens": False,
            "on_error": "row",
            "max_pixels": 64_000_000,
            "jit_compile": False,
            "compute_dtype": None,
        },
    ),
    "onnx": Format(portable.check_onnx, portable.write_onnx, {}, ("tf2onnx",), "onnxruntime"),
    "litert": Format(portable.check_litert, portable.write_litert, {"quantization": None}, runtime="ai_edge_litert"),
    "openvino": Format(
        portable.check_openvino,
        portable.write_openvino,
        {"quantization": None, "calibration": None},
        ("openvino",),
        "openvino",
    ),
}
_OF_INT8 = {"openvino": ("nncf",)}


def resolve_options(format, given):
    """Return the options of a format: the given values that are not None, and defaults for the others.

    Raises:
        ValueError: on an option that the format does not have.
    """
    known = FORMATS[format].options
    for name, value in given.items():
        if value is not None and name not in known:
            owners = ", ".join(repr(other) for other, row in FORMATS.items() if name in row.options)
            raise ValueError(f"{name} is an option of format {owners}; got {name}={value!r} with format={format!r}")
    return {name: default if given.get(name) is None else given[name] for name, default in known.items()}


def check_packages(format, options, is_checked):
    """Raise an `ImportError` with the install command if a package to write or compare a format is missing."""
    needed = [*FORMATS[format].packages, *([FORMATS[format].runtime] if is_checked else [])]
    if options.get("quantization") is not None:
        needed += _OF_INT8.get(format, ())
    missing = [name for name in dict.fromkeys(needed) if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"format={format!r} needs {', '.join(missing)}: pip install {' '.join(missing)}")
