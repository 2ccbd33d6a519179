"""Draw the figures of the guides on depth, boxes, poses and masks: `python docs/generate/task_figures.py [depth ...]`.

Published heads have licences and sizes of their own. The figures therefore show small models that this script trains on
drawings for some minutes on a CPU. The boxes are those of the drawings themselves. Requires the extra `tensorflow`.
"""

import math
import sys

import keras
import numpy as np
from keras import ops
from PIL import Image, ImageDraw
from repository import REPOSITORY

import keras_vit
from keras_vit import tasks

COUNT, BATCH = 3000, 20
EPOCHS = {"depth": 4, "poses": 8, "masks": 8}
HEIGHT, WIDTH, FINE = 96, 128, 3  # of the model's images; drawings are three times as large
SHAPES = ("disc", "square", "ring")
WALL = 5.0  # metres
LIMBS = (("shoulder", "elbow"), ("elbow", "wrist"), ("hip", "knee"), ("knee", "ankle"))
JOINTS = ("shoulder", "elbow", "wrist", "hip", "knee", "ankle")
KEYPOINTS = ("head", *(f"{side} {joint}" for side in ("right", "left") for joint in JOINTS))


def background(rng):
    """Return a wall of two colours with noise: a drawing of (HEIGHT, WIDTH) times FINE."""
    top, bottom = rng.integers(60, 200, (2, 3))
    share = np.linspace(0, 1, HEIGHT * FINE)[:, None, None]
    noise = rng.normal(0, 8, (HEIGHT, WIDTH, 1)).repeat(FINE, 0).repeat(FINE, 1)
    wall = (1 - share) * top + share * bottom + noise
    return Image.fromarray(np.clip(wall, 0, 255).astype("uint8"))


def scene(rng):
    """Return a drawing with shapes on a wall, the far ones first, and its map of classes and of metres.

    All shapes have one size in metres, so that near shapes are large. A shape is absent in a quarter of the drawings.
    """
    image = background(rng)
    classes = Image.new("L", image.size, len(SHAPES))
    metres = Image.new("F", image.size, WALL)
    places = rng.uniform((0.15, 0.2, 1.0), (0.85, 0.8, 3.5), (len(SHAPES), 3))
    for label in np.argsort(-places[:, 2]):
        if rng.random() < 0.25:
            continue
        x, y, depth = places[label]
        x, y, radius = x * image.width, y * image.height, 0.32 * image.height / depth
        colour = tuple(int(c) for c in rng.integers(0, 256, 3))
        for canvas, value in ((image, colour), (classes, int(label)), (metres, float(depth))):
            pen, edges = ImageDraw.Draw(canvas), (x - radius, y - radius, x + radius, y + radius)
            if SHAPES[label] == "disc":
                pen.ellipse(edges, fill=value)
            elif SHAPES[label] == "square":
                pen.rectangle(edges, fill=value)
            else:
                pen.ellipse(edges, outline=value, width=round(0.4 * radius))
    return np.asarray(image), np.asarray(classes), np.asarray(metres)


def person(rng, image, x, y, length):
    """Draw a person of a length around (x, y) and return the keypoints (KEYPOINTS, 2)."""
    pen, width = ImageDraw.Draw(image), max(3, round(0.06 * length))
    skin, shirt, trousers = (tuple(int(c) for c in colour) for colour in rng.integers(0, 256, (3, 3)))
    lean = rng.normal(0, 0.15)
    up, across = np.array([math.sin(lean), -math.cos(lean)]), np.array([math.cos(lean), math.sin(lean)])
    hips, neck = np.array([x, y]), np.array([x, y]) + 0.32 * length * up
    points = {"head": neck + 0.14 * length * up}
    for side, sign in (("right", -1), ("left", 1)):  # the person faces the viewer
        points[f"{side} shoulder"] = neck + 0.11 * length * sign * across
        points[f"{side} hip"] = hips + 0.07 * length * sign * across
        angle = rng.uniform(0.1, 2.7)
        for start, end in LIMBS:
            if start == "hip":
                angle = rng.uniform(-0.1, 0.8)
            direction = np.array([sign * math.sin(angle), math.cos(angle)])
            points[f"{side} {end}"] = (
                points[f"{side} {start}"] + (0.18 if start != "hip" else 0.22) * length * direction
            )
            angle += rng.uniform(0, 1.2) * (1 if start == "shoulder" else -1)
    corners = ("right shoulder", "left shoulder", "left hip", "right hip")
    pen.polygon([tuple(points[name]) for name in corners], fill=shirt)
    for side in ("right", "left"):
        for start, end in LIMBS:
            line = [tuple(points[f"{side} {name}"]) for name in (start, end)]
            pen.line(line, fill={"shoulder": shirt, "elbow": skin}.get(start, trousers), width=width)
    (hx, hy), radius = points["head"], 0.09 * length
    pen.ellipse((hx - radius, hy - radius, hx + radius, hy + radius), fill=skin)
    return np.array([points[name] for name in KEYPOINTS])


