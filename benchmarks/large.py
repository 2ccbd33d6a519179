"""Measure large images: memory and time of plain, chunked and windowed attention, and the accuracy of other sizes."""

import contextlib

from benchmarks.contenders import keras_inference, keras_training, quietly
from benchmarks.contest import Contender, contest
from benchmarks.report import Table, ratio

RESOLUTIONS = (224, 512, 1024, 2048)
PLAIN, WINDOWED, REMAT = "plain", "windowed", "chunked, remat"
FORMS = {"inference": (PLAIN, "chunked", WINDOWED), "training": (PLAIN, "chunked", WINDOWED, REMAT)}
MEMORY = 18  # GiB; plain attention is measured where its attention weights fit, see `_fits`
NOTE = (
    "ViT-B/16 in float32, batch 1, {}. *Plain* computes the attention logits of all tokens at once; *chunked* computes "
    "them for 256 queries at a time, as every model here does above 1024 tokens; *windowed* has windows of 14 x 14 "
    "tokens and four global blocks, as ViTDet, and the same chunks in these. *Above the model* is the peak memory "
    "without libraries, weights and the built model. Plain attention is left out where its weights do not fit into "
    f"{MEMORY} GiB. Contenders run alternately, except for training steps from 1024 px on. 2048 px is measured once. "
    "Empty cells: the process ran out of memory."
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

    config = VARIANTS["ViT-B_16"].config(image_size=image_size).replace(remat=form == REMAT)
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
        forms = [form for form in FORMS[job] if form != PLAIN or _fits(size, job)]
        contenders = [Contender(form, f"large:{job}", {"form": form, "image_size": size}) for form in forms]
        is_alone = job == "training" and size >= 1024  # the memory of one process after another
        rounds, results = 1 if size == max(RESOLUTIONS) else options.rounds, {}
        for group in [[one] for one in contenders] if is_alone else [contenders]:
            with contextlib.suppress(RuntimeError):  # its process was killed
                results |= contest(group, rounds, warm_up=0)
        for form in forms:
            cells = _cells(results[form], results.get(PLAIN)) if form in results else [""] * 4
            rows.append((size, (size // 16) ** 2 + (form != WINDOWED), form, *cells))
    columns = ("px", "tokens", "attention", "seconds", "faster than plain", "MiB above the model", "peak MiB")
    return Table(f"{title}, ViT-B/16", note, columns, rows)


def _cells(result, plain):
    times = "" if plain in (None, result) else ratio(result.times_faster_than(plain))
    peaks = (f"{peak / 2**20:.0f}" for peak in (result.peak - result.prepared_peak, result.peak))
    return f"{result.median:.2f}", times, *peaks


def _fits(size, job):
    """Return whether logits and weights fit, in training those of all 12 blocks."""
    tokens = (size // 16) ** 2 + 1
    return (12 if job == "training" else 2) * tokens**2 * 12 * 4 <= MEMORY * 2**30


def _accuracy(options):
    import keras_vit

    weights = options.real_data / "weights" / "ViT-Ti_16-imagenet2012-224.npz"
    source = keras_vit.data.from_directory(options.real_data / "imagenet200")
    every = quietly(keras_vit.ViT_Ti16, weights=weights, image_size=None)
    rows = []
    for size in options.choose((160, 224, 288, 384)):
        tokens, square = (size // 16) ** 2, every.preprocessing.at(size)
        native = keras_vit.resize(every, "native", max_tokens=tokens)
        kinds = ((every, square), (native, native.preprocessing), (every, square.replace(pad=True)))
        found = [keras_vit.evaluate(model, source, preprocessing=made).correct[1] for model, made in kinds]
        rows.append((size, tokens, *found))
    columns = ("px", "tokens", "square", "native, at most these tokens", "padded to a square")
    return Table("Correct of 200 images", NOTE_ACCURACY, columns, rows)
