"""Compare heads that are trained with the encoder with linear probes of frozen features, on drawn scenes."""

import resource
import sys
import tempfile

import keras
import numpy as np
from PIL import Image

import keras_vit
from benchmarks import drawn_scenes
from benchmarks.contenders import quietly
from benchmarks.drawn_scenes import CLASSES, KEYPOINTS, MOST, SIZE
from benchmarks.linear_heads import (
    NEAR,
    PATCH,
    STRIDE,
    correct,
    delta1,
    mean_iou,
    prepared,
    probe_depth,
    probe_keypoints,
    probe_segments,
    quality,
)
from benchmarks.report import Table
from keras_vit.data.answers import boxes_of

SEEDS, TRAIN, TEST, BATCH = (0, 1, 2), 2000, 300, 16
EPOCHS = {"DPT": 2, "ViTPose": 3, "EoMT": 3, "EoMT, masked attention": 3}
OVERFITTED, STEPS = 8, {"YOLOS": 600, "EoMT": 300}
RATE, WARMUP, DECAY, CLIP = 5e-4, 0.1, 0.05, 1.0
DEPTH_RATE = 2e-4  # with larger ones, the sigmoid of the head saturates
QUERIES, BLOCKS, POINTS, FARTHEST, THRESHOLD = 16, 3, 1024, 10.0, 0.5
METRICS = {"semantic": "mIoU", "panoptic": "PQ", "depth": "delta1", "keypoints": "PCK"}
NOTE = (
    f"ViT-Ti/16 of AugReg at {SIZE} px, in percent. {TRAIN} scenes of `benchmarks/drawn_scenes.py` are for training, "
    f"{TEST} others for the test; a seed draws the scenes and the initial weights of the heads. The probes are ridge "
    "regressions from the patch tokens after the last norm. Semantic: `dense_probe`. Panoptic: the connected regions "
    "of each class in its label map. Depth: the mean logarithm of the depth of a patch, resized bilinearly. "
    f"Keypoints: the {PATCH // STRIDE} x {PATCH // STRIDE} pixels of the heatmaps (Gaussians of 2 pixels) in a patch, "
    f"decoded as those of ViTPose; PCK is the share within {NEAR} of the longer side of the box around the keypoints. "
    f"The models are fine-tuned as a whole by `fit`, AdamW, batches of {BATCH}, in mixed bfloat16: EoMT (semantic and "
    f"panoptic, threshold {THRESHOLD}), DPT, ViTPose. CPU minutes are user and system time of training, divided by two "
    "cores, with compilation."
)
OVERFITTED_NOTE = f"AP50 in percent on the {OVERFITTED} scenes that a model is trained on, as COCO defines it."


def run(options):
    if options.real_data is None:
        return
    weights = options.real_data / "weights" / "ViT-Ti_16-imagenet2012-224.npz"
    yield Table("Eight scenes", OVERFITTED_NOTE, ("model", "AP50", "steps", "CPU minutes"), quietly(overfit, weights))
    found, seeds = {}, options.choose(SEEDS)
    for seed in seeds:
        for name, *values in quietly(lambda seed=seed: [*measure(weights, seed)]):
            found.setdefault(name, []).append(values)
    rows = []
    for name, values in found.items():
        probes, trained, minutes = (np.array(column) for column in zip(*values, strict=True))
        cells = [f"{100 * a:.1f} -> {100 * b:.1f}" for a, b in zip(probes, trained, strict=True)]
        margin, spread = 100 * (trained - probes).min(), 100 * max(np.ptp(trained), np.ptp(probes))
        rows.append((name, *cells, f"{margin:.1f}", f"{spread:.1f}", f"{minutes.min():.1f} to {minutes.max():.1f}"))
    columns = ("task", *(f"seed {seed}" for seed in seeds), "least margin", "largest spread", "CPU minutes")
    yield Table("Trained heads and linear probes", f"{NOTE} A cell is probe -> trained.", columns, rows)


