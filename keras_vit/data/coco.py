"""from_coco: images with objects, from the json files of COCO."""

import contextlib
import dataclasses
import functools
import pathlib
from typing import Any, NamedTuple

import numpy as np

from keras_vit import checks, files
from keras_vit.data.answers import Answer, areas_of, boxes_of
from keras_vit.data.task_sources import TaskSource, check_shape, read_map
from keras_vit.typing import PathLike
from keras_vit.versions import import_optional, install_command

KINDS = ("instances", "boxes", "keypoints", "panoptic")
_MAX_JSON = 2**31  # bytes
_SLACK = 1.0  # pixels by which boxes, keypoints and polygons may exceed an image, as those of COCO do


class Stated(NamedTuple):
    """Hold what a json file states of an image.

    Args:
        name: of the image in messages.
        size: (height, width).
        answer: an `Answer` without masks.
        ids: those of the objects.
        shapes: for `instances`, the segmentation of each object; for `panoptic`, the path of the PNG file.
    """

    name: str
    size: tuple[int, int]
    answer: Answer
    ids: list[Any]
    shapes: Any


def from_coco(
    images: PathLike, annotations: PathLike, kind: str = "instances", segments: PathLike | None = None
) -> TaskSource:
    """Return images with objects, from a json file in the format of COCO.

    The classes are the categories in the order of their ids. Images without objects are valid. COCO has a few boxes
    without height; they are valid too, but no targets.

    Args:
        images: folder of images.
        annotations: json file, such as `instances_val2017.json`. It is read once.
        kind: `instances` (masks and boxes; needs the extra `coco` for polygons), `boxes`, `keypoints` (of one
            category), or `panoptic`.
        segments: with `panoptic`, the folder of PNG files; None is the path of the json file without its ending.

    Returns:
        A `TaskSource` of this kind.

    Raises:
        FileNotFoundError: if a file or folder does not exist.
        ImportError: for `instances` without pycocotools.
        ValueError: if the file is not such a json file, or states something invalid: an unknown category or image, a
            box or keypoints outside its image, or another number of keypoints. The message names file, image and
            annotation. Masks are read and checked later.
    """
    checks.check_choice("kind", kind, KINDS)
    if segments is not None and kind != "panoptic":
        raise ValueError(f"segments must be None for kind={kind!r}; got {segments!r}")
    needed = f"masks of polygons need pycocotools: {install_command('coco')}"
    tools = import_optional("pycocotools.mask", needed) if kind == "instances" else None
    path = checks.check_path("annotations", annotations)
    content = _parsed(path)
    categories, entries = (_by_id(f"{path}, {name}", content[name]) for name in ("categories", "images"))
    classes = {key: number for number, key in enumerate(sorted(categories))}
    names = [_field(categories[key], f"{path}, category {key}", "name", "a string", str) for key in classes]
    if kind == "keypoints":
        if len(classes) != 1:
            raise ValueError(f"{path} must have one category, with keypoints; got {len(classes)}")
        names = _field(categories[min(classes)], f"{path}, category {names[0]}", "keypoints", "a list of names", list)
    annotated: dict[Any, list[Any]] = {key: [] for key in entries}
    for one in content["annotations"]:
        image = _field(one, f"{path}, annotation", "image_id", "the id of an image of the file", annotated.__contains__)
        annotated[image].append(one)
    image_files, records = [], []
    for key, entry in entries.items():
        name, objects, png = f"{path}, image {key}", annotated[key], None
        image_files.append(_file_of(entry, name, images))
        height, width = (_field(entry, name, side, "an integer", int) for side in ("height", "width"))
        if kind == "panoptic":
            if len(objects) != 1:
                raise ValueError(f"{name} must have one annotation; got {len(objects)}")
            png = _file_of(objects[0], name, path.with_suffix("") if segments is None else segments)
            objects = _field(objects[0], name, "segments_info", "a list", list)
        answer = _answer(objects, name, kind, (height, width), classes, len(names))
        shapes = [one.get("segmentation") for one in objects if kind == "instances"]
        records.append(Stated(name, (height, width), answer, [one.get("id") for one in objects], png or shapes))
    stuff = tuple(number for key, number in classes.items() if not categories[key].get("isthing", 1))
    pairs = _flip_pairs(names) if kind == "keypoints" else ()
    read = functools.partial(_read, kind, tools)
    about = tuple(names), tuple(classes), stuff, tuple(entries), pairs
    return TaskSource(kind, tuple(image_files), *about, tuple(records), read)


