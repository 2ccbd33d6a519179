"""fit, evaluate and predict on two replicas and on one device; the numbers come from fit_cases.py."""

import keras
import numpy as np
import pytest
from faults import for_each
from replica_process import run_cases

import keras_vit
from keras_vit.compat.batch_parts import add, take_part

EQUAL = ("odd_batches", "sets_of_objects")
ERRORS = {
    "mixed_reductions": "one reduction of all losses",
    "indivisible_steps": "steps_per_execution=2 must divide steps_per_epoch=3",
    "jit_compile": "jit_compile must be 'auto' or False under tf.distribute",
    "outside_labels": "ValueError: labels must be from 0 to 2, as the model has 3 classes; a batch has 4294967297",
}
OTHERS = ("dense_cases", "microbatch_errors", "evaluate_and_predict", "masks")
OTHERS_SLOW = ("given_weights", "microbatches", "saved", "several_steps")
EQUAL_SLOW = (
    "class_weights_and_arrays",
    "distilled",
    "eager",
    "empty_replica",
    "overwritten_averages",
    "several_steps_of_endless_data",
    "swapped_averages",
    "taught",
    "taught_in_parts",
    "train_on_batch",
    "weighted_mean_loss",
)
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return run_cases(tmp_path_factory, "replica_cases.py", [*EQUAL, *ERRORS, *OTHERS])


@pytest.fixture(scope="module")
def found_slowly(tmp_path_factory):
    return run_cases(tmp_path_factory, "replica_cases.py", [*EQUAL_SLOW, *OTHERS_SLOW])


@pytest.mark.parametrize("case", EQUAL)
def test_two_replicas_give_what_one_device_gives(found, case):
    assert found[case] < TOLERANCE


@for_each("case", ERRORS)
def test_what_cannot_work_is_refused(found, case):
    assert ERRORS[case] in found[case]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["one device", "one device, unknown length", "two replicas", "two replicas, unknown length"]
)
def test_last_execution_is_as_long_as_the_data(found_slowly, case):
    assert found_slowly["several_steps"][case] < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("case", ["one device", "two replicas"])
def test_microbatches_give_the_gradient_of_the_batch(found_slowly, case):
    assert found_slowly["microbatches"][case] < TOLERANCE


def test_microbatches_that_cannot_be(found):
    errors = found["microbatch_errors"]
    assert "microbatches must be 1 for a model with its own train_step" in errors["own train_step"]
    assert "microbatches must be an integer of at least 1; got microbatches=0" in errors["zero"]


def test_losses_that_cannot_be_put_together_from_replicas(found):
    errors = found["dense_cases"]
    assert "compute_loss must not be overridden on several replicas" in errors["own compute_loss"]
    assert "got OwnLoss on 2 replicas" in errors["own compute_loss"]
    assert "outputs must have no mask to be trained in parts" in errors["masked"]


def test_small_models_on_two_replicas(found):
    """A mean of 4 + 3 rows, a sum, logs of a train_step, nothing to train."""
    x = np.random.default_rng(0).normal(size=(7, 2, 3)).astype("float32")
    cases = found["dense_cases"]
    assert cases["own logs"] < TOLERANCE and cases["summed"] < TOLERANCE * 10
    np.testing.assert_allclose(cases["own mean"], [(x[:4].mean() + x[4:].mean()) / 2], rtol=1e-5)
    assert cases["frozen"] == "no error"


def test_evaluate_and_predict(found):
    assert found["evaluate_and_predict"]["rows"] == 17
    assert found["evaluate_and_predict"]["difference"] < TOLERANCE


def test_replicas_draw_different_masks(found):
    drawn = found["masks"]["once"]
    for step in (0, 4):
        first, second, seed, other_seed = drawn[step : step + 4]
        assert first != second
        assert seed != other_seed
        assert sorted(set(np.ravel(first))) == [0, 2]  # a mask of Dropout(0.5), scaled
        assert 10 < np.count_nonzero(np.asarray(first) != second) < 54  # of 64: as independent ones
    assert drawn[0] != drawn[4] and drawn[1] != drawn[5] and drawn[2] != drawn[6]


