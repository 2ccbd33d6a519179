"""EoMTTraining: the predictions before the last blocks of an EoMT, with masked attention, for `fit`."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.layers.base import Layer
from keras_vit.models.base import Model
from keras_vit.models.eomt import EoMT, MaskedAttention, predictions
from keras_vit.models.training_model import TrainingModel
from keras_vit.typing import Tensor

_STARTS = (1 / 6, 4 / 6)  # shares of the run at which masks begin to end in the first of the blocks, and in the last
_LENGTH = 1 / 6
_OVERSAMPLED = 3  # candidates for each point


@keras.saving.register_keras_serializable(package="keras_vit")
class RandomPoints(Layer):
    """Draw points of each image; outside of training, the same ones in every call.

    Args:
        num_points: number of points of an image.

    Shapes:
        images (batch, height, width, channels), of which only the number is read -> (batch, num_points, 2): x and y as
        shares of the sides, uniform in [0, 1)

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, num_points: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(num_points=num_points)
        self.seeds = keras.random.SeedGenerator()

    def call(self, images: Tensor, training: bool | None = None) -> Tensor:
        return keras.random.uniform((ops.shape(images)[0], self.num_points, 2), seed=self.seeds if training else 0)

    def compute_output_spec(self, images, training=None):
        return keras.KerasTensor((images.shape[0], self.num_points, 2), "float32")


@keras.saving.register_keras_serializable(package="keras_vit")
class EoMTTraining(TrainingModel, Model):
    """Train an EoMT with a prediction before each of its last blocks.

    ```python
    trained = keras_vit.EoMTTraining(model, steps=10_000)
    trained.compile(optimizer, keras_vit.tasks.MaskLoss())
    trained.fit(data, epochs=10, steps_per_epoch=1000)
    model.save("eomt.keras")
    ```

    `fit` trains `model` in place. At first, the attention of these blocks is masked: a query attends only to the
    patches of its mask that is predicted before the block (arXiv 2503.19108, section 3.2 and figure 3). This ends
    during the run, in the first of the blocks first: for one sixth of the run, the probability that a query is masked
    falls from 1 to 0 as (1 - t) ** 0.9. These sixths start at equal distances between one sixth and four sixths of the
    run, as in the authors' configs. `evaluate` and `predict` do not mask.

    Args:
        model: an `EoMT` with `masked=False`.
        steps: steps of the whole run; None trains without masked attention, and only with the last prediction.
        num_points: points of an image at which `keras_vit.tasks.MaskLoss` compares masks.
        name: name of the Keras model; None adds `_training` to the name of `model`.

    Shapes:
        images (batch, height, width, channels), prepared as `model.preprocessing` describes -> a dict of
        `class_logits` and `mask_logits`, lists with one array for each prediction, see `EoMT`; `points` (batch,
        num_points, 2) and `candidates` (batch, 3 * num_points, 2), for the loss

    Attributes:
        model: the EoMT.

    Raises:
        TypeError: if `model` is no `EoMT`.
        ValueError: if a value is out of range, or `model` masks the attention itself.
    """

    _models = ("model",)

    def __init__(self, model: EoMT, steps: int | None = None, num_points: int = 12544, name: str | None = None) -> None:
        checks.check_instance("model", model, EoMT, "a keras_vit.EoMT")
        if model.arguments["masked"]:
            raise ValueError("model must have masked=False, as EoMTTraining masks the attention; got masked=True")
        steps = None if steps is None else checks.check_integer("steps", steps)
        checks.check_integer("num_points", num_points, minimum=4)
        count = model.arguments["num_blocks"]
        attentions: list[Any] = [None] * count
        if steps:
            starts, length = np.linspace(*_STARTS, count) * steps, max(_LENGTH * steps, 1)
            windows = [(int(start), int(start + length)) for start in starts]
            attentions = [MaskedAttention(window, name=f"attention_{n}") for n, window in enumerate(windows)]
        images = model.inputs[0]
        found = list(predictions(model.encoder, model.layers, attentions))
        outputs: dict[str, Any] = {key: [one[key] for one in found] for key in found[0]}
        outputs["points"] = RandomPoints(num_points, name="points")(images)
        outputs["candidates"] = RandomPoints(_OVERSAMPLED * num_points, name="candidates")(images)
        super().__init__(inputs=images, outputs=outputs, name=name or f"{model.name}_training")
        # a function, because Keras would track the model as a sub-layer with every weight a second time
        self._get_model = lambda: model
        self.settings = {"steps": steps, "num_points": num_points}

    @property
    def model(self) -> EoMT:
        """Return the EoMT, which shares its weights with this model."""
        return self._get_model()

    def _untrained(self):
        return frozenset()
