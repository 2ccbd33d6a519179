"""Train a Vision Transformer on handwritten digits and export it, in a minute on two cores.

    python examples/quickstart.py [--workdir DIR] [--epochs N] [--tiny]

Requires keras_vit with TensorFlow, and scikit-learn, which includes the 1797 images. Nothing is downloaded.
`keras_vit.train("quickstart", None, "DIR")` does the first three steps in one call.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from PIL import Image, ImageDraw

from keras_vit_command import quiet_start

with quiet_start():  # TensorFlow's messages about oneDNN and CUDA are harmless
    import keras

    import keras_vit

# Images of 8 x 8 pixels in four patches of 4 x 4, and four transformer blocks on top: a very small ViT.
CONFIG = keras_vit.ViTConfig(
    name="ViT-digits",
    image_size=8,
    patch_size=4,
    channels=1,
    hidden_dim=64,
    num_layers=4,
    num_heads=4,
    mlp_dim=128,
    dropout_rate=0.1,
    classes=10,
)

# A server needs only TensorFlow and the exported folder. This runs in its own process.
CLIENT = """
import pathlib, sys
import tensorflow as tf

served = tf.saved_model.load(sys.argv[1])
answer = served.signatures["serving_default"](tf.constant([pathlib.Path(sys.argv[2]).read_bytes()]))
print(answer["classes"][0, 0].numpy().decode(), float(answer["scores"][0, 0]))
"""


def main():
    args = parse_arguments()
    workdir = pathlib.Path(args.workdir or tempfile.mkdtemp(prefix="keras_vit_quickstart_"))
    workdir.mkdir(parents=True, exist_ok=True)
    recipe = keras_vit.training.RECIPES["quickstart"]
    epochs = 2 if args.tiny else recipe.epochs
    recipe = recipe.replace(epochs=epochs if args.epochs is None else args.epochs)
    keras.utils.set_random_seed(recipe.seed)

    # 1. Make batches of the images; the model states how its images are preprocessed.
    train, test = keras_vit.data.from_digits()
    model = keras_vit.VisionTransformer(CONFIG, labels=train.class_names)
    train_batches = keras_vit.data.train_pipeline(
        train, model.preprocessing, recipe.batch_size, seed=recipe.seed, augment=recipe.augment
    )
    test_batches = keras_vit.data.eval_pipeline(test, model.preprocessing, recipe.batch_size)

    # 2. The recipe sets optimizer, warm-up, cosine decay and loss; Keras's fit trains.
    steps_per_epoch = train.size // recipe.batch_size
    recipe.compile(model, steps=recipe.epochs * steps_per_epoch)
    model.fit(
        train_batches,
        epochs=recipe.epochs,
        steps_per_epoch=steps_per_epoch,
        validation_data=test_batches,
        shuffle=False,  # the pipeline shuffles
        verbose=1 if sys.stdout.isatty() else 2,  # a bar on a terminal, a line per epoch in a file
    )

    # 3. Save and load the model; the file includes class, preprocessing and labels.
    model.save(workdir / "model.keras")
    model = keras.models.load_model(workdir / "model.keras")
    accuracy = model.evaluate(test_batches, verbose=0, return_dict=True)["accuracy"]

    # 4. Export the model, and run it in a process without Keras and this package.
    exported = keras_vit.export(model, workdir / "serving")
    digits = list(test.dataset.take(32).as_numpy_iterator())
    image = workdir / "digit.png"
    Image.fromarray(digits[0]["image"][..., 0]).save(image)
    served_label, served_score = ask(exported, image)
    [[(label, score)]] = keras_vit.predict(model, image, top=1)
    agrees = served_label == label and abs(served_score - score) < 1e-5

    # 5. Draw predictions for the first held-out digits.
    answers = keras_vit.predict(model, [digit["image"] for digit in digits], top=1)
    draw_sheet(digits, [answer[0][0] for answer in answers]).save(workdir / "predictions.png")

    print_table(
        {
            "images": f"{train.size} to learn from, {test.size} held out",
            "model": f"{CONFIG.name}, {model.count_params():,} weights, {recipe.epochs} epochs",
            "saved": workdir / "model.keras",
            "exported": exported,
            "sheet": workdir / "predictions.png",
            "digit.png": f"model {label} ({score:.4f}), export {served_label} ({served_score:.4f})",
        }
    )
    print(f"accuracy: {100 * accuracy:.1f} %")
    if not agrees:
        sys.exit("the exported model must predict as the model does")
    if accuracy < 0.97 and not args.tiny:
        sys.exit("at least 97 % of the held-out digits must be classified correctly")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", metavar="DIR", help="folder for all files (default: a new temporary folder)")
    parser.add_argument("--epochs", metavar="N", type=int, help="passes over the images (default: the recipe's)")
    parser.add_argument("--tiny", action="store_true", help="train two epochs and accept any accuracy")
    return parser.parse_args()


def ask(exported, image):
    """Return label and score of the exported model, in a process that imports only TensorFlow."""
    command = [sys.executable, "-c", CLIENT, str(exported), str(image)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    label, score = done.stdout.split()
    return label, float(score)


def draw_sheet(digits, answers, columns=8, scale=8):
    """Draw the digits with the predictions below them, wrong ones in red."""
    width, height = 8 * scale + 16, 8 * scale + 32
    sheet = Image.new("RGB", (columns * width, -(-len(digits) // columns) * height), "white")
    pen = ImageDraw.Draw(sheet)
    for index, (digit, answer) in enumerate(zip(digits, answers, strict=True)):
        left, top = index % columns * width + 8, index // columns * height + 8
        pixels = np.kron(255 - digit["image"][..., 0], np.ones((scale, scale), "uint8"))
        sheet.paste(Image.fromarray(pixels), (left, top))
        colour = "black" if answer == str(digit["label"]) else "red"
        pen.text((left + 4 * scale - 3, top + 8 * scale + 4), answer, fill=colour)
    return sheet


def print_table(rows):
    print()
    for name, value in rows.items():
        print(f"{name:<10} {value}")


if __name__ == "__main__":
    main()
