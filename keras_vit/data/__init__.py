"""Pictures in: sources of labelled pictures and the tf.data pipelines that turn them into batches."""

from keras_vit.data.corrupt import UnusableDataError, data_error
from keras_vit.data.digits import from_digits
from keras_vit.data.folder import from_folder
from keras_vit.data.npz import from_npz
from keras_vit.data.pipeline import eval_pipeline, train_pipeline
from keras_vit.data.sources import ImageSource, from_arrays
from keras_vit.data.tfds import from_tfds
from keras_vit.data.tfrecord import from_tfrecord

__all__ = [
    "ImageSource",
    "UnusableDataError",
    "data_error",
    "eval_pipeline",
    "from_arrays",
    "from_digits",
    "from_folder",
    "from_npz",
    "from_tfds",
    "from_tfrecord",
    "train_pipeline",
]
