"""The layer calls of a functional model, with their output tensors.

`layer.output` fails if a layer is called more than once, also outside the model. For an inner model it is not the
tensor of this call. Delete this file when Keras lists a model's calls; tests/compat/test_graph.py checks the private
names used here.
"""


def graph_calls(model):
    """Return the calls of layers and operations of a functional model, from inputs to outputs.

    Returns:
        List of Keras nodes: `operation` is the layer, `outputs` are the tensors of the call, `parent_nodes` the calls
        that produced its inputs. None if the model is neither functional nor a built Sequential.
    """
    model = getattr(model, "_functional", model)  # of a Sequential
    by_depth = getattr(model, "_nodes_by_depth", None)
    return by_depth and [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
