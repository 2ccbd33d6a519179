"""Golden cases of `keras_vit.tasks` without a model: `machine` of each `case.json` has the definitions."""

import re

import numpy as np
from golden_arrays import stored_in

from keras_vit.config import Preprocessing
from keras_vit.tasks import (
    Masks,
    depth_map,
    detected_boxes,
    example_boxes,
    heatmap_peaks,
    instances,
    keypoints,
    label_map,
    mask_stability,
    panoptic,
    placements,
    prepare,
    semantic_scores,
)
from keras_vit.tasks.drawing import resize_map, sigmoid, softmax
from keras_vit.tasks.inputs import map_to_image

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
SCORE_ATOL = 1e-6  # of the scores in case.json, which have six digits


def compare_arrays(folder, case):
    """Compare every array that is no input with what the rule of its key returns."""
    arrays, limits = stored_in(folder / "io.npz"), dict(case["tolerance"]["per_key_atol"])
    for name in case:
        if match := re.fullmatch(r"(panoptic|instance)_segments_(\d+)", name):
            assert [row["id"] for row in case[name]] == list(range(len(case[name])))
            for part, key in (("labels", "label_id"), ("scores", "score")):
                arrays[f"{match[1]}_{part}_{match[2]}"] = np.array([row[key] for row in case[name]])
            limits[f"{match[1]}_scores_{match[2]}"] = SCORE_ATOL
    limits["other_refined_xy_sigma2"] = limits.get("refined_xy")
    for key, expected in arrays.items():
        rule, *numbers = _rule_of(case["family"], key)
        if rule is not None:
            found = np.asarray(rule(arrays, case, *numbers))
            assert found.shape == expected.shape, (key, found.shape, expected.shape)
            wrong = np.abs(found.astype("float64") - expected) > limits.get(key, 0)
            of_ties = case.get(re.sub(r"_(\d+)$", r"_pixels_within_1e-5_\1", key), 0)
            assert wrong.sum() <= of_ties, (key, int(wrong.sum()), np.abs(found.astype("float64") - expected).max())


def _rule_of(family, key):
    """Return the rule of a key, None for an input, and the numbers in the key."""
    for pattern, rule in RULES[family].items():
        if match := re.fullmatch(pattern, key):
            return rule, *map(int, match.groups())
    raise KeyError(f"{key} of a case of {family} has no rule")


def _how(case, sizing, size, **more):
    return Preprocessing(sizing=sizing, size=size, mean=MEAN, std=STD, **more)


def _depth_sizes(rule):
    def sizes(arrays, case):
        how = _how(case, rule, tuple(case["target_size"]), multiple=case["multiple"])
        return [how.resized(tuple(size)) for size in arrays["input_sizes"].tolist()]

    return sizes


def _depth_pixels(arrays, case):
    target, step = tuple(case["image_target"]), case["multiple"]
    return prepare(arrays["image"], _how(case, "nearest", target, multiple=step, interpolation="bicubic"))[0][0]


def _depth_in_pixels(arrays, case, n):
    return depth_map(arrays["depth"][n], tuple(case["depth_target_sizes"][n]), "metres").values


def _detection_sizes(arrays, case, shortest, longest):
    how = _how(case, "shortest", shortest, longest=longest, multiple=16)
    return [how.resized(tuple(size)) for size in arrays["input_sizes"].tolist()]


def _detected(arrays, case, n):
    (place,) = placements(_how(case, "stretch", 32), tuple(case["target_sizes"][n]))
    scores = softmax(arrays["logits"][n])[:, :-1]
    return detected_boxes(scores, arrays["pred_boxes"][n], place, case["threshold"])


def _segmented(arrays, case, n):
    size = tuple(case["target_sizes"][n])
    (place,) = placements(_how(case, "longest", case["network_size"]), size)
    return arrays["mask_logits"][n], arrays["class_logits"][n], place, size


def _panoptic(arrays, case, n):
    limits = case["threshold"], case["overlap_mask_area_threshold"]
    return panoptic(*_segmented(arrays, case, n), case["stuff_classes"], *limits)


def _instances(arrays, case, n):
    return instances(*_segmented(arrays, case, n), case["instance_threshold"])


def _semantic_scores(arrays, case, n):
    size = tuple(case["target_sizes"][n])
    places = placements(_how(case, "windows", case["semantic_size"]), size)
    rows = [row for row, (image, *_) in enumerate(case["patch_offsets"]) if image == n]
    starts = [case["patch_offsets"][row][1] for row in rows]
    assert [-sum(place.offset) for place in places] == starts
    return semantic_scores(arrays["window_mask_logits"][rows], arrays["window_class_logits"][rows], places), size


def _square(arrays, case, n):
    how = Preprocessing(sizing="square", size=case["size"], mean=CLIP_MEAN, std=CLIP_STD)
    return prepare(arrays[f"image_{n}"], how)


def _sam(arrays, case, n):
    """Return the input of SAM for an image, and where the image is in it."""
    how = Preprocessing(pad=True, size=case["longest_edge"], mean=MEAN, std=STD, interpolation="bilinear_antialias")
    inputs, (place,) = prepare(arrays[f"image_{n}"], how)
    return inputs[0], place


