"""predict: labels, scores, order, and what it refuses or warns of."""

import keras
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import VisionTransformer, ViTConfig, predict
from keras_vit.evaluation import predict_prepared
from keras_vit.serving import signatures

LABELS = ("ant", "bee", "cat", "dog")
CONFIG = ViTConfig(
    name="tiny", image_size=16, patch_size=8, hidden_dim=12, num_layers=1, num_heads=2, mlp_dim=16, classes=4
)
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)


def tiny(labels=LABELS, **changes):
    model = VisionTransformer(CONFIG.replace(**changes), labels=labels)
    head = model.get_layer("head")
    head.kernel.assign(np.random.default_rng(1).normal(0.0, 1.0, head.kernel.shape))
    return model


def expected_answers(model, images):
    """[(label, probability), ...] by softmax in float64."""
    inputs = images.astype(np.float32) / 127.5 - 1.0
    logits = keras.ops.convert_to_numpy(model(inputs)).astype(np.float64)
    scores = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    return [[(LABELS[n], row[n]) for n in np.argsort(-row)] for row in scores]


def assert_answers(answers, expected):
    assert [[label for label, _ in row] for row in answers] == [[label for label, _ in row] for row in expected]
    for row, expected_row in zip(answers, expected, strict=True):
        np.testing.assert_allclose([s for _, s in row], [s for _, s in expected_row], rtol=1e-4)
        assert all(type(score) is float for _, score in row)


def test_answers_are_softmax_best_first(tmp_path):
    model = tiny()
    PIL.Image.fromarray(IMAGES[1]).save(tmp_path / "x.png")
    answers = predict(model, [IMAGES[0], tmp_path / "x.png", PIL.Image.fromarray(IMAGES[2])], top=4)
    assert_answers(answers, expected_answers(model, IMAGES))
    assert sum(score for _, score in answers[0]) == pytest.approx(1.0)


def test_the_score_of_a_single_class_is_a_sigmoid():
    model = tiny(labels=("dog",), classes=1)
    logits = keras.ops.convert_to_numpy(model(IMAGES.astype(np.float32) / 127.5 - 1.0)).astype(np.float64)
    answers = predict(model, IMAGES)
    np.testing.assert_allclose([row[0][1] for row in answers], 1 / (1 + np.exp(-logits[:, 0])), rtol=1e-5)
    exported = signatures._best_classes(model, 5, {"logits": tf.constant(logits)})["scores"]
    np.testing.assert_allclose(exported[:, 0], [row[0][1] for row in answers], rtol=1e-5)
    prepared = tf.data.Dataset.from_tensor_slices((IMAGES / np.float32(127.5) - 1, [0, 0, 0])).batch(3)
    calibration = keras_vit.evaluate(model, prepared).calibration
    assert calibration.mean_confidence == pytest.approx(np.mean([row[0][1] for row in answers]))
    assert calibration.negative_log_likelihood is None


def test_top_cuts_the_list_and_may_exceed_the_classes():
    model = tiny()
    whole = predict(model, IMAGES)
    assert [len(row) for row in whole] == [4, 4, 4]
    assert predict(model, IMAGES, top=2) == [row[:2] for row in whole]


def test_a_single_image_gives_a_list_of_one():
    model = tiny()
    answers = predict(model, IMAGES[0])
    assert len(answers) == 1
    assert_answers(answers, expected_answers(model, IMAGES[:1]))


def test_the_range_of_arrays_can_be_stated():
    model = tiny()
    assert predict(model, IMAGES.astype("float32"), value_range=(0, 255)) == predict(model, IMAGES)


def test_prepared_images_are_named_as_predict_names_them():
    model = tiny()
    inputs = keras_vit.preprocess(list(IMAGES), model.preprocessing)
    assert_answers(predict_prepared(model, inputs, top=4), expected_answers(model, IMAGES))
    with pytest.raises(ValueError, match="top must be an integer of at least 1; got top=0"):
        predict_prepared(model, inputs, top=0)


def test_more_images_than_a_batch():
    model = tiny()
    images = np.random.default_rng(2).integers(0, 256, (70, 16, 16, 3), dtype=np.uint8)
    assert_answers(predict(model, images), expected_answers(model, images))


def test_classes_without_labels_are_numbered():
    model = tiny()
    named = predict(model, IMAGES)
    model.labels = None
    numbered = [[(f"class_{LABELS.index(label)}", score) for label, score in row] for row in named]
    assert predict(model, IMAGES) == numbered


def test_a_head_with_an_activation_keeps_its_scores():
    model = tiny(classifier_activation="sigmoid")
    expected = np.sort(keras.ops.convert_to_numpy(model(IMAGES / np.float32(127.5) - 1.0)))[:, ::-1]
    scores = [[score for _, score in row] for row in predict(model, IMAGES)]
    np.testing.assert_allclose(scores, expected, rtol=1e-4)
    assert abs(sum(scores[0]) - 1.0) > 0.01


def test_a_head_of_zeros_is_warned_of():
    model = VisionTransformer(CONFIG, labels=LABELS)
    with pytest.warns(UserWarning, match="head of tiny has a kernel of zeros.*the ImageNet-21k checkpoints of 2020"):
        answers = predict(model, IMAGES[0])
    assert [score for _, score in answers[0]] == [0.25] * 4


def test_refusals():
    model = tiny()
    broken = tiny()
    broken.get_layer("head").bias.assign(np.full(4, np.nan))
    refused = [
        (
            VisionTransformer(CONFIG.replace(include_top=False)),
            IMAGES,
            5,
            "tiny was built with include_top=False",
        ),
        (tiny(pooling="unpooled"), IMAGES, 5, r"shape \(None, 4\), .*; tiny was .* returns \(None, 4, 4\)"),
        (keras.Sequential([keras.Input((4,))]), IMAGES, 5, "got Sequential that returns None"),
        (model, IMAGES, 0, "top must be an integer of at least 1; got top=0"),
        (model, IMAGES, 1.5, "top must be an integer"),
        (model, [], 5, "at least one image"),
        (model, IMAGES * 1.0, 5, "images must have values from 0 to 1; they range from 0 to 255"),
        (tiny(channels=5), IMAGES, 5, r"image must have shape \(height, width, 5 channels\); got"),
        (broken, IMAGES, 5, "finite scores; tiny returns NaN or infinity"),
    ]
    for model, images, top, message in refused:
        with pytest.raises(ValueError, match=message):
            print(message, predict(model, images, top=top))  # shown where nothing is raised


@pytest.mark.slow
def test_real_images_are_named(real_data):
    model = keras_vit.create_model(
        "ViT-Ti_16", weights=real_data / "weights" / "ViT-Ti_16-imagenet2012-224.npz", classes=1000
    )
    files = [real_data / "pictures" / f"{name}.png" for name in ("chelsea", "coffee", "camera")]
    best = [row[0][0] for row in predict(model, files, top=1)]
    assert best == ["Egyptian cat", "espresso", "tripod"]
