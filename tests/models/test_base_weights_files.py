"""ImageModel.load_weights: files of other image sizes, and the optimizer."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit

OTHER_SIZES = [(16, 32), (16, (8, 32)), ((24, 8), 16)]  # 4 x 4 and 2 x 8 patches have tables of one shape


@pytest.mark.parametrize(("old", "new"), [*OTHER_SIZES, (16, 16)])
def test_weights_files_cross_image_sizes(old, new, make_model, tmp_path):
    source, target = _other_weights(make_model(image_size=old)), make_model(image_size=new)
    source.save_weights(tmp_path / "m.weights.h5")
    target.load_weights(tmp_path / "m.weights.h5")
    _check_equal(target, keras_vit.resize(source, new))


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), OTHER_SIZES)
def test_weights_of_another_size_leave_the_optimizer_as_it_is(old, new, make_model, make_images, tmp_path):
    source, target = _other_weights(make_model(image_size=old)), make_model(image_size=new)
    _compile(source, 1)
    _compile(target, 2)
    optimizer, slots = target.optimizer, _slots(target)
    source.save_weights(tmp_path / "m.weights.h5")
    with pytest.warns(UserWarning, match=r"m\.weights\.h5 holds the optimizer state of another image size"):
        target.load_weights(tmp_path / "m.weights.h5")
    _check_equal(target, keras_vit.resize(source, new))
    assert target.optimizer is optimizer
    for before, after in zip(slots, _slots(target), strict=True):
        np.testing.assert_array_equal(before, after)
    target.train_on_batch(make_images(target), np.array([0, 1, 2]))
    assert int(optimizer.iterations) == 3


def test_weights_of_the_same_size_bring_their_optimizer_along(make_model, tmp_path):
    source, target = _other_weights(make_model()), make_model()
    _compile(source, 1)
    _compile(target, 2)
    source.save_weights(tmp_path / "m.weights.h5")
    target.load_weights(tmp_path / "m.weights.h5")
    _check_equal(target, source)
    for mine, other in zip(_slots(target), _slots(source), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_h5_files_of_keras_hold_whole_models(make_model, make_images, run, tmp_path):
    """`ModelCheckpoint("best.h5")` and mlflow write them; tests/test_families.py loads those of all families."""
    model, labels = make_model(labels=list("abcde")), np.array([0, 1, 2])
    images = make_images(model)
    wrapped = keras_vit.Model(model.input, keras.layers.Dense(2)(model(model.input)))
    for each in (model, wrapped):
        _compile(each, 1)
        each.fit(images, labels % 2, verbose=0, callbacks=[keras.callbacks.ModelCheckpoint(tmp_path / "best.h5")])
        loaded = keras.saving.load_model(tmp_path / "best.h5")
        assert type(loaded) is type(each) and loaded.compiled
        np.testing.assert_array_equal(run(loaded, images), run(each, images))
    model = keras_vit.clone(model)
    keras_vit.add_lora(model, rank=2)
    model.get_layer("block_00").attention.qkv.lora_kernel_b.assign_add(np.ones((2, 48), "float32"))
    model.save(tmp_path / "lora.h5")
    loaded = keras.saving.load_model(tmp_path / "lora.h5")
    assert (loaded.config, loaded.labels, loaded.compiled) == (model.config, model.labels, False)
    assert not any("lora" in weight.path for weight in loaded.weights)
    np.testing.assert_allclose(run(loaded, images), run(model, images), atol=1e-5)


def test_weights_for_a_model_without_optimizer_come_without_warning(make_model, tmp_path):
    source, target = _other_weights(make_model()), make_model(image_size=32)
    _compile(source, 1)
    source.save_weights(tmp_path / "m.weights.h5")
    target.load_weights(tmp_path / "m.weights.h5")
    _check_equal(target, keras_vit.resize(source, 32))


@pytest.mark.filterwarnings("ignore:Skipping nested container")  # what Keras says before it raises
@pytest.mark.parametrize("changes", [{"num_layers": 1}, {"hidden_dim": 8}, {"classes": 7}], ids=str)
def test_weights_of_another_architecture_are_refused(changes, make_model, tmp_path):
    make_model(**changes).save_weights(tmp_path / "m.weights.h5")
    with pytest.raises(ValueError, match="shape|expected .* variables|could not be loaded"):
        make_model().load_weights(tmp_path / "m.weights.h5")


def test_compiled_model_resumes_with_its_optimizer(make_model, tmp_path):
    model = make_model()
    _compile(model, 3)
    model.save(tmp_path / "compiled.keras")
    again = keras.models.load_model(tmp_path / "compiled.keras")
    assert int(again.optimizer.iterations) == 3
    for mine, other in zip(_slots(model), _slots(again), strict=True):
        np.testing.assert_array_equal(mine, other)


def _other_weights(model):
    rng = np.random.default_rng(9)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    return model


def _compile(model, steps):
    """Compiles the model and gives its optimizer the state of one that has made so many steps."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, run_eagerly=True)
    model.optimizer.build(model.trainable_variables)
    rng = np.random.default_rng(steps)
    for variable in model.optimizer.variables[2:]:  # behind the number of steps and the learning rate
        variable.assign(rng.uniform(0.1, 0.2, variable.shape))
    model.optimizer.iterations.assign(steps)


def _check_equal(model, expected):
    expected = _by_path(expected)
    for path, value in _by_path(model).items():
        np.testing.assert_allclose(value, expected[path], atol=1e-6, err_msg=path)


def _by_path(model):
    return {weight.path: ops.convert_to_numpy(weight) for weight in model.weights}


def _slots(model):
    return [ops.convert_to_numpy(variable) for variable in model.optimizer.variables]
