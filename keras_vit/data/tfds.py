"""from_tfds: image classification data sets of TensorFlow Datasets; labels are features or computed from features."""

import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_vit import checks
from keras_vit.data.sources import ImageSource, as_label, from_lookup
from keras_vit.data.tfrecord import index_records
from keras_vit.typing import PathLike, Tensor
from keras_vit.versions import import_optional

_LOG = logging.getLogger("keras_vit.data")


@dataclasses.dataclass(frozen=True)
class LabelRule:
    """Compute a label from the features of an example.

    For instance, the label can be the number of objects in an image.

    Attributes:
        features: features that the rule reads, {name: True, or a list of the names inside it}, such as
            `{"objects": ["location", "type"]}`; other features are not decoded.
        label: function from these features of one example (a dict of tensors, as decoded by TensorFlow Datasets) to
            the index of its class, an integer scalar.
        class_names: one name per class.
    """

    features: dict[str, Any]
    label: Callable[[dict[str, Any]], Tensor]
    class_names: Sequence[str]


def from_tfds(
    dataset: Any,
    split: str = "train",
    *,
    data_dir: PathLike | None = None,
    image_key: str = "image",
    label_key: str | LabelRule = "label",
) -> ImageSource:
    """Return the images of a TensorFlow Datasets set.

    The images are still encoded, and in a fixed order.

    If the set consists of local TFRecord files, the default of TensorFlow Datasets, any image can be read by its
    position, as in `from_tfrecord`, and the images are in the order of the files. Any other set is a stream in the
    order in which TensorFlow Datasets reads it without shuffling.

    A set that is not prepared in `data_dir` yet IS DOWNLOADED and prepared there. `builder.info.download_size` and
    `.dataset_size` show the space that it needs. A message is logged to `keras_vit.data` before the download.

    Args:
        dataset: a name with or without a configuration and version, such as `"cifar10"` or `"imagenet2012:5.1.0"`,
            or a `tfds.core.DatasetBuilder`.
        split: a split expression, such as `"train"`, `"train[:80%]"` or `"train+validation"`.
        data_dir: folder of prepared sets, only with a name; None uses the default of TensorFlow Datasets.
        image_key: feature of the image, a `tfds.features.Image` with 1, 3 or 4 uint8 channels.
        label_key: feature of the label, a `tfds.features.ClassLabel`, or a `LabelRule` that computes it.

    Returns:
        An `ImageSource` with the class names of the feature or of the rule.

    Raises:
        ImportError: if TensorFlow Datasets is not installed.
        ValueError: on features of another kind, and on errors of TensorFlow Datasets (unknown names and splits).
    """
    tfds = _import_tfds()
    builder = find_builder(dataset, data_dir)
    features = builder.info.features
    _check_kind(features, "image_key", image_key, tfds.features.Image)
    dtype = np.dtype(features[image_key].np_dtype)
    if dtype != np.uint8:
        raise ValueError(f"image_key must name uint8 images; got image_key={image_key!r}, of {dtype}")
    rule = _rule(tfds, features, label_key)
    prepare(builder)
    decoders = tfds.decode.PartialDecoding(
        {image_key: True, **rule.features}, decoders={image_key: tfds.decode.SkipDecoding()}
    )

    def element(example):
        return {"image": example[image_key], "label": as_label(rule.label(example))}

    parts = builder.info.splits[split].file_instructions if builder.info.splits else ()
    is_record = builder.info.file_format == tfds.core.FileFormat.TFRECORD
    if is_record and parts and all(os.path.exists(part.filename) for part in parts):
        slices = [slice(part.skip, None if part.take < 0 else part.skip + part.take) for part in parts]
        size, read, describe = index_records([part.filename for part in parts], slices)
        decoded = decoders.extract_features(features)

        def lookup(n):
            return element(decoded.deserialize_example(read(n), decoders=decoders.decoders))

        return from_lookup(lookup, rule.class_names, size, describe=describe)
    read_config = tfds.ReadConfig(try_autocache=False)
    examples = builder.as_dataset(split=split, shuffle_files=False, decoders=decoders, read_config=read_config)
    size = int(examples.cardinality())
    if size < 0:  # unknown cardinality
        size = builder.info.splits[split].num_examples
    return ImageSource(examples.map(element), tuple(rule.class_names), size)


def find_builder(dataset, data_dir):
    """Return the `tfds.core.DatasetBuilder` for the argument `dataset` of `from_tfds` without preparing it."""
    tfds = _import_tfds()
    if isinstance(dataset, str):
        return tfds.builder(dataset, data_dir=data_dir)
    checks.check_instance("dataset", dataset, tfds.core.DatasetBuilder, "a name or a tfds.core.DatasetBuilder")
    if data_dir is not None:
        raise ValueError(f"data_dir is for a name; the builder already has {dataset.data_dir}; got {data_dir!r}")
    return dataset


def prepare(builder):
    """Download and prepare a set that is not in its folder yet; before that, the sizes of its splits are unknown."""
    if not builder.is_prepared():
        _LOG.warning("Downloading and preparing %s in %s", builder.info.full_name, builder.data_dir)
        builder.download_and_prepare()


def _import_tfds():
    return import_optional("tensorflow_datasets", "TensorFlow Datasets is needed: pip install tensorflow-datasets")


def _rule(tfds, features, label_key):
    if not isinstance(label_key, LabelRule):
        _check_kind(features, "label_key", label_key, tfds.features.ClassLabel)
        return LabelRule({label_key: True}, lambda example: example[label_key], tuple(features[label_key].names))
    absent = [name for name in label_key.features if name not in features]
    if absent:
        raise ValueError(f"label_key must read features of the set, {_listed(features)}; it reads {', '.join(absent)}")
    return label_key


def _check_kind(features, argument, key, kind):
    if key not in features or not isinstance(features[key], kind):
        got = f"got {argument}={key!r}; the set has {_listed(features)}"
        raise ValueError(f"{argument} must be a feature of kind {kind.__name__}; {got}")


def _listed(features):
    return ", ".join(f"{name} ({type(feature).__name__})" for name, feature in features.items())