@pytest.mark.slow
@pytest.mark.parametrize("case", EQUAL_SLOW)
def test_two_replicas_give_what_one_device_gives_slowly(found_slowly, case):
    assert found_slowly[case] < TOLERANCE


@pytest.mark.slow
def test_create_model_fills_the_weights_of_all_replicas(found_slowly):
    assert found_slowly["given_weights"]["weights"] == 0
    assert found_slowly["given_weights"]["logits"] < 1e-5  # batches of 3 + 2 images in place of 5


@pytest.mark.slow
def test_saved_models_change_devices(found_slowly):
    assert found_slowly["saved"]["microbatches"] == 2
    assert found_slowly["saved"]["there"] < TOLERANCE
    assert found_slowly["saved"]["back"] < TOLERANCE


def _small_model():
    inputs = keras.Input((3,))
    return keras_vit.Model(inputs, keras.layers.Dense(2)(keras.layers.BatchNormalization()(inputs)))


def test_model_is_functional_and_keeps_its_class(tmp_path):
    model = _small_model()
    model.compile("sgd", "mse", microbatches=2)
    model.save(tmp_path / "model.keras")
    opened = keras.models.load_model(tmp_path / "model.keras")
    assert type(opened) is type(model) is keras_vit.Model
    assert opened.get_compile_config()["microbatches"] == 2
    assert [layer.name for layer in opened.layers] == [layer.name for layer in model.layers]
    x = np.ones((4, 3), "float32")
    np.testing.assert_array_equal(opened.predict(x, verbose=0), model.predict(x, verbose=0))
    assert keras.models.clone_model(model).count_params() == model.count_params()


def test_microbatches_update_states_and_metrics_once_per_part():
    """BatchNormalization sees the parts: two updates of its moving mean, 0.99 m + 0.01 mean, in a step."""
    model = _small_model()
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"], microbatches=2)
    x, y = np.arange(12, dtype="float32").reshape(4, 3), np.zeros((4, 2), "float32")
    logs = model.train_on_batch(x, y, return_dict=True)
    moving = 0.99 * 0.01 * x[0::2].mean(0) + 0.01 * x[1::2].mean(0)
    np.testing.assert_allclose(model.layers[1].moving_mean, moving, rtol=1e-5)
    assert np.isfinite(logs["mae"]) and int(model.optimizer.iterations) == 1


