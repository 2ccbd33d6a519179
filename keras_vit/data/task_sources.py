"""TaskSource: images with answers (label maps, depths, objects) in a fixed order; sources from folders of maps."""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import PIL.Image

from keras_vit import checks
from keras_vit.data import images as readers
from keras_vit.data.answers import TARGETS, VOID, Answer
from keras_vit.data.local import from_files
from keras_vit.data.sources import SAMPLED, check_class_names, check_positions, composed, digest, drawn_order
from keras_vit.typing import PathLike


@dataclasses.dataclass(frozen=True)
class TaskSource:
    """Hold images with answers, in a fixed order.

    Answers are read when they are needed, and are in pixels of the upright image: the EXIF orientation of an image file
    is applied. An answer for the image as it is stored raises an error if its size shows the difference.

    Attributes:
        kind: `semantic`, `panoptic`, `instances` (masks), `boxes`, `keypoints` or `depth`.
        files: paths of the images.
        class_names: a name per class; for keypoints the names of the keypoints, for depth empty.
        category_ids: the ids of the classes in the official files, one per class; for keypoints that of the person.
        stuff: classes without instances (panoptic).
        image_ids: COCO's ids, or the names of the files without ending.
        flip_pairs: numbers of the left and right keypoints that change places in a mirrored image.
        records: what is known of the answer of each image before it is read; its form depends on `read`.
        read: function of a record and the (height, width) of the upright image to its `Answer`.
    """

    kind: str
    files: tuple[str, ...]
    class_names: tuple[str, ...]
    category_ids: tuple[int, ...]
    stuff: tuple[int, ...]
    image_ids: tuple[int | str, ...]
    flip_pairs: tuple[tuple[int, int], ...]
    records: tuple[Any, ...] = dataclasses.field(repr=False, compare=False)
    read: Callable[[Any, tuple[int, int]], Answer] = dataclasses.field(repr=False, compare=False)

    def __post_init__(self) -> None:
        checks.check_choice("kind", self.kind, tuple(TARGETS))
        object.__setattr__(self, "class_names", tuple(composed(name) for name in self.class_names))

    @property
    def size(self) -> int:
        """Return the number of images."""
        return len(self.files)

    def image(self, position: int) -> np.ndarray:
        """Return an image, upright: uint8 (height, width, 3).

        Args:
            position: position of the image, from 0.

        Raises:
            FileNotFoundError: if the file was deleted.
            ValueError: if it is damaged or too large; the message names it.
        """
        return np.asarray(readers.as_images(self.files[position])[0](3))

    def answer(self, position: int, size: tuple[int, int] | None = None) -> Answer:
        """Return what is known about an image.

        Args:
            position: position of the image, from 0.
            size: (height, width) of the upright image; None reads it from the image.

        Raises:
            FileNotFoundError: if a file was deleted.
            ValueError: if the answer is damaged, or of another size than the image; the message names file and object.
        """
        return self.read(self.records[position], size or self.image(position).shape[:2])

    def take(self, positions: Sequence[int] | np.ndarray) -> "TaskSource":
        """Return a source of some of the images, in the given order.

        Args:
            positions: integers from 0 to size - 1.

        Raises:
            ValueError: on a position out of range.
        """
        chosen = check_positions(positions, self.size).tolist()
        parts = (self.files, self.image_ids, self.records)
        files, image_ids, records = (tuple(part[n] for n in chosen) for part in parts)
        return dataclasses.replace(self, files=files, image_ids=image_ids, records=records)

    def split(self, fraction: float, seed: int = 0) -> tuple["TaskSource", "TaskSource"]:
        """Split off a random held-out part.

        Args:
            fraction: share of the images to hold out, in (0, 1); the number is rounded.
            seed: integer; the same seed holds out the same images.

        Returns:
            `(rest, held_out)`, two disjoint sources that keep the order of this one.

        Raises:
            ValueError: on a fraction that leaves a part without images, or an invalid seed.
        """
        held_out, order = drawn_order(self.size, fraction, seed)
        return self.take(np.sort(order[held_out:])), self.take(np.sort(order[:held_out]))

    def fingerprint(self) -> dict[str, Any]:
        """Return values that identify the images and answers.

        A folder that was moved keeps its fingerprint.

        Returns:
            JSON values by name: `kind`, the numbers of `images` and `classes`, and digests of `class_names`, `files`
            and `contents`: images and answers of 256 evenly spaced positions, without unreadable ones.
        """
        contents = []
        for position in np.linspace(0, self.size - 1, min(self.size, SAMPLED)).astype(int):
            with contextlib.suppress(OSError, ValueError):
                contents.append(digest(pathlib.Path(self.files[position]).read_bytes()))
                known = ((name, value) for name, value in vars(self.answer(position)).items() if value is not None)
                contents += [f"{name}{value.shape}{digest(value.tobytes())}" for name, value in known]
        names = ("/".join(file.split(os.sep)[-2:]) for file in self.files)
        return {
            "kind": self.kind,
            "images": self.size,
            "classes": len(self.class_names),
            "class_names": digest("\n".join(self.class_names).encode()),
            "files": digest("\n".join(names).encode("utf-8", "surrogateescape")),
            "contents": digest("".join(contents).encode()),
        }


