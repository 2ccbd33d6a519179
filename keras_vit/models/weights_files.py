"""Metadata that this package adds to the weights files of Keras."""

import json
import pathlib
import zipfile
from typing import Any

import h5py
import keras

from keras_vit.config.unseen import KEY, from_text, unseen, with_usual
from keras_vit.files import check_regular, parse_json, replace_file
from keras_vit.layers import AddPositionEmbs
from keras_vit.models.copies import merge_lora
from keras_vit.models.layer_states import lora_layers
from keras_vit.typing import PathLike


class SavedToH5:
    """Save a Keras model to legacy `.h5` files that can be loaded.

    Keras writes the name of the class, and finds only its registered name.
    """

    def save(self, filepath: PathLike, *args: Any, **kwargs: Any) -> None:
        """Save the model as `keras.Model.save` does.

        Args:
            filepath: path of the file; LoRA is merged into the kernels of an `.h5` file.
            *args, **kwargs: as in `keras.Model.save`.
        """
        is_h5 = str(filepath).endswith((".h5", ".hdf5"))
        model: Any = merge_lora(self) if is_h5 and lora_layers(self) else self  # type: ignore[type-var]
        super(SavedToH5, model).save(filepath, *args, **kwargs)  # type: ignore[misc]
        if is_h5:
            with h5py.File(filepath, "r+") as file:
                class_name = {"class_name": keras.saving.get_registered_name(type(model))}
                file.attrs["model_config"] = json.dumps({**json.loads(file.attrs["model_config"]), **class_name})


def state(filepath, text):
    """Add metadata, see `config.unseen.to_text`, to a `.weights.h5` or `.weights.json` file from Keras."""
    path = pathlib.Path(filepath)
    if path.name.endswith(".weights.h5"):
        with h5py.File(path, "r+") as file:
            file.attrs[KEY] = text
    elif path.name.endswith(".weights.json"):  # the index of weights that are split over several files
        values = json.loads(path.read_text())
        values["metadata"][KEY] = text
        replace_file(path, lambda partial: partial.write_text(json.dumps(values, indent=4)))


def stated(filepath):
    """Return the fields that a weights file or a `.keras` file states; see `config.unseen.unseen`.

    Raises:
        ValueError: if the configuration or the metadata is damaged.
    """
    path, text = pathlib.Path(check_regular(filepath)), None
    try:
        if path.suffix == ".keras" and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                member = archive.getinfo("config.json")
                config = parse_json("config.json", member.file_size, lambda: archive.read(member))["config"]
            return with_usual(unseen(config["config"])) if isinstance(config.get("config"), dict) else {}
        if path.name.endswith(".weights.json") and path.is_file():
            text = parse_json("it", path.stat().st_size, path.read_bytes)["metadata"].get(KEY)
    except (ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{str(path)!r} must be a file that Keras wrote: {error}") from error
    if path.name.endswith(".weights.h5") and h5py.is_hdf5(path):
        with h5py.File(path, "r") as file:
            text = file.attrs.get(KEY)
    return from_text(text, str(path))["config"]


def has_other_slots(filepath, model):
    """Return whether a file's optimizer variables belong to a model with another position table."""
    if not str(filepath).endswith(".weights.h5"):
        return False
    with h5py.File(filepath, "r") as file:
        slots = file.get("optimizer/vars")
        if slots is None or len(slots) != len(model.optimizer.variables):
            return False
        if any(slots[str(i)].shape != tuple(v.shape) for i, v in enumerate(model.optimizer.variables)):
            return True
        # Tables of 4 x 4 and of 2 x 8 patches have equal shapes.
        grid = file.get("layers/add_position_embs/vars/grid")
        built = [layer.built_grid for layer in model.layers if isinstance(layer, AddPositionEmbs)]
        return grid is not None and tuple(grid[()]) not in built