def measure(weights, seed):
    """Yield (task, score of the probe, score of the trained model, CPU minutes) for each task."""
    for names, figure, probe, build, evaluate in TASKS:
        train, test = (drawn_scenes.scenes(n, (seed, n), figure) for n in (TRAIN, TEST))
        probes = probe(vit(weights), train, test)
        for name in names:
            keras.utils.set_random_seed(seed)
            start = cpu_minutes()
            model = build(vit(weights, dtype="mixed_bfloat16"), train, name)
            minutes = cpu_minutes() - start
            for task, score in evaluate(model, test).items():
                row = (f"{task} ({METRICS[task]}), {name}", probes[task], score, minutes)
                print(f"seed {seed}: {row}", flush=True, file=sys.stderr)
                yield row


def vit(weights, **arguments):
    return keras_vit.ViT_Ti16(weights=weights, image_size=SIZE, **arguments)


def bare(encoder, **changes):
    """Return an encoder without position embeddings, with the weights of another, and the embeddings of that one."""
    config = encoder.config.replace(position_embedding="none", include_top=False, **changes)
    made = keras_vit.VisionTransformer(config)
    for layer in made.layers:
        if layer.weights:
            layer.set_weights(encoder.get_layer(layer.name).get_weights())
    return made, encoder.get_layer("position_embs").get_weights()[0]


