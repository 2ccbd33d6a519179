"""What is found in a model: the models of this package inside it, and the layers that it calls."""

import keras
import pytest
from families import FAMILIES

import keras_vit
from keras_vit.layers import AddPositionEmbs, PatchEncoder, TransformerBlock
from keras_vit.models.encoders import called_layers, find_encoder, find_encoders


class Around(keras.Model):
    """A model without a graph."""

    def __init__(self, *models):
        super().__init__()
        self.models = list(models)

    def call(self, images):
        return sum(model(images) for model in self.models)


@pytest.fixture(scope="module")
def vit():
    return FAMILIES["plain"].build()


def around(model):
    inputs = keras.Input(model.input.shape[1:])
    return keras.Model(inputs, keras.layers.Softmax(name="around")(model(inputs)))


def test_models_are_found_however_deep(vit):
    other = keras_vit.clone(vit)
    assert find_encoder(vit) is find_encoder(around(around(vit))) is find_encoder(Around(vit)) is vit
    assert find_encoders(Around(vit, around(other))) == [vit, other]
    assert find_encoder(Around(vit, other)) is None
    assert find_encoders(keras.Sequential([keras.layers.Dense(1)])) == []


def test_layers_come_in_the_order_of_the_calls(vit):
    own = list(called_layers(vit))
    kinds = [type(layer) for layer in own if isinstance(layer, (PatchEncoder, AddPositionEmbs, TransformerBlock))]
    assert kinds == [PatchEncoder, AddPositionEmbs] + [TransformerBlock] * vit.config.num_layers
    assert {id(layer) for layer in own} == {id(layer) for layer in vit.layers}
    for outer in (around(vit), around(around(vit))):
        inner = [layer for layer in called_layers(outer) if not layer.name.startswith(("input_layer", "around"))]
        assert inner == [layer for layer in own if not layer.name.startswith("input_layer")]


def test_a_model_without_a_graph_gives_those_of_its_encoder(vit):
    assert list(called_layers(Around(vit))) == list(called_layers(vit))
    assert list(called_layers(Around(vit, keras_vit.clone(vit)))) == []
