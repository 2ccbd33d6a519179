"""StdConv2D: standardised in NumPy, correlated by SciPy, padded by a table."""

import keras
import numpy as np
import pytest
import scipy.signal
from faults import for_each
from keras import ops

from keras_vit.layers.bottleneck import StdConv2D

# side, kernel, stride, padding, zeros (before, after) of TensorFlow's SAME
SIDES = [
    (8, 7, 2, "same", (2, 3)),
    (9, 7, 2, "same", (3, 3)),
    (8, 3, 2, "same", (0, 1)),
    (9, 3, 2, "same", (1, 1)),
    (7, 3, 1, "same", (1, 1)),
    (6, 1, 2, "same", (0, 0)),
    (5, 1, 2, "same", (0, 0)),
    (3, 7, 2, "same", (3, 3)),
    (8, 3, 2, "valid", (0, 0)),
    (9, 7, 2, "valid", (0, 0)),
    (3, 3, 1, "valid", (0, 0)),
]


def standardise(kernel, epsilon, form):
    filters = kernel.reshape(-1, kernel.shape[-1])  # one column per filter
    if form == "deviation":
        filters = (filters - filters.mean(0)) / (filters.std(0) + epsilon)
    else:
        filters = (filters - filters.mean(0)) / np.sqrt(filters.var(0) + epsilon)
    return filters.reshape(kernel.shape)


def correlate(image, kernel, strides):
    """(height, width, channels) -> (rows, columns, filters), without padding."""
    planes = [
        sum(scipy.signal.correlate2d(image[..., c], kernel[..., c, f], mode="valid") for c in range(image.shape[-1]))
        for f in range(kernel.shape[-1])
    ]
    return np.stack(planes, axis=-1)[:: strides[0], :: strides[1]]


def check(layer, images, pads, randomise):
    layer.build(images.shape)
    kernel = standardise(randomise(layer)["kernel"], layer.epsilon, layer.epsilon_form)
    output = ops.convert_to_numpy(layer(images))
    padded = np.pad(images.astype("float64"), ((0, 0), *pads, (0, 0)))
    expected = np.stack([correlate(image, kernel, layer.strides) for image in padded])
    assert output.shape == layer.compute_output_shape(images.shape) == expected.shape
    np.testing.assert_allclose(output, expected, atol=2e-5)


@pytest.mark.parametrize("form", ["deviation", "variance"])
@pytest.mark.parametrize(("side", "kernel_size", "stride", "padding", "pads"), SIDES)
def test_values_at_even_and_odd_sides(side, kernel_size, stride, padding, pads, form, randomise):
    images = np.random.default_rng(1).normal(size=(2, side, side, 3)).astype("float32")
    # An epsilon as large as the deviation of the weights, 0.5, shows what it is added to.
    check(StdConv2D(4, kernel_size, stride, padding, 0.3, form), images, (pads, pads), randomise)


def test_height_and_width_are_treated_each_by_its_own(randomise):
    images = np.random.default_rng(1).normal(size=(2, 8, 7, 3)).astype("float32")
    check(StdConv2D(4, (3, 2), (2, 1)), images, ((0, 1), (0, 1)), randomise)


@pytest.mark.parametrize("form", ["deviation", "variance"])
def test_scale_and_offset_of_a_filter_do_not_matter(form, randomise):
    images = np.random.default_rng(1).normal(size=(2, 6, 6, 3)).astype("float32")
    layer = StdConv2D(4, 3, epsilon=1e-8, epsilon_form=form)
    layer.build(images.shape)
    kernel = randomise(layer)["kernel"]
    before = ops.convert_to_numpy(layer(images))
    layer.kernel.assign(kernel * [0.1, 1, 10, 100] + [3, 0, -2, 50])
    np.testing.assert_allclose(ops.convert_to_numpy(layer(images)), before, atol=1e-4)


@pytest.mark.parametrize("form", ["deviation", "variance"])
def test_a_filter_of_equal_weights_gives_zeros_and_finite_gradients(form):
    images = np.random.default_rng(1).normal(size=(4, 6, 6, 3)).astype("float32")
    layer = StdConv2D(2, 3, epsilon_form=form)
    model = keras.Sequential([keras.Input(images.shape[1:]), layer])
    kernel = np.random.default_rng(2).normal(size=(3, 3, 3, 2))
    kernel[..., 1] = 0.0
    layer.set_weights([kernel])
    assert not ops.convert_to_numpy(layer(images))[..., 1].any()
    model.compile("sgd", "mse")
    model.fit(images, np.ones((4, 6, 6, 2)), verbose=0)
    assert np.isfinite(layer.get_weights()[0]).all()
    assert (layer.get_weights()[0][..., 0] != kernel[..., 0].astype("float32")).any()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_statistics_are_in_float32_under_mixed_policies(policy):
    kernel = np.random.default_rng(1).normal(300.0, 0.1, (3, 3, 3, 4))  # all equal when rounded to bfloat16
    exact, mixed = StdConv2D(4, 3), StdConv2D(4, 3, dtype=policy)
    images = np.random.default_rng(1).normal(size=(2, 6, 6, 3)).astype("float32")
    for layer in (exact, mixed):
        layer.build(images.shape)
        layer.set_weights([kernel])
    assert mixed(images).dtype == mixed.compute_dtype
    output = ops.convert_to_numpy(ops.cast(mixed(images), "float32"))
    np.testing.assert_allclose(output, ops.convert_to_numpy(exact(images)), atol=0.15)
    assert output.std() > 4  # of 27 products of unit variance


def test_kernel_is_the_only_weight_and_starts_lecun_normal(initial):
    layer = StdConv2D(64, 3)
    layer.build((None, 8, 8, 32))
    weights = initial(layer)
    assert {path: array.shape for path, array in weights.items()} == {"kernel": (3, 3, 32, 64)}
    assert weights["kernel"].std() == pytest.approx((9 * 32) ** -0.5, rel=0.02)
    assert abs(weights["kernel"].mean()) < 0.001


def test_channels_are_last_whatever_the_image_data_format():
    images = np.random.default_rng(1).normal(size=(2, 6, 4, 3)).astype("float32")
    layer = StdConv2D(5, 3, 2)
    expected = ops.convert_to_numpy(layer(images))
    keras.config.set_image_data_format("channels_first")
    try:
        np.testing.assert_array_equal(ops.convert_to_numpy(layer(images)), expected)
    finally:
        keras.config.set_image_data_format("channels_last")


def test_unknown_sides_have_unknown_output():
    assert StdConv2D(5, 3, 2).compute_output_shape((None, None, 9, 3)) == (None, None, 5, 5)


@for_each(
    ("changes", "message"),
    [
        ({"filters": 0}, "filters must be an integer of at least 1; got filters=0"),
        ({"kernel_size": 0}, "kernel_size must be one positive integer or a pair"),
        ({"strides": (1, 2, 1)}, "strides must be one positive integer or a pair"),
        ({"padding": "SAME"}, "padding must be one of 'same', 'valid'; got padding='SAME'"),
        ({"epsilon": 0}, "epsilon must be a finite number above 0; got epsilon=0"),
        ({"epsilon_form": "std"}, "epsilon_form must be one of 'deviation', 'variance'; got epsilon_form='std'"),
    ],
)
def test_wrong_arguments_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        StdConv2D(**{"filters": 4, "kernel_size": 3, **changes})


def test_an_image_smaller_than_the_kernel_is_refused():
    with pytest.raises(ValueError, match="kernel_size must fit into the image; got 7 for a side of 6"):
        StdConv2D(4, 7, padding="valid").build((None, 8, 6, 3))
