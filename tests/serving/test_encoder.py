"""The SavedModel of a model without a head: it answers with the features, and there are no classes in its folder."""

import json

import numpy as np
import pytest
import tensorflow as tf
from drawn import draw, encode
from served import make_model, model_input
from slow_rows import slow_after

from keras_vit.serving import export
from keras_vit.serving.signatures import DEFAULT_SIGNATURES


@pytest.mark.parametrize("pooling", slow_after(1, ["token", "unpooled"]))
def test_it_answers_with_the_features_of_the_model(tmp_path, pooling):
    model, images = make_model(include_top=False, pooling=pooling), [draw(seed) for seed in (1, 2, 3)]
    folder = export(model, tmp_path, check=False, signatures=("serving_default", "images_uint8"))
    served = tf.saved_model.load(str(folder)).signatures
    answer = served["serving_default"](tf.constant([*map(encode, images), b"no image"]))
    features, errors = answer["features"].numpy(), answer["error"].numpy()
    assert len(answer) == 2 and [bool(error) for error in errors] == [False, False, False, True]
    # Pillow and TensorFlow may round a resized pixel to neighbouring values.
    np.testing.assert_allclose(features[:3], model(np.stack([*map(model_input, images)])), atol=0.02)
    assert not features[3].any()
    pixels = tf.constant(np.stack([np.asarray(image) for image in images]))
    np.testing.assert_allclose(served["images_uint8"](pixels)["features"], features[:3], atol=1e-5)
    assert not (folder / "assets" / "labels.txt").exists() and "label" not in (folder / "README.txt").read_text()


@pytest.mark.slow
def test_every_signature_is_compared_with_the_model(tmp_path):
    signatures = (*DEFAULT_SIGNATURES, "attention")
    folder = export(make_model(include_top=False), tmp_path, signatures=signatures, tokens=True)
    card = json.loads((folder / "model_card.json").read_text())
    of_features = {f"{name}/features" for name in DEFAULT_SIGNATURES}
    assert card["check"]["largest_differences"].keys() == {*of_features, "features/tokens", "attention/attention"}
    assert card["labels"] is card["check"]["same_top1"] is None
