"""How the golden cases without a model are compared: the definitions are in the notes of each `case.json`."""

import re

import keras
import numpy as np

import keras_vit
from keras_vit import analysis, evaluation
from keras_vit.layers.patches import resize_patch_kernel
from keras_vit.layers.position_bias import AttentionBias


def stored_in(path):
    """The arrays of an `.npz` file, which is closed: an open one would be a ResourceWarning in a later test."""
    with np.load(path) as file:
        return dict(file)


def _compare_analysis(arrays, case):
    attention, patch = arrays["attention"], int(arrays["patch_px"])
    atol = case["tolerance"]["atol"]
    for name, given in {
        "rollout_map": analysis.attention_rollout(attention),
        "rollout_map_no_residual": analysis.attention_rollout(attention, residual=False),
        "mean_attention_distance": analysis.mean_attention_distance(attention, patch_size=patch),
        "pos_similarity": analysis.position_similarity(arrays["pos_embedding"]),
    }.items():
        np.testing.assert_allclose(given, arrays[name], atol=atol, rtol=0, err_msg=name)
    for image in range(attention.shape[1]):
        distances = analysis.mean_attention_distance(attention[:, image, None], patch_size=patch)
        np.testing.assert_allclose(distances, arrays["mean_attention_distance_per_image"][:, image], atol=atol)
    for name, centred in {"filter_pca_centred": True, "filter_pca_uncentred": False}.items():
        expected = arrays[name]
        found = analysis.filter_components(arrays["embedding_kernel"], len(expected), centred=centred)
        signs = np.sign((found.filters * expected).sum((1, 2, 3), keepdims=True))
        np.testing.assert_allclose(signs * found.filters, expected, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(found.explained, arrays[f"{name}_explained_ratio"], atol=atol)


def _compare_ridge(arrays, case):
    ridge = evaluation.fit_ridge(arrays["x_train"], arrays["y_train"], int(arrays["num_classes"]), float(arrays["l2"]))
    for name in ("w_official_fp32", "w_float64"):
        np.testing.assert_allclose(ridge.weights, arrays[name], atol=case["tolerance"]["w_atol"], rtol=0, err_msg=name)
    scores, predicted = ridge.scores(arrays["x_test"]), ridge.predict(arrays["x_test"])
    np.testing.assert_allclose(scores, arrays["scores_float64"], atol=case["tolerance"]["scores_atol"], rtol=0)
    np.testing.assert_array_equal(predicted, arrays["pred"])
    accuracy = (predicted == arrays["y_test"]).mean()
    np.testing.assert_allclose([arrays["accuracy_official"], arrays["accuracy_float64"]], accuracy, rtol=1e-6)


def _compare_neighbours(arrays, case):
    labels, config = arrays["train_labels"], case["config"]
    for k in config["k"]:
        found = evaluation.nearest(arrays["train_features"], arrays["test_features"], k)
        np.testing.assert_array_equal(found.indices, arrays[f"neighbours_k{k}"])
        tolerance = case["tolerance"]
        similarities = arrays[f"similarity_k{k}"]
        np.testing.assert_allclose(found.similarities, similarities, atol=tolerance["similarity_atol"], rtol=0)
        scores = evaluation.knn_scores(found, labels, config["num_classes"], config["T"])
        for key in (f"scores_k{k}", f"scores_k{k}_float64"):
            np.testing.assert_allclose(scores, arrays[key], rtol=tolerance["scores_rtol"][str(k)], err_msg=key)
        np.testing.assert_array_equal(scores.argmax(-1), arrays[f"predictions_k{k}"])
        hits = np.argsort(-scores, kind="stable") == arrays["test_labels"][:, None]
        for key, count in ((f"top1_k{k}", 1), (f"top5_k{k}", min(5, k))):
            if key in arrays:
                assert 100 * hits[:, :count].any(1).mean() == np.float32(arrays[key]), key


def _compare_position_table(arrays, case):
    arguments = case["args"]
    resized = keras_vit.resize_position_embedding(
        arrays["table"], arguments["g0"], arguments["g1"], int(arguments["cls"]), "align_corners"
    )
    tolerance = case["tolerance"]["atol"]
    np.testing.assert_allclose(resized, arrays["resized"], atol=tolerance, rtol=0)
    if "resized_big_vision" in arrays:
        np.testing.assert_allclose(resized, arrays["resized_big_vision"], atol=tolerance, rtol=0)
    methods = {
        "other_timm_bicubic_aa": "bicubic_antialias",
        "other_timm_npz_bilinear": "bilinear",
        "other_torch_bicubic_hf_deit": "bicubic",
    }
    for key in set(methods) & set(arrays):
        assert np.abs(resized - arrays[key]).max() > 0.01, f"the official way must differ from {key}"
        other = keras_vit.resize_position_embedding(
            arrays["table"], arguments["g0"], arguments["g1"], int(arguments["cls"]), methods[key]
        )
        np.testing.assert_allclose(other, arrays[key], atol=2e-5, rtol=0)


def _compare_bias_table(arrays, case):
    """The table of BEiT at another grid; its last three rows are those of the class token."""
    table = arrays["table"]
    layer = AttentionBias(case["new_grid"], table.shape[1])
    layer.build((None, 1, 8))
    for key, method in {"resized_timm": "geometric", "resized_hf": "bilinear"}.items():
        resized = layer.resized(layer.embedding, table, method, case["old_grid"])
        np.testing.assert_allclose(resized, arrays[key], atol=2e-6, rtol=0, err_msg=key)


def _compare_patch_kernel(arrays, case):
    """The kernel of FlexiViT at other patch sizes, in NumPy and on tensors; timm's default way is another."""
    for key in arrays:
        if match := re.fullmatch(r"(resized|other_\w+)_(\d+)x(\d+)", key):
            size = int(match[2]), int(match[3])
            resized = [resize_patch_kernel(kernel, size) for kernel in (arrays["kernel"], _tensor(arrays["kernel"]))]
            difference = max(np.abs(keras.ops.convert_to_numpy(kernel) - arrays[key]).max() for kernel in resized)
            tolerance = case["tolerance"]["per_key_atol"].get(key, 0.01)
            assert difference < tolerance if match[1] == "resized" else difference > tolerance, key


def _tensor(array):
    return keras.ops.convert_to_tensor(array)


# kind or family of a case -> function of its arrays and its case.json
ARRAY_CASES = {
    "analysis": _compare_analysis,
    "fewshot": _compare_ridge,
    "posembed": _compare_position_table,
    "beit_table": _compare_bias_table,
    "flexivit_kernel": _compare_patch_kernel,
    "knn": _compare_neighbours,
}
