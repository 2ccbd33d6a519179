"""Predictions, accuracy, and the quality of frozen features.

`predict` and `evaluate` use the model's head; `few_shot`, `linear_probe`, `dense_probe` and
`FewShotProbe` train a head of their own; `embed`, `nearest` and `knn` compare features.
"""

from keras_vit.evaluation.accuracy import Accuracy, Calibration, ClassReport, evaluate
from keras_vit.evaluation.dense_probe import DenseProbe, dense_probe
from keras_vit.evaluation.few_shot import FewShot, FewShotProbe, few_shot
from keras_vit.evaluation.linear_probe import LinearProbe, Ridge, fit_ridge, linear_probe
from keras_vit.evaluation.neighbours import KNN, Embeddings, Neighbours, embed, knn, knn_scores, nearest
from keras_vit.evaluation.outputs import predict, predict_prepared
from keras_vit.evaluation.real_labels import read_real_labels
from keras_vit.evaluation.task_results import TaskScores
from keras_vit.evaluation.vtab_score import VtabScore

__all__ = [
    "KNN",
    "Accuracy",
    "Calibration",
    "ClassReport",
    "DenseProbe",
    "Embeddings",
    "FewShot",
    "FewShotProbe",
    "LinearProbe",
    "Neighbours",
    "Ridge",
    "TaskScores",
    "VtabScore",
    "dense_probe",
    "embed",
    "evaluate",
    "few_shot",
    "fit_ridge",
    "knn",
    "knn_scores",
    "linear_probe",
    "nearest",
    "predict",
    "predict_prepared",
    "read_real_labels",
]
