"""README.txt of an export: commands that serve a SavedModel with a call of each signature, and a call of a file."""

import pathlib
import re

from keras_vit.files import read_toml
from keras_vit.serving.signatures import SIGNATURES, class_scores

_TEMPLATE = pathlib.Path(__file__).with_suffix(".txt")
_FILES = """\
image_bytes contains complete files: JPEG, PNG, BMP, the first frame of a GIF, or WebP that is not animated. An image
with more than {max_pixels:,} pixels in its header, or a third as many in a progressive JPEG, is rejected before it is
decoded."""
_ERRORS = {
    "row": "For an unreadable image, the outputs are zeros, empty classes and the reason in error. The other images\n"
    "of its batch are not affected; their error is empty.",
    "raise": "An unreadable image fails its request.",
}
_REQUEST = """\
  echo '{{"signature_name": "{signature}", "instances": [{instance}]}}' |
    curl -d @- http://localhost:8501/v1/models/{name}:predict
"""


def server_name(name):
    """Return a model's name in a form that is valid in paths, addresses and command lines."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)


def instructions(name, functions, size, *, on_error, max_pixels):
    """Return the text of README.txt.

    Args:
        name: name of the model on the server, see `server_name`.
        functions: dict from the name of a signature to its concrete function.
        size: usual (height, width) of the images.
        on_error, max_pixels: options of the export.
    """
    calls = {signature: _call(signature, function, size) for signature, function in functions.items()}
    of_files = [signature for signature, (spec, *_) in calls.items() if spec.name == "image_bytes"]
    requests = [
        _REQUEST.format(name=name, signature=signature, instance=instance)
        for signature, (_, instance, _) in calls.items()
    ]
    signature = (of_files or list(functions))[0]
    spec, _, value = calls[signature]
    return _TEMPLATE.read_text(encoding="utf-8").format(
        name=name,
        signatures="\n".join(_signature(signature, function) for signature, function in functions.items()),
        files=f"{_FILES.format(max_pixels=max_pixels)}\n{_ERRORS[on_error]}\n\n" if of_files else "",
        requests="\n".join(requests),
        signature=signature,
        key=spec.name,
        value=value,
        dtype=spec.dtype.name,
    )


def file_instructions(format, model):
    """Return the text of README.txt of an export that is one file, see calls.toml.

    Args:
        format: name of the format.
        model: the exported classifier.
    """
    table, channels = read_toml("serving/calls.toml"), model.preprocessing.channels
    height, width = model.preprocessing.image_size
    values = {"height": height, "width": width, "channels": channels, "classes": model.output_shape[-1]}
    values |= {"mode": "L", "order": ""} if channels == 1 else {"mode": "RGB", "order": ", red first"}
    values |= {"name": model.name, "output": class_scores(model)}
    lines = {**table[format], "resize": table["resize"][model.preprocessing.interpolation]}
    values |= {key: text.format_map(values) for key, text in lines.items()}
    return table["readme"].format_map(values)


def _call(signature, function, size):
    """Return the input of a signature (a `TensorSpec`), an image for REST in JSON, and a batch for gRPC in Python."""
    (spec,), _ = function.structured_input_signature
    if spec.name == "image_bytes":
        return spec, """{"image_bytes": {"b64": "'$(base64 -w0 cat.jpg)'"}}""", '[pathlib.Path("cat.jpg").read_bytes()]'
    pixel = [127] * spec.shape[-1]
    if signature == "native":  # image.json: a list of rows of pixels
        return spec, "'$(cat image.json)'", f"[[[{pixel}] * {size[1]}] * {size[0]}]"
    return spec, f"[[{pixel}, {pixel}], [{pixel}, {pixel}]]", f"[[[{pixel}]]]"


def _signature(name, function):
    lines = [f"  {name}: {SIGNATURES[name][1]}"]
    (taken,), _ = function.structured_input_signature
    for arrow, specs in (("<-", {taken.name: taken}), ("->", function.structured_outputs)):
        for key, spec in specs.items():
            sides = ["batch", *("any" if side is None else str(side) for side in spec.shape[1:])]
            lines.append(f"    {arrow} {key}: {spec.dtype.name} [{', '.join(sides)}]")
    return "\n".join(lines) + "\n"
