"""The kernel of the first convolution of a model for images of other channels than the RGB of its weights file."""

import numpy as np

from keras_vit.layers.bottleneck import StdConv2D

RGB = 3
FIRST_KERNELS = ("patch_encoder/projection/kernel", "root_conv/kernel")  # (height, width, channels, dim)


def for_channels(kernel, channels):
    """Return a kernel for RGB images, (height, width, 3, dim), for images of another number of channels.

    As in timm (`adapt_input_conv` in `timm/models/_manipulate.py`), it is summed over RGB for one channel, and repeated
    for several, cut to their number, and scaled by 3 / channels.
    """
    if channels == 1:
        return kernel.sum(axis=2, keepdims=True, dtype="float64").astype("float32")
    return kernel[:, :, np.arange(channels) % RGB].astype("float32") * np.float32(RGB / channels)


def described(channels, layer):
    """Return what `for_channels` does to the kernel of a layer, for a report."""
    how = "summed over RGB" if channels == 1 else f"RGB repeated, times 3 / {channels}"
    return f"{how}, before it is standardised" if isinstance(layer, StdConv2D) else how


def note_on_images(channels):
    """Return a note about the images of a model whose first kernel was converted from RGB."""
    if channels == 1:
        return "grey images are normalised with the averages of the means and of the stds for RGB"
    return (
        f"the mean and std of the file are for RGB, and those of {channels} channels are assumed to be 0.5: measure "
        "them with keras_vit.data.measured_preprocessing"
    )
