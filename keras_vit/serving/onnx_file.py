"""model.onnx of a model: the graph, its precision and what the file says about the model."""

import json

from keras_vit.evaluation.outputs import logit_names
from keras_vit.models import TaskModel
from keras_vit.models.encoders import find_encoder
from keras_vit.serving.onnx_float16 import to_float16
from keras_vit.serving.onnx_graph import onnx_graph
from keras_vit.serving.tracing import largest_values, trace
from keras_vit.variants import FAMILIES, VARIANTS


def write_onnx(model, folder, *, compute_dtype, samples=()):
    """Write `model.onnx` into `folder`, a `pathlib.Path` that does not exist yet.

    Args:
        model: classifier, encoder or task model in float32, on the TensorFlow backend.
        folder: of the file.
        compute_dtype: None or `"float32"`, or `"float16"`.
        samples: for float16, images: a list of uint8 (height, width, channels).
    """
    traced, names = trace(model)
    graph = onnx_graph(traced, names)
    if compute_dtype == "float16":
        to_float16(graph, largest_values(traced, model, samples))
    folder.mkdir()
    graph.save(folder, _metadata(model))


def _metadata(model):
    """Return what the file says about the model: a dict of strings, some of them JSON."""
    encoder = model if isinstance(model, TaskModel) else find_encoder(model)
    weights = getattr(encoder, "weights_source", None)
    row = VARIANTS.get(encoder.config.name) if weights else None
    family = FAMILIES.get(row.family or "") if row else None
    known = {"name": model.name, "weights": weights, "licence": family and family.licence}
    known |= {"labels": logit_names(model), "preprocessing": model.preprocessing.to_dict()}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in known.items() if value}
