"""Measure large images: memory and time of plain, chunked and windowed attention, and the accuracy of other sizes."""

from benchmarks.contenders import keras_inference, keras_training, quietly
from benchmarks.contest import Contender, contest
from benchmarks.report import Table, ratio

RESOLUTIONS = (224, 512, 1024, 2048)
PLAIN, CHUNKED, WINDOWED, REMAT = "plain", "chunked", "windowed", "chunked, remat"
FORMS = {"inference": (PLAIN, CHUNKED, WINDOWED), "training": (PLAIN, CHUNKED, WINDOWED, REMAT)}
MEMORY = 18  # GiB; what needs more is left out, see `_fits`
NOTE = (
    "ViT-B/16 in float32, batch 1, {}. *Plain* computes the attention logits of all tokens at once; *chunked* computes "
    "them for 256 queries at a time, as every model here does above 1024 tokens; *windowed* has windows of 14 x 14 "
    "tokens and four global blocks, as ViTDet, and the same chunks in these. *Above the model* is the peak memory "
    "without libraries, weights and the built model. What needs more than "
    f"{MEMORY} GiB is left out. Contenders run alternately, except for training steps from 1024 px on. 2048 px is "
    "measured once."
)
NOTE_ACCURACY = (
    "ViT-Ti/16, trained at 224 px, on 200 ImageNet images, one per class. *Square* images are resized to the size; "
    "images in their *native* aspect ratio are resized to at most this many tokens, and *padded* ones have the size of "
    "the row as their longer side and are padded to a square with the mean."
)


def inference(form, image_size):
    """Return the work of a contender."""
    return keras_inference(_model(form, image_size), 1)


def training(form, image_size):
    """Return the work of a contender."""
    return keras_training(_model(form, image_size), 1)


def _model(form, image_size):
    import keras_vit
    from keras_vit.layers import attend
    from keras_vit.zoo import VARIANTS

    config = VARIANTS["ViT-B_16"].config(image_size=image_size).replace(remat="block" if form == REMAT else None)
    if form == WINDOWED:
        window = keras_vit.WindowConfig(size=14, global_blocks=(2, 5, 8, 11), relative_positions=False)
        config = config.replace(pooling="gap", window=window)
    else:
        attend._AT_ONCE = 2**30 if form == PLAIN else 0
    return keras_vit.VisionTransformer(config)


def run(options):
    for title, job, note in (
        ("Inference", "inference", "inference (`predict_on_batch`)"),
        ("Training step", "training", "Adam (`train_on_batch`)"),
    ):
        yield _table(title, job, NOTE.format(note), options)
    if options.real_data is not None:
        yield _accuracy(options)


def _table(title, job, note, options):
    rows = []
    for size in options.choose(RESOLUTIONS):
        forms = [form for form in FORMS[job] if _fits(size, job, form)]
        contenders = [Contender(form, f"large:{job}", {"form": form, "image_size": size}) for form in forms]
        is_alone = job == "training" and size >= 1024  # the memory of one process after another
        rounds, results = 1 if size == max(RESOLUTIONS) else options.rounds, {}
        for group in [[one] for one in contenders] if is_alone else [contenders]:
            results |= contest(group, rounds, warm_up=0)
        plain = results.get(PLAIN)
        for form, result in results.items():
            times = "" if plain in (None, result) else ratio(result.times_faster_than(plain))
            peaks = (f"{peak / 2**20:.0f}" for peak in (result.peak - result.prepared_peak, result.peak))
            tokens = (size // 16) ** 2 + (form != WINDOWED)
            rows.append((size, tokens, form, f"{result.median:.2f}", times, *peaks))
    columns = ("px", "tokens", "attention", "seconds", "faster than plain", "MiB above the model", "peak MiB")
    return Table(f"{title}, ViT-B/16", note, columns, rows)


def _fits(size, job, form):
    """Return whether memory suffices: for the attention weights, in training of all 12 blocks; else as measured."""
    tokens, is_training = (size // 16) ** 2 + 1, job == "training"
    needed = {PLAIN: (12 if is_training else 2) * tokens**2 * 12 * 4, CHUNKED: 1.4e6 * tokens * is_training}
    return needed.get(form, 0) <= MEMORY * 2**30


def _accuracy(options):
    import keras_vit

    weights = options.real_data / "weights" / "ViT-Ti_16-imagenet2012-224.npz"
    source = keras_vit.data.from_directory(options.real_data / "imagenet200")
    every = quietly(keras_vit.ViT_Ti16, weights=weights, image_size="any")
    rows = []
    for size in options.choose((160, 224, 288, 384)):
        tokens, square = (size // 16) ** 2, every.preprocessing.at(size)
        native = keras_vit.resize(every, "native", max_tokens=tokens)
        kinds = ((every, square), (native, native.preprocessing), (every, square.replace(pad=True)))
        found = [keras_vit.evaluate(model, source, preprocessing=made).correct[1] for model, made in kinds]
        rows.append((size, tokens, *found))
    columns = ("px", "tokens", "square", "native, at most these tokens", "padded to a square")
    return Table("Correct of 200 images", NOTE_ACCURACY, columns, rows)