def _parsed(path):
    """Return the content of a json file, with polygons as arrays, which take a fourth of the memory of lists."""

    def with_arrays(entry):
        if isinstance(entry.get("segmentation"), list):
            with contextlib.suppress(ValueError, TypeError, OverflowError):  # `_mask` describes what is wrong
                entry["segmentation"] = [np.array(polygon, "float64") for polygon in entry["segmentation"]]
        return entry

    content = files.parse_json(path, path.stat().st_size, path.read_bytes, most=_MAX_JSON, object_hook=with_arrays)
    parts = ("images", "annotations", "categories")
    if not all(isinstance(content.get(part), list) for part in parts):
        raise ValueError(f"{path} must have the lists {', '.join(parts)}; it is no json file of COCO")
    return content


def _by_id(name, entries):
    """Return images or categories by their ids."""
    found = {_field(one, name, "id", "an integer or a string", (int, str)): one for one in entries}
    if not found or len(found) < len(entries):
        raise ValueError(f"{name} must have distinct ids; got {len(entries)}, {len(found)} of them distinct")
    return found


def _field(entry, name, key, wanted, check):
    """Return a value of a json object; `check` is a function, a type or types, and an error names the object."""
    value = entry.get(key) if isinstance(entry, dict) else None
    with contextlib.suppress(TypeError, ValueError):  # of a function, for a value of another type or length
        if isinstance(value, check) if isinstance(check, (type, tuple)) else check(value):
            return value
    raise ValueError(f"{name} must have {key}, {wanted}; got {checks.quoted(value)}")


def _file_of(entry, name, folder):
    """Return the path of the file that a json object states."""
    stated = pathlib.Path(_field(entry, name, "file_name", "a string", str))
    if stated.is_absolute() or ".." in stated.parts:
        raise ValueError(f"{name}: file_name must be a path inside {folder}; got {str(stated)!r}")
    path = pathlib.Path(folder, stated)
    if not path.is_file():
        raise FileNotFoundError(f"{name}: there is no file {path}")
    return str(path)


def _answer(objects, name, kind, size, classes, count):
    """Return the `Answer` that objects of a json file state, without masks; `count` is that of keypoints."""
    inside = f"inside its image, {size[1]} x {size[0]} pixels"

    def is_box(box):
        left, top, width, height = box
        return min(width, height) >= 0 and _are_inside([(left, top), (left + width, top + height)], size)

    def are_keypoints(values):
        points = np.array(values, "float64").reshape(count, 3)
        return np.isin(points[:, 2], (0, 1, 2)).all() and _are_inside(points[points[:, 2] > 0, :2], size)

    # key -> what its value must be, check of it
    rules: dict[str, tuple[str, Any]] = {
        "category_id": ("a category of the file", classes.__contains__),
        "iscrowd": ("0, 1 or nothing", (0, 1, None).__contains__),
    }
    if kind == "panoptic":
        rules["id"] = "a number of three bytes above 0", lambda number: 0 < number < 2**24
    else:
        rules["bbox"] = f"left, top, width and height of a box {inside}", is_box
        rules["area"] = "a number or nothing", lambda area: area is None or area >= 0
    if kind == "keypoints":
        rules["keypoints"] = f"x, y and visibility (0, 1 or 2) of {count} points {inside}", are_keypoints
    for one in objects:
        for key, rule in rules.items():
            _field(one, f"{name}, annotation {one.get('id') if isinstance(one, dict) else one}", key, *rule)

    def column(key, dtype, *shape):
        return np.array([one.get(key) for one in objects], dtype).reshape(-1, *shape)

    labels, crowd = np.array([classes[one["category_id"]] for one in objects], "int32"), column("iscrowd", bool)
    if kind == "panoptic":
        return Answer(labels=labels, crowd=crowd)
    boxes, areas = column("bbox", "float64", 4), column("area", "float64")
    areas = np.where(np.isnan(areas), boxes[:, 2:].prod(1), areas)  # nothing became NaN
    boxes[:, 2:] += boxes[:, :2]
    points = column("keypoints", "float32", count, 3) if kind == "keypoints" else None
    return Answer(labels=labels, boxes=boxes.astype("float32"), keypoints=points, crowd=crowd, areas=areas)


