"""evaluate: counts against NumPy, the three kinds of data, class matching and refusals."""

import functools

import keras
import numpy as np
import PIL.Image
import pytest
import scipy.special
import sklearn.metrics
import tensorflow as tf
from slow_rows import slow_after

import keras_vit
from keras_vit import Preprocessing, VisionTransformer, ViTConfig
from keras_vit.data import from_arrays, train_pipeline
from keras_vit.evaluation import Accuracy, evaluate
from keras_vit.models.encoders import keep_class_names, labelled_model

NAMES = ("ant", "bee", "cat", "dog", "eel", "fox")
CONFIG = ViTConfig(
    name="tiny", image_size=16, patch_size=8, hidden_dim=12, num_layers=1, num_heads=2, mlp_dim=16, classes=6
)
IMAGES = np.random.default_rng(0).integers(0, 256, (45, 16, 16, 3), dtype=np.uint8)
LABELS = np.random.default_rng(1).integers(0, 6, 45)
eagerly = pytest.mark.usefixtures("eagerly")  # also for the tests after the first that has it


@functools.cache
def tiny(labels=NAMES, **changes):
    model = VisionTransformer(CONFIG.replace(**changes), labels=labels)
    head = model.get_layer("head")
    head.kernel.assign(np.random.default_rng(2).normal(0.0, 1.0, head.kernel.shape))
    return model


def places(model, images=IMAGES, labels=LABELS):
    """The place of each label among its image's scores, by sorting."""
    logits = keras.ops.convert_to_numpy(model(images.astype(np.float32) / 127.5 - 1.0))
    return np.array([list(np.argsort(-row, kind="stable")).index(n) for row, n in zip(logits, labels, strict=True)])


@pytest.mark.parametrize("batch_size", slow_after(1, [8, 45]))
def test_counts_are_those_of_sorting(batch_size):
    model = tiny()
    expected = places(model)
    result = evaluate(model, from_arrays(IMAGES, LABELS, NAMES), batch_size=batch_size, top=(1, 2, 5))
    assert result == Accuracy(45, {k: int((expected < k).sum()) for k in (1, 2, 5)}, "by name")
    assert result.top[2] == pytest.approx((expected < 2).mean())
    assert 0 < result.correct[1] < result.correct[2] < result.correct[5] < 45


@eagerly
def test_labels_follow_their_names():
    model = tiny()
    order = (3, 1, 0, 5, 2, 4)
    renamed = np.argsort(order)[LABELS]  # label i of the data is class order[i] of the model
    source = from_arrays(IMAGES, renamed, [NAMES[n].upper() for n in order])
    expected = int((places(model) < 1).sum())
    assert evaluate(model, source, top=1).correct == {1: expected}
    unnamed = from_arrays(IMAGES, renamed, ["?"] * 6)
    assert evaluate(model, unnamed, top=1, class_names=[NAMES[n] for n in order]).correct == {1: expected}


@eagerly
@pytest.mark.slow
def test_a_folder_gives_what_its_arrays_give(tmp_path):
    model = tiny()
    for n, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True)):
        (tmp_path / f"{label}_{NAMES[label][0]}").mkdir(exist_ok=True)
        PIL.Image.fromarray(image).save(tmp_path / f"{label}_{NAMES[label][0]}" / f"{n}.png")
    result = evaluate(model, str(tmp_path), batch_size=7)
    expected = places(model)
    assert result == Accuracy(45, {k: int((expected < k).sum()) for k in (1, 5)}, "by leading index")


@pytest.mark.slow
@eagerly
def test_images_are_turned_as_their_exif_says(tmp_path):
    """In evaluate and in predict; where it is ignored, every second of these is upside down."""
    model, exif = tiny(), PIL.Image.Exif()
    exif[0x0112] = 3
    files = []
    for n, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True)):
        (tmp_path / NAMES[label]).mkdir(exist_ok=True)
        files.append(tmp_path / NAMES[label] / f"{n}.png")
        options, turn = ({"exif": exif}, PIL.Image.Transpose.ROTATE_180) if n % 2 else ({}, None)
        stored = PIL.Image.fromarray(image) if turn is None else PIL.Image.fromarray(image).transpose(turn)
        stored.save(files[-1], **options)
    expected, result = places(model), evaluate(model, tmp_path)
    assert result.correct == {k: int((expected < k).sum()) for k in (1, 5)}
    answers = keras_vit.predict(model, files, top=6)
    assert [[name for name, _ in row].index(NAMES[n]) for row, n in zip(answers, LABELS, strict=True)] == [*expected]


