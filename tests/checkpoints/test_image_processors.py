"""The preprocessing that image processors state."""

from keras_vit.checkpoints.image_processors import huggingface_preprocessing


def test_a_processor_that_only_pads_leaves_the_preprocessing_open(caplog):
    values = {"image_processor_type": "DPTImageProcessor", "do_resize": False, "do_rescale": False, "do_pad": True}
    assert huggingface_preprocessing({**values, "size_divisor": 14, "image_mean": [123.675, 116.28, 103.53]}) is None
    assert "images keep their size and are padded" in caplog.text
