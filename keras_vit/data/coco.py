"""from_coco: images with objects, from the json files of COCO."""

import contextlib
import functools
import json
import pathlib
from typing import Any, NamedTuple

import numpy as np

from keras_vit import checks
from keras_vit.data.answers import Answer, areas_of, boxes_of
from keras_vit.data.task_sources import TaskSource, check_size, read_png
from keras_vit.typing import PathLike
from keras_vit.versions import import_optional, install_command

KINDS = ("instances", "boxes", "keypoints", "panoptic")
_MAX_JSON = 2**31  # bytes
_SLACK = 1.0  # pixels by which boxes and polygons may exceed an image, as those of COCO do
_LEAST = 6  # numbers of a polygon


class Objects(NamedTuple):
    """Hold what a json file states of an image.

    Args:
        name: of the image in messages; of its PNG file for panoptic segments.
        size: (height, width).
        objects: list of `Object`.
    """

    name: str
    size: tuple[int, int]
    objects: list["Object"]


class Object(NamedTuple):
    """Hold what a json file states of an object.

    Args:
        name: in messages.
        number: the id of a panoptic segment; else 1.
        label: class from 0.
        box: left, top, right and bottom edges.
        crowd: whether it is a region of many objects.
        area: COCO's, or None.
        shape: a segmentation, keypoints (keypoints, 3), or None.
    """

    name: str
    number: int
    label: int
    box: tuple[float, float, float, float]
    crowd: bool
    area: float | None
    shape: Any


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
            box outside its image, keypoints outside it or not three numbers for each. The message names file and
            annotation. Masks are read and checked later.
    """
    checks.check_choice("kind", kind, KINDS)
    if segments is not None and kind != "panoptic":
        raise ValueError(f"segments must be None for kind={kind!r}; got {segments!r}")
    needed = f"masks of polygons need pycocotools: {install_command('coco')}"
    tools = import_optional("pycocotools.mask", needed) if kind == "instances" else None
    path = checks.check_path("annotations", annotations)
    content = _parsed(path, drop_masks=kind != "instances")
    categories, pictures = (_by_id(path, name, content) for name in ("categories", "images"))
    names = [_field(categories[key], f"{path}, category {key}", "name", str) for key in sorted(categories)]
    number_of = {key: number for number, key in enumerate(sorted(categories))}
    if kind == "keypoints":
        names = next(iter(categories.values())).get("keypoints")
        if len(categories) != 1 or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{path} must have one category, with names of keypoints; got {checks.quoted(names)}")
    records = {}
    for key, picture in pictures.items():
        name = f"{path}, image {key}"
        sides = tuple(_field(picture, name, side, int) for side in ("height", "width"))
        records[key] = Objects(name, sides, [])
    pngs = pathlib.Path(path.with_suffix("") if segments is None else segments)
    for owner, name, entry in _entries(path, content, kind, records, pngs):
        label, crowd, area = _field(entry, name, "category_id", int), entry.get("iscrowd", 0), entry.get("area")
        number = entry.get("id") if kind == "panoptic" else 1
        for key, value, is_valid in (
            ("category_id of the file", label, label in number_of),
            ("iscrowd of 0 or 1", crowd, crowd in (0, 1)),
            ("area, a number or nothing", area, isinstance(area, (int, float, type(None)))),
            ("id of three bytes", number, isinstance(number, int) and 0 < number < 2**24),
        ):
            if not is_valid:
                raise ValueError(f"{name} must have {key}; got {checks.quoted(value)}")
        shape, box = None, _box(name, entry, owner.size)
        if kind == "instances":
            shape = _field(entry, name, "segmentation", (list, dict))
        elif kind == "keypoints":
            shape = _keypoints(name, entry, owner.size, len(names))
        owner.objects.append(Object(name, number, number_of[label], box, bool(crowd), area, shape))
    read = _panoptic if kind == "panoptic" else functools.partial(_objects, kind, len(names), tools)
    return TaskSource(
        kind=kind,
        files=tuple(_inside(f"{path}, image {key}", images, picture) for key, picture in pictures.items()),
        class_names=tuple(names),
        category_ids=tuple(sorted(categories)),
        stuff=tuple(number_of[key] for key in sorted(categories) if not categories[key].get("isthing", 1)),
        image_ids=tuple(pictures),
        flip_pairs=_flip_pairs(names) if kind == "keypoints" else (),
        records=tuple(records.values()),
        read=read,
    )


def _parsed(path, drop_masks):
    """Return the content of a json file; numbers of polygons and run lengths become arrays while it is read."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if path.stat().st_size > _MAX_JSON:
        raise ValueError(f"{path} must have at most {_MAX_JSON:,} bytes; got {path.stat().st_size:,}")

    def compact(entry):
        if drop_masks:
            entry.pop("segmentation", None)
        for key in ("segmentation", "counts"):
            with contextlib.suppress(ValueError, TypeError, OverflowError):  # `_mask` describes what is wrong
                if key == "counts" and isinstance(entry.get(key), list):
                    entry[key] = np.array(entry[key], np.int64)
                elif isinstance(entry.get(key), list):
                    entry[key] = [np.array(polygon, np.float64) for polygon in entry[key]]
        return entry

    try:
        content = json.loads(path.read_bytes(), object_hook=compact)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be a json file; {error}") from None
    parts = ("images", "annotations", "categories")
    if not isinstance(content, dict) or not all(isinstance(content.get(part), list) for part in parts):
        raise ValueError(f"{path} must have the lists {', '.join(parts)}; it is no json file of COCO")
    return content