@eagerly
def test_a_dataset_of_model_inputs():
    model = tiny(labels=None)
    inputs = IMAGES.astype(np.float32) / 127.5 - 1.0
    dataset = tf.data.Dataset.from_tensor_slices((inputs, LABELS)).batch(20)
    expected = {1: int((places(model) < 1).sum()), 5: int((places(model) < 5).sum())}
    result = evaluate(model, dataset)
    assert result == Accuracy(45, expected, "by number, as the labels of a dataset are indices of logits")
    assert evaluate(model, dataset, class_names=NAMES).matching == "in order, as the model has no labels"
    model.labels, dataset.class_names = NAMES[::-1], NAMES
    result = evaluate(model, dataset)
    assert result.matching == "by name" and result == evaluate(model, dataset, class_names=NAMES)
    model.labels = [*NAMES[1:], "another"]  # names that are not the model's say nothing
    assert evaluate(model, dataset).correct == expected


@eagerly
def test_a_model_trained_on_a_source_keeps_its_class_names():
    """A model that is right about every image of numbered folders is reported so, or not at all."""
    names = sorted(str(n) for n in range(12))
    model = VisionTransformer(CONFIG.replace(classes=12))
    head = model.get_layer("head")
    head.kernel.assign(np.random.default_rng(2).normal(0.0, 1.0, head.kernel.shape))
    right = model.predict_on_batch(IMAGES / 127.5 - 1.0).argmax(-1)
    assert {2, 10} & {*right}  # among the classes that folders sort otherwise
    source = from_arrays(IMAGES, right, names)
    with pytest.raises(ValueError, match=r"12 classes, which have no names, in one way"):
        evaluate(model, source)
    model.compile(keras.optimizers.SGD(0.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(train_pipeline(source, model.preprocessing, 4), steps_per_epoch=1, shuffle=False, verbose=0)
    assert model.labels == tuple(names)
    assert evaluate(model, source).correct == {1: 45, 5: 45}
    with pytest.warns(UserWarning, match="names of the classes of the data as labels, but in another order"):
        keep_class_names(model, [str(n) for n in range(12)])
    student = VisionTransformer(CONFIG)  # the labels of a distiller are those of its student
    keep_class_names(keras_vit.Distiller(student, tiny()), NAMES)
    assert student.labels == NAMES and labelled_model(keras.Sequential([student, keras.layers.Softmax()])) is student


def test_equal_scores_go_to_the_lower_number():
    model = VisionTransformer(CONFIG)  # a head of zeros: every score is 0
    source = from_arrays(IMAGES[:6], np.arange(6), NAMES)
    assert evaluate(model, source, top=(1, 2, 6)).correct == {1: 1, 2: 2, 6: 6}


@eagerly
def test_another_preprocessing_is_used():
    model = tiny()
    source = from_arrays(IMAGES, LABELS, NAMES)
    inverted = Preprocessing(size=16, mean=(0.5,) * 3, std=(50.0,) * 3)
    logits = keras.ops.convert_to_numpy(model((IMAGES.astype(np.float32) / 255.0 - 0.5) / 50.0))
    expected = int((logits.argmax(axis=-1) == LABELS).sum())
    assert evaluate(model, source, preprocessing=inverted, top=1).correct == {1: expected}
    assert expected != int((places(model) < 1).sum())


@eagerly
def test_classes_and_calibration_are_those_of_the_scores():
    model = tiny()
    order = (3, 1, 0, 5, 2, 4)
    source = from_arrays(IMAGES, np.argsort(order)[LABELS], [NAMES[n].upper() for n in order])
    logits = keras.ops.convert_to_numpy(model(IMAGES.astype(np.float32) / 127.5 - 1.0))
    probabilities = scipy.special.softmax(logits.astype(np.float64), axis=1)
    matrix = sklearn.metrics.confusion_matrix(LABELS, logits.argmax(axis=1))
    found = evaluate(model, source, batch_size=8)
    assert found.classes.names == tuple(NAMES[n].upper() for n in order)
    assert found.classes.labels == tuple(NAMES[n] for n in order)
    assert found.classes.counts.tolist() == matrix.sum(axis=1)[list(order)].tolist()
    assert found.classes.correct.tolist() == matrix.diagonal()[list(order)].tolist()
    confused = {(order.index(i), NAMES[j], matrix[i, j]) for i, j in np.argwhere(matrix) if i != j}
    assert set(found.classes.confusions) == confused
    likelihood = sklearn.metrics.log_loss(LABELS, probabilities)
    assert found.calibration.negative_log_likelihood == pytest.approx(likelihood, rel=1e-5)
    assert found.calibration.mean_confidence == pytest.approx(probabilities.max(axis=1).mean(), rel=1e-5)


def test_report_shows_the_worst_classes():
    found = evaluate(tiny(), from_arrays(IMAGES, LABELS, NAMES), batch_size=45)
    lines = found.report(2).splitlines()
    worst = found.classes.worst[0]
    assert lines[0] == str(found)
    assert lines[1].startswith("mean confidence ") and " expected calibration error " in lines[1]
    assert lines[2] == f"mean accuracy of 6 classes {100 * found.classes.mean:.2f} %"
    assert lines[3:5] == ["", "The 2 worst of 6 classes:"] and len(lines) == 8
    assert lines[6].split()[:3] == [
        NAMES[worst],
        *map(str, (found.classes.correct[worst], found.classes.counts[worst])),
    ]
    assert "Classes, worst first:" in found.report() and len(found.report().splitlines()) == 12
    assert Accuracy(9, {1: 3}, "by name").report() == str(Accuracy(9, {1: 3}, "by name"))
    with pytest.raises(ValueError, match="classes must be an integer of at least 1; got classes=0"):
        found.report(0)


@eagerly
@pytest.mark.slow
def test_text_and_progress(capsys):
    text = str(Accuracy(200, {1: 169, 5: 194}, "by WordNet id"))
    assert text == (
        "top-1 accuracy 84.50 % (169 of 200), top-5 accuracy 97.00 % (194 of 200); classes matched by WordNet id"
    )
    source = from_arrays(IMAGES, LABELS, NAMES)
    evaluate(tiny(), source, batch_size=10)
    assert capsys.readouterr().out == ""
    evaluate(tiny(), source, batch_size=10, verbose=True)
    assert "5/5" in capsys.readouterr().out


@eagerly
def test_refusals(tmp_path):
    model = tiny()
    source = from_arrays(IMAGES, LABELS, NAMES)
    inputs = IMAGES.astype(np.float32) / 127.5 - 1.0
    dataset = tf.data.Dataset.from_tensor_slices((inputs, LABELS)).batch(20)
    one_hot = tf.data.Dataset.from_tensor_slices((inputs, np.eye(6)[LABELS])).batch(20)
    too_high = tf.data.Dataset.from_tensor_slices((inputs, LABELS + 2)).batch(45)
    (tmp_path / "ant").mkdir()
    (tmp_path / "ant" / "cut.png").write_bytes(b"\\x89PNG but not really")
    unknown = from_arrays(IMAGES, LABELS, ["ant", "bee", "cat", "dog", "elk", "fly"])
    refused = [
        (model, unknown, {}, ValueError, "2 of 6 do not: 'elk', 'fly'; 4 match by name"),
        (model, tmp_path, {}, ValueError, "cut.png must be an image"),
        (model, tmp_path / "none", {}, FileNotFoundError, "does not exist"),
        (model, source, {"class_names": NAMES[:5]}, ValueError, "name the 6 classes of data; got 5"),
        (model, source, {"class_names": "abcdef"}, ValueError, "must be a sequence of strings, .* got .*'abcdef'"),
        (model, source, {"top": 0}, ValueError, "top must be an integer of at least 1; got top=0"),
        (model, source, {"batch_size": 0}, ValueError, "batch_size must be"),
        (
            model,
            source,
            {"preprocessing": Preprocessing(size=24)},
            ValueError,
            r"images of \(16, 16, 3\); got \(24, 24, 3\)",
        ),
        (
            model,
            dataset,
            {"preprocessing": model.preprocessing},
            ValueError,
            "preprocessing is for folders and sources",
        ),
        (
            model,
            one_hot,
            {},
            ValueError,
            r"integer labels \(images,\); got float64 of shape \(20, 6\)",
        ),
        (model, too_high, {}, ValueError, "from 0 to 5, as there are 6 classes; they range from 2 to 7"),
        (model, dataset.map(lambda x, y: x), {}, ValueError, r"batches \(inputs, labels\); its elements are"),
        (model, dataset.take(0), {}, ValueError, "at least one image; it contains none"),
        (model, (inputs, LABELS), {}, TypeError, "data must be a folder, an ImageSource.*got tuple"),
        (VisionTransformer(CONFIG.replace(include_top=False)), source, {}, ValueError, "include_top=False"),
    ]
    for model, data, options, error, message in refused:
        with pytest.raises(error, match=message):
            print(message, evaluate(model, data, **options))  # shown where nothing is raised
