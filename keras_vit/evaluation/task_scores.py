"""Scores of label maps, segments, depth maps and keypoints: what is counted in each image, and scores of the sum.

Functions of sums return the scores by name, and the scores of each class as arrays, NaN where a class has none.
"""

import numpy as np

from keras_vit.data.answers import VOID

MIN_DEPTH = 1e-3  # metres; smaller ones are unknown, as in the code of Depth Anything
_DELTA = 1.25
_DEPTH_SCORES = ("abs_rel", "rmse", "delta1", "delta2", "delta3")


def pixel_counts(truth, predicted, classes):
    """Return the pixels of each true and predicted class: int64 (classes, classes + 1); the last column is no class.

    Args:
        truth: integers (height, width); pixels of 255 are not counted.
        predicted: integers (height, width); -1 is no class.
        classes: number of classes.
    """
    known = truth != VOID
    columns = np.where(predicted < 0, classes, predicted)[known]
    pairs = truth[known].astype(np.int64) * (classes + 1) + columns
    return np.bincount(pairs, minlength=classes * (classes + 1)).reshape(classes, classes + 1)


def pixel_scores(counts):
    """Return the scores of a sum of `pixel_counts`.

    The IoU of a class is TP / (TP + FP + FN). A class that is neither in the truth nor in the predictions has none
    (PASCAL VOC; Cityscapes, arXiv 1604.01685, section 4.1). The mean accuracy is over the classes in the truth.
    """
    correct, true, predicted = np.diag(counts), counts.sum(1), counts[:, :-1].sum(0)
    rows = {"IoU": _shares(correct, true + predicted - correct), "accuracy": _shares(correct, true)}
    accuracy = correct.sum() / true.sum()
    means = {"mIoU": np.nanmean(rows["IoU"]), "pixel_accuracy": accuracy, "mean_accuracy": np.nanmean(rows["accuracy"])}
    return means, rows


def segment_counts(truth, labels, crowd, predicted, predicted_labels, classes):
    """Return what panoptic quality needs (Kirillov et al. 2019, arXiv 1801.00868, section 4.1), as panopticapi does.

    A true and a predicted segment of one class match if their IoU is above 0.5; void pixels of the truth are not in the
    union. A predicted segment without a match is wrong unless more than half of it is void or crowd of its class.
    Panopticapi takes the last crowd of a class in an image; here all count.

    Args:
        truth: integers (height, width), the true segment of each pixel; -1 is void.
        labels: integers (segments,), the class of each.
        crowd: bool (segments,), which ones are regions of many objects.
        predicted: integers (height, width), the predicted segment of each pixel; -1 is none.
        predicted_labels: integers (predicted segments,); those of segments without pixels are not used.
        classes: number of classes.

    Returns:
        float64 (4, classes): the sum of the IoUs of matches, and the numbers of matches, of wrong predicted segments
        and of true segments without a match.
    """
    shape = len(labels) + 1, len(predicted_labels) + 1
    pairs = (truth + 1) * shape[1] + predicted + 1
    pixels = np.bincount(pairs.ravel(), minlength=shape[0] * shape[1]).reshape(shape)
    areas, void, shared = pixels[:, 1:].sum(0), pixels[0, 1:], pixels[1:, 1:]
    union = pixels[1:].sum(1)[:, None] + areas - shared - void
    is_same, is_crowd = labels[:, None] == predicted_labels, crowd[:, None]
    matches = is_same & ~is_crowd & (2 * shared > union)
    ignored = void + (shared * (is_same & is_crowd)).sum(0)
    wrong = (areas > 0) & ~matches.any(0) & (2 * ignored <= areas)
    ious = (shared * matches / np.maximum(union, 1)).sum(1)
    parts = (labels[matches.any(1)], predicted_labels[wrong], labels[~matches.any(1) & ~crowd])
    return np.stack([np.bincount(labels, ious, classes), *(np.bincount(part, minlength=classes) for part in parts)])


