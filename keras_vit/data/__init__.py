"""Image sources, and the tf.data pipelines that turn them into batches."""

from keras_vit.data.answers import VOID, Answer
from keras_vit.data.coco import from_coco
from keras_vit.data.corrupt import UnusableDataError, data_error
from keras_vit.data.local import from_arrays, from_digits, from_directory, from_files, from_npz
from keras_vit.data.multi_crop import multi_crop_pipeline
from keras_vit.data.native import flexible_patches, native_batch, native_pipeline
from keras_vit.data.pipeline import eval_pipeline, train_pipeline
from keras_vit.data.sources import ImageSource
from keras_vit.data.statistics import measured_preprocessing
from keras_vit.data.task_batches import task_pipeline
from keras_vit.data.task_sources import TaskSource, from_depth_maps, from_label_maps
from keras_vit.data.tfds import LabelRule, from_tfds
from keras_vit.data.tfrecord import from_tfrecord
from keras_vit.data.vtab import VTAB_TASKS, ThousandExamples, VtabTask, list_vtab_tasks, thousand_examples, vtab_1k

__all__ = [
    "VOID",
    "VTAB_TASKS",
    "Answer",
    "ImageSource",
    "LabelRule",
    "TaskSource",
    "ThousandExamples",
    "UnusableDataError",
    "VtabTask",
    "data_error",
    "eval_pipeline",
    "flexible_patches",
    "from_arrays",
    "from_coco",
    "from_depth_maps",
    "from_digits",
    "from_directory",
    "from_files",
    "from_label_maps",
    "from_npz",
    "from_tfds",
    "from_tfrecord",
    "list_vtab_tasks",
    "measured_preprocessing",
    "multi_crop_pipeline",
    "native_batch",
    "native_pipeline",
    "task_pipeline",
    "thousand_examples",
    "train_pipeline",
    "vtab_1k",
]
