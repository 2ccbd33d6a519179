"""Golden cases of `keras_vit.tasks` without a model: `machine` of each `case.json` has the definitions."""

import re

import numpy as np
from golden_arrays import stored_in

from keras_vit.config import Preprocessing
from keras_vit.data.images import preprocess
from keras_vit.tasks import boxes, depth, keypoints, masks, open_vocabulary, segments

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
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


def _depth_sizes(rule):
    def sizes(arrays, case):
        target, step = tuple(case["target_size"]), case["multiple"]
        return [depth.depth_input_size(tuple(size), target, step, rule) for size in arrays["input_sizes"].tolist()]

    return sizes


def _depth_pixels(arrays, case):
    size = depth.depth_input_size(arrays["image"].shape[:2], tuple(case["image_target"]), case["multiple"])
    how = Preprocessing(size=size, interpolation="bicubic", mean=MEAN, std=STD)
    return preprocess(arrays["image"], how)[0]


def _depth_in_pixels(arrays, case, n):
    return depth.depth_map(arrays["depth"][n], tuple(case["depth_target_sizes"][n]), "metres").values


def _detection_sizes(arrays, case, shortest, longest):
    return [boxes.detection_input_size(tuple(size), shortest, longest) for size in arrays["input_sizes"].tolist()]


def _detected(arrays, case, n):
    size = tuple(case["target_sizes"][n])
    return boxes.detected_boxes(arrays["logits"][n], arrays["pred_boxes"][n], size, case["threshold"])


def _panoptic(arrays, case, n):
    given = arrays["mask_logits"][n], arrays["class_logits"][n], tuple(case["target_sizes"][n]), case["network_size"]
    return segments.panoptic(*given, case["stuff_classes"], case["threshold"], case["overlap_mask_area_threshold"])


def _instances(arrays, case, n):
    given = arrays["mask_logits"][n], arrays["class_logits"][n], tuple(case["target_sizes"][n]), case["network_size"]
    return segments.instances(*given, case["instance_threshold"])


def _of_windows(function):
    def of_image(arrays, case, n):
        size, side = tuple(case["target_sizes"][n]), case["semantic_size"]
        rows = [row for row, (image, *_) in enumerate(case["patch_offsets"]) if image == n]
        assert segments.windows(size, side)[1] == [tuple(case["patch_offsets"][row][1:]) for row in rows]
        return function(arrays["window_mask_logits"][rows], arrays["window_class_logits"][rows], size, side)

    return of_image


def _prompt_pixels(name):
    def of_image(arrays, case, n):
        return masks.to_prompt_pixels(arrays[f"{name}_{n}"], case["original_sizes"][n], case["longest_edge"])

    return of_image


def _sam_masks(arrays, case, n):
    return masks.masks_to_pixels(arrays[f"low_res_masks_{n}"], case["original_sizes"][n], case["longest_edge"])


def _queries(arrays, case, n):
    given = arrays["logits"][n], arrays["pred_boxes"][n], tuple(case["original_sizes"][n])
    return open_vocabulary.query_boxes(*given, case["threshold"])


def _examples(arrays, case, n):  # one query per image
    given = arrays["logits"][n, :, :1], arrays["pred_boxes"][n], tuple(case["original_sizes"][n])
    return open_vocabulary.example_boxes(*given, case["guided"]["threshold"], case["guided"]["nms"])


def _of_persons(function):
    def of_images(arrays, case):
        size = tuple(case["network_size"])
        regions = [keypoints.person_region(box, size) for box in arrays["boxes"]]
        return [function(arrays, size, region, n) for n, region in enumerate(regions)]

    return of_images


def _crop(arrays, size, region, n):
    return (keypoints.crop(arrays["image"], region, size) / 255 - MEAN) / STD


def _refined(blur):
    return _of_persons(lambda arrays, size, region, n: keypoints.heatmap_peaks(arrays["heatmaps"][n], blur)[0])


def _keypoints(part):
    def of_person(arrays, size, region, n):
        return getattr(keypoints.keypoints(arrays["heatmaps"][n], region, "transformers"), part)

    return _of_persons(of_person)


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
        r"semantic_scores_(\d+)": _of_windows(segments.semantic_scores),
        r"semantic_(\d+)": _of_windows(lambda *given: segments.semantic(*given).labels),
    },
    "sam": {
        r"(?:image|points|boxes|low_res_masks)_\d+": None,
        "reshaped_sizes": lambda arrays, case: [
            masks.prompt_input_size(size, case["longest_edge"]) for size in case["original_sizes"]
        ],
        "pixel_values": lambda arrays, case: [
            masks.prompt_input(arrays[f"image_{n}"], case["longest_edge"]) for n in range(len(case["original_sizes"]))
        ],
        r"points_resized_(\d+)": _prompt_pixels("points"),
        r"boxes_resized_(\d+)": _prompt_pixels("boxes"),
        r"masks_(\d+)": _sam_masks,
        r"masks_binary_(\d+)": lambda *given: _sam_masks(*given) > 0,
        r"stability_(\d+)": lambda *given: masks.mask_stability(_sam_masks(*given)[0]),
        r"boxes_of_masks_(\d+)": lambda *given: masks.mask_boxes(_sam_masks(*given)[0] > 0),
    },
    "owlv2": {
        r"image_\d+|logits|pred_boxes": None,
        r"pixel_values_(\d+)": lambda arrays, case, n: open_vocabulary.square_image(arrays[f"image_{n}"], case["size"]),
        **{rf"{part}_(\d+)": _part(_queries, part) for part in ("scores", "labels", "boxes")},
        **{rf"guided_{part}_(\d+)": _part(_examples, part) for part in ("scores", "boxes")},
    },
    "vitpose": {
        "heatmaps|boxes|image|argmax_xy": None,
        "centers": _of_persons(lambda arrays, size, region, n: region.centre),
        "scales": _of_persons(lambda arrays, size, region, n: region.extent / 200),
        "crops": _of_persons(_crop),
        "refined_xy": _refined("transformers"),
        "other_refined_xy_sigma2": _refined("authors"),  # the rule of another program, which we have too
        "keypoints": _keypoints("xy"),
        "scores": _keypoints("scores"),
    },
}
