"""README.txt of an export: commands that serve a SavedModel with a call of each signature, and a call of a file."""

import pathlib
import re

from keras_vit.files import read_toml
from keras_vit.models import TaskModel
from keras_vit.models.encoders import is_encoder
from keras_vit.serving.signatures import class_scores
from keras_vit.serving.tasks import array_specs

_TEMPLATE = pathlib.Path(__file__).with_suffix(".txt")
_FILES = """\
image_bytes contains complete files: JPEG, PNG, BMP, the first frame of a GIF, or WebP that is not animated. An image
with more than {max_pixels:,} pixels in its header, or a third as many in a progressive JPEG, is rejected before it is
decoded."""
_ERRORS = {
    "row": "For an unreadable image, the outputs are zeros or empty, and error has the reason. The other images of\n"
    "its batch are not affected; their error is empty.",
    "raise": "An unreadable image fails its request.",
}
_REQUEST = """\
  echo '{{"signature_name": "{signature}", "instances": [{instance}]}}' |
    curl -d @- http://localhost:8501/v1/models/{name}:predict
"""


def server_name(name):
    """Return a model's name in a form that is valid in paths, addresses and command lines."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)


def instructions(name, functions, about, size, *, on_error, max_pixels):
    """Return the text of README.txt.

    Args:
        name: name of the model on the server, see `server_name`.
        functions: dict from the name of a signature to its concrete function.
        about: dict from the name of a signature to its description.
        size: usual (height, width) of the images.
        on_error, max_pixels: options of the export.
    """
    calls = {signature: _call(signature, function, size) for signature, function in functions.items()}
    of_files = [signature for signature, (specs, *_) in calls.items() if specs[0].name == "image_bytes"]
    requests = [
        _REQUEST.format(name=name, signature=signature, instance=instance)
        for signature, (_, instance, _) in calls.items()
        if instance is not None
    ]
    signature = (of_files or list(functions))[0]
    specs, _, values = calls[signature]
    return _TEMPLATE.read_text(encoding="utf-8").format(
        name=name,
        signatures="\n".join(_signature(signature, functions[signature], about[signature]) for signature in functions),
        files=f"{_FILES.format(max_pixels=max_pixels)}\n{_ERRORS[on_error]}\n\n" if of_files else "",
        requests="With REST:\n\n" + "\n".join(requests) if requests else "",
        signature=signature,
        inputs="\n".join(
            f'  request.inputs["{spec.name}"].CopyFrom(tf.make_tensor_proto({value}, tf.{spec.dtype.name}))'
            for spec, value in zip(specs, values, strict=True)
        ),
    )


def file_instructions(format, model):
    """Return the text of README.txt of an export that is one file, see calls.toml.

    Args:
        format: name of the format.
        model: the exported model.
    """
    table = read_toml("serving/calls.toml")
    if format == "web":
        return table["web"].format(name=model.name)
    values = {**table[format], "name": model.name}
    if isinstance(model, TaskModel):
        specs = array_specs(model)
        tensors = [f"  input  {name}: {_described(spec)}" for name, spec in specs.items()]
        return table["task"].format_map({**values, "tensors": "\n".join(tensors), "inputs": list(specs)})
    channels, (height, width) = model.preprocessing.channels, model.preprocessing.image_size
    kind = "encoder" if is_encoder(model) else "classifier"
    values |= {"height": height, "width": width, "channels": channels, "output": class_scores(model)}
    values |= {"mode": "L", "order": ""} if channels == 1 else {"mode": "RGB", "order": ", red first"}
    values["shape"] = ", ".join(str(side or "batch") for side in model.output_shape)
    values["meaning"] = "" if kind == "encoder" else ", one number per class of labels.txt"
    lines = {**table[format], "answer": table[kind], "resize": table["resize"][model.preprocessing.interpolation]}
    values |= {key: text.format_map(values) for key, text in lines.items() if key != "outputs"}
    return table["readme"].format_map(values)


def _call(signature, function, size):
    """Return the inputs of a signature (`TensorSpec`), an image for REST in JSON or None, and batches for gRPC."""
    specs, _ = function.structured_input_signature
    if specs[0].name == "image_bytes":
        rest = """{"image_bytes": {"b64": "'$(base64 -w0 cat.jpg)'"}}"""
        return specs, rest, ['[pathlib.Path("cat.jpg").read_bytes()]']
    if signature == "arrays":
        return specs, None, [f"np.load({spec.name + '.npy'!r})" for spec in specs]
    pixel = [127] * specs[0].shape[-1]
    if signature == "native":  # image.json: a list of rows of pixels
        return specs, "'$(cat image.json)'", [f"[[[{pixel}] * {size[1]}] * {size[0]}]"]
    return specs, f"[[{pixel}, {pixel}], [{pixel}, {pixel}]]", [f"[[[{pixel}]]]"]


def _signature(name, function, about):
    lines = [f"  {name}: {about}"]
    taken, _ = function.structured_input_signature
    for arrow, specs in (("<-", {spec.name: spec for spec in taken}), ("->", function.structured_outputs)):
        for key, spec in specs.items():
            lines.append(f"    {arrow} {key}: {_described(spec)}")
    return "\n".join(lines) + "\n"


def _described(spec):
    sides = ["batch", *("any" if side is None else str(side) for side in spec.shape[1:])]
    return f"{spec.dtype.name} [{', '.join(sides)}]"
