"""parse_augment and parse_mix: texts to operations, and what is refused."""

import pytest
import tensorflow as tf
from faults import for_each

from keras_vit.data.augment import MIXES, OPERATIONS, parse_augment, parse_mix

ARGUMENTS = {"random_crop": "(40)", "randaugment": "(2, 15)", "cutout": "(8)", "color_jitter": "(0.3)"}
ARGUMENTS["random_erasing"] = "(0.25, max_area=0.2)"
ARGUMENTS |= dict.fromkeys(("grayscale", "solarize", "gaussian_blur"), "(0.2)")


@pytest.mark.slow
def test_every_operation_runs_inside_a_data_set():
    for name, (kind, _) in OPERATIONS.items():
        (operation,) = parse_augment((name + ARGUMENTS.get(name, ""),))
        assert operation.kind == kind
        for channels in (1, 3):
            image, seed = tf.fill((32, 48, channels), 100.0), tf.constant((1, 2), tf.int64)

            def run(image, seed=seed, channels=channels, operation=operation):
                if operation.kind == "crop":
                    return operation(tf.cast(image, tf.uint8), size=(24, 32), channels=channels, seed=seed)
                return operation(image, seed)

            dataset = tf.data.Dataset.from_tensors(image).map(run)
            expected = (24, 32, channels) if kind == "crop" else image.shape
            assert dataset.element_spec == tf.TensorSpec(expected, tf.float32)
            result = next(dataset.as_numpy_iterator())
            assert 0 <= result.min() <= result.max() <= 255


def test_nothing_is_parsed_to_nothing():
    assert parse_augment(()) == [] and parse_mix(()) is None and parse_mix([]) is None


def test_order_and_spaces():
    operations = parse_augment([" inception_crop( 0.3, max_aspect = 2.0 ) ", "flip", "flip()"])
    assert [operation.kind for operation in operations] == ["crop", "image", "image"]


@pytest.mark.parametrize("texts", [("mixup(0.8)",), ["mixup(alpha=0.8)", "cutmix(1.0)"]])
def test_mixes(texts):
    assert callable(parse_mix(texts))


REFUSED = [
    (("flop",), "augment must be one of 'inception_crop', .*; got augment='flop' .did you mean 'flip'"),
    (("mixup(0.2)",), "augment must be one of"),
    ("flip", r"augment must be a sequence of strings, such as \('flip', .*; got augment='flip'"),
    ((3,), "augment must be a sequence of strings"),
    (("flip", "inception_crop"), r"a crop must be the first operation of augment; got \['flip', 'inc"),
    (("inception_crop", "random_crop(48)"), "a crop must be the first"),
    (("randaugment",), r"'randaugment': missing a required argument: 'layers'; the arguments are \(layers, mag"),
    (("randaugment(2, 10, 3)",), "'randaugment.2, 10, 3.': too many positional arguments"),
    (("randaugment(2, 3, magnitud=3)",), "got an unexpected keyword argument 'magnitud'; the arguments are"),
    (("randaugment(0, 10)",), r"'randaugment\(0, 10\)': layers must be an integer of at least 1; got layers=0"),
    (("randaugment(2, -1)",), "magnitude must be a number of at least 0; got magnitude=-1"),
    (("randaugment(2, '10')",), "magnitude must be a number"),
    (("timm_randaugment(11)",), "magnitude must be a number from 0 to 10; got magnitude=11"),
    (("timm_randaugment(probability=True)",), "probability must be a number from 0 to 1; got probability=True"),
    (("random_erasing(1.5)",), "probability must be a number from 0 to 1; got probability=1.5"),
    (("random_erasing(0.5, 0.5, 0.2)",), "0 < min_area <= max_area <= 1; got min_area=0.5, max_area=0.2"),
    (("inception_crop(0.5, 1.5)",), "0 < min_area <= max_area <= 1; got min_area=0.5, max_area=1.5"),
    (("inception_crop(min_aspect=0)",), "0 < min_aspect <= max_aspect; got min_aspect=0"),
    (("inception_crop(interpolation='cubic')",), "interpolation must be one of 'bilinear'.*got interpolation='cubic'"),
    (("random_crop",), "missing a required argument: 'resize'"),
    (("random_crop(0)",), "resize must be one positive integer or a pair"),
    (("color_jitter(2)",), "strength must be a number from 0 to 1; got strength=2"),
    (("cutout(7)",), "size must be divisible by 2"),
    (("cutout(8, fill=300)",), "fill must be a number from 0 to 255; got fill=300"),
    (("__import__('os').system('touch {marker}')",), 'names or calls with literal arguments.*got "__import__'),
    (("__import__('os')",), "augment must be one of .*got augment='__import__'"),
    (("flip(__import__('os').system('touch {marker}'))",), "names or calls with literal arguments"),
    (("randaugment(*[2, 3])",), "names or calls with literal arguments"),
    (("randaugment(**{{'layers': 2}})",), "names or calls with literal arguments"),
    (("randaugment(1 + 1, 10)",), "names or calls with literal arguments"),
    (("flip; flip",), "names or calls with literal arguments"),
    (("lambda: 1",), "names or calls with literal arguments"),
    (("",), "names or calls with literal arguments"),
    (("os.system",), "names or calls with literal arguments"),
    (("(" * 5000,), "names or calls with literal arguments"),
    (("flip\0",), "names or calls with literal arguments"),
]


@for_each(("texts", "message"), REFUSED)
def test_refusals(texts, message, tmp_path):
    marker = tmp_path / "executed"
    if isinstance(texts, tuple) and isinstance(texts[0], str) and "{" in texts[0]:
        texts = (texts[0].format(marker=marker),)
    with pytest.raises(ValueError, match=message):
        parse_augment(texts)
    assert not marker.exists()


@for_each(
    ("texts", "message"),
    [
        (("flip",), "mix must be one of 'mixup', 'cutmix'; got mix='flip'"),
        ("mixup(0.2)", r"mix must be a sequence of strings, such as \('mixup\(0.2\)',\)"),
        (("mixup",), r"mix 'mixup': missing a required argument: 'alpha'"),
        (("mixup(0)",), "alpha must be a number of at least 0.01; got alpha=0"),
        (("cutmix(-1.0)",), "alpha must be a number of at least 0.01"),
        (("keras_cv.MixUp(0.2)",), "mix must name mixup or cutmix, not a layer of keras_cv"),
    ],
)
def test_refusals_of_mixes(texts, message):
    with pytest.raises(ValueError, match=message):
        parse_mix(texts)
    assert list(MIXES) == ["mixup", "cutmix"]
