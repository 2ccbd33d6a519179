"""LinearSegmentation: one linear layer on the patches of a Vision Transformer, as DINOv2 is measured."""

import keras

from keras_vit.layers.patches import PatchMap
from keras_vit.models.task_model import TaskModel
from keras_vit.models.vit import VisionTransformer

_EPSILON, _MOMENTUM = 1e-5, 0.9  # of torch.nn.BatchNorm2d


@keras.saving.register_keras_serializable(package="keras_vit")
class LinearSegmentation(TaskModel):
    """Build a model that classifies each patch by a linear layer.

    This is the linear segmentation of DINOv2 (arXiv 2304.07193, section 7.4): batch normalisation of the patches after
    the final norm (epsilon 1e-5, momentum 0.9, statistics of all replicas), and a dense layer. `predict` resizes the
    logits bilinearly; so does `keras_vit.tasks.SegmentationLoss`.

    The layers are those of the encoder, `patch_map`, `batch_norm` and `class_head`. To train the head alone, freeze the
    encoder: `model.encoder.trainable = False`.

    Args:
        encoder: a `VisionTransformer`.
        classes: number of classes.
        name: name of the Keras model.

    Shapes:
        images (batch, height, width, channels), prepared as `preprocessing` describes -> a dict of `logits` (batch,
        rows, columns, classes), of the size of the patch grid

    Raises:
        TypeError: if the encoder is not a `VisionTransformer`.
        ValueError: if `classes` is out of range.
    """

    def __init__(self, encoder: VisionTransformer, classes: int, name: str | None = None) -> None:
        super().__init__(encoder, name, classes=classes)

    @staticmethod
    def _head(encoder, classes):
        config, own = encoder.config, {"dtype": encoder.config.dtype}
        tokens = encoder.get_layer(f"block_{config.num_layers - 1:02d}").output
        norm = encoder.get_layer("encoder_norm") if config.norm_position == "before_pooling" else lambda x: x
        patches = PatchMap(config.patch_size, config.embedding.pad, name="patch_map", **own)
        norms = {"epsilon": _EPSILON, "momentum": _MOMENTUM, "synchronized": keras.backend.backend() == "tensorflow"}
        batch_norm = keras.layers.BatchNormalization(name="batch_norm", **norms, **own)
        head = keras.layers.Dense(classes, name="class_head", **own)
        return {"logits": head(batch_norm(patches(norm(tokens), encoder.get_layer("patch_encoder").input)))}
