"""`keras-vit explain`: a picture of what a model looks at."""

import pathlib

import keras_vit
from keras_vit import checks
from keras_vit.analysis import attention_rollout, head_maps, plots
from keras_vit.cli.failures import users_mistakes
from keras_vit.cli.models import open_model
from keras_vit.training.checkpoint_files import CheckpointError, write_atomically

DRAWING_SUFFIXES = (".png", ".jpg", ".pdf", ".svg")


def explain(args):
    """Draws a sheet about one picture and prints its path."""
    output = pathlib.Path(args.output)
    checks.check_choice("the ending of --output", output.suffix.lower(), DRAWING_SUFFIXES)
    model = open_model(args)
    inputs = keras_vit.preprocess(args.picture, model.preprocessing)
    heads = head_maps(model, inputs, _layer(args.layer))
    sheet = plots.explanation(
        model.preprocessing.to_pictures(inputs)[0],
        keras_vit.predict(model, args.picture, top=args.top)[0],
        attention_rollout(model, inputs)[0],
        heads[0],
        title=f"{model.config.name}: {pathlib.Path(args.picture).name}",
        num_heads=args.heads,
    )
    with users_mistakes(CheckpointError):
        write_atomically(output, sheet.savefig)
    print(output)


def _layer(text):
    """`"-1"` -> -1, the number of a block; a name stays one."""
    return int(text) if text.lstrip("-").isdecimal() else text
