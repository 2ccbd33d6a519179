"""A small model to export, and images to ask it about: what the tests of keras_vit/serving share."""

import keras
import numpy as np
import PIL.Image

from keras_vit import Preprocessing, VisionTransformer, ViTConfig

LABELS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")
CONFIG = ViTConfig(
    name="toy",
    image_size=(24, 32),
    patch_size=8,
    hidden_dim=160,
    num_layers=1,
    num_heads=4,
    mlp_dim=320,
    classes=7,
    dropout_rate=0.1,
)
PREPROCESSING = Preprocessing(
    size=(24, 32), interpolation="bicubic", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
)


def make_model(labels=LABELS, preprocessing=PREPROCESSING, **changes):
    """A model whose answers differ from image to image, the same at every call."""
    keras.utils.set_random_seed(0)
    model = VisionTransformer(CONFIG.replace(**changes), preprocessing=preprocessing, labels=labels)
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(variable.numpy() + 0.05 * rng.normal(size=variable.shape))
    return model


def model_input(image):
    """What the model eats of a PIL image, by Pillow and NumPy: (24, 32, 3)."""
    small = np.asarray(image.resize((32, 24), PIL.Image.Resampling.BICUBIC), "float32")
    return ((small / 255 - PREPROCESSING.mean) / PREPROCESSING.std).astype("float32")


def softmax(logits):
    exponentials = np.exp(logits - np.max(logits, -1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)