def _by_id(path, name, content):
    """Return the images or categories of a json file by their ids."""
    kinds = int if name == "categories" else (int, str)
    found = {_field(one, f"{path}, {name}", "id", kinds): one for one in content[name]}
    if not found or len(found) < len(content[name]):
        raise ValueError(f"{path} must have {name} with distinct ids; got {len(content[name])}, {len(found)} distinct")
    return found


def _field(entry, name, key, kind):
    """Return a value of a json object, which must have one of the types `kind`."""
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        raise ValueError(f"{name} must have {key}, {wanted}; got {checks.quoted(value)}")
    return value


def _inside(name, folder, entry):
    """Return the path of a file of a folder; a name that leaves the folder raises an error."""
    file = _field(entry, name, "file_name", str)
    path = pathlib.Path(folder, file)
    if pathlib.PurePath(file).is_absolute() or ".." in pathlib.PurePath(file).parts:
        raise ValueError(f"{name} must have a file_name inside its folder; got {file!r}")
    if not path.is_file():
        raise FileNotFoundError(f"{name}: there is no file {path}")
    return str(path)


def _entries(path, content, kind, records, pngs):
    """Yield (`Objects` of the image, name in messages, json object) of each object."""
    seen = set()
    for one in content["annotations"]:
        image = _field(one, f"{path}, annotation", "image_id", (int, str))
        name = f"{path}, annotation " + (f"of image {image}" if kind == "panoptic" else str(one.get("id")))
        if image not in records:
            raise ValueError(f"{name} must have an image_id of the file; got {image}")
        if kind != "panoptic":
            yield records[image], name, one
            continue
        if image in seen:
            raise ValueError(f"{name} must be the only one of this image; there are more")
        seen.add(image)
        records[image] = records[image]._replace(name=_inside(name, pngs, one))
        for segment in _field(one, name, "segments_info", list):
            yield records[image], f"{records[image].name}, segment {segment.get('id')}", segment
    missing = [image for image in records if kind == "panoptic" and image not in seen]
    if missing:
        raise ValueError(f"{path} must have an annotation of each image; image {missing[0]} has none")


def _box(name, entry, size):
    """Return the edges of a box, which must be inside the image."""
    box = _field(entry, name, "bbox", list)
    if len(box) != 4 or not all(isinstance(number, (int, float)) for number in box):
        raise ValueError(f"{name} must have a bbox of four numbers: left, top, width, height; got {checks.quoted(box)}")
    left, top, width, height = box
    is_inside = (
        -_SLACK <= left <= left + width <= size[1] + _SLACK and -_SLACK <= top <= top + height <= size[0] + _SLACK
    )
    if not is_inside:
        raise ValueError(f"{name} must have a bbox inside its image, {size[1]} x {size[0]} pixels; got {box}")
    return left, top, left + width, top + height


def _keypoints(name, entry, size, count):
    """Return keypoints as float32 (count, 3); labelled ones must be inside the image."""
    values = _field(entry, name, "keypoints", list)
    if len(values) != 3 * count or not all(isinstance(number, (int, float)) for number in values):
        raise ValueError(f"{name} must have 3 numbers for each of {count} keypoints; got {len(values)} numbers")
    points = np.array(values, "float32").reshape(count, 3)
    if not np.isin(points[:, 2], (0, 1, 2)).all():
        raise ValueError(f"{name} must have visibilities 0, 1 or 2; got {checks.quoted(points[:, 2].tolist())}")
    _check_inside(name, "keypoints", points[points[:, 2] > 0, :2], size)
    return points


