"""How the golden cases without a model are compared: the definitions are in the notes of each `case.json`."""

import numpy as np

from keras_vit import analysis, evaluation


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


# kind of a case -> function of its arrays and its case.json
ARRAY_CASES = {"analysis": _compare_analysis, "fewshot": _compare_ridge}