def segment_scores(counts, stuff):
    """Return the scores of a sum of `segment_counts`.

    PQ = SQ * RQ; SQ is the mean IoU of matches, RQ is TP / (TP + FP / 2 + FN / 2). The means are over the classes with
    matches or errors, and over those of things and of stuff.

    Args:
        counts: float64 (4, classes).
        stuff: the classes without instances.
    """
    ious, found, wrong, missed = counts
    total = found + wrong / 2 + missed / 2
    quality = np.where(total > 0, ious / np.maximum(found, 1), np.nan)  # 0 without a match
    rows = {"PQ": _shares(ious, total), "SQ": quality, "RQ": _shares(found, total)}
    is_stuff = np.isin(np.arange(len(total)), stuff)
    groups = {"": total > 0, "_things": (total > 0) & ~is_stuff, "_stuff": (total > 0) & is_stuff}
    groups = {suffix: chosen for suffix, chosen in groups.items() if chosen.any()}
    return {name + suffix: row[chosen].mean() for suffix, chosen in groups.items() for name, row in rows.items()}, rows


def aligned_depth(disparity, truth, known, max_depth):
    """Return the depth, in metres, of a disparity of unknown scale and shift, at most `max_depth`.

    Scale and shift are the least-squares fit to 1 / truth over the known pixels (MiDaS, arXiv 1907.01341, section 6).

    Args:
        disparity, truth: (height, width), the truth in metres.
        known: bool (height, width); at least one is known.
        max_depth: metres.
    """
    columns = np.stack([disparity[known], np.ones(known.sum())], -1)
    scale, shift = np.linalg.lstsq(columns, 1 / truth[known], rcond=None)[0]
    return 1 / np.maximum(scale * disparity + shift, 1 / max_depth)


def depth_counts(truth, predicted, max_depth):
    """Return 1, for one image, and its AbsRel, RMSE in metres, delta1, delta2 and delta3: float64 (6,).

    They are over the pixels of the image (Eigen et al. 2014, arXiv 1406.2283); delta2 is the share of pixels with
    max(p / t, t / p) < 1.25 ** 2.

    Args:
        truth, predicted: metres (pixels,); predictions are clipped to the range.
        max_depth: metres.
    """
    truth, predicted = truth.astype(np.float64), np.clip(predicted, MIN_DEPTH, max_depth)
    ratios, errors = np.maximum(truth / predicted, predicted / truth), np.abs(predicted - truth)
    shares = [(ratios < _DELTA**power).mean() for power in (1, 2, 3)]
    return np.array([1, (errors / truth).mean(), np.sqrt((errors**2).mean()), *shares])


def depth_scores(counts):
    """Return the means over images of a sum of `depth_counts`, as in the code of Depth Anything."""
    return dict(zip(_DEPTH_SCORES, counts[1:] / counts[0], strict=True)), {}


def keypoint_counts(truth, boxes, predicted, share=0.2):
    """Return the numbers of keypoints that are near their true place, and of labelled ones: int64 (2, keypoints).

    Args:
        truth: (objects, keypoints, 3): x, y and visibility; 0 is not labelled.
        boxes: (objects, 4): left, top, right and bottom edge.
        predicted: (objects, keypoints, 2): x and y.
        share: largest distance, as a share of the longer side of the box.
    """
    limits = share * (boxes[:, 2:] - boxes[:, :2]).max(1, initial=0)
    near = np.linalg.norm(predicted - truth[..., :2], axis=-1) <= limits[:, None]
    labelled = truth[..., 2] > 0
    return np.stack([(near & labelled).sum(0), labelled.sum(0)])


def keypoint_scores(counts):
    """Return the share of labelled keypoints that are near their true place (PCK), of a sum of `keypoint_counts`."""
    correct, labelled = counts
    return {"pck": correct.sum() / labelled.sum()}, {"pck": _shares(correct, labelled)}


def _shares(part, whole):
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
