"""Measure how many images a ViT, a hybrid and a ResNet need: a small version of Figs. 3 and 4 of the paper.

    python examples/data_size_study.py [--output DIR] [--steps N] [--seeds N] [--tiny]
    python examples/data_size_study.py --data cifar10.npz --output data_size

A ViT, a ViT on the feature map of a small ResNet, and a BiT ResNet, each with 8.2 to 8.4 million multiply-accumulates
per colour image, are trained on 5 to 100 % of the images. A table, data_size.csv and data_size.png show their few-shot
accuracy. As for the subsets of JFT in section 4.3 of the paper, all sizes have the same hyper-parameters and
regularisation, and training stops early; here the number of steps is also the same. study.py describes how models are
trained and measured; +- is the standard deviation over the seeds. The same command resumes an interrupted study.
Requires keras_vit with TensorFlow, matplotlib and, without --data, scikit-learn.
"""

import study

import keras_vit
from keras_vit.analysis import plots

VIT = keras_vit.ViTConfig(
    name="ViT", image_size=study.IMAGE_SIZE, patch_size=4, hidden_dim=64, num_layers=3, num_heads=4, mlp_dim=128
)
MODELS = {
    "ViT": VIT,  # 8 x 8 patches of the image
    "hybrid": VIT.replace(  # 8 x 8 cells of the feature map
        name="hybrid",
        stem=keras_vit.ResNetConfig(stage_sizes=(1,), width_factor=0.5),
        patch_size=1,
        num_layers=2,
    ),
    "ResNet": keras_vit.BiTConfig(
        name="ResNet",
        image_size=study.IMAGE_SIZE,
        stage_sizes=(2, 2, 1),
        width_factor=0.5,
    ),
}
SHARES = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)  # 0 is the untrained model
TINY = (0.5,)


def main():
    args = study.parse_arguments(__doc__.splitlines()[0])
    images = study.open_images(args.data, study.TINY_IMAGES if args.tiny else None)
    trials = [
        study.Trial(name, f"{100 * share:.0f} %", config, share)
        for name, config in MODELS.items()
        for share in (TINY if args.tiny else SHARES)
    ]
    found = study.run(trials, images, args.output / "data_size.csv", args.steps, args.seeds)

    columns = {
        "images": lambda row: f"{row.images:,}",
        "parameters": lambda row: f"{row.parameters:,}",
        "MACs": lambda row: f"{row.macs:,}",
    }
    study.print_table(("model", "share"), columns, found)
    curves = {name: [] for name in MODELS}
    for trial, rows in found.items():
        if trial.share:  # the axis is logarithmic
            curves[trial.curve].append((rows[0].images, study.mean(rows, "few_shot")))
    figure = plots.scaling_curves(curves, xlabel="images to learn from", ylabel=f"{study.SHOTS}-shot accuracy (%)")
    figure.savefig(args.output / "data_size.png")
    print(f"\nsaved: data_size.csv, data_size.png in {args.output}")


if __name__ == "__main__":
    main()
