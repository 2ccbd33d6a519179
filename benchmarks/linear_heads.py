"""Linear probes of frozen features for `train_heads`: segments, depth and keypoints, and the scores of both."""

import numpy as np
import scipy.ndimage

import keras_vit
from benchmarks.drawn_scenes import CLASSES, SIZE
from keras_vit.evaluation import task_scores as scores
from keras_vit.tasks.drawing import resize_map

PATCH, STRIDE = 16, 4  # of the features, and of the heatmaps
RIDGE = 1.0
NEAR = 0.1  # share of the longer side of the box around the keypoints


def probe_segments(encoder, train, test):
    parts = ([(prepared(part.images), part.label_map)] for part in (train, test))
    probe = keras_vit.evaluation.dense_probe(encoder, *parts, classes=len(CLASSES))
    found = []
    for values in probe.model.predict(prepared(test.images), verbose=0):
        classes = values.argmax(-1)
        ids, labels = np.zeros((SIZE, SIZE), "int32"), [0]
        for label in range(1, len(CLASSES)):
            regions, count = scipy.ndimage.label(classes == label)
            ids[regions > 0] = regions[regions > 0] + len(labels) - 1
            labels += [label] * count
        found.append((ids, labels))
    return {"semantic": probe.mean_iou, "panoptic": quality(test, found)}


def probe_depth(encoder, train, test):
    means = in_patches(np.log(train.depth)[..., None]).mean((3, 4))
    found = [np.exp(resize_map(one, (SIZE, SIZE))[..., 0]) for one in regress(encoder, train, test, means)]
    return {"depth": delta1(test, found)}


def probe_keypoints(encoder, train, test):
    rows = np.arange(SIZE // STRIDE)
    x, y = np.moveaxis(train.keypoints[..., :2] * ((len(rows) - 1) / (SIZE - 1)), -1, 0)
    away = (rows[:, None, None] - y[:, None, None]) ** 2 + (rows[:, None] - x[:, None, None]) ** 2
    targets = in_patches(np.exp(-away / 8), PATCH // STRIDE)  # a standard deviation of 2 pixels
    shape = (len(test.images), *targets.shape[1:])
    found = regress(encoder, train, test, targets.reshape(*targets.shape[:3], -1)).reshape(shape)
    maps = found.swapaxes(2, 3).reshape(len(found), len(rows), len(rows), -1)
    peaks = [keras_vit.tasks.heatmap_peaks(one)[0] for one in maps]
    return {"keypoints": correct(test, np.array(peaks) * ((SIZE - 1) / (len(rows) - 1)))}


def regress(encoder, train, test, targets):
    """Return what a ridge regression of targets (scenes, rows, columns, values) on the tokens predicts for the test."""
    features = keras_vit.feature_extractor(encoder, "encoder_norm")
    x, new = (features.predict(prepared(part.images), verbose=0).astype("float64") for part in (train, test))
    mean, std, dim = x.mean((0, 1, 2)), x.std((0, 1, 2)), x.shape[-1]
    x, new = ((one - mean) / std for one in (x, new))
    rows, values = x.reshape(-1, dim), targets.reshape(-1, targets.shape[-1])
    kernel = np.linalg.solve(rows.T @ rows + RIDGE * np.eye(dim), rows.T @ (values - values.mean(0)))
    return new @ kernel + values.mean(0)


def mean_iou(test, found):
    counts = [scores.pixel_counts(*pair, len(CLASSES)) for pair in zip(test.label_map, found, strict=True)]
    return scores.pixel_scores(sum(counts))[0]["mIoU"]


def quality(test, found):
    """Return the panoptic quality of pairs of a map of segments and their labels."""
    counts = []
    for ids, labels, (predicted, predicted_labels) in zip(test.segments, test.labels, found, strict=True):
        labels = labels[labels >= 0]
        crowd = np.zeros(len(labels), bool)
        answer = predicted, np.array(predicted_labels)
        counts.append(scores.segment_counts(ids, labels, crowd, *answer, len(CLASSES)))
    return scores.segment_scores(sum(counts), (0,))[0]["PQ"]


def delta1(test, found):
    pairs = zip(test.depth, found, strict=True)
    counts = [scores.depth_counts(truth.ravel(), values.ravel(), np.inf) for truth, values in pairs]
    return scores.depth_scores(sum(counts))[0]["delta1"]


def correct(test, found):
    points = test.keypoints[..., :2]
    boxes = np.concatenate([points.min(1), points.max(1)], -1)
    return scores.keypoint_scores(scores.keypoint_counts(test.keypoints, boxes, np.array(found), NEAR))[0]["pck"]


def in_patches(maps, size=PATCH):
    """Return maps (scenes, height, width, channels) as (scenes, rows, columns, size, size, channels)."""
    count, height, width, channels = maps.shape
    return maps.reshape(count, height // size, size, width // size, size, channels).swapaxes(2, 3)


def prepared(images):
    return images.astype("float32") / 127.5 - 1
