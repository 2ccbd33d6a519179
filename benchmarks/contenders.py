"""ViT-B/16 for 1000 classes at 224 px in this package and in other libraries, each as its users run it.

Every function returns the work of one contender, see contest.py: a function that runs inference on a batch of NumPy
images, or one training step on it with Adam. `dtype` is `float32`, `bfloat16` (also for the weights) or
`mixed_bfloat16` (float32 weights).
"""

import contextlib
import math
import os
import sys

import numpy as np

SIZE, CLASSES, WIDTH, LAYERS, HEADS, MLP = 224, 1000, 768, 12, 12, 3072
GFLOP_PER_IMAGE = 35.1  # of the forward pass; a training step needs three times as many


def cores():
    return len(os.sched_getaffinity(0))


def random_images(batch, size=SIZE):
    rng = np.random.default_rng(0)
    return rng.uniform(-1, 1, (batch, size, size, 3)).astype("float32"), np.arange(batch) % CLASSES


def quietly(function, *arguments, **named):
    """Call a function and return its result; its output goes to standard error, so that the tables stay clean."""
    with contextlib.redirect_stdout(sys.stderr):
        return function(*arguments, **named)


def keras_vit_inference(batch, dtype, **arguments):
    return keras_inference(keras_vit(dtype, **arguments), batch)


def keras_vit_training(batch, dtype, **arguments):
    return keras_training(keras_vit(dtype, **arguments), batch)


def keras_hub_inference(batch, dtype):
    return keras_inference(keras_hub(dtype), batch)


def keras_hub_training(batch, dtype):
    return keras_training(keras_hub(dtype), batch)


def keras_vit(dtype, **arguments):
    import keras_vit

    return keras_vit.ViT_B16(dtype=dtype, **arguments)


def keras_hub(dtype):
    import keras_hub

    backbone = keras_hub.models.ViTBackbone(
        (SIZE, SIZE, 3), 16, LAYERS, HEADS, WIDTH, MLP, layer_norm_epsilon=1e-6, dtype=dtype
    )
    return keras_hub.models.ViTImageClassifier(backbone, CLASSES)


def keras_inference(model, batch):
    images, _ = random_images(batch, model.input_shape[1])
    model.compile(jit_compile=False)
    return lambda: model.predict_on_batch(images)


def keras_training(model, batch):
    import keras

    images, labels = random_images(batch, model.input_shape[1])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss, jit_compile=False)
    return lambda: model.train_on_batch(images, labels)


def transformers_inference(batch, dtype):
    import torch

    images, _ = random_images(batch)
    dtype = getattr(torch, dtype)
    model = transformers_model().eval().to(dtype)

    @torch.inference_mode()
    def predict():
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2).to(dtype)
        return model(pixel_values=pixels).logits.float().numpy()

    return predict


def transformers_training(batch, dtype):
    import torch

    images, labels = random_images(batch)
    pixels, labels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels)
    model = transformers_model().train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "mixed_bfloat16"):
            loss = model(pixel_values=pixels, labels=labels).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def transformers_model():
    import transformers

    config = transformers.ViTConfig(image_size=SIZE, patch_size=16, num_labels=CLASSES)
    return transformers.ViTForImageClassification(config)


def matrix_product(batch, dtype, passes=1):
    """Products of large square matrices in TensorFlow, with as many operations as the model needs for this batch."""
    import tensorflow as tf

    side = 3072
    products = passes * batch * GFLOP_PER_IMAGE * 1e9 / (2 * side**3)
    count = math.ceil(products)
    left = tf.cast(tf.random.normal((round(side * products / count), side)), dtype)
    right = tf.cast(tf.random.normal((side, side)), dtype)
    product = tf.function(tf.linalg.matmul, autograph=False)

    def multiply():
        for _ in range(count):
            product(left, right)

    return multiply