def _sam_masks(arrays, case, n):
    _, place = _sam(arrays, case, n)
    maps = arrays[f"low_res_masks_{n}"]
    found = [map_to_image(one, place, case["original_sizes"][n]) for one in maps.reshape(-1, *maps.shape[-2:])]
    return np.reshape(found, (*maps.shape[:-2], *case["original_sizes"][n]))


def _boxes_of(masks):
    return Masks(masks, np.zeros(len(masks))).boxes


def _prompt_pixels(name):
    return lambda arrays, case, n: _sam(arrays, case, n)[1].to_input(arrays[f"{name}_{n}"])


def _queries(arrays, case, n):
    _, (place,) = _square(arrays, case, n)
    return detected_boxes(sigmoid(arrays["logits"][n]), arrays["pred_boxes"][n], place, case["threshold"])


def _examples(arrays, case, n):  # one query per image
    _, (place,) = _square(arrays, case, n)
    limits = case["guided"]["threshold"], case["guided"]["nms"]
    return example_boxes(sigmoid(arrays["logits"][n, :, :1]), arrays["pred_boxes"][n], place, *limits)


def _persons(arrays, case):
    x, y, width, height = arrays["boxes"].T
    how = _how(case, "box", tuple(case["network_size"]))
    return prepare(arrays["image"], how, np.stack([x, y, x + width, y + height], -1))


def _regions(arrays, case):
    """Return the centres and the sizes of the regions around persons, in pixels of the image."""
    _, places = _persons(arrays, case)
    last = np.array(case["network_size"][::-1]) - 1
    return [place.to_image(last / 2) for place in places], [last / np.array(place.scale) / 200 for place in places]


def _refined(blur):
    return lambda arrays, case: [heatmap_peaks(one, blur)[0] for one in arrays["heatmaps"]]


def _keypoints(arrays, case):
    return keypoints(arrays["heatmaps"], _persons(arrays, case)[1], "transformers")


def _part(function, name):
    return lambda *given: getattr(function(*given), name)


# family of a case -> {key: function of the arrays, the case and the numbers in the key; None is an input,
# or what no function returns}
RULES = {
    "depth_anything": {
        "input_sizes|depth|image": None,
        "output_sizes_keep_true": _depth_sizes("nearest"),
        "output_sizes_keep_false": _depth_sizes("stretch"),
        "output_sizes_lower_bound": _depth_sizes("lower_bound"),
        r"depth_resized_(\d+)": _depth_in_pixels,
        "pixel_values": _depth_pixels,
    },
    "yolos": {
        "logits|pred_boxes|input_sizes": None,
        r"network_sizes_(\d+)_(\d+)": _detection_sizes,
        **{rf"{part}_(\d+)": _part(_detected, part) for part in ("scores", "labels", "boxes")},
    },
    "eomt": {
        "mask_logits|class_logits|window_mask_logits|window_class_logits|network_shapes": None,
        r"panoptic_(\d+)": _part(_panoptic, "ids"),
        r"instance_(\d+)": _part(_instances, "ids"),
        **{rf"panoptic_{part}_(\d+)": _part(_panoptic, part) for part in ("labels", "scores")},
        **{rf"instance_{part}_(\d+)": _part(_instances, part) for part in ("labels", "scores")},
        r"semantic_scores_(\d+)": lambda *given: resize_map(*_semantic_scores(*given)),
        r"semantic_(\d+)": lambda *given: label_map(*_semantic_scores(*given)).labels,
    },
    "sam": {
        r"(?:image|points|boxes|low_res_masks)_\d+": None,
        "reshaped_sizes": lambda arrays, case: [
            _sam(arrays, case, n)[1].resized for n in range(len(case["original_sizes"]))
        ],
        "pixel_values": lambda arrays, case: [_sam(arrays, case, n)[0] for n in range(len(case["original_sizes"]))],
        r"points_resized_(\d+)": _prompt_pixels("points"),
        r"boxes_resized_(\d+)": _prompt_pixels("boxes"),
        r"masks_(\d+)": _sam_masks,
        r"masks_binary_(\d+)": lambda *given: _sam_masks(*given) > 0,
        r"stability_(\d+)": lambda *given: mask_stability(_sam_masks(*given)[0]),
        r"boxes_of_masks_(\d+)": lambda *given: _boxes_of(_sam_masks(*given)[0] > 0),
    },
    "owlv2": {
        r"image_\d+|logits|pred_boxes": None,
        r"pixel_values_(\d+)": lambda *given: _square(*given)[0][0],
        **{rf"{part}_(\d+)": _part(_queries, part) for part in ("scores", "labels", "boxes")},
        **{rf"guided_{part}_(\d+)": _part(_examples, part) for part in ("scores", "boxes")},
    },
    "vitpose": {
        "heatmaps|boxes|image|argmax_xy": None,
        "centers": lambda *given: _regions(*given)[0],
        "scales": lambda *given: _regions(*given)[1],
        "crops": lambda *given: _persons(*given)[0],
        "refined_xy": _refined("transformers"),
        "other_refined_xy_sigma2": _refined("authors"),  # the rule of another program, which we have too
        "keypoints": _part(_keypoints, "xy"),
        "scores": _part(_keypoints, "scores"),
    },
}
