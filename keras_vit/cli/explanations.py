"""`keras-vit explain`: a sheet with a prediction and the model's attention."""

import pathlib
import re

import keras_vit
from keras_vit import files
from keras_vit.analysis import attention_rollout, head_maps, plots
from keras_vit.cli.models import open_model
from keras_vit.cli.outputs import check_drawing
from keras_vit.data.images import check_file


def explain(args):
    """Draw a sheet about one image and print its path."""
    check_drawing("--output", args.output)
    check_file(args.image)
    model = open_model(args)
    inputs = keras_vit.preprocess(args.image, model.preprocessing)
    heads = head_maps(model, inputs, _layer(args.layer))
    sheet = plots.explanation(
        model.preprocessing.to_images(inputs)[0],
        keras_vit.predict(model, args.image, top=args.top)[0],
        attention_rollout(model, inputs)[0],
        heads[0],
        title=f"{_model_name(model, args.model)}: {pathlib.Path(args.image).name}",
        num_heads=args.heads,
    )
    files.replace_file(args.output, sheet.savefig)
    print(args.output)


def _model_name(model, given):
    """Return `ViT-Ti_16` or, for a file, `ViT-Ti_16 (pets/best.keras)`."""
    file = f" ({pathlib.Path(*pathlib.Path(given).parts[-2:])})" if given.endswith(".keras") else ""
    return f"{model.config.name}{file}"


def _layer(text):
    """Convert `"-1"` to the block number -1; return a name unchanged."""
    return int(text) if re.fullmatch(r"-?\d+", text) else text
