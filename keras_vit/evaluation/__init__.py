"""What a model says about pictures and how often it is right: `predict` and `evaluate`."""

from keras_vit.evaluation.accuracy import Accuracy, evaluate
from keras_vit.evaluation.prediction import predict

__all__ = ["Accuracy", "evaluate", "predict"]
