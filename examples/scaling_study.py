"""Compare ways to scale a Vision Transformer: a small version of Fig. 8 of the paper, on real images.

    python examples/scaling_study.py [--output DIR] [--steps N] [--seeds N] [--tiny]
    python examples/scaling_study.py --data cifar10.npz --output scaling

Depth, width (with the heads), MLP width and patch size of a base model are changed one at a time, and all at once. A
table, scaling.csv and scaling.png show few-shot accuracy against multiply-accumulates. The paper's base has 8 blocks of
width 1024, MLPs of 2048 and 7 x 7 patches; this base has 4 blocks of width 64, MLPs of 128 and 4 x 4 patches. study.py
describes how models are trained and measured; +- is the standard deviation over the seeds. The same command resumes an
interrupted study. Requires keras_vit with TensorFlow, matplotlib and, without --data, scikit-learn.
"""

import study

import keras_vit
from keras_vit.analysis import plots

BASE = keras_vit.ViTConfig(
    name="base", image_size=study.IMAGE_SIZE, patch_size=8, hidden_dim=64, num_layers=4, num_heads=4, mlp_dim=128
)

# change -> models that differ from the base only in it; every head has width 16
CHANGES = {
    "depth": [{"num_layers": 1}, {"num_layers": 2}, {"num_layers": 8}, {"num_layers": 16}],
    "width": [{"hidden_dim": 32, "num_heads": 2}, {"hidden_dim": 128, "num_heads": 8}],
    "MLP width": [{"mlp_dim": 64}, {"mlp_dim": 256}, {"mlp_dim": 512}],
    "patch size": [{"patch_size": 16}, {"patch_size": 4}],
    "all": [
        {"num_layers": 2, "hidden_dim": 32, "num_heads": 2, "mlp_dim": 64, "patch_size": 16},
        {"num_layers": 5, "hidden_dim": 80, "num_heads": 5, "mlp_dim": 160, "patch_size": 4},
    ],
}
TINY = {"depth": [{"num_layers": 1}]}


def main():
    args = study.parse_arguments(__doc__.splitlines()[0])
    images = study.open_images(args.data, study.TINY_IMAGES if args.tiny else None)
    base = study.Trial("base", _shape(BASE), BASE)
    changes = TINY if args.tiny else CHANGES
    curves = {change: [_trial(change, values) for values in rows] for change, rows in changes.items()}
    trials = [study.Trial("untrained", base.point, BASE, share=0), base, *sum(curves.values(), [])]
    found = study.run(trials, images, args.output / "scaling.csv", args.steps, args.seeds)

    base_macs = found[base][0].macs
    columns = {
        "parameters": lambda row: f"{row.parameters:,}",
        "MACs": lambda row: f"{row.macs:,}",
        "relative": lambda row: f"{row.macs / base_macs:.2f}",
    }
    study.print_table(("change", "blocks x width, MLP, patch"), columns, found)
    points = {trial: (rows[0].macs, study.mean(rows, "few_shot")) for trial, rows in found.items()}
    figure = plots.scaling_curves(
        {change: [points[base], *(points[trial] for trial in models)] for change, models in curves.items()},
        ylabel=f"{study.SHOTS}-shot accuracy (%)",
        baseline=points[base],
    )
    figure.savefig(args.output / "scaling.png")
    print(f"\nsaved: scaling.csv, scaling.png in {args.output}")


def _trial(change, values):
    config = BASE.replace(**values)
    return study.Trial(change, _shape(config), config)


def _shape(config):
    return f"{config.num_layers} x {config.hidden_dim}, {config.mlp_dim}, {config.patch_size[0]}"


if __name__ == "__main__":
    main()
