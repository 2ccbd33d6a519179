"""Compare the probes of frozen features on CIFAR-10: nearest neighbours, few images per class, a linear classifier."""

from benchmarks.contenders import quietly
from benchmarks.report import Table

NEIGHBOURS, SHOTS = (1, 5, 10, 20), (1, 5, 10, 25)
NOTE = (
    "Top-1 accuracy in percent on 1,000 test images, at 224 px, of the input of the head of ViT-Ti/16. `knn` uses T = "
    "0.07 and 5,000 training images; `few_shot` is the mean of three draws; `linear_probe` is a ridge regression "
    "on all training images. Nothing is trained by gradients."
)


def run(options):
    if options.real_data is None:
        return
    import keras_vit
    from keras_vit.evaluation import few_shot, knn, linear_probe

    weights = options.real_data / "weights" / "ViT-Ti_16-imagenet2012-224.npz"
    model = quietly(keras_vit.ViT_Ti16, weights=weights)
    parts = (keras_vit.data.from_npz(options.real_data / "cifar10_small.npz", part) for part in ("train", "test"))
    train, test = parts
    rows = [(f"knn, k={k}", top1) for k, top1 in knn(model, train, test, NEIGHBOURS).top1.items()]
    rows += [(f"few_shot, {n} per class", mean) for n, mean in few_shot(model, train, test, SHOTS).mean.items()]
    probe = linear_probe(model, train).as_model()
    rows.append(("linear_probe, 500 per class", keras_vit.evaluate(probe, test).top[1]))
    yield Table("Probes of ViT-Ti/16", NOTE, ("", "accuracy %"), [(name, f"{100 * x:.1f}") for name, x in rows])
