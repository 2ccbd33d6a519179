"""STEPS: small models ready to train, with all that a recipe may ask for, and every family of models.

Token counts are 128 and 256 where they can be, which Keras's own attention takes to a kernel that is wrong.
"""

import functools
import typing

import keras
import numpy as np
from families import CLASSES, FAMILIES

import keras_vit
from keras_vit.compat.initial_values import build_deferred, initialise
from keras_vit.models import build_model
from keras_vit.training import RECIPES

BATCH = 16
STEPS_OF_A_RUN = 20_000  # longer than any warm-up


class Step(typing.NamedTuple):
    """A training step: the compiled model, and (shape, dtype) of the images and of the labels."""

    model: keras.Model
    images: tuple
    labels: tuple

    @classmethod
    def of(cls, model, is_mixed=False):
        images = ((BATCH, *model.input_shape[1:]), model.inputs[0].dtype)
        return cls(model, images, ((BATCH, CLASSES), "float32") if is_mixed else ((BATCH,), "int32"))


def _vit(**changes):
    """A ViT of 128 tokens, without a class token that would be the 129th."""
    small = {"patch_size": 4, "hidden_dim": 64, "num_layers": 2, "num_heads": 2, "mlp_dim": 128, "classes": CLASSES}
    config = {"name": "small", "image_size": (32, 64), "pooling": "gap", **small, **changes}
    return _built(lambda: keras_vit.VisionTransformer(keras_vit.ViTConfig(**config)))


def _family(family):
    return _step(_built(lambda: build_model(family.config, **({"stem": family.stem()} if family.stem else {}))))


def _built(make):
    """The model with zeros for weights, which no one looks at: drawing them would take most of the time."""
    model, variables = build_deferred(make)
    initialise(variables, {id(variable): lambda v=variable: np.zeros(v.shape, v.dtype) for variable in variables})
    return model


def _step(model, optimizer=None, loss=None, is_mixed=False, **options):
    model.compile(
        optimizer=optimizer or keras.optimizers.SGD(0.1, momentum=0.9),
        loss=loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **{"metrics": ["accuracy"], **options},
    )
    return Step.of(model, is_mixed)


def _clipped():
    optimizer = keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(1e-3, 100), global_clipnorm=1.0)
    model = _vit()
    optimizer.exclude_from_weight_decay(var_list=[v for v in model.variables if v.name != "kernel"])
    return _step(model, optimizer)


def _averaged():
    options = {"use_ema": True, "ema_overwrite_frequency": 2, "gradient_accumulation_steps": 2, "global_clipnorm": 1.0}
    return _step(_vit(), keras.optimizers.AdamW(1e-3, **options))


def _recomputed():
    rates = dict.fromkeys(("dropout_rate", "attention_dropout_rate", "drop_path_rate"), 0.1)
    return _step(_vit(dtype="mixed_bfloat16", remat="block", image_size=64, **rates))


def _bytes_in():
    """Images of bytes, rescaled inside the model, with the labels that MixUp gives."""
    images = keras.Input((32, 64, 3), dtype="uint8")
    outputs = _vit(dropout_rate=0.1)(keras.layers.Rescaling(1 / 127.5, -1.0)(images))
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    metrics = ["accuracy", keras.metrics.TopKCategoricalAccuracy(3)]
    return _step(keras_vit.Model(images, outputs), loss=loss, metrics=metrics, is_mixed=True)


def _several_labels():
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    return _step(_vit(), loss=loss, metrics=["binary_accuracy"], is_mixed=True)


def _split():
    return _step(_vit(dropout_rate=0.1), keras.optimizers.SGD(0.1, global_clipnorm=1.0), microbatches=2)


def _keras_attention():
    """The control: Keras's own attention on 128 tokens."""
    tokens = keras.Input((128, 64))
    attended = keras.layers.MultiHeadAttention(1, 64)(tokens, tokens)
    outputs = keras.layers.Dense(CLASSES)(keras.layers.GlobalAveragePooling1D()(attended))
    return _step(keras.Model(tokens, outputs))


def _by_recipe(name):
    recipe = RECIPES[name].replace(image_size=None)
    model = _built(lambda: build_model(recipe.configure(FAMILIES["plain"].config)))
    return Step.of(recipe.compile(model, steps=STEPS_OF_A_RUN), is_mixed=bool(recipe.mix))


# what the others do not have: sigmoid loss and a head's bias, averaging with SGD, smoothed and mixed labels, stairs
_RECIPES = ("vit/imagenet", "vit/finetune/imagenet-512", "deit/imagenet", "bit/s")

# name -> function that makes a step
STEPS = {
    "clipping and weight decay": _clipped,
    "averaging and accumulation": _averaged,
    "bfloat16, recomputation and dropout": _recomputed,
    "bytes in and mixed labels": _bytes_in,
    "several labels": _several_labels,
    "microbatches": _split,
    "Keras's own attention": _keras_attention,
    **{name: functools.partial(_by_recipe, name) for name in _RECIPES},
    **{name: functools.partial(_family, family) for name, family in FAMILIES.items()},
}
