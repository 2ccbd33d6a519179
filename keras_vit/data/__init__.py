"""Pictures in: sources of labelled pictures and the tf.data pipelines that turn them into batches."""

from keras_vit.data.digits import from_digits
from keras_vit.data.pipeline import eval_pipeline, train_pipeline
from keras_vit.data.sources import ImageSource, from_arrays, from_folder

__all__ = ["ImageSource", "eval_pipeline", "from_arrays", "from_digits", "from_folder", "train_pipeline"]
