"""Looks inside a Vision Transformer: the figures of the paper's section 4.5 for a model and pictures of yours.

    python examples/look_inside.py [--output DIR] [--tiny]
    python examples/look_inside.py --model ViT-Ti_16 --weights ViT-Ti_16.npz --output inside cat.jpg dog.jpg

Without a model it trains one on scikit-learn's handwritten digits first, in half a minute. Needs keras_vit with
TensorFlow and matplotlib.
"""

import argparse
import os
import pathlib
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import keras_vit
from keras_vit import analysis
from keras_vit.analysis import plots


def main():
    args = parse_arguments()
    output = pathlib.Path(args.output or tempfile.mkdtemp(prefix="keras_vit_inside_"))
    output.mkdir(parents=True, exist_ok=True)
    if args.model:
        model, pictures = keras_vit.create_model(args.model, weights=args.weights), args.pictures
    else:
        model, pictures = digits(steps=5 if args.tiny else 600)
    inputs = keras_vit.preprocess(pictures, model.preprocessing)
    seen = model.preprocessing.to_pictures(inputs)

    # Fig. 6: from the class token back through every block to the patches.
    rollout = analysis.attention_rollout(model, inputs)
    # Fig. 7: the filters that embed patches, what positions are alike, how far the heads look.
    filters = analysis.filter_components(model)
    similarity = analysis.position_similarity(model)
    distances = analysis.mean_attention_distance(model, inputs)

    figures = {
        "attention": plots.attention_overlay(seen[:4], rollout[:4]),
        "filters": plots.embedding_filters(filters.filters),
        "positions": plots.position_similarity(similarity),
        "distance": plots.attention_distance(distances),
        "explanation": plots.explanation(
            seen[0],
            keras_vit.predict(model, pictures[0])[0],
            rollout[0],
            analysis.head_maps(model, inputs[:1])[0],
            title=model.config.name,
        ),
    }
    for name, figure in figures.items():
        figure.savefig(output / f"{name}.png")
    third = max(1, len(distances) // 3)
    print(f"attention distance: {distances[:third].mean():.1f} pixels in the first third of the blocks, ", end="")
    print(f"{distances[-third:].mean():.1f} in the last")
    print(f"first filters: {100 * filters.explained[:8].sum():.0f} % of the variance in 8 components, ", end="")
    print(f"{100 * analysis.smoothness(filters.filters[:8]).mean():.0f} % of their power at low frequencies")
    nearest = similarity.reshape(-1, similarity.shape[2] * similarity.shape[3]).argmax(1)
    print(f"positions: {100 * np.mean(nearest == np.arange(len(nearest))):.0f} % are most like themselves")
    print(f"saved: {', '.join(f'{name}.png' for name in figures)} in {output}")


def digits(steps):
    """A model of 4 x 4 patches trained on handwritten digits, and pictures that it has not seen."""
    train, test = keras_vit.data.from_digits()
    recipe = keras_vit.training.RECIPES["quickstart"]
    config = recipe.model.replace(patch_size=2, name="ViT-digits_2")
    model = keras_vit.VisionTransformer(config, labels=train.class_names)
    batches = keras_vit.data.train_pipeline(train, model.preprocessing, recipe.batch_size, augment=recipe.augment)
    recipe.compile(model, steps=steps)
    model.fit(batches, steps_per_epoch=steps, shuffle=False, verbose=2)
    return model, [element["image"] for element in test.dataset.take(64).as_numpy_iterator()]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", nargs="*", metavar="PICTURE", help="with --model: files of pictures")
    parser.add_argument("--model", metavar="NAME", help="name from keras-vit list")
    parser.add_argument("--weights", metavar="FILE", help="its weights, as of keras_vit.create_model")
    parser.add_argument("--output", metavar="DIR", help="folder for the figures (default: a new one)")
    parser.add_argument("--tiny", action="store_true", help="a few steps, which learn little")
    args = parser.parse_args()
    if bool(args.model) != bool(args.pictures) or bool(args.model) != bool(args.weights):
        parser.error("--model, --weights and pictures go together")
    return args


if __name__ == "__main__":
    main()
