"""Measure masked autoencoders: `python -m benchmarks.masked_autoencoder --cifar cifar10_small.npz`, or `--speed`.

`--cifar`: a small ViT is pre-trained to reconstruct the pixels of all training images, without their labels, and then
fine-tuned on the labelled ones. The same ViT with random weights is trained on the labelled ones alone, with the same
recipe, for the sum of both numbers of steps. The seed determines the random weights, the labelled images, the order of
the images, their augmentation and the masks. The file has the arrays that `benchmarks.masked_patches` describes.

`--speed`: the time of a pre-training step of ViT-Ti/16 to ViT-L/16 at 224 pixels with the published decoder, once as
`MaskedAutoencoder` runs it, whose encoder sees a quarter of the patches, and once with an encoder that sees all of
them. Both take turns; the ratio is that of the fastest steps.
"""

import argparse
import time

import keras
import numpy as np

import keras_vit
from benchmarks import masked_patches
from keras_vit.layers import patch_dropout

PRETRAINING = {"learning_rate": 1.5e-3, "weight_decay": 0.05, "beta_2": 0.95, "warmup_fraction": 0.1}
SIZES = {"hidden_dim": 128, "num_layers": 4, "num_heads": 4, "mlp_dim": 256}
DECODER = {"hidden_dim": 96, "num_layers": 2, "num_heads": 4}
ENCODERS = {"Ti": (192, 12, 3), "S": (384, 12, 6), "B": (768, 12, 12), "L": (1024, 24, 16)}  # width, blocks, heads


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--cifar", metavar="FILE", help=".npz file of the images")
    parser.add_argument("--pretraining-steps", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=200, help="steps of the fine-tuning")
    parser.add_argument("--labels", type=int, default=500, help="labelled images")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="peak with labels")
    parser.add_argument("--speed", nargs="*", choices=ENCODERS, help="sizes to time; all of them by default")
    parser.add_argument("--images", type=int, default=8, help="images of a timed step")
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.cifar is not None:
        compare_on_cifar(arguments)
    if arguments.speed is not None:
        for name in arguments.speed or ENCODERS:
            time_steps(name, arguments)


def compare_on_cifar(arguments):
    data = masked_patches.read(arguments.cifar)
    config = keras_vit.ViTConfig(
        name="small",
        image_size=data["x_train"].shape[1:3],
        patch_size=4,
        classes=int(data["y_train"].max()) + 1,
        pooling="gap",
        class_token=True,
        norm_position="after_pooling",
        embedding={"position_init": "sincos2d_mae"},
        **SIZES,
    )
    rows = {"from scratch": [], "pre-trained": []}
    for seed in arguments.seeds:
        longer = argparse.Namespace(**{**vars(arguments), "steps": arguments.steps + arguments.pretraining_steps})
        with masked_patches.timed(f"seed {seed}, from scratch, {longer.steps} steps"):
            model = masked_patches.build(config, seed)
            rows["from scratch"].append(masked_patches.fine_tune(longer, data, model, seed))
        with masked_patches.timed(f"seed {seed}, {arguments.pretraining_steps} + {arguments.steps} steps"):
            encoder = pretrain(arguments, data, masked_patches.build(config, seed), seed)
            rows["pre-trained"].append(masked_patches.fine_tune(arguments, data, encoder, seed))
    for name, shares in rows.items():
        masked_patches.print_row(name, shares)
    gains = [100 * (after - before) for before, after in zip(*rows.values(), strict=True)]
    print(f"gains: {' '.join(f'{gain:+.2f}' for gain in gains)}", flush=True)


def pretrain(arguments, data, encoder, seed):
    """Pre-train on all training images; print the loss on the test images, and return the encoder."""
    recipe = keras_vit.training.RECIPES["mae/imagenet"].replace(
        **PRETRAINING,
        steps=arguments.pretraining_steps,
        batch_size=arguments.batch_size,
        augment=masked_patches.augment(encoder.config),
        image_size=None,
        seed=seed,
    )
    model = keras_vit.MaskedAutoencoder(encoder, DECODER, seed=seed)
    masked_patches.train(recipe, masked_patches.source(data, "train"), model)
    test = keras_vit.data.eval_pipeline(masked_patches.source(data, "test"), encoder.preprocessing, 100)
    print(f"loss on the test images: {model.evaluate(test, verbose=0):.3f}", flush=True)
    return encoder


def time_steps(name, arguments):
    """Print the seconds of a training step with the visible patches, and with all of them, in the encoder."""
    width, blocks, heads = ENCODERS[name]
    models = [build(width, blocks, heads, sees_all) for sees_all in (False, True)]
    images = np.random.default_rng(0).normal(size=(arguments.images, 224, 224, 3)).astype("float32")
    found = ([], [])
    for repetition in range(arguments.repetitions + 1):
        for model, seconds in zip(models, found, strict=True):
            start = time.perf_counter()
            model.train_on_batch(images)
            if repetition:  # the first one compiles
                seconds.append(time.perf_counter() - start)
    (visible, every), ratio = (map(np.array, found)), min(found[1]) / min(found[0])
    spread = ", ".join(f"{min(one):.2f} to {max(one):.2f} s" for one in (visible, every))
    print(f"ViT-{name}/16: visible and all patches {spread}; {ratio:.2f} times as fast", flush=True)


def build(width, blocks, heads, sees_all):
    """Return a compiled masked autoencoder with the published decoder; `sees_all` keeps all patches in the encoder."""
    config = keras_vit.ViTConfig(
        name="timed",
        image_size=224,
        patch_size=16,
        hidden_dim=width,
        num_layers=blocks,
        num_heads=heads,
        mlp_dim=4 * width,
        include_top=False,
    )
    kept = patch_dropout.kept_count
    try:
        if sees_all:  # all but one, as a masked autoencoder removes something
            patch_dropout.kept_count = lambda rate, patches: patches - 1
        model = keras_vit.MaskedAutoencoder(keras_vit.VisionTransformer(config))
    finally:
        patch_dropout.kept_count = kept
    model.compile(keras.optimizers.AdamW(1e-4))
    return model


if __name__ == "__main__":
    main()
