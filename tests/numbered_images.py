"""A set of TensorFlow Datasets that needs no download: images that show their number, with the features of VTAB's."""

import numpy as np
import tensorflow_datasets as tfds

SIZES = {"train": 1200, "validation": 220, "test": 430}


def objects_of(n):
    """Up to four objects of KITTI's kinds, a function of the number."""
    rng = np.random.default_rng(n)
    count = n % 5
    return {"type": rng.integers(0, 8, count), "location": rng.uniform(0, 40, (count, 3)).astype(np.float32)}


class NumberedImages(tfds.core.GeneratorBasedBuilder):
    """PNG files of 4 x 4 grey pixels, 0 or 1: the bits of the number."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        kinds = tfds.features.ClassLabel(num_classes=8)
        features = {
            "image": tfds.features.Image(shape=(4, 4, 1), encoding_format="png"),
            "number": np.int64,
            "label": tfds.features.ClassLabel(num_classes=10),
            "label_orientation": tfds.features.ClassLabel(num_classes=40),
            "label_azimuth": tfds.features.ClassLabel(num_classes=18),
            "objects": tfds.features.Sequence(
                {"type": kinds, "location": tfds.features.Tensor(shape=(3,), dtype=np.float32), "other": np.int64}
            ),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        ends = np.cumsum(list(SIZES.values()))
        return {
            name: self._generate_examples(range(end - size, end))
            for (name, size), end in zip(SIZES.items(), ends.tolist(), strict=True)
        }

    def _generate_examples(self, numbers):
        for n in numbers:
            objects = objects_of(n)
            yield (
                n,
                {
                    "image": (n >> np.arange(16) & 1).astype(np.uint8).reshape(4, 4, 1),
                    "number": n,
                    "label": n % 10,
                    "label_orientation": n % 40,
                    "label_azimuth": n % 18,
                    "objects": objects | {"other": [0] * len(objects["type"])},
                },
            )
