"""The small ViT that the page offers where no weights are at hand: trained once on this machine, then kept."""

import contextlib

import keras

from keras_vit import data, files, training
from keras_vit.checkpoints.download import keras_home
from keras_vit.models import VisionTransformer

NAME = "ViT-digits"
SIZE = (8, 8)  # of its images
_FILE = "ViT-digits-1.keras"  # another number where the training below changes
# The quickstart's model on patches of 2 x 2, so that attention has a map of 4 x 4 to lie on. It reads 97 % of the
# held-out digits rightly.
_MODEL = {"name": NAME, "patch_size": 2, "num_layers": 3, "dropout_rate": 0.0}
_RECIPE = {"epochs": 60}


def digit_file():
    """Returns the path where the trained model is kept, whether it is there or not: in Keras's cache."""
    return keras_home().expanduser() / "models" / "keras_vit" / "demo" / _FILE


def open_digit_model(steps=None):
    """Returns the model that reads handwritten digits; it is trained if no file has it.

    Args:
        steps: number of training steps; None is the whole training, 40 seconds on two cores.

    Raises:
        ImportError: if scikit-learn, which carries the digits, is not installed.
        OSError: if the cache cannot be written.
    """
    path = digit_file()
    # A file that is damaged is trained anew; what Keras raises of it is of many kinds.
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        if path.is_file():
            return keras.models.load_model(path, compile=False)
    model = _train(steps)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace_file(path, model.save)
    return model


def _train(steps):
    learnt, _ = data.from_digits()
    recipe = training.RECIPES["quickstart"].replace(**_RECIPE)
    model = VisionTransformer(recipe.model.replace(**_MODEL), labels=learnt.class_names)
    batches = data.train_pipeline(
        learnt, model.preprocessing, recipe.batch_size, seed=recipe.seed, augment=recipe.augment
    )
    steps = recipe.epochs * (learnt.size // recipe.batch_size) if steps is None else steps
    recipe.compile(model, steps=steps)
    model.fit(batches, steps_per_epoch=steps, shuffle=False, verbose=0)
    return model