def around(points):
    """Return the box around keypoints, with a small margin."""
    margin = 0.08 * np.ptp(points, axis=0).max()
    return np.concatenate([points.min(0) - margin, points.max(0) + margin])


def encoder(**changes):
    """Return a small Vision Transformer."""
    sizes = {"patch_size": 8, "hidden_dim": 64, "num_layers": 4, "num_heads": 4, "mlp_dim": 128}
    fields = {"image_size": (HEIGHT, WIDTH), "include_top": False, **sizes, **changes}
    return keras_vit.VisionTransformer(keras_vit.ViTConfig(name="small", **fields))


def small(images):
    """Return drawings or maps in the size of the model's images."""
    return np.stack([image[FINE // 2 :: FINE, FINE // 2 :: FINE] for image in images])


def mask_loss(masks, logits):
    """Return the binary cross-entropy and the dice loss of the masks that are there."""
    masks, shares = ops.cast(masks, logits.dtype), ops.sigmoid(logits)
    entropy = ops.softplus(logits) - masks * logits
    overlap = (2 * ops.sum(masks * shares, (1, 2)) + 1) / (ops.sum(masks, (1, 2)) + ops.sum(shares, (1, 2)) + 1)
    is_present = ops.cast(ops.any(masks > 0, axis=(1, 2)), logits.dtype)
    return ops.mean(is_present * (5 * ops.mean(entropy, (1, 2)) + 1 - overlap), axis=-1)


def heatmap_loss(heatmaps, predicted):
    """Return the squared error, in which the surroundings of the keypoints count more."""
    heatmaps = ops.cast(heatmaps, predicted.dtype)
    return ops.mean((1 + 50 * heatmaps) * (heatmaps - predicted) ** 2, axis=(1, 2, 3))


def depth():
    model = keras_vit.DPT(encoder(), (0, 1, 2, 3), (24, 32, 48, 64), 32, max_depth=6.0)
    return model, lambda classes, metres: metres, "mean_absolute_error", {}


def masks():
    model = keras_vit.EoMT(encoder(), classes=3, num_queries=3, num_blocks=2, num_upscales=2)
    loss = {"class_logits": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "mask_logits": mask_loss}

    def targets(classes, metres):
        one_hot = np.stack([classes == label for label in range(3)], axis=-1)[1::2, 1::2]
        return {"class_logits": labels_of(classes), "mask_logits": one_hot}

    return model, targets, loss, {"threshold": 0.5}


def labels_of(classes):
    """Return the class of each query, which is its own index, or that of no object if its shape is absent."""
    return np.array([label if (classes == label).any() else len(SHAPES) for label in range(len(SHAPES))])


def train(model, images, targets, loss, epochs):
    """Train a model on prepared images."""
    optimizer = keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(0.0, epochs * COUNT // BATCH, warmup_target=2e-3, warmup_steps=100),
        weight_decay=0.01,
    )
    model.compile(optimizer, loss)
    model.fit(images, targets, BATCH, epochs, verbose=2)


def draw_scenes(name):
    """Train one of the models on scenes and return drawings beside its answers."""
    rng = np.random.default_rng(0)
    scenes = [scene(rng) for _ in range(COUNT)]
    model, targets, loss, options = {"depth": depth, "masks": masks}[name]()
    model.labels = None if name == "depth" else SHAPES
    images = small([image for image, _, _ in scenes]) / np.float32(127.5) - 1
    values = [targets(small([classes])[0], small([metres])[0]) for _, classes, metres in scenes]
    train(model, images, keras.tree.map_structure(lambda *one: np.stack(one), *values), loss, EPOCHS[name])
    shown = [scene(np.random.default_rng(seed))[0] for seed in (1_000_002, 1_000_004)]
    return [
        [image, answer.draw()] for image, answer in zip(shown, keras_vit.predict(model, shown, **options), strict=True)
    ]


def draw_boxes():
    """Return drawings with the boxes of their own shapes and scores written by hand: no model found them."""
    drawn = []
    for seed in (1_000_008, 1_000_017):
        image, classes, _ = scene(np.random.default_rng(seed))
        labels = [label for label in range(len(SHAPES)) if (classes == label).any()]
        places = [np.nonzero(classes == label) for label in labels]
        edges = [[x.min(), y.min(), x.max() + 1, y.max() + 1] for y, x in places]
        names = [SHAPES[label] for label in labels]
        drawn.append(tasks.Boxes(edges, [0.9, 0.8, 0.7][: len(labels)], labels, names).draw(image))
    return [drawn]


def draw_poses():
    """Train a ViTPose on drawings of persons and return drawings with its keypoints."""
    rng = np.random.default_rng(0)
    model = keras_vit.ViTPose(encoder(image_size=(128, 96), position_embedding="none", pooling="gap"), len(KEYPOINTS))
    model.preprocessing, model.labels = model.preprocessing.replace(sizing="box"), KEYPOINTS
    inputs, heatmaps = [], []
    rows, columns = np.indices(model.output_shape[1:3])
    for _ in range(COUNT):
        image, (points,) = persons(rng, 1)
        box = around(points) + rng.normal(0, 3, 4)
        prepared, (place,) = tasks.prepare(image, model.preprocessing, [box])
        x, y = (place.to_input(points) * (np.array([columns.max(), rows.max()]) / np.array([95, 127]))).T
        distance = (columns[..., None] - x) ** 2 + (rows[..., None] - y) ** 2
        inputs.append(prepared[0])
        heatmaps.append(np.exp(-distance / 8).astype("float16"))  # a standard deviation of 2 pixels
    train(model, np.stack(inputs), np.stack(heatmaps), heatmap_loss, EPOCHS["poses"])
    drawn = []
    for seed in (1_000_000, 1_000_003):
        image, points = persons(np.random.default_rng(seed), 2)
        answer = keras_vit.predict(model, image, boxes=[around(one) for one in points])[0]
        print(f"mean distance {np.linalg.norm(answer.xy - points, axis=-1).mean():.2f} pixels")
        drawn.append(answer.draw(image))
    return [drawn]


def persons(rng, count):
    """Return a drawing of persons side by side, and their keypoints."""
    image, points = background(rng), []
    for index in range(count):
        x = (index + 0.5 + rng.uniform(-0.05, 0.05)) / count * image.width
        y = rng.uniform(0.5, 0.6) * image.height
        points.append(person(rng, image, x, y, rng.uniform(0.7, 0.85) * image.height))
    return np.asarray(image), points


if __name__ == "__main__":
    for name in sys.argv[1:] or ("depth", "boxes", "poses", "masks"):
        keras.utils.set_random_seed(0)
        rows = {"boxes": draw_boxes, "poses": draw_poses}.get(name, lambda name=name: draw_scenes(name))()
        figure = np.concatenate([np.concatenate(row, axis=1) for row in rows])
        image = Image.fromarray(figure).quantize(dither=Image.Dither.NONE)
        image.save(REPOSITORY / "docs" / "images" / f"{name}.png", optimize=True)
