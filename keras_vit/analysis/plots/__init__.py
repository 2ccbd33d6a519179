"""The paper's figures, drawn from the arrays of `keras_vit.analysis`. Only this package uses matplotlib.

Each function returns a `matplotlib.figure.Figure` that is not registered with pyplot: display it as the last line of a
notebook cell, or write it with `figure.savefig(path)`. Images and maps are drawn without interpolation; curves can be
distinguished without colour.
"""

from keras_vit.analysis.plots.curves import attention_distance, few_shot_curves, position_similarity, scaling_curves
from keras_vit.analysis.plots.images import attention_overlay, embedding_filters, explanation, reconstruction

__all__ = [
    "attention_distance",
    "attention_overlay",
    "embedding_filters",
    "explanation",
    "few_shot_curves",
    "position_similarity",
    "reconstruction",
    "scaling_curves",
]
