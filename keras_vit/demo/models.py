"""The models of the demo, including a small ViT for handwritten digits that needs no weights."""

import contextlib
import pathlib

import keras
import numpy as np
from PIL import Image, ImageFilter

from keras_vit import checks, data, files, training
from keras_vit.checkpoints.hub import PREFIX
from keras_vit.checkpoints.releases import find_release
from keras_vit.models import VisionTransformer
from keras_vit.zoo import create_model, list_models, list_weights

DIGITS = "ViT-digits"
# the example images, drawn by docs/generate/scenes.py
SCENES = ("balloon", "soccer ball", "mushroom", "umbrella", "wall clock", "street sign", "jack-o'-lantern")
_TRAINED_HERE = "trained here"
_DIGIT_SIZE = (8, 8)  # of scikit-learn's images
_DIGIT_FILE = "ViT-digits-1.keras"  # raise the number when the training below changes
_LEAST_CONTRAST = 24  # pixel values between paper and ink
_LEAST_INK = 0.4 * 255  # fainter pixels are paper
_MEAN_INK = 0.27 * 255  # minimum of the mean of an image; in the data, the mean is 0.30 to 0.32 of 255 for every digit
_KEPT = 2  # models in memory in addition to the given one
_IMAGE_SIZE = (224, 224)


class Offers:
    """The models and weights that can be chosen. Nothing else is ever opened.

    Args:
        model: a classifier of keras_vit, offered first; or None.
        weights: name of its weights on the page.

    Attributes:
        choices: dict from the name of a model to the names of its weights; the first ones are selected at the start.
    """

    def __init__(self, model=None, weights="as given"):
        self._model, self._opened = model, {}
        self._given = None if model is None else (model.config.name, weights)
        self.choices = {} if model is None else {model.config.name: [weights]}
        self.choices.setdefault(DIGITS, []).append(_TRAINED_HERE)
        for name in list_models():
            # Repositories of the hub need not hold a classifier.
            published = [weights for weights in list_weights(name) if not weights.startswith(PREFIX)]
            published.sort(key=lambda weights: "imagenet2012" not in weights)
            if published:
                self.choices[name] = list(dict.fromkeys([*self.choices.get(name, []), *published]))

    def reads_digits(self, name, weights):
        """Return whether the chosen model expects images like scikit-learn's digits."""
        if (name, weights) == self._given:
            preprocessing = self._model.preprocessing
            return preprocessing.image_size == _DIGIT_SIZE and preprocessing.channels == 1
        return name == DIGITS

    def open(self, name, weights, report=lambda sentence: None):
        """Return the model of a choice, from memory, Keras's cache or its publisher.

        Args:
            report: function that is called with a sentence if this takes long.

        Raises:
            ValueError: if the choice is not offered.
            ImportError, OSError: as in `create_model` and `open_digit_model`.
        """
        checks.check_choice("model", name, self.choices)
        checks.check_choice("weights", weights, self.choices[name])
        if (name, weights) == self._given:
            return self._model
        if (name, weights) not in self._opened:
            model = open_digit_model(report) if name == DIGITS else _open_published(name, weights, report)
            while len(self._opened) >= _KEPT:
                self._opened.pop(next(iter(self._opened)))
            self._opened[name, weights] = model
        return self._opened[name, weights]


def _open_published(name, weights, report):
    report(f"{name} is being loaded. Its file is downloaded first if it is not in Keras's cache.")
    return create_model(name, weights=weights, classes=find_release(name, weights, _IMAGE_SIZE).classes)


def open_digit_model(report=lambda sentence: None, steps=None):
    """Return the model for handwritten digits; train it if Keras's cache does not have it.

    Args:
        report: function that is called with a sentence before the training.
        steps: number of training steps; None for the whole training, which takes 40 seconds on two cores.

    Raises:
        ImportError: if scikit-learn is not installed.
        OSError: if the cache cannot be written.
    """
    path = files.keras_home() / "models" / "keras_vit" / "demo" / _DIGIT_FILE
    # A damaged file is replaced; Keras raises many kinds of errors for one.
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        if path.is_file():
            return keras.models.load_model(path, compile=False)
    report("The model is trained to read handwritten digits. This takes less than a minute and happens once.")
    model = _train_digits(steps)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace_file(path, model.save)
    return model


def _train_digits(steps):
    """Train with the quickstart's recipe and patches of 2 x 2, for attention maps of 4 x 4; 97 % held-out accuracy."""
    source, _ = data.from_digits()
    recipe = training.RECIPES["quickstart"].replace(epochs=60)
    config = recipe.model.replace(name=DIGITS, patch_size=2, num_layers=3, dropout_rate=0.0)
    model = VisionTransformer(config, labels=source.class_names)
    drawn = {"seed": recipe.seed, "augment": recipe.augment}
    batches = data.train_pipeline(source, model.preprocessing, recipe.batch_size, **drawn)
    steps = recipe.epochs * (source.size // recipe.batch_size) if steps is None else steps
    recipe.compile(model, steps=steps)
    model.fit(batches, steps_per_epoch=steps, shuffle=False, verbose=0)
    return model


def example_digits():
    """Return one held-out image of each digit: dict from "0" to "9" to uint8 (8, 8, 1)."""
    _, held_out = data.from_digits()
    found = {}
    for element in held_out.dataset.as_numpy_iterator():
        found.setdefault(held_out.class_names[element["label"]], element["image"])
    return dict(sorted(found.items()))


def example_scenes():
    """Return drawings of objects of ImageNet: dict from the name of the object to uint8 (360, 480, 3)."""
    folder = pathlib.Path(__file__).with_name("scenes")
    return {name: np.asarray(Image.open(folder / f"{name}.png")) for name in SCENES}


def digit_image(image):
    """Convert an image of one digit to the form of scikit-learn's: uint8 (8, 8, 1), bright ink on black, full height.

    Ink is every pixel that differs from the border of the image, so the paper must be plain.

    Args:
        image: uint8 (height, width, 1 or 3). One of 8 x 8 pixels is returned unchanged.

    Raises:
        ValueError: if the image has one colour.
    """
    grey = Image.fromarray(image if image.shape[-1] == 3 else image[..., 0]).convert("L")
    if grey.size == _DIGIT_SIZE:
        return np.asarray(grey)[..., None]
    grey.thumbnail((128, 128), Image.Resampling.BOX)
    levels = np.asarray(grey, "float64")
    paper = np.median(np.concatenate([levels[0], levels[-1], levels[:, 0], levels[:, -1]]))
    contrast = np.abs(levels - paper)
    if contrast.max() < _LEAST_CONTRAST:
        raise ValueError("the image must show a digit in ink that differs from its paper; it has one colour")
    ink = 255 * contrast / contrast.max()
    ink = Image.fromarray(np.where(ink < _LEAST_INK, 0, ink).astype("uint8"))
    ink = ink.crop(ink.getbbox())
    width = min(48, max(1, round(64 * ink.width / ink.height)))  # the digits of the data are 5 to 7 of 8 pixels wide
    whole = Image.new("L", (64, 64))
    whole.paste(ink.resize((width, 64)), ((64 - width) // 2, 0))
    for _ in range(6):
        if np.asarray(whole).mean() < _MEAN_INK:
            whole = whole.filter(ImageFilter.MaxFilter(3))  # a thin pen
    return np.asarray(whole.resize(_DIGIT_SIZE, Image.Resampling.BOX))[..., None]