def from_label_maps(
    images: PathLike,
    label_maps: PathLike,
    class_names: Sequence[str],
    *,
    classes: Mapping[int, int] | None = None,
    suffixes: tuple[str, str] = ("", ""),
) -> TaskSource:
    """Return images with the class of each pixel, from two folders.

    A label map is a `.png` file of one channel, or of a palette, whose indices are read; or a `.npy` file of integers
    (height, width). It has the relative path of its image, up to suffix and ending. Examples:

    - ADE20K (SceneParsing): `classes={n + 1: n for n in range(150)}`; 0 has no class.
    - Cityscapes: `suffixes=("_leftImg8bit", "_gtFine_labelIds")` and `classes={7: 0, 8: 1, 11: 2, 12: 3, 13: 4, 17: 5,
      19: 6, 20: 7, 21: 8, 22: 9, 23: 10, 24: 11, 25: 12, 26: 13, 27: 14, 28: 15, 31: 16, 32: 17, 33: 18}`.

    Args:
        images: folder of images, at any depth.
        label_maps: folder of label maps.
        class_names: a name per class, at most 255.
        classes: dict from the values in the files to classes; other values have no class. None: the values are the
            classes, and 255 has no class.
        suffixes: how the names of images and of label maps end before the ending; other images are left out.

    Returns:
        A `TaskSource` of kind `semantic`.

    Raises:
        FileNotFoundError: if a folder or the label map of an image does not exist.
        ValueError: on an invalid argument, or a folder without images. Label maps are read and checked later.
    """
    names = check_class_names(class_names)
    if not 0 < len(names) <= VOID:
        raise ValueError(f"class_names must be from 1 to {VOID} names, as {VOID} marks no class; got {len(names)}")
    for old, new in (classes or {}).items():
        if not isinstance(old, (int, np.integer)) or new not in range(len(names)):
            raise ValueError(f"classes must map integers to classes from 0 to {len(names) - 1}; got {old!r}: {new!r}")

    def read(path, size):
        values = read_map(path, size, "iub")
        if classes is not None:
            label_map = np.full(size, VOID, "int32")
            for old, new in classes.items():
                label_map[values == old] = new
            return Answer(label_map=label_map)
        wrong = values[((values < 0) | (values >= len(names))) & (values != VOID)]
        if len(wrong):
            raise ValueError(
                f"{path} must have classes from 0 to {len(names) - 1}, or {VOID}; got {wrong[0]} (`classes` maps the "
                "values of files to classes)"
            )
        return Answer(label_map=values.astype("int32"))

    ids = {new: old for old, new in (classes or {}).items()}
    category_ids = tuple(ids.get(number, number) for number in range(len(names)))
    return _beside("semantic", images, label_maps, suffixes, read, names, category_ids)


