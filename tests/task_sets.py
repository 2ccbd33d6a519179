"""Images with answers, and the files of COCO that state them."""

import json

import numpy as np
from PIL import Image

PERSON = {"id": 1, "name": "person", "keypoints": ["nose", "left_eye", "right_eye"]}
SIZES = {7: (40, 60), 3: (60, 45), 9: (30, 30)}  # image id -> (height, width), in the order of the file


def rectangle(size, box):
    """Return a mask, bool (height, width), of a rectangle: left, top, right, bottom."""
    mask = np.zeros(size, bool)
    mask[box[1] : box[3], box[0] : box[2]] = True
    return mask


def corners(box):
    """Return the polygon of a rectangle."""
    left, top, right, bottom = box
    return [left, top, right, top, right, bottom, left, bottom]


def entry(number, image, box, category=2, **more):
    """Return an annotation of COCO for a rectangle."""
    left, top, right, bottom = box
    area = (right - left) * (bottom - top)
    return {
        "id": number,
        "image_id": image,
        "category_id": category,
        "bbox": [left, top, right - left, bottom - top],
        "area": area,
        "iscrowd": 0,
        "segmentation": [corners(box)],
        **more,
    }


def write_images(folder, sizes=SIZES, pixels=None):
    """Write an image per size, named after its id; return what a json file states of them."""
    folder.mkdir(exist_ok=True)
    images = []
    for number, (height, width) in sizes.items():
        content = np.random.default_rng(number).integers(0, 256, (height, width, 3), "uint8")
        Image.fromarray(content if pixels is None else pixels[number]).save(folder / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "height": height, "width": width})
    return images


def write_json(path, images, annotations, categories=({"id": 5, "name": "dog"}, {"id": 2, "name": "cat"})):
    """Write a json file of COCO and return its path."""
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": [*categories]}))
    return path
