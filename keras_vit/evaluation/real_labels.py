"""ReaL, the reassessed labels of ImageNet's validation images: several correct classes per image, or none.

Source: Beyer et al. 2020, Are we done with ImageNet?, arXiv 2006.07159. The labels are the file `real.json` of
https://github.com/google-research/reassessed-imagenet.
"""

import os
import pathlib
import re
import reprlib

import numpy as np

from keras_vit.files import check_regular, parse_json
from keras_vit.typing import PathLike

IMAGES, CLASSES = 50_000, 1000
_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})(?!\d)")


def read_real_labels(path: PathLike) -> tuple[np.ndarray, ...]:
    """Read the ReaL labels from `real.json`.

    Args:
        path: a JSON file with one list for each of the 50,000 validation images, in the order of their names. A list
            contains the indices, 0 to 999, of the image's classes; the classes are numbered in the order of their
            WordNet ids. A list may be empty.

    Returns:
        A tuple of 50,000 int64 arrays; array n belongs to `ILSVRC2012_val_{n + 1:08d}.JPEG`.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: on a file of more than 16 MiB, of another form or length, or with a number out of range.
    """
    lists = parse_json(f"labels ({path})", os.path.getsize(check_regular(path)), pathlib.Path(path).read_bytes, list)
    if len(lists) != IMAGES:
        raise ValueError(f"labels must be real.json, a list of {IMAGES:,} lists; {path} contains {len(lists):,}")
    for number, numbers in enumerate(lists, start=1):
        # not isinstance, which accepts true and false
        if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < CLASSES for n in numbers):
            raise ValueError(
                f"labels must be real.json, with a list of class numbers from 0 to {CLASSES - 1} for every image; "
                f"{path} has {reprlib.repr(numbers)} for image {number}"
            )
    return tuple(np.array(numbers, np.int64) for numbers in lists)


def right_answers(path, files):
    """Return the classes in `real.json` of validation images, looked up by the number in each file name.

    Args:
        path: as in `read_real_labels`.
        files: paths of images, such as `val/n01440764/ILSVRC2012_val_00000293.JPEG`, in any order.

    Returns:
        A list of int64 arrays, one per file.

    Raises:
        FileNotFoundError, ValueError: as in `read_real_labels`, and if a file name has no such number.
    """
    labels, found = read_real_labels(path), []
    for file in files:
        number = _NUMBER.search(os.path.basename(file))
        if number is None or not 1 <= int(number[1]) <= IMAGES:
            raise ValueError(
                f"labels need files of ImageNet, ILSVRC2012_val_00000001 to ILSVRC2012_val_{IMAGES:08d}; got {file}"
            )
        found.append(labels[int(number[1]) - 1])
    return found
