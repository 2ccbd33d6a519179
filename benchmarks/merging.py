"""Measure token merging: images per second, and the accuracy if real data are given."""

from benchmarks.contenders import keras_inference, quietly
from benchmarks.contest import Contender, contest
from benchmarks.report import Table, ratio

MODEL, SIZE, BATCH = "ViT-Ti_16", 384, 8
MERGED = (0, 8, 16, 24, 35)  # tokens per block; the first is the model without merging
NOTE = (
    "ViT-Ti/16 at 384 px, inference in float32 (`predict_on_batch`), batch 8. *Tokens* is the number of tokens after "
    "the last block. *Correct* counts correct top-1 predictions on 200 ImageNet images, one per class, with weights "
    "trained at 224 px; it is empty without `--real-data`."
)


def inference(merged):
    """Return the work of a contender."""
    import keras_vit

    return keras_inference(keras_vit.create_model(MODEL, image_size=SIZE, token_merging=merged), BATCH)


def run(options):
    sizes = [merged for merged in MERGED if not merged or merged in options.choose(MERGED)]
    contenders = [Contender(str(merged), "merging:inference", {"merged": merged}) for merged in sizes]
    results = contest(contenders, options.rounds)
    whole = results["0"]
    rows = [
        (
            merged,
            _tokens_left(merged),
            f"{BATCH / results[str(merged)].median:.1f}",
            ratio(results[str(merged)].times_faster_than(whole)),
            "" if options.real_data is None else _right(merged, options.real_data),
        )
        for merged in sizes
    ]
    columns = ("merged per block", "tokens", "images/s", "speedup", "correct of 200")
    yield Table("Token merging in ViT-Ti/16 at 384 px", NOTE, columns, rows)


def _tokens_left(merged):
    from keras_vit.compat.initial_values import build_deferred
    from keras_vit.zoo import create_model

    model = build_deferred(lambda: create_model(MODEL, image_size=SIZE, token_merging=merged))[0]
    output = model.get_layer(f"block_{model.config.num_layers - 1:02d}").output
    return (output[0] if merged else output).shape[1]


def _right(merged, real_data):
    import keras_vit

    weights = real_data / "weights" / "ViT-Ti_16-imagenet2012-224.npz"
    model = quietly(keras_vit.create_model, MODEL, weights=weights, image_size=SIZE, token_merging=merged)
    return keras_vit.evaluate(model, real_data / "imagenet200").correct[1]
