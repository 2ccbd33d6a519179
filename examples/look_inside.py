"""Draw the figures of section 4.5 of the paper for a model and images of your own.

    python examples/look_inside.py [--output DIR] [--tiny]
    python examples/look_inside.py --model ViT-Ti_16 --weights ViT-Ti_16.npz --output inside cat.jpg dog.jpg

Without a model, it first trains one on scikit-learn's handwritten digits, in half a minute. Requires keras_vit with
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
        model, images = keras_vit.create_model(args.model, weights=args.weights), args.images
    else:
        model, images = digits(steps=5 if args.tiny else 600)
    saved = []
    for name, draw in FIGURES.items():
        try:
            figure, shows = draw(model, images)
        except ValueError as error:  # a Swin has no position embeddings, a ResNet no attention
            print(f"no {name}: {error}")
            continue
        figure.savefig(output / f"{name}.png")
        saved.append(f"{name}.png")
        print(f"{name}: {shows}")
    print(f"saved: {', '.join(saved)} in {output}")


def draw_attention(model, images):
    """Draw Fig. 6: attention rollout from the token that the head reads to the patches."""
    inputs = keras_vit.preprocess(images[:4], model.preprocessing)
    rollout = analysis.attention_rollout(model, inputs)
    shares = np.sort(rollout.reshape(len(rollout), -1))[:, ::-1]
    quarter = shares[:, : -(-shares.shape[1] // 4)].sum(1).mean() / shares.sum(1).mean()
    figure = plots.attention_overlay(model.preprocessing.to_images(inputs), rollout)
    return figure, f"{100 * quarter:.0f} % of it on a quarter of the image"


def draw_filters(model, images):
    """Draw Fig. 7, left: the filters of the patch embedding, or of the first convolution of a ResNet."""
    found = analysis.filter_components(model)
    explained = 100 * found.explained[:8].sum()
    low = 100 * analysis.smoothness(found.filters[:8]).mean()
    shows = f"{explained:.0f} % of the variance in 8 components, {low:.0f} % of their power at low frequencies"
    return plots.embedding_filters(found.filters), shows


def draw_positions(model, images):
    """Draw Fig. 7, centre: the similarity of position embeddings."""
    similarity = analysis.position_similarity(model)
    nearest = similarity.reshape(-1, similarity.shape[2] * similarity.shape[3]).argmax(1)
    alike = 100 * np.mean(nearest == np.arange(len(nearest)))
    return plots.position_similarity(similarity), f"{alike:.0f} % are most like themselves"


def draw_distance(model, images):
    """Draw Fig. 7, right: the mean attention distance of the heads."""
    inputs = keras_vit.preprocess(images, model.preprocessing)
    distances = analysis.mean_attention_distance(model, inputs)
    third = max(1, len(distances) // 3)
    near, far = np.nanmean(distances[:third]), np.nanmean(distances[-third:])
    shows = f"{near:.1f} pixels in the first third of the blocks, {far:.1f} pixels in the last"
    return plots.attention_distance(distances), shows


def draw_explanation(model, images):
    """Draw the figure of `keras-vit explain`."""
    found = keras_vit.explain(model, images[0], title=model.config.name)
    return found.figure, f"the first image is classified as {found.answers[0][0]}"


FIGURES = {
    "attention": draw_attention,
    "filters": draw_filters,
    "positions": draw_positions,
    "distance": draw_distance,
    "explanation": draw_explanation,
}


def digits(steps):
    """Return a model with 4 x 4 patches, trained on handwritten digits, and held-out images."""
    train, test = keras_vit.data.from_digits()
    recipe = keras_vit.training.RECIPES["quickstart"]  # its shifts hurt with such small patches
    config = recipe.model.replace(patch_size=2, name="ViT-digits_2")
    model = keras_vit.VisionTransformer(config, labels=train.class_names)
    batches = keras_vit.data.train_pipeline(train, model.preprocessing, recipe.batch_size)
    recipe.compile(model, steps=steps)
    model.fit(batches, steps_per_epoch=steps, shuffle=False, verbose=2)
    return model, [element["image"] for element in test.dataset.take(64).as_numpy_iterator()]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", nargs="*", metavar="IMAGE", help="with --model: files of images")
    parser.add_argument("--model", metavar="NAME", help="name from keras-vit list")
    parser.add_argument("--weights", metavar="FILE", help="weights, as for keras_vit.create_model")
    parser.add_argument("--output", metavar="DIR", help="folder for the figures (default: a new one)")
    parser.add_argument("--tiny", action="store_true", help="train a few steps, to try the script")
    args = parser.parse_args()
    if bool(args.model) != bool(args.images) or bool(args.model) != bool(args.weights):
        parser.error("--model, --weights and images go together")
    return args


if __name__ == "__main__":
    main()
