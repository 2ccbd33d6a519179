"""layer_norm: Keras's numbers, in the form that who compiles the graph turns into one operation."""

import keras
import numpy as np
import pytest
from optimised_graphs import needs_onednn, optimised_operations

import keras_vit
from keras_vit.layers.forms import CONVERTER, ONEDNN, LayerNorm, is_for, written_for

X = (3 + 2 * np.random.default_rng(0).normal(size=(4, 5, 24))).astype("float32")
pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a form for TensorFlow")


@pytest.fixture(params=["float32", "bfloat16", "mixed_bfloat16"])
def layer(request):
    layer = LayerNorm(epsilon=1e-6, dtype=request.param)
    layer.build(X.shape)
    rng = np.random.default_rng(1)
    layer.set_weights([rng.normal(size=24), rng.normal(size=24)])
    return layer


def _fused(layer):
    def call(x):
        with written_for(ONEDNN):
            return layer(x)

    return call


@needs_onednn()
def test_one_operation(layer):
    assert optimised_operations(_fused(layer), X)["_MklLayerNorm",] == 1
    assert optimised_operations(layer, X)["_MklLayerNorm",] == 0


@needs_onednn()
@pytest.mark.parametrize("epsilon", [1e-12, 1e-6, 1.0])
@pytest.mark.parametrize("signature", [(None, 5, 24), (4, 5, 24), (4, None, 24)])
def test_values_with_every_epsilon_and_any_batch_size(epsilon, signature):
    import tensorflow as tf

    layer = LayerNorm(epsilon=epsilon)
    x = np.concatenate([X[:3], np.full((1, 5, 24), 7.0)]).astype("float32")  # a row without variance
    outputs = tf.function(_fused(layer), input_signature=[tf.TensorSpec(signature)], autograph=False)(x)
    assert outputs.shape == x.shape
    np.testing.assert_allclose(outputs, layer(x), rtol=1e-5, atol=1e-5)


@needs_onednn()
def test_values_in_lower_precision(layer):
    import tensorflow as tf

    outputs = tf.cast(tf.function(_fused(layer), autograph=False)(X), "float32")
    expected = tf.cast(layer(X), "float32")
    np.testing.assert_allclose(outputs, expected, atol=0.05 if layer.compute_dtype == "bfloat16" else 1e-5)


@needs_onednn()
def test_not_outside_of_the_scope_and_not_where_functions_run_eagerly():
    import tensorflow as tf

    answers = []
    with written_for(ONEDNN):
        answers.append(is_for(ONEDNN))
        tf.function(lambda: answers.append(is_for(ONEDNN)), autograph=False)()
    tf.function(lambda: answers.append(is_for(ONEDNN)), autograph=False)()
    assert answers == [False, True, False]


@needs_onednn()
def test_predict_and_evaluate_have_them_and_training_has_not(monkeypatch):
    seen = []
    original = LayerNorm.call

    def call(self, x):
        seen.append(is_for(ONEDNN))
        return original(self, x)

    config = {"patch_size": 4, "hidden_dim": 8, "num_layers": 1, "num_heads": 2, "mlp_dim": 8, "classes": 3}
    model = keras_vit.VisionTransformer(keras_vit.ViTConfig(name="toy", image_size=8, **config))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    monkeypatch.setattr(LayerNorm, "call", call)
    images, labels = np.zeros((2, 8, 8, 3), "float32"), np.zeros(2, "int32")
    for method, arguments, expected in (
        (model.predict_on_batch, (images,), {True}),
        (model.test_on_batch, (images, labels), {True}),
        (model.train_on_batch, (images, labels), {False}),
        (model, (images,), {False}),
    ):
        seen.clear()
        method(*arguments)
        assert set(seen) == expected, method


@pytest.mark.parametrize("reader", [ONEDNN, CONVERTER])
def test_float64_and_other_ranks_keep_their_precision(reader):
    import tensorflow as tf

    layer = LayerNorm(epsilon=1e-6, dtype="float64")
    layer.build((None, 24))
    for x in (X.astype("float64"), X[None].astype("float64")):

        @tf.function(autograph=False)
        def call(x):
            with written_for(reader):
                return layer(x)

        np.testing.assert_allclose(call(x), layer(x), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_converters_get_what_openvino_knows():
    openvino = pytest.importorskip("openvino")
    import tensorflow as tf

    layer = LayerNorm(epsilon=1e-6)
    layer.build(X.shape)
    kinds = {}
    for reader in (None, CONVERTER):

        @tf.function(input_signature=[tf.TensorSpec((None, 5, 24))], autograph=False)
        def call(x, reader=reader):
            with written_for(reader):
                return layer(x)

        model = openvino.convert_model(call.get_concrete_function(), input=[openvino.PartialShape([-1, 5, 24])])
        np.testing.assert_allclose(call(X), layer(X), atol=1e-5)
        # Not compiled here: a process in which OpenVINO has compiled a model dies of signals that Python handles.
        kinds[reader] = [operation.get_type_name() for operation in model.get_ordered_ops()]
    assert kinds[CONVERTER].count("MVN") == 1
    assert "MVN" not in kinds[None]
