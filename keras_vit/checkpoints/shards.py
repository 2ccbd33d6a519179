"""Weights that are split over several .safetensors files, and the index that lists these."""

from keras_vit.checkpoints import json_object

INDEX = "model.safetensors.index.json"


def parts_of(index):
    """Return the names of the files that hold the arrays, sorted; they are in the folder of the index.

    Args:
        index: path of a `model.safetensors.index.json`; its `weight_map` maps array names to file names.

    Raises:
        ValueError: if it is not such an index, or lists anything but `.safetensors` files of its own folder.
    """
    values = json_object.parse(repr(str(index)), index.stat().st_size, index.read_bytes)
    weight_map = values.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{str(index)!r} must have a weight_map from arrays to files; got {weight_map!r}")
    for name in weight_map.values():
        if not isinstance(name, str) or not name.endswith(".safetensors") or "/" in name or "\\" in name:
            raise ValueError(f"weight_map of {str(index)!r} must name .safetensors files in its folder; got {name!r}")
    return sorted(set(weight_map.values()))
