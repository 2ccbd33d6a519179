"""The paper's figures, drawn from the arrays of `keras_vit.analysis`. This folder alone knows matplotlib.

Each function returns a `matplotlib.figure.Figure` that belongs to nobody: show it as the last line of a notebook's cell
or write it with `figure.savefig(path)`. Images and maps are drawn pixel by pixel; curves can be told apart in grey.
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
