"""The calls that make up a functional model, with the tensors they gave.

`layer.output` fails where a layer was called more than once, also outside the model, and of a model inside the model it
is another tensor than the one that this call gave. Delete this file when Keras lists a model's calls; tests/compat/
test_graph.py watches over the private names.
"""


def graph_calls(model):
    """Returns the calls of layers and operations of a functional model, from its inputs to its outputs.

    Returns:
        List of Keras nodes: `operation` is the layer, `outputs` are the tensors of the call, `parent_nodes` the calls
        that they were made from. None if the model is neither functional nor a Sequential that is built.
    """
    model = getattr(model, "_functional", model)  # of a Sequential
    by_depth = getattr(model, "_nodes_by_depth", None)
    return by_depth and [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
