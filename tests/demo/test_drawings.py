"""The drawn examples: what they show, where it is, and that a real model names them."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import analysis
from keras_vit.demo.drawn_digits import draw_digit, list_digits
from keras_vit.demo.drawn_scenes import draw_scene, list_scenes
from keras_vit.demo.pen import Pen, gradient

WEIGHTS = "ViT-Ti_16-imagenet2012-224.npz"


@pytest.mark.parametrize("name", list_scenes())
def test_the_box_of_a_scene_holds_what_is_drawn(name):
    """Outside there is the background, whose rows are of one colour; a pole or grass may lie below."""
    scene = draw_scene(name)
    pixels = np.asarray(scene.image).astype(int)
    left, top, right, bottom = scene.box
    assert pixels.shape == (360, 480, 3) and 0 <= left < right <= 480 and 0 <= top < bottom <= 360
    area = (right - left) * (bottom - top)
    assert 0.05 < area / (480 * 360) < 0.4
    assert abs((left + right) / 2 - 240) > 60, "off-centre"
    far = pixels[:, :20] if left > 240 - (right - left) / 2 else pixels[:, -20:]
    assert np.abs(pixels[top:bottom, left:right] - far[top:bottom, :1]).max(-1).max(1).min() > 20
    above = pixels[: top - 12]
    assert above.size == 0 or np.ptp(above, axis=1).max() <= 2


@pytest.mark.parametrize("name", list_digits())
def test_a_digit_is_dark_on_light(name):
    grey = np.asarray(draw_digit(name).convert("L"))
    assert grey.shape == (160, 160) and np.median(grey) > 240 and grey.min() < 60
    assert 0.03 < (grey < 128).mean() < 0.3


def test_drawings_are_alike_at_every_call():
    assert draw_scene("balloon").image.tobytes() == draw_scene("balloon").image.tobytes()
    assert draw_digit("3").tobytes() == draw_digit("3").tobytes()


def test_other_names_are_refused():
    with pytest.raises(ValueError, match="name must be one of 'traffic light', .*got name='cat'"):
        draw_scene("cat")
    with pytest.raises(ValueError, match="name must be one of '0', .*got name=3"):
        draw_digit(3)
    with pytest.raises(ValueError, match="width must be an integer of at least 1; got width=0"):
        draw_digit("3", width=0)


def test_the_pen_draws_in_pixels_of_the_result():
    pen = Pen(gradient((40, 20), (0, 0, 0), (0, 0, 0)))
    pen.box((10, 5, 20, 15), (255, 255, 255))
    assert pen.image().getbbox() == (10, 5, 21, 16)  # Pillow draws the last row and column of the fine image too
    assert pen.image().getpixel((19, 14)) == (255, 255, 255)


@pytest.fixture(scope="module")
def real_model(real_data):
    return keras_vit.ViT_Ti16(weights=real_data / "weights" / WEIGHTS, gelu="erf")


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the data room needs TensorFlow")
@pytest.mark.parametrize("name", list_scenes())
def test_a_real_model_names_every_scene_and_looks_at_its_object(real_model, name):
    scene = draw_scene(name)
    assert name in [label for label, _ in keras_vit.predict(real_model, scene.image)[0]]
    inputs = keras_vit.preprocess(scene.image, real_model.preprocessing)
    rollout = analysis.attention_rollout(real_model, inputs)[0].repeat(16, 0).repeat(16, 1)
    left, top, right, bottom = (
        round(side * scale) for side, scale in zip(scene.box, (224 / 480, 224 / 360) * 2, strict=True)
    )
    is_object = np.zeros((224, 224), bool)
    is_object[top:bottom, left:right] = True
    assert rollout[is_object].mean() > 1.6 * rollout[~is_object].mean()  # from 1.97, the balloon, to 4.3
