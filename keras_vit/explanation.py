"""explain: what a model predicts for one image and where it attends, as arrays and as a figure."""

import dataclasses
import functools
import os
import pathlib
from typing import TYPE_CHECKING

import numpy as np

from keras_vit import checks, files
from keras_vit.analysis import attention_rollout, head_maps, plots, seen_images
from keras_vit.data import images as readers
from keras_vit.evaluation.outputs import check_classifier, check_preprocessing, predict_prepared
from keras_vit.models import ImageModel
from keras_vit.models.encoders import check_model, find_encoder, shared_graph
from keras_vit.typing import PathLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """Hold what `explain` finds for one image; a notebook shows the figure.

    Attributes:
        answers: list of (label, score), best first, as in `keras_vit.predict`.
        image: float32 (height, width, channels) in [0, 1], the part of the model input that the patches cover.
        rollout: float64 (rows, columns), see `keras_vit.analysis.attention_rollout`.
        heads: float64 (heads, rows, columns) of one block, see `keras_vit.analysis.head_maps`.
        title: first line of the figure.
        num_heads: maximum number of heads in the figure.
    """

    answers: list[tuple[str, float]]
    image: np.ndarray
    rollout: np.ndarray
    heads: np.ndarray
    title: str
    num_heads: int

    @functools.cached_property
    def figure(self) -> "Figure":
        """Return the matplotlib figure, drawn by `keras_vit.analysis.plots.explanation`.

        Raises:
            ImportError: if matplotlib is not installed.
        """
        arrays = self.image, self.answers, self.rollout, self.heads
        return plots.explanation(*arrays, title=self.title, num_heads=self.num_heads)

    def save(self, path: PathLike) -> None:
        """Write the figure to a file.

        Args:
            path: path of a file that matplotlib can write, such as `.png`, `.jpg`, `.pdf` or `.svg`; replaced if it
                exists.

        Raises:
            ImportError: if matplotlib is not installed.
            ValueError: if matplotlib has no such format.
            OSError: if the file cannot be written.
        """
        files.replace_file(path, self.figure.savefig)

    def _repr_png_(self):
        return self.figure._repr_png_()


def explain(
    model: ImageModel,
    image: readers.Images,
    *,
    top: int = 5,
    layer: str | int = -1,
    num_heads: int = 4,
    title: str | None = None,
) -> Explanation:
    """Compute what a model predicts for one image and where it attends.

    `keras-vit explain` draws the same figure.

    Args:
        model: a classifier of keras_vit with attention (a ViT or a Swin), or a functional model with layers after one,
            such as a new head.
        image: one image, as in `keras_vit.preprocess`: a path, bytes, an open file, a PIL image or an array.
        top: number of classes; all classes if the model has fewer.
        layer: name or number of the block of the heads, -1 for the last.
        num_heads: maximum number of heads in the figure; it shows the least uniform ones.
        title: first line of the figure; None uses the name of the model and, for a path, the name of the file.

    Returns:
        An `Explanation`: `figure`, `save(path)`, and the arrays `image`, `rollout` and `heads`.

    Raises:
        FileNotFoundError, TypeError: as in `keras_vit.preprocess`; TypeError also if the model contains none of
            keras_vit.
        ValueError: as in `keras_vit.predict` and `keras_vit.analysis.attention_weights`, for example for a ResNet,
            which has no attention; and for several images.

    Warns:
        UserWarning: as in `keras_vit.predict`.
    """
    check_classifier(model)
    checks.check_integer("num_heads", num_heads)
    encoder = check_model(find_encoder(model) or shared_graph(model) or model)
    listed = readers.as_images(image)
    if len(listed) != 1:
        raise ValueError(f"image must be one image; got {len(listed)} (call explain once for each)")
    inputs = readers.stack(listed, check_preprocessing(model, None))
    heads = head_maps(model, inputs, layer)[0]
    if title is None:
        file = f": {pathlib.Path(image).name}" if isinstance(image, (str, os.PathLike)) else ""
        title = f"{encoder.config.name}{file}"
    return Explanation(
        answers=predict_prepared(model, inputs, top)[0],
        image=seen_images(encoder, inputs)[0],
        rollout=attention_rollout(model, inputs)[0],
        heads=heads,
        title=title,
        num_heads=num_heads,
    )
