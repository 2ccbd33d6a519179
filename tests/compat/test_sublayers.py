"""The walks through the layers inside a model."""

import keras
from keras.src.utils.naming import to_snake_case

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.compat.graph import inner_layers, keep_beside_graph, owned_variables, sublayers

CONFIG = ViTConfig(
    name="tiny", image_size=16, patch_size=8, hidden_dim=8, num_layers=1, num_heads=2, mlp_dim=12, classes=3
)  # fmt: skip
BLOCK = [
    "block_00",
    "block_00/norm1",
    "block_00/attention",
    "block_00/attention/qkv",
    "block_00/attention/dropout",
    "block_00/attention/proj",
    "block_00/dropout",
    "block_00/norm2",
    "block_00/mlp",
    "block_00/mlp/dense1",
    "block_00/mlp/dropout",
    "block_00/mlp/dense2",
    "block_00/drop_path",
]


def _model():
    return VisionTransformer(CONFIG)


def test_outer_layers_come_before_inner_ones_and_paths_name_both():
    found = inner_layers(_model())
    paths = [inner.path for inner in found]
    assert sorted(path for path in paths if path.startswith("block")) == sorted(BLOCK)
    assert len(set(paths)) == len(paths)
    assert all(paths.index(path.rpartition("/")[0]) < paths.index(path) for path in paths if "/" in path)
    assert all(inner.layer.name == inner.path.rpartition("/")[2] for inner in found)


def test_a_model_inside_is_one_layer():
    inputs = keras.Input((16, 16, 3), name="in")
    model = keras.Model(inputs, keras.layers.Dense(2, name="mine")(_model()(inputs)))
    assert [inner.path for inner in inner_layers(model)] == ["in", "tiny", "mine"]
    assert len(sublayers(model)) > len(BLOCK)


def test_sublayers_are_all_there_are_however_deep():
    model = _model()
    found = {id(layer) for layer in sublayers(model)}
    assert found == {id(inner.layer) for inner in inner_layers(model)} and id(model) not in found


def test_keras_has_no_public_walk_yet():
    """Delete sublayers when this fails."""
    assert not hasattr(keras.Model, "flatten_layers") and not hasattr(keras.Layer, "layers")
    assert {"_flatten_layers", "_layers"} <= set(dir(keras.Layer())) and "_layers" in dir(keras.Model())


def test_owners_of_variables():
    model = _model()
    owned = {x.variable.path: (x.layer, x.stored_name) for x in owned_variables(model)}
    assert list(owned) == [weight.path for weight in model.weights]
    dense = model.get_layer("block_00").mlp.dense1
    assert owned["block_00/mlp/dense1/bias"] == (dense, "block_00/mlp/dense1/1")


def test_a_layer_beside_the_graph_is_kept_once():
    model, layer = _model(), keras.layers.Dense(2)
    layer.build((1, 3))
    before = len(model.weights)
    for _ in range(2):
        model.beside = layer
        keep_beside_graph(model, layer)
    assert len(model.weights) == before + 2
    assert [other for other in sublayers(model) if other is layer] == [layer]


def test_names_of_classes_in_files_are_those_of_keras():
    inner = [keras.layers.Dense(1), keras.layers.LayerNormalization(), keras.layers.Conv2D(1, 1), _Of2DGELUTokens()]
    model = keras.Sequential([keras.Input((4, 4, 3)), keras.Sequential([keras.Input((4, 4, 3)), *inner])])
    names = [owned.stored_name.split("/")[1] for owned in owned_variables(model)]
    expected = [to_snake_case(type(layer).__name__) for layer in inner for _ in layer.weights]
    assert names == expected and len(names) == 7


class _Of2DGELUTokens(keras.layers.Layer):
    def build(self, input_shape):
        self.scale = self.add_weight(shape=())

    def call(self, x):
        return x * self.scale
