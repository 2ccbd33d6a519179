"""The drawn scenes: where their object is, and that a real model classifies them correctly."""

import pathlib
import runpy

import keras
import numpy as np
import pytest
from faults import for_each

import keras_vit
from keras_vit import analysis
from keras_vit.demo.models import SCENES, example_scenes

WEIGHTS = "ViT-Ti_16-imagenet2012-224.npz"
# (left, top, right, bottom) of the object of each scene, in pixels
BOXES = {
    "balloon": (235, 30, 425, 304),
    "soccer ball": (60, 120, 240, 300),
    "mushroom": (50, 76, 250, 317),
    "umbrella": (205, 62, 455, 312),
    "wall clock": (230, 50, 430, 250),
    "street sign": (69, 59, 231, 221),
    "jack-o'-lantern": (220, 85, 440, 288),
}


def test_every_scene_has_a_box():
    assert list(SCENES) == list(BOXES)


@for_each("name", SCENES)
def test_the_box_of_a_scene_holds_what_is_drawn(name):
    """Outside there is the background, whose rows are of one colour; a pole or grass may lie below."""
    scene = example_scenes()[name]
    assert scene.dtype == np.uint8 and scene.shape == (360, 480, 3)
    pixels = scene.astype(int)
    left, top, right, bottom = BOXES[name]
    assert 0 <= left < right <= 480 and 0 <= top < bottom <= 360
    area = (right - left) * (bottom - top)
    assert 0.05 < area / (480 * 360) < 0.4
    assert abs((left + right) / 2 - 240) > 60, "off-centre"
    far = pixels[:, :20] if left > 240 - (right - left) / 2 else pixels[:, -20:]
    assert np.abs(pixels[top:bottom, left:right] - far[top:bottom, :1]).max(-1).max(1).min() > 20
    above = pixels[: top - 12]
    assert above.size == 0 or np.ptp(above, axis=1).max() <= 2


def test_scenes_are_what_their_generator_draws():
    drawn = runpy.run_path(str(pathlib.Path(__file__).parents[2] / "docs" / "generate" / "scenes.py"))
    assert tuple(drawn["SCENES"]) == SCENES
    for name, scene in example_scenes().items():
        difference = np.abs(drawn["draw_scene"](name) - scene.astype(int))
        # versions of Pillow draw the edges of letters and circles a little differently
        assert difference.mean() < 0.1, f"{name}: run python docs/generate/scenes.py"


@pytest.fixture(scope="module")
def looked_at(real_data):
    """Scene -> the labels that a real model answers, and its rollout."""
    model = keras_vit.ViT_Ti16(weights=real_data / "weights" / WEIGHTS, gelu="erf")
    scenes = list(example_scenes().values())
    labels = [[label for label, _ in answers] for answers in keras_vit.predict(model, scenes)]
    rollouts = analysis.attention_rollout(model, keras_vit.preprocess(scenes, model.preprocessing))
    return dict(zip(SCENES, zip(labels, rollouts, strict=True), strict=True))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="keras_vit.data needs TensorFlow")
@pytest.mark.parametrize("name", SCENES)
def test_a_real_model_names_every_scene_and_looks_at_its_object(looked_at, name):
    labels, rollout = looked_at[name]
    assert name in labels
    rollout = rollout.repeat(16, 0).repeat(16, 1)
    left, top, right, bottom = (
        round(side * scale) for side, scale in zip(BOXES[name], (224 / 480, 224 / 360) * 2, strict=True)
    )
    is_object = np.zeros((224, 224), bool)
    is_object[top:bottom, left:right] = True
    assert rollout[is_object].mean() > 1.6 * rollout[~is_object].mean()  # from 1.97, the balloon, to 4.3
