"""BottleneckUnit and PreActivationUnit: each step once more in NumPy."""

import keras
import numpy as np
import pytest
from faults import for_each
from keras import ops

from keras_vit.layers.bottleneck import BottleneckUnit, PreActivationUnit

UNITS = (BottleneckUnit, PreActivationUnit)
# (rows, columns), strides, channels of the input; with a width of 32 the output has 128
CASES = [((4, 5), 1, 128), ((4, 5), 1, 64), ((6, 8), 2, 128), ((7, 6), 2, 64), ((5, 3), 3, 32)]


def convolve(images, kernel, strides, pads):
    """Each position of the kernel in turn, on (batch, height, width, channels)."""
    size = kernel.shape[0]
    images = np.pad(images, ((0, 0), *pads, (0, 0)))
    rows, columns = ((side - size) // strides + 1 for side in images.shape[1:3])
    return sum(
        images[:, i : i + rows * strides : strides, j : j + columns * strides : strides][:, :rows, :columns]
        @ kernel[i, j]
        for i in range(size)
        for j in range(size)
    )


def standardise(kernel, unit):
    centred = kernel - kernel.mean(axis=(0, 1, 2))
    if unit.std_form == "deviation":
        return centred / (kernel.std(axis=(0, 1, 2)) + unit.std_epsilon)
    return centred / np.sqrt(kernel.var(axis=(0, 1, 2)) + unit.std_epsilon)


def normalise(images, gamma, beta, epsilon):
    """GroupNorm with 32 groups, group by group."""
    images = images.copy()
    size = images.shape[-1] // 32
    for sample in images:
        for group in range(32):
            part = sample[..., group * size : (group + 1) * size]
            part[...] = (part - part.mean()) / np.sqrt(part.var() + epsilon)
    return images * gamma + beta


def relu(images):
    return np.maximum(images, 0)


def tensorflow_same(side, size, strides):
    total = max((-(-side // strides) - 1) * strides + size - side, 0)
    return total // 2, total - total // 2


class Steps:
    """The steps that a unit is made of, with its weights."""

    def __init__(self, unit, weights):
        self.unit, self.weights = unit, weights

    def conv(self, name, images, strides=1, pads=((0, 0), (0, 0))):
        return convolve(images, standardise(self.weights[f"{name}/kernel"], self.unit), strides, pads)

    def norm(self, name, images):
        gamma, beta = self.weights[f"{name}/gamma"], self.weights[f"{name}/beta"]
        return normalise(images, gamma, beta, self.unit.gn_epsilon)


def bottleneck(unit, weights, images):
    """models_resnet.py of the official code: conv, norm, relu twice, conv, norm, add, relu."""
    steps = Steps(unit, weights)
    pads = [tensorflow_same(side, 3, unit.strides) for side in images.shape[1:3]]
    y = relu(steps.norm("norm1", steps.conv("conv1", images)))
    y = relu(steps.norm("norm2", steps.conv("conv2", y, unit.strides, pads)))
    y = steps.norm("norm3", steps.conv("conv3", y))
    if "shortcut_conv/kernel" in weights:
        images = steps.norm("shortcut_norm", steps.conv("shortcut_conv", images, unit.strides))
    return relu(images + y)


def pre_activation(unit, weights, images):
    """PreActBottleneck of bit_pytorch/models.py: norm, relu, conv three times, add; padding 1 in conv2."""
    steps = Steps(unit, weights)
    y = relu(steps.norm("norm1", images))
    if "shortcut_conv/kernel" in weights:
        images = steps.conv("shortcut_conv", y, unit.strides)
    y = steps.conv("conv1", y)
    y = steps.conv("conv2", relu(steps.norm("norm2", y)), unit.strides, ((1, 1), (1, 1)))
    return images + steps.conv("conv3", relu(steps.norm("norm3", y)))


STATEMENTS = {BottleneckUnit: bottleneck, PreActivationUnit: pre_activation}


def _images(size, channels, count=2):
    return np.random.default_rng(1).normal(size=(count, *size, channels)).astype("float32")


@pytest.mark.parametrize("unit_class", UNITS)
@pytest.mark.parametrize(("size", "strides", "channels"), CASES)
@pytest.mark.parametrize("std_form", ["deviation", "variance"])
def test_values(unit_class, size, strides, channels, std_form, randomise):
    # Epsilons near the deviations, so that a wrong one would show.
    unit = unit_class(32, strides, gn_epsilon=0.3, std_epsilon=0.2, std_form=std_form)
    images = _images(size, channels)
    unit.build(images.shape)
    weights = randomise(unit)
    expected = STATEMENTS[unit_class](unit, weights, images.astype("float64"))
    output = ops.convert_to_numpy(unit(images))
    assert output.shape == unit.compute_output_shape(images.shape) == expected.shape
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("unit_class", "epsilons"),
    [(BottleneckUnit, (1e-6, 1e-5, "deviation")), (PreActivationUnit, (1e-5, 1e-10, "variance"))],
)
def test_epsilons_are_those_of_the_official_code(unit_class, epsilons):
    unit = unit_class(32)
    assert (unit.gn_epsilon, unit.std_epsilon, unit.std_form) == epsilons
    assert unit.norm1.epsilon == unit.norm3.epsilon == epsilons[0]
    assert (unit.conv2.epsilon, unit.conv2.epsilon_form) == epsilons[1:]


SHAPES = {
    "conv1/kernel": (1, 1, 128, 32),
    "conv2/kernel": (3, 3, 32, 32),
    "conv3/kernel": (1, 1, 32, 128),
    "norm2/gamma": (32,),
    "norm2/beta": (32,),
}
NORMS = {  # of the first and the last norm
    BottleneckUnit: {f"norm{i}/{name}": (size,) for i, size in ((1, 32), (3, 128)) for name in ("gamma", "beta")},
    PreActivationUnit: {f"norm{i}/{name}": (size,) for i, size in ((1, 128), (3, 32)) for name in ("gamma", "beta")},
}
SHORTCUTS = {
    BottleneckUnit: {
        "shortcut_conv/kernel": (1, 1, 128, 128),
        "shortcut_norm/gamma": (128,),
        "shortcut_norm/beta": (128,),
    },
    PreActivationUnit: {"shortcut_conv/kernel": (1, 1, 128, 128)},
}


@for_each("unit_class", UNITS)
@for_each("strides", [1, 2])
def test_weights_have_their_names_and_shapes(unit_class, strides, initial):
    unit = unit_class(32, strides)
    unit.build((None, 6, 6, 128))
    shapes = {path: weight.shape for path, weight in initial(unit).items()}
    shortcut = SHORTCUTS[unit_class] if strides == 2 else {}
    assert shapes == {**SHAPES, **NORMS[unit_class], **shortcut}


def test_branch_of_the_hybrid_unit_starts_at_zero():
    images = _images((4, 4), 128)
    output = ops.convert_to_numpy(BottleneckUnit(32)(images))
    np.testing.assert_array_equal(output, relu(images))


def test_branch_of_the_bit_unit_does_not_start_at_zero(initial):
    unit = PreActivationUnit(32)
    unit.build((None, 4, 4, 128))
    assert all((array == 1).all() for path, array in initial(unit).items() if path.endswith("gamma"))


@pytest.mark.parametrize("unit_class", UNITS)
def test_norms_under_mixed_bfloat16_take_float32_statistics(unit_class, randomise):
    images = _images((8, 8), 128) + 30  # the mean is far above the deviation
    exact, mixed = unit_class(32), unit_class(32, dtype="mixed_bfloat16")
    for unit in (exact, mixed):
        unit.build(images.shape)
        randomise(unit)
    output = mixed(images)
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    output = ops.convert_to_numpy(ops.cast(output, "float32"))
    images = ops.convert_to_numpy(ops.cast(ops.cast(images, "bfloat16"), "float32"))
    expected = ops.convert_to_numpy(exact(images))
    assert np.abs(output - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("unit_class", UNITS)
def test_unknown_sides_have_unknown_output(unit_class):
    assert unit_class(32, 2).compute_output_shape((None, None, 9, 64)) == (None, None, 5, 128)


@for_each("unit_class", UNITS)
@for_each(
    ("changes", "message"),
    [
        ({"width": 48}, "width must be divisible by the 32 groups of GroupNorm; got width=48"),
        ({"width": 0}, "width must be an integer of at least 1; got width=0"),
        ({"strides": 0}, "strides must be an integer of at least 1; got strides=0"),
        ({"gn_epsilon": 0}, "gn_epsilon must be a finite number above 0; got gn_epsilon=0"),
        ({"std_epsilon": None}, "std_epsilon must be a finite number above 0; got std_epsilon=None"),
        ({"std_form": "std"}, "std_form must be one of 'deviation', 'variance'; got std_form='std'"),
    ],
)
def test_wrong_arguments_are_refused(unit_class, changes, message):
    with pytest.raises(ValueError, match=message):
        unit_class(**{"width": 32, **changes})