def cpu_minutes():
    """Return the CPU time of this process in minutes, as of two busy cores."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) / 2 / 60


def fit(model, loss, images, targets, steps, rate=RATE):
    """Train a model for a number of steps with AdamW and a cosine schedule."""
    warmup = int(WARMUP * steps)
    schedule = keras.optimizers.schedules.CosineDecay(0.0, steps - warmup, warmup_target=rate, warmup_steps=warmup)
    model.compile(keras.optimizers.AdamW(schedule, weight_decay=DECAY, clipnorm=CLIP), loss)
    batch = min(BATCH, len(images))
    model.fit(prepared(images), targets, batch, epochs=steps * batch // len(images), verbose=0)


def train_eomt(encoder, train, name):
    model = keras_vit.EoMT(encoder, len(CLASSES), num_queries=QUERIES, num_blocks=BLOCKS)
    steps = EPOCHS[name] * TRAIN // BATCH
    trained = keras_vit.EoMTTraining(model, steps if "masked" in name else None, POINTS)
    targets = {"labels": train.labels, "masks": train.masks.astype("uint8")}
    fit(trained, keras_vit.tasks.MaskLoss(), train.images, targets, steps)
    return model


def train_dpt(encoder, train, name):
    # the norm would enlarge the tokens, and so saturate the sigmoid of the head
    model = keras_vit.DPT(encoder, (2, 5, 8, 11), (48, 96, 192, 192), 64, max_depth=FARTHEST, normalised=False)
    steps = EPOCHS[name] * TRAIN // BATCH
    fit(model, keras_vit.tasks.SiLogLoss(), train.images, train.depth, steps, DEPTH_RATE)
    return model


def train_vitpose(encoder, train, name):
    encoder, table = bare(encoder, pooling="gap")
    model = keras_vit.ViTPose(encoder, len(KEYPOINTS), "classic")
    table[:, 0] = 0  # the first row is added to every patch
    model.get_layer("pose_positions").set_weights([table])
    model.preprocessing = model.preprocessing.replace(sizing=None)  # the input is the whole scene
    steps = EPOCHS[name] * TRAIN // BATCH
    fit(model, keras_vit.tasks.HeatmapLoss(SIZE), train.images, train.keypoints, steps)
    return model


def evaluate_eomt(model, test):
    options = {"segments": "panoptic", "stuff": (0,), "threshold": THRESHOLD}
    semantic = keras_vit.predict(model, [*test.images], segments="semantic")
    found = keras_vit.predict(model, [*test.images], **options)
    segments = [(one.ids, one.labels) for one in found]
    return {"semantic": mean_iou(test, [one.labels for one in semantic]), "panoptic": quality(test, segments)}


def evaluate_depth(model, test):
    return {"depth": delta1(test, [one.values for one in keras_vit.predict(model, [*test.images])])}


def evaluate_keypoints(model, test):
    return {"keypoints": correct(test, [one.xy[0] for one in keras_vit.predict(model, [*test.images])])}


def overfit(weights):
    """Return the rows of the models that are trained on eight scenes."""
    scenes, rows = drawn_scenes.scenes(OVERFITTED, 0), []
    answers = []
    for labels, masks in zip(scenes.labels, scenes.masks, strict=True):
        labels, masks = labels[labels > 0] - 1, masks[labels > 0]  # without the wall
        answers.append(keras_vit.data.Answer(labels=labels, masks=masks, boxes=boxes_of(masks)))
    labels = np.stack([np.pad(one.labels, (0, MOST - len(one.labels)), constant_values=-1) for one in answers])
    for name, kind, build in (("YOLOS", "boxes", build_yolos), ("EoMT", "instances", build_instances)):
        keras.utils.set_random_seed(0)
        model, trained, loss, value = build(vit(weights))
        values = [value(one) for one in answers]
        values = np.stack([np.pad(one, ((0, MOST - len(one)), *[(0, 0)] * (one.ndim - 1))) for one in values])
        start = cpu_minutes()
        fit(trained, loss, scenes.images, {"labels": labels, kind.replace("instances", "masks"): values}, STEPS[name])
        minutes = cpu_minutes() - start
        score = evaluate_objects(model, kind, scenes.images, answers)
        rows.append((f"{name} ({kind})", f"{100 * score:.1f}", STEPS[name], f"{minutes:.1f}"))
        print(rows[-1], flush=True, file=sys.stderr)
    return rows


def build_yolos(encoder):
    """Return a YOLOS, the model that `fit` trains, its loss, and a function of an answer to its targets."""
    encoder, table = bare(encoder)
    model = keras_vit.YOLOS(encoder, len(CLASSES) - 1, SIZE // PATCH, QUERIES)
    positions = model.get_layer("detection_positions")
    (values,) = positions.get_weights()
    values[:, : table.shape[1]] = table
    positions.set_weights([values])

    def centres_and_sides(answer):
        low, high = answer.boxes[:, :2] / SIZE, answer.boxes[:, 2:] / SIZE
        return np.concatenate([(low + high) / 2, high - low], -1)

    return model, model, keras_vit.tasks.DetectionLoss(), centres_and_sides


def build_instances(encoder):
    """Return the same for an EoMT."""
    model = keras_vit.EoMT(encoder, len(CLASSES) - 1, num_queries=QUERIES, num_blocks=BLOCKS)
    trained = keras_vit.EoMTTraining(model, num_points=POINTS)
    return model, trained, keras_vit.tasks.MaskLoss(), lambda answer: answer.masks.astype("uint8")


def evaluate_objects(model, kind, images, answers):
    """Return AP50 of the objects of scenes, which are written to files."""
    with tempfile.TemporaryDirectory() as folder:
        files = tuple(f"{folder}/{number}.png" for number in range(len(images)))
        for file, image in zip(files, images, strict=True):
            Image.fromarray(image).save(file)
        names, ids, numbers = CLASSES[1:], tuple(range(1, len(CLASSES))), tuple(range(len(images)))
        read = lambda answer, size: answer  # noqa: E731
        source = keras_vit.data.TaskSource(kind, files, names, ids, (), numbers, (), tuple(answers), read)
        return keras_vit.evaluate(model, source).values["AP50"]


# models, whether scenes have a figure, the probe, and how the models are trained and measured
TASKS = (
    (("DPT",), False, probe_depth, train_dpt, evaluate_depth),
    (("ViTPose",), True, probe_keypoints, train_vitpose, evaluate_keypoints),
    (("EoMT", "EoMT, masked attention"), False, probe_segments, train_eomt, evaluate_eomt),
)
