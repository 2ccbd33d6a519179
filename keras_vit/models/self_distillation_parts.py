"""Parts of self-distillation: encoders of crops, draws of masks, pairs of heads, and the report of a collapse."""

import math
import warnings

import keras
from keras import ops

from keras_vit.compat.graph import inner_layers, owned_variables
from keras_vit.layers.projection_head import ProjectionHead
from keras_vit.models.block_masks import block_masks, requested_patches
from keras_vit.models.derived import feature_extractor
from keras_vit.models.encoders import read_by_head
from keras_vit.models.layer_states import has_lora

_TRIES = 64  # blocks that a mask may try
METRICS = ("teacher_entropy", "batch_entropy")
_COLLAPSED = 0.02  # nats between the two entropies


class CropEncoder:
    """An encoder of crops, in two halves if its patches are used: patches are masked between them (arXiv 2111.07832).

    Args:
        model: a model of this package; its layers are shared.
        has_patches: whether its patches are used.

    Attributes:
        features: the model from images to the input of the head, (batch, dim), the mean of two for a distilled model.
    """

    def __init__(self, model, has_patches):
        found = feature_extractor(model, read_by_head(model), grid=False).outputs
        features = found[0] if len(found) == 1 else keras.layers.Average(dtype=model.config.dtype)(found)
        self.features, self._halves = keras.Model(model.input, features, name=f"{model.name}_features"), None
        if has_patches:
            tokens = feature_extractor(model, "patch_encoder", grid=False).output
            places, maps = feature_extractor(model, ["patch_encoder", "encoder_norm"]).outputs
            embed = keras.Model(model.input, [tokens, places], name=f"{model.name}_patches")
            self._halves = embed, keras.Model([tokens, model.input], [features, maps], name=f"{model.name}_blocks")

    def __call__(self, crops, training, masked=None):
        """Return the features (batch, crops, dim), the patches (batch * crops, rows, columns, dim), and the masks.

        Args:
            crops: (batch, crops, height, width, channels).
            training: whether dropout and stochastic depth are active.
            masked: None, or the `SeedGenerator` of masks and the embedding (dim,) of masked patches.
        """
        images, maps, masks = ops.reshape(crops, (-1, *crops.shape[2:])), None, None
        if self._halves is None:
            features = self.features(images, training=training)
        else:
            embed, blocks = self._halves
            tokens, places = embed(images, training=training)
            if masked is not None:
                seeds, token = masked
                masks = draw_masks(seeds, places)
                is_masked = ops.reshape(masks, (-1, tokens.shape[1], 1))
                tokens = ops.where(is_masked, ops.cast(token, tokens.dtype), tokens)
            features, maps = blocks([tokens, images], training=training)
        return ops.reshape(features, (-1, crops.shape[1], features.shape[-1])), maps, masks


def draw_masks(seeds, maps):
    """Draw block masks, bool (crops, rows, columns), of maps (crops, rows, columns, dim) (2304.07193, appendix B)."""
    crops, grid = ops.shape(maps)[0], maps.shape[1:3]
    order = keras.random.uniform((2, crops), seed=seeds, dtype="float32")
    blocks = keras.random.uniform((_TRIES, 4, crops), seed=seeds, dtype="float32")
    return block_masks(blocks, requested_patches(order, grid[0] * grid[1]), grid)


def pair_of_heads(kind, width, sizes, dtype):
    """Return the heads of student and teacher for features of a width, with equal values; see `ProjectionHead`."""
    heads = [ProjectionHead(*sizes, dtype=dtype, name=f"{owner}_{kind}") for owner in ("student", "teacher")]
    for head in heads:
        head.build((None, width))
    heads[1].set_weights(heads[0].get_weights())
    return heads


class CollapseReport(keras.callbacks.Callback):
    """Warn if the teacher's distribution no longer depends on the image; see `SelfDistillation`."""

    _epochs = 0  # successive ones with a collapsed teacher

    def on_epoch_end(self, epoch, logs=None):
        (own, of_mean), settings = (logs[name] for name in METRICS), self.model.settings
        self._epochs = self._epochs + 1 if has_collapsed(self.model, epoch, logs) else 0
        if self._epochs != 2:
            return
        warnings.warn(
            f"{self.model.name} has collapsed in epoch {epoch + 1}: the teacher gives every image the same "
            f"distribution (teacher_entropy={own:.3g}, batch_entropy={of_mean:.3g}, of at most "
            f"{math.log(settings['out_dim']):.3g} nats): use centring, a lower teacher_temperature, a "
            "higher teacher_momentum, a longer warm-up or a lower learning rate",
            stacklevel=2,
        )


def has_collapsed(model, epoch, logs):
    """Whether the entropies in the logs of an epoch, counted from 0, are those of a collapse."""
    own, of_mean = (logs[name] for name in METRICS)
    return epoch >= model.settings["freeze_epochs"] and of_mean - own < _COLLAPSED


def checked_crops(inputs, student):
    """Return the crops of a dict, the global ones first; raise an error if the student does not take them."""
    shapes = {key: tuple(value.shape)[1:] for key, value in inputs.items()}
    if not set(shapes) <= {"global", "local"} or shapes.get("global", (0,))[0] != 2:
        raise ValueError(f"x must have two 'global' crops of each image, and may have 'local' ones; got {shapes}")
    size = student.input_shape[1:3]
    pairs = [pair for shape in shapes.values() for pair in zip(size, shape[1:3], strict=True)]
    if any(own not in (None, side) for own, side in pairs):
        raise ValueError(
            f"student must take {shapes}; {student.name} takes {size} (use keras_vit.resize(student, 'any'))"
        )
    return [inputs[key] for key in sorted(shapes)]


def followed(teacher, student):
    """Return pairs of a variable of the teacher and the value that it follows: a kernel with LoRA is merged first.

    The average of the merged kernels is exact; that of the two matrices of LoRA, each by itself, would not be.
    """
    layers = zip(inner_layers(teacher), inner_layers(student), strict=True)
    merged = {id(mine.layer.kernel): other.layer.kernel for mine, other in layers if has_lora(other.layer)}
    values = {owned.stored_name: owned.variable for owned in owned_variables(student)}
    return [(one.variable, merged.get(id(one.variable), values[one.stored_name])) for one in owned_variables(teacher)]


def mean_of_all(values):
    """Return the mean over the batch and the crops, of all replicas of tf.distribute."""
    synchronized = keras.backend.backend() == "tensorflow"  # on JAX, a batch is one array on all devices
    return ops.moments(ops.cast(values, "float32"), axes=(0, 1), synchronized=synchronized)[0]


def entropy(probabilities):
    """Return the entropies of distributions (..., out_dim), in nats."""
    return -ops.sum(probabilities * ops.log(ops.maximum(probabilities, 1e-30)), axis=-1)


def at_step(values, place):
    return ops.take(values, ops.minimum(place, len(values) - 1))
