"""The preprocessing that image processors state."""

import numpy as np

from keras_vit.checkpoints.image_processors import huggingface_preprocessing
from keras_vit.tasks.inputs import prepare


def test_a_processor_that_only_pads():
    """facebook/dpt-dinov2: images keep their size, and mean and std are those of bytes."""
    values = {"image_processor_type": "DPTImageProcessor", "do_resize": False, "do_rescale": False, "do_pad": True}
    statistics = {"image_mean": [123.675, 116.28, 103.53], "image_std": [58.395, 57.12, 57.375]}
    found = huggingface_preprocessing({**values, "size_divisor": 14, **statistics})
    assert (found.sizing, found.multiple, found.resized((30, 57))) == ("center_padding", 14, (30, 57))
    image = np.random.default_rng(0).integers(0, 256, (30, 57, 3), "uint8")
    inputs, [place] = prepare(image, found)
    assert inputs.shape == (1, 42, 70, 3) and (place.offset, place.scale) == ((6.0, 6.0), (1.0, 1.0))
    expected = (image - np.array(statistics["image_mean"])) / statistics["image_std"]
    np.testing.assert_allclose(inputs[0, 6:36, 6:63], expected, atol=1e-5)
    inputs[0, 6:36, 6:63] = 0
    assert np.abs(inputs).max() < 1e-5