def _on_a_batch(loss, rows, weights=None, **arguments):
    """Trains a dense layer on one batch; returns its kernel and the loss that was logged."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,))
    regularizer = None if loss.reduction == "sum" else "l2"
    model = keras_vit.Model(inputs, keras.layers.Dense(2, kernel_regularizer=regularizer)(inputs))
    model.compile(keras.optimizers.SGD(0.1), loss, run_eagerly=keras.backend.backend() == "tensorflow", **arguments)
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype("float32")
    logged = model.train_on_batch(x, x[:, :2], sample_weight=weights)
    return keras.ops.convert_to_numpy(model.layers[-1].kernel), logged


@pytest.mark.parametrize("rows", [2, 7])  # fewer than the parts, and no multiple of them
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight", "sum"])
def test_microbatches_train_and_log_as_the_whole_batch(reduction, rows):
    loss, weights = keras.losses.MeanSquaredError(reduction=reduction), np.linspace(0.1, 2, rows).astype("float32")
    whole, parts = (_on_a_batch(loss, rows, weights, microbatches=count) for count in (1, 3))
    np.testing.assert_allclose(parts[0], whole[0], atol=1e-6)
    np.testing.assert_allclose(parts[1], whole[1], rtol=1e-5)


def test_a_batch_without_weight_trains_nothing():
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    kernel, _ = _on_a_batch(loss, 4, np.zeros(4, "float32"), microbatches=2)
    assert np.isfinite(kernel).all()


@pytest.mark.parametrize(
    ("masked", "reduction", "message"),
    [(False, "sum", "loss must be a mean, not a sum, for microbatches"), (True, "mean", "outputs must have no mask")],
)
def test_losses_that_cannot_be_put_together_from_microbatches(masked, reduction, message):
    inputs = keras.Input((3, 2))
    tokens = keras.layers.Masking()(inputs) if masked else inputs
    model = keras_vit.Model(inputs, keras.layers.Dense(2, kernel_regularizer="l2")(tokens))
    model.compile("sgd", keras.losses.MeanSquaredError(reduction=reduction), microbatches=2)
    x = np.ones((4, 3, 2), "float32")
    assert np.isfinite(model.test_on_batch(x, x))  # to evaluate needs no parts
    with pytest.raises(ValueError, match=message):
        model.train_on_batch(x, x)


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
def test_microbatches_of_a_frozen_model():
    model = _small_model()
    model.trainable = False
    model.compile("sgd", "mse", microbatches=2)
    assert np.isfinite(model.train_on_batch(np.ones((4, 3), "float32"), np.ones((4, 2), "float32")))


def test_take_part_takes_every_row_once():
    data = (np.arange(7), None)
    parts = [take_part(data, part, 3) for part in range(3)]
    assert sorted(np.concatenate([rows for rows, _ in parts])) == list(range(7))
    assert {len(rows) for rows, _ in parts} == {2, 3}
    assert take_part(data, 0, 1) is data


def test_add_keeps_missing_gradients():
    assert add(None, [1, None]) == [1, None]
    assert add([1, None], [2, None]) == [3, None]


def test_the_first_step_is_traced_once():
    class Counted(keras_vit.Model):
        traced = 0

        def train_step(self, *arguments):
            type(self).traced += 1
            return super().train_step(*arguments)

    inputs = keras.Input((4,))
    model = Counted(inputs, keras.layers.Dense(2)(inputs))
    model.compile("adam", "mse")
    model.fit(np.ones((6, 4)), np.ones((6, 2)), batch_size=2, verbose=0)
    assert model.traced == 1 and int(model.optimizer.iterations) == 3


@pytest.fixture(scope="module")
def batches():
    source, _ = keras_vit.data.from_digits()
    preprocessing = keras_vit.Preprocessing(size=8, mean=(0.5,), std=(0.5,))
    return keras_vit.data.train_pipeline(source, preprocessing, 64)


class TestDataWithoutEnd:
    """Keras would go on for ever."""

    @pytest.fixture
    def model(self):
        inputs = keras.Input((8, 8, 1))
        model = keras_vit.Model(inputs, keras.layers.Dense(10)(keras.layers.Flatten()(inputs)))
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    @for_each(
        ("method", "data", "steps"),
        [
            ("fit", "x", "steps_per_epoch"),
            ("fit", "validation_data", "validation_steps"),
            ("evaluate", "x", "steps"),
            ("predict", "x", "steps"),
        ],
    )
    def test_it_is_refused_with_the_steps_of_one_pass(self, model, batches, method, data, steps):
        arguments = {"x": batches.take(1), data: batches}
        with pytest.raises(ValueError) as raised:
            getattr(model, method)(**arguments, verbose=0)
        assert str(raised.value) == (
            f"{steps} must be given to {method}, as {data} is infinite (a cardinality of -1 or num_batches=None); "
            f"got {steps}=None (22 steps are one pass)"  # 1438 // 64
        )
        assert int(model.optimizer.iterations) == 0

    def test_without_a_known_size_the_error_says_how_it_is_computed(self, model, batches):
        with pytest.raises(ValueError, match=r"got steps_per_epoch=None \(the number of images divided by the batch"):
            model.fit(batches.map(lambda *batch: batch))

    def test_with_steps_or_an_end_it_is_trained_on(self, model, batches):
        model.fit(batches, steps_per_epoch=2, validation_data=batches, validation_steps=1, shuffle=False, verbose=0)
        model.fit(batches.take(1), shuffle=False, verbose=0)
        assert int(model.optimizer.iterations) == 3
