"""What a real ViT-Ti/16 looks at: the analyses single out what its answers rest on."""

import keras
import numpy as np
import pytest
from scipy.stats import spearmanr

import keras_vit
from keras_vit import analysis
from keras_vit.compat.inference import inference

WEIGHTS = "ViT-Ti_16-imagenet2012-224.npz"
CROPPED = keras_vit.Preprocessing(size=248, crop=224, interpolation="bicubic")
CUP = (slice(10, 160), slice(65, 152))  # rows and columns of coffee.png at 224 x 224: the cup with its rim

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="keras_vit.data needs TensorFlow")


@pytest.fixture(scope="module")
def model(real_data):
    return keras_vit.ViT_Ti16(weights=real_data / "weights" / WEIGHTS, gelu="erf")


# 157 of all 200 with the upper half of the patches and 24 with the lower; 169 are right whole
@pytest.mark.slow
def test_answers_rest_on_the_patches_that_rollout_ranks_highest(model, real_data):
    """Half of the patches keep their pixels, the rest get the image's mean colour."""
    source = keras_vit.data.from_directory(real_data / "imagenet200")
    classes = np.array([int(name.split("_")[0]) for name in source.class_names])
    inputs, labels = map(np.concatenate, zip(*keras_vit.data.pipeline.eval_batches(source, CROPPED, 50), strict=True))
    rollout = analysis.attention_rollout(model, inputs, layers=[-4, -3, -2, -1]).reshape(len(inputs), -1)
    rank = rollout.argsort(1).argsort(1).reshape(len(inputs), 14, 14)
    classify = inference(model)

    def right(kept):
        kept = kept.repeat(16, 1).repeat(16, 2)[..., None]
        seen = np.where(kept, inputs, inputs.mean((1, 2), keepdims=True))
        answers = np.concatenate([classify(part).argmax(1) for part in np.array_split(seen, 4)])
        return (answers == classes[labels]).sum()

    assert right(rank >= 98) >= 155
    assert right(rank < 98) <= 35


@pytest.mark.slow
def test_attention_reaches_farther_with_depth(model, real_data):
    files = keras_vit.data.from_directory(real_data / "imagenet200").files[:16]
    images = keras_vit.preprocess(list(files), CROPPED)
    distances = analysis.mean_attention_distance(model, images, batch_size=16).mean(1)
    assert 30 < distances[:4].mean() < 60 and 100 < distances[-4:].mean() < 150
    assert distances[-4:].min() > distances[:4].max()


def test_the_class_token_looks_at_the_cup(model, real_data):
    inputs = keras_vit.preprocess(real_data / "pictures" / "coffee.png", model.preprocessing)
    attention = analysis.head_maps(model, inputs)[0].mean(0).repeat(16, 0).repeat(16, 1)
    is_cup = np.zeros((224, 224), bool)
    is_cup[CUP] = True
    assert attention[is_cup].mean() >= 3 * attention[~is_cup].mean()  # 3.4


def test_positions_know_their_places(model):
    similarity = analysis.position_similarity(model).reshape(196, 196)
    assert (similarity.argmax(1) == np.arange(196)).all()
    places = np.indices((14, 14)).reshape(2, -1)
    apart = np.hypot(*(places[:, :, None] - places[:, None]))
    others = apart > 0
    assert spearmanr(apart[others], similarity[others]).statistic < -0.5  # -0.57


def test_leading_filters_are_smooth(model):
    """Of noise a share of 0.32 lies at these frequencies; the second component is a grating of one pixel."""
    found = analysis.filter_components(model, 28)
    smooth = analysis.smoothness(found.filters)
    assert smooth.mean() > 0.6 and (smooth > 0.5).sum() >= 24
    assert smooth[2:4].min() > 0.95
    assert (np.diff(found.explained) <= 0).all() and found.explained[0] > 0.04
