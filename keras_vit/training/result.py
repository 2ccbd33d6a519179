"""The result of a run, and the files of a finished one, from which the same call returns it again."""

import contextlib
import dataclasses
import json
import zipfile

import keras

from keras_vit.models.distillation import labelled_in_training, result_of
from keras_vit.models.layer_states import restart_lora
from keras_vit.training import progress
from keras_vit.training.checkpoint_files import write_text
from keras_vit.training.identity import check_same_run
from keras_vit.training.workers import value_of


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """Hold the result of `train`.

    Values have the digits of float32: 0.98 instead of Keras's 0.9800000190734863.

    Attributes:
        model: the trained model, with the weights of `workdir/model.keras`. It is compiled. With the recipe's
            `input_dtype="uint8"`, it is not: `train` compiles a model around it that takes pixel values. For a
            `Distiller`, its student, which is not compiled.
        history: dict from metric name to one float per epoch.
        accuracy: top-1 accuracy of the trained model on the validation images, in [0, 1]; for a
            `MaskedPatchPrediction`, the accuracy on their corrupted patches; for a `SelfDistillation`, the last
            `val_accuracy` of its teacher, see `train`. None without validation, or if pixels are predicted.
    """

    model: keras.Model
    history: dict[str, list[float]]
    accuracy: float | None


def read_result(workdir, identity, model):
    """Return the result of a finished run in `workdir`, with its weights in the model; None otherwise.

    Raises:
        ValueError: if it is another run, or a file of it is damaged.
    """
    path = workdir / "history.json"
    if not path.exists():
        return None
    with _named(path, path):
        report = json.loads(path.read_text(encoding="utf-8"))
        saved_identity, history, accuracy = (report[name] for name in ("run", "history", "accuracy"))
    check_same_run(workdir, saved_identity, identity)
    with _named(workdir / "model.keras", path):
        saved = keras.models.load_model(workdir / "model.keras", compile=False)
    model = result_of(model)
    own = [weight for weight in model.weights if not weight.name.startswith("lora_")]  # merged in the file
    for variable, value in zip(own, saved.weights, strict=True):
        variable.assign(value_of(value))
    restart_lora(model)
    labelled_in_training(model).labels = labelled_in_training(saved).labels
    return TrainResult(model, history, accuracy)


@contextlib.contextmanager
def _named(path, report):
    """Raise an error that names an unreadable file of a finished run and says how to write it again."""
    try:
        yield
    except PermissionError:  # its message names the file, which may be intact
        raise
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} must be the file that a finished run wrote; got {type(error).__name__}: {error}: "
            f"delete {report}, and the same command writes the files of the result again from the last checkpoint"
        ) from error


def write_result(workdir, result, recipe, identity, steps_per_epoch):
    """Write the curves and, last, `history.json`; return a summary."""
    rows = progress.history_rows(result.history, steps_per_epoch)
    has_curves = progress.draw_curves(rows, workdir / "curves.png")
    values = {"recipe": recipe.to_dict(), "accuracy": result.accuracy, "history": result.history, "run": identity}
    write_text(workdir / "history.json", json.dumps(values, indent=2))
    note = "" if has_curves else " (no curves.png: pip install matplotlib)"
    return f"{progress.summary(rows)}\nSaved in {workdir}{note}"
