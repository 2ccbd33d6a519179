"""How the golden cases without a model are compared: the definitions are in the notes of each `case.json`."""

import numpy as np

from keras_vit import analysis


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
    for picture in range(attention.shape[1]):
        distances = analysis.mean_attention_distance(attention[:, picture, None], patch_size=patch)
        np.testing.assert_allclose(distances, arrays["mean_attention_distance_per_image"][:, picture], atol=atol)
    for name, centred in {"filter_pca_centred": True, "filter_pca_uncentred": False}.items():
        expected = arrays[name]
        found = analysis.filter_components(arrays["embedding_kernel"], len(expected), centred=centred)
        signs = np.sign((found.filters * expected).sum((1, 2, 3), keepdims=True))
        np.testing.assert_allclose(signs * found.filters, expected, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(found.explained, arrays[f"{name}_explained_ratio"], atol=atol)


# kind of a case -> function of its arrays and its case.json
ARRAY_CASES = {"analysis": _compare_analysis}
