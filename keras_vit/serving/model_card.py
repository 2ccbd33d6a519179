"""model_card.json of an export: inputs, outputs, preprocessing, labels, and the result of the check."""

import json

from keras_vit.serving.signatures import class_labels

_RESIZE = "by the caller, to the input's height and width, as `preprocessing` says (size, crop, interpolation)"


def write_model_card(model, path, format, options, check):
    """Write the model card.

    Args:
        model: the exported model.
        path: of the file.
        format: name of the format.
        options: dict of the export options, JSON values.
        check: the `Check` of the export, or None if it was skipped.
    """
    in_the_graph = format == "saved_model"
    order = ", red first" if model.preprocessing.channels == 3 else ""
    card = {
        "model": model.name,
        "format": format,
        "options": options,
        "inputs": None if check is None else [_tensor(*entry) for entry in check.inputs],
        "outputs": None if check is None else [_tensor(*entry) for entry in check.outputs],
        "range": f"pixels have values from 0 to 255, channels last{order}; they are standardised in the model",
        "resizing": "in the model" if in_the_graph else _RESIZE,
        "preprocessing": model.preprocessing.to_dict(),
        "preprocessing_source": model.preprocessing_source,
        "labels": class_labels(model),
        "weights": model.weights_source or "none were loaded: trained from scratch, or random",
        "config": model.config.to_dict(),
        "check": None if check is None else _check(check),
    }
    path.write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _tensor(name, dtype, shape):
    return {"name": name, "dtype": dtype, "shape": shape}


def _check(check):
    return {
        "largest_differences": check.differences,
        "tolerance": check.tolerance,
        "of": "the largest number of the model's output, or of 1 if that is less",
        "images": check.count,
        "same_top1": check.agreement,
    }