def _are_inside(points, size):
    """Return whether points, (points, 2), are inside an image or closer than `_SLACK`."""
    return bool(((np.array(points) >= -_SLACK) & (np.array(points) <= np.array(size[::-1]) + _SLACK)).all())


def _flip_pairs(names):
    """Return the numbers of the keypoints named left_... and right_..., in pairs."""
    pairs = ((name, "right_" + name.removeprefix("left_")) for name in names if name.startswith("left_"))
    return tuple((names.index(left), names.index(right)) for left, right in pairs if right in names)


def _read(kind, tools, stated, size):
    """Return the `Answer` of an image of a size, with its masks."""
    check_shape(stated.name, stated.size, size)
    if kind == "panoptic":
        return _panoptic(stated)
    if kind != "instances":
        return stated.answer
    objects = zip(stated.ids, stated.shapes, strict=True)
    masks = [_mask(f"{stated.name}, annotation {key}", shape, size, tools) for key, shape in objects]
    return dataclasses.replace(stated.answer, masks=np.array(masks, bool).reshape(-1, *size))


def _mask(name, segmentation, size, tools):
    """Return the mask, bool (height, width), of polygons or run lengths."""
    height, width = size
    with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
        if isinstance(segmentation, dict):
            counts = segmentation["counts"]
            counts = _unpacked(counts) if isinstance(counts, str) else counts
            if segmentation["size"] == [height, width] and min(counts) >= 0 and sum(counts) == height * width:
                return np.repeat(np.arange(len(counts)) % 2 > 0, counts).reshape(width, height).T
        else:
            polygons = [np.array(polygon, "float64").reshape(-1, 2) for polygon in segmentation]
            if polygons and all(len(polygon) > 2 and _are_inside(polygon, size) for polygon in polygons):
                runs = tools.frPyObjects([polygon.ravel() for polygon in polygons], height, width)
                return tools.decode(tools.merge(runs)) > 0
    wanted = f"polygons of 3 points or more inside its image, or run lengths of all pixels of its size {[*size]}"
    raise ValueError(f"{name} must have segmentation, {wanted}; got {checks.quoted(segmentation)}")


def _unpacked(text):
    """Return the run lengths in COCO's string: 5 bits per character, as differences to the length before the last.

    pycocotools reads beyond the end of a damaged string.
    """
    counts, number, shift = [], 0, 0
    for byte in text.encode():
        digit = byte - 48
        number |= (digit & 31) << shift
        shift += 5
        if not digit & 32:  # the last of this number; the highest of its bits is the sign
            number -= (digit >> 4 & 1) << shift
            counts.append(number + (counts[-2] if len(counts) > 2 else 0))
            number = shift = 0
    return counts


def _panoptic(stated):
    """Return the `Answer` of an image with panoptic segments."""
    ids = read_map(stated.shapes, (*stated.size, 3), "u").astype("int32") @ np.array([1, 2**8, 2**16], "int32")
    numbers = np.array(stated.ids, "int32")
    for one in np.setxor1d(np.append(ids, 0), np.append(numbers, 0)):  # 0 has no class
        where = "the json file but not in the PNG file" if one in numbers else "the PNG file but not in the json file"
        raise ValueError(f"{stated.shapes} must have the segments of {stated.name}; segment {one} is in {where}")
    masks = ids == numbers[:, None, None]
    return dataclasses.replace(stated.answer, masks=masks, boxes=boxes_of(masks), areas=areas_of(masks))
