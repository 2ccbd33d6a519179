"""call_shapes: the calls that a real run makes, without running, and nothing of it stays behind."""

import threading

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.compat.call_shapes import _Watch, call_shapes
from keras_vit.compat.graph import own_weights, sublayers
from keras_vit.compat.initial_values import build_deferred

CONFIG = ViTConfig(
    name="tiny", image_size=(16, 24), patch_size=8, hidden_dim=8, num_layers=3, num_heads=2, mlp_dim=12, classes=3
)  # fmt: skip


def _model(**changes):
    return VisionTransformer(CONFIG.replace(**changes))


def _real_calls(model):
    """What call_shapes should find, seen in a run on numbers: (layer, shape of the first argument) per call."""
    seen = []

    def watched(layer, call):
        def report(*args, **kwargs):
            seen.append((layer, tuple(args[0].shape)))
            return call(*args, **kwargs)

        return report

    for layer in sublayers(model):
        object.__setattr__(layer, "call", watched(layer, layer.call))
    try:
        model(np.zeros((1, *model.input.shape[1:]), "float32"), training=False)
    finally:
        for layer in sublayers(model):
            del vars(layer)["call"]
    return seen


@pytest.mark.parametrize(
    "changes",
    [{}, {"pooling": "map"}, {"drop_path_rate": 0.1, "num_registers": 2}, {"dtype": "mixed_bfloat16"}],
)
def test_calls_are_those_of_a_real_run(changes):
    model = _model(**changes)
    real = _real_calls(model)
    found = call_shapes(model)
    assert [(id(call.layer), call.input_shapes[0]) for call in found] == [(id(layer), shape) for layer, shape in real]
    assert len(real) > 3 * 10  # the three blocks are equal, yet each is there


def test_shapes_and_depths_of_a_block():
    found = call_shapes(_model())
    tokens = (1, 1 + 2 * 3, 8)
    names = [(call.depth, call.layer.name) for call in found]
    start = names.index((0, "block_01"))
    assert names[start + 1 : start + 5] == [(1, "norm1"), (1, "attention"), (2, "qkv"), (2, "dropout")]
    rows = tokens[1:] if keras.backend.backend() == "tensorflow" else tokens  # see on_rows
    assert found[start + 3].input_shapes == (rows,) and found[start + 3].output_shape == (*rows[:-1], 24)
    assert found[start].output_shape == tokens
    assert found[-1].layer.name == "head" and found[-1].output_shape == (1, 3)


def test_all_tensors_are_named_and_structures_kept():
    class Pair(keras.layers.Layer):
        def call(self, first, scale=2.0, second=None):
            return {"sum": first[:, :2] + second[:, :2], "product": first * scale}

    one, two = keras.Input((4,)), keras.Input((3,))
    outputs = Pair()(one, second=two)
    [call] = call_shapes(keras.Model([one, two], outputs))
    assert call.input_shapes == ((1, 4), (1, 3))
    assert call.output_shape == {"sum": (1, 2), "product": (1, 4)}


def test_a_deferred_model_stays_without_values():
    deferred, pending = build_deferred(_model)
    found = call_shapes(deferred)
    assert all(variable._value is None for variable in pending)
    expected = call_shapes(_model())
    assert [(call.layer.name, *call[1:]) for call in found] == [(call.layer.name, *call[1:]) for call in expected]


def test_a_trained_model_is_left_as_it_was():
    model = _model(dropout_rate=0.1, num_layers=1)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    images, labels = np.random.default_rng(0).normal(size=(2, 16, 24, 3)).astype("float32"), np.array([0, 1])
    model.train_on_batch(images, labels)
    outputs = model.predict_on_batch(images)
    attributes = [dict(vars(layer)) for layer in (model, *sublayers(model))]
    values = [ops.convert_to_numpy(v).copy() for v in (*model.variables, *model.optimizer.variables)]

    call_shapes(model)

    for layer, before in zip((model, *sublayers(model)), attributes, strict=True):
        after = vars(layer)
        assert list(after) == list(before)
        assert [name for name in before if after[name] is not before[name]] == [], layer.path
    for old, variable in zip(values, (*model.variables, *model.optimizer.variables), strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(variable), old)
    np.testing.assert_array_equal(model.predict_on_batch(images), outputs)
    model.train_on_batch(images, labels)
    assert model.optimizer.iterations == 2


def test_a_method_of_the_instance_survives():
    model = _model()
    head = model.get_layer("head")
    doubled = lambda x, *args, **kwargs: 2 * keras.layers.Dense.call(head, x)  # noqa: E731
    object.__setattr__(head, "call", doubled)
    assert call_shapes(model)[-1].layer is head
    assert head.call is doubled


def test_a_failing_layer_leaves_nothing():
    class Fails(keras.layers.Layer):
        def call(self, x):
            if getattr(self, "is_broken", False):
                raise KeyError("broken")
            return x

    inputs = keras.Input((4,))
    model = keras.Sequential([inputs, keras.layers.Dense(2), Fails(name="fails")])
    model.get_layer("fails").is_broken = True
    with pytest.raises(KeyError, match="broken"):
        call_shapes(model)
    assert all("call" not in vars(layer) for layer in sublayers(model))


def test_layers_that_only_look_equal_are_run():
    class Widen(keras.layers.Layer):
        """Says less in its config than it does."""

        def __init__(self, width, **kwargs):
            super().__init__(**kwargs)
            self.width = width

        def build(self, input_shape):
            self.kernel = self.add_weight(shape=(input_shape[-1], self.width))

        def call(self, x):
            return ops.matmul(x, self.kernel)[:, :1]

        def get_config(self):
            return {"name": self.name}

    inputs = keras.Input((1,))
    outputs = Widen(3)(Widen(2)(inputs))
    found = call_shapes(keras.Model(inputs, outputs))
    assert [call.layer.width for call in found] == [2, 3]


def test_a_shared_layer_is_there_once_per_call():
    dense = keras.layers.Dense(4)
    inputs = keras.Input((4,))
    found = call_shapes(keras.Model(inputs, dense(dense(inputs))))
    assert [call.layer for call in found] == [dense, dense]


def test_quantized_layers_are_seen():
    model = _model(num_layers=1)
    before = [(call.layer.path, call.input_shapes) for call in call_shapes(model)]
    model.get_layer("block_00").mlp.dense1.quantize("int8")
    assert [(call.layer.path, call.input_shapes) for call in call_shapes(model)] == before
    assert all("quantized_call" not in vars(layer) for layer in sublayers(model))


def test_calls_of_other_threads_are_not_reported():
    model = _model()
    images = np.random.default_rng(0).normal(size=(2, 16, 24, 3)).astype("float32")
    model.get_layer("head").kernel.assign(np.ones((8, 3)))
    expected, results = ops.convert_to_numpy(model(images)), []
    with _Watch(model) as watch:
        thread = threading.Thread(target=lambda: results.append(ops.convert_to_numpy(model(images))))
        thread.start()
        thread.join()
    np.testing.assert_array_equal(results[0], expected)
    assert watch.calls == []


def test_unknown_size_is_refused():
    inputs = keras.Input((None, None, 3))
    model = keras.Model(inputs, keras.layers.Conv2D(2, 3)(inputs))
    with pytest.raises(ValueError, match=r"known size; got \(None, None, None, 3\)"):
        call_shapes(model)


def test_own_weights():
    model = _model(pooling="map")
    assert [weight.path for weight in own_weights(model.get_layer("pooling"))] == ["pooling/probe"]
    assert own_weights(model.get_layer("block_00")) == [] and own_weights(model) == []
    assert len(own_weights(model.get_layer("head"))) == 2
