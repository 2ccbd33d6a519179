"""The monitor of self-distillation: the quality of the teacher's features before the first step and after each epoch.

The loss of self-distillation does not show whether the features improve.
"""

import json
import warnings

import keras
import numpy as np

from keras_vit.compat.inference import inference
from keras_vit.evaluation.linear_probe import FrozenFeatures
from keras_vit.evaluation.neighbours import Neighbours, knn_scores, nearest
from keras_vit.evaluation.outputs import run_batches
from keras_vit.models.self_distillation_parts import has_collapsed
from keras_vit.training.checkpoint_files import write_text
from keras_vit.training.progress import BestModel, history_rows, merit
from keras_vit.training.workers import save_model

_FALL = 0.02  # of the accuracy below that of the start, for a warning


class Monitor(BestModel):
    """Measure the teacher of a `SelfDistillation`, and save it whenever it is better than before.

    The logs of every epoch get `rankme` and `collapsed`, 1 or 0, and, with labels, `val_accuracy`. The teacher as it
    starts is a candidate with labels, or if all epochs collapse; its values are in `start.json`, so a resumed run has
    the same ones. Training is not affected. The features are float32 (images, dim); the images are prepared again for
    each measurement, a batch at a time. It is for one process, and comes before the callbacks that show its values.

    Args:
        workdir: folder of `start.json` and `best.keras`.
        model: the `SelfDistillation` in training.
        images: dataset of batches (images, labels), prepared as for an evaluation.
        has_labels: whether the labels are meaningful.
        is_new: whether the run starts with the first step.
        log: function that logs a string.
    """

    def __init__(self, workdir, model, images, has_labels, is_new, log):
        super().__init__(workdir / "best.keras", model.teacher)
        self._file, self._is_new, self._log = workdir / "start.json", is_new, log
        self._images, self._has_labels = images, has_labels
        self._features = inference(FrozenFeatures(model.teacher).graph)

    def on_train_begin(self, logs=None):
        # Before the first epoch, a resumed run has the weights of the start, too.
        if self._is_new or not self._file.exists():
            write_text(self._file, json.dumps(self._measured(), indent=2))
        if self._is_new:
            save_model(self._saved_model, self._path)
        start = json.loads(self._file.read_text(encoding="utf-8"))
        # The RankMe of random weights is high: without labels, an epoch without a collapse is better than the start.
        self._before = [start if "val_accuracy" in start else {**start, "collapsed": 1.0}]
        self._log(f"the teacher before the first step: {_described(self._before[0])}")

    def on_epoch_end(self, epoch, logs=None):
        logs.update(self._measured(), collapsed=float(has_collapsed(self.model, epoch, logs)))
        super().on_epoch_end(epoch, logs)
        accuracies = [*self.model.history.history.get("val_accuracy", ()), logs.get("val_accuracy", np.inf)]
        start = self._before[0].get("val_accuracy", 0.0)
        has_fallen = [round(start - accuracy, 6) >= _FALL for accuracy in accuracies]
        if has_fallen[-1] and not any(has_fallen[:-1]):
            warnings.warn(
                f"the k-NN accuracy of the teacher is {accuracies[-1]:.3f} after epoch {epoch + 1} and was {start:.3f} "
                "before the first step: use a lower learning rate, LoRA or fewer trained blocks",
                stacklevel=2,
            )

    def on_train_end(self, logs=None):
        rows = [*self._before, *history_rows(self.model.history.history, steps_per_epoch=1)]
        best = max(range(len(rows)), key=lambda epoch: merit(rows[epoch]))
        which = f"of epoch {best}" if best else "before the first step, as no epoch was better"
        self._log(f"best.keras is the teacher {which}: {_described(rows[best])} (at the start {_described(rows[0])})")

    def _measured(self):
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()
        batches = (batch for batch in self._images.as_numpy_iterator() if len(batch[1]))  # without unreadable ones
        found = run_batches(self._features, self._saved_model, None, "features", batches)
        features, labels = (np.concatenate(parts) for parts in zip(*found, strict=True))
        accuracy = {"val_accuracy": leave_one_out(features, labels)} if self._has_labels else {}
        return {**accuracy, "rankme": rankme(features)}


def leave_one_out(features, labels, k=20, temperature=0.07):
    """Return the share of images whose class wins the vote of their nearest neighbours among all other images.

    Args:
        features: (images, dim), at least two images.
        labels: integers (images,), from 0.
        k: number of neighbours; all other images if there are fewer.
        temperature: T of the vote, see `knn_scores`.
    """
    k = min(k, len(features) - 1)
    found = nearest(features, features, k + 1)
    is_other = found.indices != np.arange(len(features))[:, None]
    is_other[:, -1] &= ~is_other.all(axis=1)  # an image that has k + 1 copies is not among its own neighbours
    others = Neighbours(*(array[is_other].reshape(-1, k) for array in found))
    scores = knn_scores(others, labels, int(labels.max()) + 1, temperature)
    return float((scores.argmax(axis=1) == labels).mean())


def rankme(features):
    """Return the RankMe of features (images, dim): the exponential of the entropy of their singular values.

    See arXiv 2210.02885, Eq. 1. It is a number from about 1 to the smaller side, and higher for features of more
    directions.
    """
    values = np.linalg.svd(np.asarray(features, "float64"), compute_uv=False)
    shares = values / max(values.sum(), np.finfo("float64").tiny) + 1e-7
    return float(np.exp(-np.sum(shares * np.log(shares))))


def _described(values):
    return ", ".join(f"{name} {values[name]:.4g}" for name in ("val_accuracy", "rankme") if name in values)
