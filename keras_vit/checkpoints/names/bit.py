"""Array names of BiT ResNets in the files of the authors (arXiv 1912.11370)."""

from keras_vit.checkpoints.names.rules import FLAX, Layout, expand

_UNIT = "resnet/block{stage}/unit{unit:02d}/"

_OFFICIAL = expand(
    FLAX,
    [
        ("root_conv", "resnet/root_block/standardized_conv2d", "kernel"),
        ("stage_{stage}/unit_{unit}/norm[123]", _UNIT + "[abc]/group_norm", "keras_norm"),
        ("stage_{stage}/unit_{unit}/conv[123]", _UNIT + "[abc]/standardized_conv2d", "kernel"),
        ("stage_{stage}/unit_{unit}/shortcut_conv", _UNIT + "a/proj/standardized_conv2d", "kernel"),
        ("final_norm", "resnet/group_norm", "keras_norm"),
        ("head", "resnet/head/conv2d", "pointwise"),
    ],
)

BIT_LAYOUTS = {
    "official": Layout(
        rules=_OFFICIAL,
        marker=r"^resnet/root_block/standardized_conv2d/kernel$",
        squeezed=r"/group_norm/(gamma|beta)$",
        aliases=((r"/(standardized_conv2d|group_norm|conv2d)_\d+/", r"/\1/"),),  # TensorFlow 1 adds the numbers
    ),
}
