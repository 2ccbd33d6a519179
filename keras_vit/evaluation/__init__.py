"""What a model says about pictures and how often it is right: `predict` and `evaluate`."""

from keras_vit.evaluation.accuracy import Accuracy, evaluate
from keras_vit.evaluation.calibration import Calibration
from keras_vit.evaluation.class_report import ClassReport
from keras_vit.evaluation.prediction import predict
from keras_vit.evaluation.real_labels import read_real_labels
from keras_vit.evaluation.vtab_score import VtabScore

__all__ = ["Accuracy", "Calibration", "ClassReport", "VtabScore", "evaluate", "predict", "read_real_labels"]
