"""The same few images as a class folder, TFRecord files, a set of TensorFlow Datasets, arrays and a stream."""

import io
import itertools

import numpy as np
import PIL.Image
import tensorflow as tf

from keras_vit import Preprocessing
from keras_vit.data import ImageSource

LEVELS = Preprocessing(size=8, mean=(0.0,), std=(1 / 255,))  # leaves the pixel values of an 8 x 8 image as they are


def numbered(size, side=8):
    """Grey images (size, side, side, 1): number n has the value n everywhere, so that a batch shows what it holds."""
    return np.broadcast_to(np.arange(size, dtype=np.uint8)[:, None, None, None], (size, side, side, 1)).copy()


def encode(image, image_format="PNG", **options):
    file = io.BytesIO()
    PIL.Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(file, image_format, **options)
    return file.getvalue()


def write_folder(path, contents, labels, ending="png"):
    """Class folders; the order of `from_directory` is that of labels, then numbers."""
    for number, (data, label) in enumerate(zip(contents, labels, strict=True)):
        (path / f"{label:03}").mkdir(exist_ok=True, parents=True)
        (path / f"{label:03}" / f"{number:04}.{ending}").write_bytes(data)
    return path


def write_records(path, contents, labels, shards=2):
    """TFRecord files with ImageNet's features; returns their paths."""
    path.mkdir(exist_ok=True, parents=True)
    files = [path / f"train-{n:05}-of-{shards:05}" for n in range(shards)]
    numbers = np.array_split(np.arange(len(contents)), shards)
    for file, part in zip(files, numbers, strict=True):
        with tf.io.TFRecordWriter(str(file)) as writer:
            for n in part:
                writer.write(example(contents[n], labels[n]).SerializeToString())
    return files


def example(contents, label):
    features = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[contents])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
        "image/class/text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"a name"])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features))


def stream(source):
    """The same images without lookup."""
    return ImageSource(source.dataset, source.class_names, source.size)


def batches(dataset, count=None):
    """The first batches as lists of arrays."""
    return [tuple(batch) for batch in itertools.islice(dataset.as_numpy_iterator(), count)]


def assert_equal(first, second):
    """Asserts that two lists of batches are equal bit for bit."""
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one, other, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
