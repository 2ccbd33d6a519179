"""graph_calls: every call of a functional model, with its own tensors."""

import keras

from keras_vit.compat.graph import graph_calls


def test_calls_and_tensors_of_a_branched_model_with_a_model_inside():
    inner_inputs = keras.Input((4,))
    inner = keras.Model(inner_inputs, keras.layers.Dense(4)(inner_inputs), name="inner")
    inputs = keras.Input((4,), name="in")
    twice = keras.layers.Dense(4, name="twice")
    first = inner(inputs)
    second = twice(twice(first))
    model = keras.Model(inputs, second + inputs)
    twice(keras.Input((4,)))  # a call of no concern to the model
    calls = graph_calls(model)
    assert [call.operation.name for call in calls[:-1]] == ["in", "inner", "twice", "twice"]
    assert calls[1].outputs[0] is first and first is not inner.output
    assert calls[3].outputs[0] is second and calls[-1].outputs[0] is model.outputs[0]
    assert [parent.operation.name for parent in calls[3].parent_nodes] == ["twice"]


def test_calls_of_a_sequential_model():
    model = keras.Sequential([keras.layers.Dense(4, name="first"), keras.layers.Dense(2, name="second")])
    assert graph_calls(model) is None  # it has no calls before it knows its inputs
    model.build((None, 3))
    assert [call.operation.name for call in graph_calls(model)][1:] == ["first", "second"]


def test_a_model_without_a_graph_has_none():
    class Subclass(keras.Model):
        pass

    assert graph_calls(Subclass()) is None


def test_keras_has_no_public_list_of_calls():
    """Delete graph_calls when this fails."""
    assert not hasattr(keras.Model, "nodes_by_depth") and not hasattr(keras.Model, "calls")
