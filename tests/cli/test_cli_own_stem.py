"""The command line on a saved hybrid whose stem is a CNN of the user's own."""

import re

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.cli import main


def test_another_size_and_other_classes(tmp_path, capsys, caplog):
    inputs = keras.Input((None, None, 3))
    stem = keras.Model(inputs, keras.layers.Conv2D(6, 3, strides=4, padding="same")(inputs), name="cnn")
    config = keras_vit.ViTConfig(
        name="mine", image_size=32, patch_size=2, hidden_dim=8, num_layers=1, num_heads=2, mlp_dim=8, classes=3
    )
    model = keras_vit.VisionTransformer(config, stem=stem, labels=("a", "b", "c"))
    model.get_layer("head").kernel.assign(np.ones((8, 3)))
    model.save(tmp_path / "mine.keras")
    assert main(["info", str(tmp_path / "mine.keras"), "--image-size", "64"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^image_size +64 64$", shown, re.MULTILINE) and "a, b, c" in shown
    assert "4 x 4 -> 8 x 8 (align_corners)" in caplog.text  # the positions


class Mixing(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(6)

    def build(self, input_shape):
        self.dense.build(input_shape)

    def call(self, x):
        return self.dense(x)


class Unclear(Mixing):
    def call(self, x):
        if keras.utils.is_keras_tensor(x):
            raise TypeError("needs a tensor of its backend")
        return self.dense(x)


@pytest.mark.parametrize(("layer", "shown_macs"), [(Mixing, f"{32 * 32 * 3 * 6:,}"), (Unclear, "unknown")])
def test_the_cost_of_a_layer_of_its_own(tmp_path, capsys, layer, shown_macs):
    inputs = keras.Input((32, 32, 3))
    stem = keras.Model(inputs, layer(name="mixing")(inputs), name="cnn")
    config = keras_vit.ViTConfig(
        name="mine", image_size=32, patch_size=8, hidden_dim=8, num_layers=1, num_heads=2, mlp_dim=8, classes=3
    )
    keras_vit.VisionTransformer(config, stem=stem).save(tmp_path / "mine.keras")
    with keras.saving.custom_object_scope({layer.__name__: layer}):
        assert main(["info", str(tmp_path / "mine.keras")]) == 0
    shown = capsys.readouterr().out
    [row] = [line for line in shown.splitlines() if line.startswith("cnn ")]
    assert row.split()[-2:] == ["24", shown_macs]
    assert ("and the unknown ones of cnn" in shown) == (shown_macs == "unknown")