def _check_inside(name, what, points, size):
    """Raise an error unless points, (points, 2), are inside an image or closer than `_SLACK`."""
    if not ((points >= -_SLACK) & (points <= np.array(size[::-1]) + _SLACK)).all():
        found = checks.quoted(points.tolist())
        raise ValueError(f"{name} must have {what} inside its image, {size[1]} x {size[0]} pixels; got {found}")


def _flip_pairs(names):
    """Return the numbers of the keypoints named left_... and right_..., in pairs."""
    pairs = ((name, "right_" + name.removeprefix("left_")) for name in names if name.startswith("left_"))
    return tuple((names.index(left), names.index(right)) for left, right in pairs if right in names)


def _objects(kind, keypoints, tools, record, size):
    """Return the `Answer` of an image with objects."""
    check_size(record.name, record.size, size)
    objects = record.objects
    boxes = np.array([one.box for one in objects], "float32").reshape(-1, 4)
    areas, masks, points = (boxes[:, 2:] - boxes[:, :2]).prod(1), None, None
    if kind == "instances":
        masks = np.array([_mask(one.name, one.shape, size, tools) for one in objects], bool).reshape(-1, *size)
        areas = areas_of(masks)
    if kind == "keypoints":
        points = np.array([one.shape for one in objects], "float32").reshape(-1, keypoints, 3)
    stated = [area if one.area is None else one.area for one, area in zip(objects, areas, strict=True)]
    return Answer(
        labels=np.array([one.label for one in objects], "int32"),
        masks=masks,
        boxes=boxes,
        keypoints=points,
        crowd=np.array([one.crowd for one in objects], bool),
        areas=np.array(stated, "float64"),
    )


def _mask(name, segmentation, size, tools):
    """Return the mask, bool (height, width), of polygons or run lengths."""
    height, width = size
    if isinstance(segmentation, dict):
        if segmentation.get("size") != [*size]:
            found = checks.quoted(segmentation.get("size"))
            raise ValueError(f"{name} must have a mask of its image's size {[*size]}; got {found}")
        counts = segmentation.get("counts")
        counts = _unpacked(counts) if isinstance(counts, str) else np.asarray(counts)
        is_valid = counts.dtype == np.int64 and counts.ndim == 1 and ((counts >= 0) & (counts <= height * width)).all()
        if not is_valid or counts.sum() != height * width:
            raise ValueError(f"{name} must have run lengths of {height * width} pixels; its counts are damaged")
        return np.repeat(np.arange(len(counts)) % 2 > 0, counts).reshape(width, height).T
    for polygon in segmentation:
        is_valid = isinstance(polygon, np.ndarray) and polygon.ndim == 1 and len(polygon) >= _LEAST
        if not is_valid or len(polygon) % 2:
            raise ValueError(f"{name} must have polygons of at least three points; got {checks.quoted(polygon)}")
        _check_inside(name, "polygons", polygon.reshape(-1, 2), size)
    if not segmentation:
        raise ValueError(f"{name} must have a segmentation; it is empty")
    return tools.decode(tools.merge(tools.frPyObjects(segmentation, height, width))) > 0


def _unpacked(text):
    """Return the run lengths in COCO's string: 5 bits per character, as differences to the length before the last.

    pycocotools reads beyond the end of a damaged string.
    """
    counts, number, shift = [], 0, 0
    for byte in text.encode():
        digit = byte - 48
        number |= (digit & 31) << shift
        shift += 5
        if not digit & 32:
            number -= (digit >> 4 & 1) << shift
            counts.append(number + (counts[-2] if len(counts) > 2 else 0))
            number = shift = 0
    try:
        return np.array(counts, np.int64)
    except OverflowError:
        return np.full(1, -1)


def _panoptic(record, size):
    """Return the `Answer` of an image with panoptic segments."""
    check_size(record.name, record.size, size)
    ids = read_png(record.name, size, ["RGB"]).astype("int32") @ np.array([1, 2**8, 2**16], "int32")
    numbers = np.array([one.number for one in record.objects], "int32")
    for one in np.setxor1d(np.append(ids, 0), np.append(numbers, 0)):  # 0 has no class
        where = "the json file but not in the PNG file" if one in numbers else "the PNG file but not in the json file"
        raise ValueError(f"{record.name} must have the segments that its json file lists; segment {one} is in {where}")
    masks = ids == numbers[:, None, None]
    return Answer(
        labels=np.array([one.label for one in record.objects], "int32"),
        masks=masks,
        boxes=boxes_of(masks),
        crowd=np.array([one.crowd for one in record.objects], bool),
        areas=areas_of(masks),
    )