def from_depth_maps(
    images: PathLike, depths: PathLike, scale: float, *, suffixes: tuple[str, str] = ("", "")
) -> TaskSource:
    """Return images with depths, from two folders.

    A depth map is a `.png` file of one channel, or a `.npy` file (height, width), at the relative path of its image, up
    to suffix and ending. 0 is unknown, and so is a number that is not finite.

    Args:
        images: folder of images, at any depth.
        depths: folder of depth maps.
        scale: the numbers in the files are divided by it: 256 for KITTI, 1000 for NYU Depth V2 in millimetres, 1 for
            metres.
        suffixes: how the names of images and of depth maps end before the ending, such as `("", "_depth")` (DIODE).

    Returns:
        A `TaskSource` of kind `depth`.

    Raises:
        FileNotFoundError: if a folder or the depth map of an image does not exist.
        ValueError: on an invalid argument, or a folder without images. Depth maps are read and checked later.
    """
    scale = checks.check_positive("scale", scale)

    def read(path, size):
        values = read_map(path, size, "iubf").astype("float64") / scale
        if (values < 0).any():
            raise ValueError(f"{path} must have depths of at least 0; got {np.nanmin(values):g}")
        return Answer(depth=np.where(np.isfinite(values), values, 0).astype("float32"))

    return _beside("depth", images, depths, suffixes, read)


def _beside(kind, images, maps, suffixes, read, class_names=(), category_ids=()):
    """Return the source of the images of a folder and the maps at the same relative paths in another."""
    if not (isinstance(suffixes, (tuple, list)) and [type(suffix) for suffix in suffixes] == [str, str]):
        raise ValueError(f"suffixes must be two strings, for images and maps; got suffixes={suffixes!r}")
    of_image, of_map = suffixes
    files = [file for file in from_files(images).files or () if pathlib.Path(file).stem.endswith(of_image)]
    if not files:
        raise ValueError(f"images must contain names that end in {of_image!r}; there are none in {images}")
    records, ids = [], []
    for file in files:
        path = pathlib.Path(file).relative_to(images).with_suffix("")
        stem = pathlib.Path(maps, path.parent, path.name.removesuffix(of_image) + of_map)
        found = [f"{stem}{ending}" for ending in (".png", ".npy") if os.path.isfile(f"{stem}{ending}")]
        if not found:
            raise FileNotFoundError(f"{file} must have a map {stem}.png or .npy; there is none")
        records.append(found[0])
        ids.append(path.as_posix())
    stems = [one.split("/")[-1] for one in ids]
    ids = stems if len({*stems}) == len(stems) else ids
    return TaskSource(kind, tuple(files), class_names, category_ids, (), tuple(ids), (), tuple(records), read)


def read_map(path, shape, kinds):
    """Return the numbers of a PNG or `.npy` file; those of a palette are its indices.

    Args:
        path: path of the file.
        shape: (height, width) of the image, with a number of channels if there is more than one.
        kinds: NumPy's letters of the kinds of numbers that are valid.

    Raises:
        ValueError: on another shape or kind, or a damaged file; the message names it.
    """
    is_array = path.endswith(".npy")
    with contextlib.ExitStack() as stack:
        with _reading(path):
            if is_array:
                lazy = np.load(path, mmap_mode="r", allow_pickle=False)
            else:
                lazy = stack.enter_context(PIL.Image.open(path, formats=["PNG"]))
        # what the file states is checked before memory is taken for it
        check_shape(path, lazy.shape if is_array else (*lazy.size[::-1], *shape[2:]), shape)
        with _reading(path):
            values = np.array(lazy)
    check_shape(path, values.shape, shape)
    if values.dtype.kind not in kinds:
        raise ValueError(f"{path} must have {'numbers' if 'f' in kinds else 'integers'}; got {values.dtype}")
    return values


@contextlib.contextmanager
def _reading(path):
    try:
        yield
    except (OSError, ValueError, EOFError, SyntaxError, PIL.Image.DecompressionBombError) as error:
        raise ValueError(f"{path} must be a whole PNG or .npy file of numbers; {error}") from None


def check_shape(name, found, shape):
    """Raise an error unless an answer has the shape of its image, (height, width) or with channels."""
    if tuple(found) != tuple(shape):
        raise ValueError(
            f"{name} must have the height and width of its upright image, {tuple(shape)}; got {tuple(found)} (an EXIF "
            "orientation of the image is applied)"
        )
