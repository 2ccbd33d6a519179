"""freeze: what keeps its weights, what learns, and what is said of a wrong name."""

import keras
import numpy as np
import pytest
from faults import for_each

from keras_vit import VisionTransformer, clone
from keras_vit.models.layer_states import freeze

STEM = ["patch_encoder", "class_token", "position_embs"]


def weights_of(model):
    return {weight.path: keras.ops.convert_to_numpy(weight).copy() for weight in model.weights}


def fit_once(model, images):
    model.compile(keras.optimizers.SGD(0.5), "mse")
    targets = np.random.default_rng(0).normal(size=(len(images), *model.output.shape[1:])).astype("float32")
    model.fit(images, targets, epochs=1, verbose=0)


def around(encoder):
    """A plain keras model with an encoder inside."""
    inputs = keras.Input((16, 16, 3))
    x = keras.layers.Rescaling(2.0, name="scaled")(inputs)
    return keras.Model(inputs, keras.layers.Dense(2, name="mine")(encoder(x)))


@pytest.mark.parametrize(
    ("up_to", "expected"),
    [
        ("patch_encoder", ["patch_encoder"]),
        ("block_00", [*STEM, "block_00"]),
        ("pooling", [*STEM, "block_00", "block_01", "encoder_norm", "pooling"]),
        ("head", [*STEM, "block_00", "block_01", "encoder_norm", "pooling", "head"]),
        (None, [*STEM, "block_00", "block_01", "encoder_norm", "pooling"]),
    ],
)
def test_everything_up_to_the_named_layer_is_frozen_and_nothing_else(up_to, expected, make_model):
    model = make_model()
    everything = {weight.path for weight in model.trainable_weights}
    assert freeze(model, up_to) == expected
    frozen = {path for path in everything if path.split("/")[0] in expected}
    assert {weight.path for weight in model.trainable_weights} == everything - frozen
    assert frozen and {weight.path for weight in model.non_trainable_weights} == frozen


def test_a_step_of_training_changes_the_rest_alone(make_model, make_images):
    model = make_model()
    frozen = freeze(model, up_to="block_00")
    before = weights_of(model)
    fit_once(model, make_images(model))
    for path, array in weights_of(model).items():
        if path.split("/")[0] in frozen:
            np.testing.assert_array_equal(array, before[path], err_msg=path)
        else:
            assert not np.array_equal(array, before[path]), path


def test_nothing_is_thawed(make_model):
    model = make_model()
    model.get_layer("head").trainable = False
    freeze(model, "block_01")
    assert freeze(model, "block_00") == [*STEM, "block_00"]
    trainable = {weight.path.split("/")[0] for weight in model.trainable_weights}
    assert trainable == {"encoder_norm"}


def test_the_inverse(make_model):
    """`model.trainable = True` alone does nothing on TensorFlow, because the model itself stays trainable."""
    model = make_model()
    everything = [weight.path for weight in model.trainable_weights]
    for frozen in (model, around(model)):
        freeze(frozen)
        frozen.trainable = False
        frozen.trainable = True
        assert [weight.path for weight in model.trainable_weights] == everything


def test_it_survives_saving_and_cloning(make_model, tmp_path):
    model = make_model()
    freeze(model, "block_00")
    expected = [weight.path for weight in model.trainable_weights]
    model.save(tmp_path / "model.keras")
    for copy in (keras.models.load_model(tmp_path / "model.keras"), clone(model)):
        assert type(copy) is VisionTransformer
        assert [weight.path for weight in copy.trainable_weights] == expected


@pytest.mark.slow
def test_a_model_around_a_model(make_model, make_images, tmp_path):
    encoder = make_model(include_top=False)
    model = around(encoder)
    assert freeze(model) == ["scaled", "tiny"] == freeze(model, "tiny")
    assert [weight.path for weight in model.trainable_weights] == ["mine/kernel", "mine/bias"]
    before = weights_of(model)
    fit_once(model, make_images(model))
    changed = [path for path, array in weights_of(model).items() if not np.array_equal(array, before[path])]
    assert changed == ["mine/kernel", "mine/bias"]
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert [weight.path for weight in again.trainable_weights] == ["mine/kernel", "mine/bias"]


def test_a_part_of_the_inner_model(make_model):
    model = around(make_model(include_top=False))
    with pytest.raises(ValueError, match=r"the inner model 'tiny': freeze\(model.get_layer\('tiny'\), 'block_00'\)"):
        freeze(model, "block_00")
    assert not model.non_trainable_weights
    freeze(model.get_layer("tiny"), "block_00")
    trainable = {weight.path.split("/")[0] for weight in model.trainable_weights}
    assert trainable == {"block_01", "encoder_norm", "mine"}


def branched():
    """in -> shared -> a -> shared -> b -> join -> two heads; c goes from in to join, created before the others."""
    inputs = keras.Input((4,), name="in")
    c = keras.layers.Dense(4, name="c")(inputs)
    shared = keras.layers.Dense(4, name="shared")
    b = keras.layers.Dense(4, name="b")(shared(keras.layers.Dense(4, name="a")(shared(inputs))))
    join = keras.layers.Concatenate(name="join")([b + 1.0, c])
    heads = [keras.layers.Dense(2, name=name)(join) for name in ("head", "head_dist")]
    return keras.Model(inputs, keras.layers.Average(name="mean")(heads))


@pytest.mark.parametrize(
    ("up_to", "expected"),
    [
        ("c", {"c"}),
        ("shared", {"shared"}),  # its first call
        ("a", {"shared", "a"}),
        ("b", {"shared", "a", "b"}),
        ("head_dist", {"shared", "a", "b", "c", "join", "head_dist"}),
        (None, {"shared", "a", "b", "c", "join"}),
    ],
)
def test_the_graph_decides_not_the_order_of_the_layers(up_to, expected):
    model = branched()
    names = freeze(model, up_to)
    assert {name for name in names if not name.startswith("add")} == expected
    assert {layer.name for layer in model.layers if not layer.trainable} == set(names)
    places = [names.index(name) for name in ("shared", "a", "b", "join") if name in names]
    assert places == sorted(places)


def test_a_layer_used_elsewhere_belongs_to_this_model(make_model):
    model = make_model()
    around(model)
    keras.Model(model.input, model.get_layer("block_00").output)
    assert freeze(model, "block_00") == [*STEM, "block_00"]


@for_each(
    ("up_to", "message"),
    [
        ("block_1", r"layer of 'tiny', one of 'images', .*'head'; got up_to='block_1' \(did you mean 'block_01'\?\)"),
        ("zzz", r"got up_to='zzz'$"),
        (3, r"got up_to=3$"),
    ],
)
def test_unknown_names(up_to, message, make_model):
    model = make_model()
    with pytest.raises(ValueError, match=message):
        freeze(model, up_to)
    assert not model.non_trainable_weights


def test_other_things_than_functional_models():
    with pytest.raises(TypeError, match="model must be a functional keras model; got Dense"):
        freeze(keras.layers.Dense(2), "dense")


@pytest.mark.slow
def test_a_model_in_training_must_be_compiled_again(make_model, make_images):
    model = make_model()
    fit_once(model, make_images(model))
    with pytest.warns(UserWarning, match="tiny was compiled before it was frozen: compile it again"):
        freeze(model)
    before = weights_of(model)
    fit_once(model, make_images(model))  # compiles first
    changed = {path for path, array in weights_of(model).items() if not np.array_equal(array, before[path])}
    assert changed == {"head/kernel", "head/bias"}
