"""SelfDistillation: pre-training without labels by a student that predicts its own average.

The methods are DINO (arXiv 2104.14294), DINOv2 (2304.07193) and DINOv3 (2508.10104).
"""

from typing import Any

import keras
from keras import ops

from keras_vit import checks
from keras_vit.compat.graph import keep_beside_graph
from keras_vit.config.base import ARGUMENTS
from keras_vit.layers.projection_head import ProjectionHead
from keras_vit.models import block_masks
from keras_vit.models import self_distillation_loss as losses
from keras_vit.models import self_distillation_parts as parts
from keras_vit.models.base import Model, head_dtype
from keras_vit.models.copies import merge_lora
from keras_vit.models.derived import check_pools
from keras_vit.models.scanned import check_unscanned
from keras_vit.models.self_distillation_parts import METRICS, CollapseReport
from keras_vit.models.training_model import TrainingModel
from keras_vit.typing import Tensor

# method -> values of the settings `_USUAL` that are not given
_USUAL = ("centering", "patch_weight", "koleo_weight", "gram_weight", "teacher_momentum", "norm_last_layer")
METHODS = {
    "dino": ("softmax", 0.0, 0.0, 0.0, 0.996, True),
    "dinov2": ("sinkhorn_knopp", 1.0, 0.1, 0.0, 0.994, False),
    "dinov3": ("sinkhorn_knopp", 1.0, 0.1, 2.0, 0.994, False),
}


@keras.saving.register_keras_serializable(package="keras_vit")
class SelfDistillation(TrainingModel, Model):
    """Pre-train without labels by self-distillation (DINO, DINOv2 and DINOv3).

    The student sees all crops of an image, the teacher the two global ones. The student learns to predict the teacher's
    distribution over prototypes from other crops. The teacher is the moving average of the student. Its outputs are
    centred by their running mean and sharpened by a low temperature, which together prevent a collapse (DINO, arXiv
    2104.14294).

    `method="dinov2"` (arXiv 2304.07193) adds iBOT's loss: in half of the global crops, blocks of 10 to 50 % of the
    patches are replaced by a learned embedding, and the student predicts the teacher's distribution for them. It adds
    the KoLeo regulariser, and centres by Sinkhorn-Knopp over the images of all replicas. `method="dinov3"` (arXiv
    2508.10104) also keeps the similarities of the patches near those of the student as it was given (Gram anchoring).
    A step with several replicas equals one on one device, except for the masks that are drawn and, with
    `centering="softmax"`, the centre of the patches, a mean of means. Each replica must have an image of every batch.
    The last layer of each head is trained.

    ```python
    student = keras_vit.resize(keras_vit.ViT_S16(include_top=False), "any")  # images of any size
    model = keras_vit.SelfDistillation(student)
    data = keras_vit.data.multi_crop_pipeline(source, student.preprocessing, 512)
    model.compile(optimizer, epochs=100, steps_per_epoch=data.steps_per_epoch)
    model.fit(data, epochs=100, steps_per_epoch=data.steps_per_epoch)
    model.teacher.save("teacher.keras")
    ```

    `fit` trains `student` in place and updates `teacher`, a model of the same class with the same config; the authors
    evaluate the teacher. Both are ordinary models for `train`, `knn` and so on. A head of the student is not trained.
    Any encoder that `load` returns can be the student, with `add_lora` or `freeze` before; the teacher then follows the
    kernels with LoRA merged, and has no LoRA.
    `recipe.compile` and `train` take the hyper-parameters from `dino/imagenet`.

    A step updates the student, then the teacher with the momentum of the step. In the first `freeze_epochs`, the last
    layer of the student's head keeps its initial values; its gradients only enter the state of the optimizer. The
    centre uses the mean over all replicas. Everything is saved with the model, but a `.keras` file has no state of
    random draws (masks, dropout); the checkpoints of `train` have it.

    The history has `teacher_entropy`, the mean entropy of the teacher's distribution for a crop, and `batch_entropy`,
    the entropy of the mean of these distributions over the batch, in nats. Their difference is the mean KL divergence
    between both. It is near 0 if all images get one distribution: a single prototype (both entropies near 0) or a
    uniform one (both near ln `out_dim`). `fit` warns of a collapse if it is below 0.02 in two epochs in a row after
    `freeze_epochs` (section 5.3 of the paper).

    Args:
        student: a model of this package that takes images and pools its tokens, with or without a head. Its own size
            is the only size of crops that it takes; `keras_vit.resize(student, "any")` takes all sizes.
        out_dim: number of prototypes; 65,536 as published. Use fewer for small data.
        method: `"dino"`, `"dinov2"` or `"dinov3"`: the values of arguments that are None.
        hidden_dim, bottleneck_dim: as in `keras_vit.layers.ProjectionHead`.
        norm_last_layer: the same; None is True for `dino` only.
        student_temperature: temperature of the student's outputs, above 0.
        teacher_temperature: temperature of the teacher's outputs after the warm-up, above 0; the authors advise at most
            0.07.
        warmup_temperature: temperature of the teacher in the first epoch.
        warmup_epochs: epochs in which it rises to `teacher_temperature`, see `temperature_schedule`: with `dino` after
            each epoch, with the other methods after each step. The default of DINO's authors is none, at a temperature
            of 0.04; the papers use 30 epochs.
        freeze_epochs: epochs in which the last layer of the head is frozen.
        teacher_momentum: momentum of the moving average in the first step, in [0, 1); it rises to 1, see
            `cosine_schedule`. The authors advise a higher one for smaller batches, 0.9995 for 256 images. None is
            0.996, and 0.994 for the other methods.
        center_momentum: momentum of the centres, in [0, 1); None does not centre, and training collapses.
        centering: `"softmax"`, with a running centre, or `"sinkhorn_knopp"`; None is softmax for `dino` only.
        patch_weight: weight of iBOT's loss, at least 0; None is 0 for `dino`, else 1.
        separate_heads: whether patches have heads of their own.
        koleo_weight: weight of KoLeo for each global crop; None is 0 for `dino`, else 0.1. Use 0 for batches below 16.
        gram_weight: weight of Gram anchoring; None is 2 for `dinov3`, else 0.
        seed: integer for reproducible masks; None draws one.
        name: name of the Keras model; None adds `_self_distillation` to the student's name.

    Shapes:
        dict of crops, prepared as `student.preprocessing` describes: `global`, (batch, 2, height, width, channels), and
        `local`, (batch, crops, height, width, channels), which may be absent -> dict of `student`, the logits of the
        student (batch, crops, out_dim), and `teacher`, the probabilities of the teacher (batch, 2, out_dim). Images
        (batch, height, width, channels) -> the logits of the student (batch, out_dim)

    Attributes:
        student, teacher: models of this package.
        student_head, teacher_head: their `ProjectionHead`s.
        patch_heads: those of the patches, student's and teacher's; empty without `patch_weight`.
        gram_teacher: copy of the student as it was given, or None.
        center: (out_dim,), the centre.
        step: number of steps done.
        settings: dict of the other arguments.

    Raises:
        TypeError: if `student` is not a model of this package.
        ValueError: if a value is out of range, or the student takes sequences of patches, does not pool its tokens or
            has `scan_layers`; with a weight of patches or of Gram anchoring, if it is no `VisionTransformer`, its last
            norm does not precede the pooling, or it has a stem, `token_merging` or `patch_drop_rate`.
    """

    _models = ("student",)
    _compares_rows = True

    def __init__(
        self,
        student: keras.Model,
        out_dim: int = 65536,
        *,
        method: str = "dino",
        hidden_dim: int = 2048,
        bottleneck_dim: int = 256,
        norm_last_layer: bool | None = None,
        student_temperature: float = 0.1,
        teacher_temperature: float = 0.07,
        warmup_temperature: float = 0.04,
        warmup_epochs: int = 30,
        freeze_epochs: int = 1,
        teacher_momentum: float | None = None,
        center_momentum: float | None = 0.9,
        centering: str | None = None,
        patch_weight: float | None = None,
        separate_heads: bool = False,
        koleo_weight: float | None = None,
        gram_weight: float | None = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> None:
        check_pools(student)
        check_unscanned(student)
        if len(student.inputs) > 1:
            raise ValueError(f"student must take images, not sequences of patches; got {student.name!r}")
        given, usual = locals(), METHODS[checks.check_choice("method", method, METHODS)]
        given |= {key: value for key, value in zip(_USUAL, usual, strict=True) if given[key] is None}
        settings = {key: check(key, given[key]) for key, check in ARGUMENTS.items() if key in given and key != "name"}
        has_patches, config = bool(settings["patch_weight"] or settings["gram_weight"]), student.config
        keeps_patches = getattr(config, "norm_position", None) == "before_pooling" and not any(
            (config.stem, config.token_merging, config.embedding.patch_drop_rate)
        )
        if has_patches and not keeps_patches:
            raise ValueError(
                "student must be a VisionTransformer without stem, token_merging and patch_drop_rate, and with "
                f"norm_position='before_pooling', for patch_weight and gram_weight; got {config.name}"
            )
        teacher = merge_lora(student)
        teacher.trainable = False  # so that Keras sees a change below
        teacher.trainable = True  # whatever of the student is frozen: others may train it later
        anchors = [merge_lora(student)] if settings["gram_weight"] else []
        encoders = [parts.CropEncoder(one, has_patches) for one in (student, teacher, *anchors)]
        sizes = (out_dim, hidden_dim, bottleneck_dim, 3, settings["norm_last_layer"]), head_dtype(config)
        heads = parts.pair_of_heads("head", encoders[0].features.output.shape[-1], *sizes)
        inputs = keras.Input(student.input_shape[1:], dtype=student.input.dtype, name="images")
        outputs = heads[0](encoders[0].features(inputs))
        super().__init__(inputs=inputs, outputs=outputs, name=name or f"{student.name}_self_distillation")
        self.input_spec = None  # the inputs may be a dict of crops
        self.settings, self._encoders = settings, encoders
        self.student: keras.Model = student
        self.teacher: keras.Model = teacher
        self.gram_teacher: keras.Model | None = anchors[0] if anchors else None
        self.student_head, self.teacher_head = heads
        self.patch_heads: list[ProjectionHead] = []
        fixed = {"initializer": "zeros", "trainable": False}
        self.center = self.add_weight(name="center", shape=(out_dim,), **fixed)
        self.step = self.add_weight(name="step", shape=(), dtype="int32", **fixed)
        if settings["patch_weight"]:
            self.seeds = keras.random.SeedGenerator(settings["seed"])  # of the masks
            width = student.get_layer("encoder_norm").output.shape[-1]
            self.mask_token = self.add_weight(name="mask_token", shape=(width,), initializer="zeros")
            self.patch_center = self.add_weight(name="patch_center", shape=(out_dim,), **fixed)
            self.patch_heads = parts.pair_of_heads("patch_head", width, *sizes) if settings["separate_heads"] else heads
        for layer in (student, teacher, heads[1], *anchors):
            keep_beside_graph(self, layer)
        trained = [encoders[0].features, *self.trained_heads]
        used = {id(variable) for layer in trained for variable in layer.variables}
        used |= {id(variable) for variable in self._trainable_variables}  # the mask token
        self._idle = frozenset(id(variable) for variable in self.variables if id(variable) not in used)
        self._entropies = [keras.metrics.Mean(name=name) for name in METRICS]

    @property
    def trained_heads(self) -> list[ProjectionHead]:
        """Return the heads of the student."""
        return list(dict.fromkeys([self.student_head, *self.patch_heads[:1]]))

    def compile(  # type: ignore[override] # the names are Keras's, the mixin's are *args
        self, optimizer: Any = "rmsprop", loss: Any = None, *, epochs: int, steps_per_epoch: int, **kwargs: Any
    ) -> None:
        """Configure the model for training as `keras_vit.Model.compile` does.

        Args:
            optimizer: as in `keras.Model.compile`. The authors use AdamW and clip the gradient of each weight to a norm
                of 3 (`clipnorm`).
            loss: None uses `SelfDistillationLoss`.
            epochs: epochs of the whole run, for the schedules.
            steps_per_epoch: steps of an epoch.
            **kwargs: as in `keras_vit.Model.compile`, without `microbatches`, because the centre is a mean over the
                whole batch.

        Raises:
            ValueError: as `keras_vit.Model.compile`; if a number is out of range.
        """
        given, counts = self.settings, {"epochs": epochs, "steps_per_epoch": steps_per_epoch}
        self._epochs = {key: ARGUMENTS[key](key, count) for key, count in counts.items()}
        each = 1 if given["method"] == "dino" else steps_per_epoch  # temperatures in an epoch
        warmup = given["warmup_temperature"], given["teacher_temperature"], given["warmup_epochs"] * each
        temperatures = losses.temperature_schedule(*warmup, epochs * each).repeat(steps_per_epoch // each)
        momenta = losses.cosine_schedule(given["teacher_momentum"], 1.0, epochs * steps_per_epoch)
        self._temperatures, self._momenta = temperatures.astype("float32"), momenta.astype("float32")
        least_pairs = 1 if given["method"] == "dino" else 3  # see `SelfDistillationLoss`
        usual = losses.SelfDistillationLoss(given["student_temperature"], least_pairs)
        super().compile(optimizer=optimizer, loss=usual if loss is None else loss, **kwargs)

    def get_compile_config(self):
        config = super().get_compile_config()
        return {**config, **self._epochs} if config else config

    def call(self, inputs: Tensor, training: bool | None = None, mask: Any = None) -> Any:
        """Return the logits of images; for crops, the logits of the student and the probabilities of the teacher.

        Args:
            inputs: images, or a dict of crops, see the class. In training, crops also update the centre.
            training: as in a call of any Keras model; the teacher runs in inference mode.
            mask: not used.

        Raises:
            ValueError: if a dict has other keys, not two global crops, or crops of a size that the student does not
                take.
        """
        if not isinstance(inputs, dict):
            return super().call(inputs, training=training, mask=mask)
        views, *local = parts.checked_crops(inputs, self.student)
        student, teacher, *_ = self._encoders
        masked = (self.seeds, self.mask_token) if training and self.settings["patch_weight"] else None
        features, patches, masks = student(views, training, masked)
        taught, taught_patches, _ = teacher(views, False)
        features_of_all = [features, *(student(crops, training)[0] for crops in local)]
        logits = self.student_head(ops.concatenate(features_of_all, axis=1))
        taught = ops.stop_gradient(self.teacher_head(taught))
        probabilities = self._targets(taught, self.center)
        outputs = {"student": logits, "teacher": probabilities}
        if training:
            # not by `add_loss`, which replicas share while they wait for each other
            added = self._added_losses(views, masks, features, patches, taught_patches)
            outputs["added"] = ops.broadcast_to(added, ops.shape(logits)[:1])  # a row per image, as all outputs
            self._move_center(self.center, parts.mean_of_all(taught))
        return outputs

    def _targets(self, taught, center, weights=None):
        """Return the teacher's distributions for its logits (..., out_dim)."""
        if self.settings["centering"] == "softmax":
            return losses.teacher_probabilities(taught, center, self._temperature())
        rows = ops.reshape(taught, (-1, taught.shape[-1]))
        return ops.reshape(losses.sinkhorn_knopp(rows, self._temperature(), weights=weights), ops.shape(taught))

    def _added_losses(self, views, masks, features, patches, taught_patches):
        """Return the weighted sum of KoLeo, Gram anchoring and iBOT's loss, or 0."""
        given, terms = self.settings, []
        if given["koleo_weight"]:
            terms.append(given["koleo_weight"] * sum(ops.mean(losses.koleo(features[:, crop])) for crop in range(2)))
        if given["gram_weight"]:
            _, anchors, _ = self._encoders[2](views, False)
            terms.append(given["gram_weight"] * ops.mean(losses.gram_losses(patches, ops.stop_gradient(anchors))))
        if masks is not None:
            terms.append(given["patch_weight"] * self._patch_loss(masks, patches, taught_patches))
        return sum(terms, ops.zeros((), "float32"))

    def _patch_loss(self, masks, patches, taught):
        """Return iBOT's loss of the masked patches, whose heads run on these alone, and move their centre."""
        crops, length = patches.shape[0], patches.shape[1] * patches.shape[2]
        # of an unknown number of crops, a quarter of the patches are masked at most
        size = block_masks.most_masked_patches(crops, length) if crops else ops.shape(patches)[0] * length // 4
        if crops and not size:
            return 0.0
        places, weights = block_masks.masked_places(masks, size)
        rows, taught = (ops.take(ops.reshape(one, (-1, one.shape[-1])), places, 0) for one in (patches, taught))
        taught = ops.stop_gradient(self.patch_heads[1](taught))
        targets, logits = self._targets(taught, self.patch_center, weights), self.patch_heads[0](rows)
        images, center = ops.shape(patches)[0], ops.convert_to_tensor(self.patch_center)
        self._move_center(self.patch_center, losses.mean_of_patches(taught, weights, center))
        return losses.masked_patch_loss(targets, logits, weights, self.settings["student_temperature"], images)

    def _move_center(self, center, mean):
        momentum = self.settings["center_momentum"]
        if self.settings["centering"] == "softmax" and momentum is not None:
            center.assign(losses.moving_average(center, mean, momentum))

    def train_step(self, *arguments):
        results = super().train_step(*arguments)
        if len(arguments) == 1:
            self._end_step()
            return results
        logs, (trainable, others, *rest) = results  # Keras's stateless step on JAX
        variables = self.trainable_variables, self.non_trainable_variables
        with keras.StatelessScope(zip(sum(variables, []), [*trainable, *others], strict=True)) as scope:
            self._end_step()
        return logs, (*([scope.get_current_value(one) for one in part] for part in variables), *rest)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if not isinstance(y_pred, dict):
            raise ValueError(
                "x must be a dict of crops, 'global' and 'local', such as of keras_vit.data.multi_crop_pipeline; got "
                f"images of shape {getattr(x, 'shape', None)}"
            )
        loss = super().compute_loss(x, y_pred["teacher"], y_pred["student"], sample_weight, training)
        return loss + ops.mean(y_pred["added"]) / self._replicas if "added" in y_pred else loss

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        probabilities = y_pred["teacher"]
        for metric, value in zip(self._entropies, (probabilities, parts.mean_of_all(probabilities)), strict=True):
            metric.update_state(parts.entropy(value))
        return super().compute_metrics(x, probabilities, y_pred["student"], sample_weight)

    def _untrained(self):
        return self._idle

    def _fit_inside(self, arguments, steps_done):
        callbacks = [*keras.tree.flatten(arguments.get("callbacks") or []), CollapseReport()]
        return super()._fit_inside({**arguments, "callbacks": callbacks}, steps_done)

    def _end_step(self):
        """Restore a frozen last layer, then move the teacher towards the student."""
        is_frozen = self.step < self.settings["freeze_epochs"] * self._epochs["steps_per_epoch"]
        heads = dict(zip(self.trained_heads, dict.fromkeys([self.teacher_head, *self.patch_heads[1:]]), strict=True))
        for name in ("kernel", "scale"):  # while it is frozen, it equals the teacher's
            for own, other in ([getattr(head, name) for head in two] for two in heads.items()):
                own.assign(ops.where(is_frozen, other.value, own.value))
        momentum = parts.at_step(self._momenta, self.step)
        followed = parts.followed(self.teacher, self.student)
        followed += [pair for own, other in heads.items() for pair in zip(other.variables, own.variables, strict=True)]
        for average, value in followed:
            if keras.backend.is_float_dtype(average.dtype):
                average.assign(losses.moving_average(average, value, ops.cast(momentum, average.dtype)))
        self.step.assign(self.step + 1)

    def _temperature(self):
        if not self.compiled:
            return self.settings["teacher_temperature"]
        return parts.at_step(self._temperatures, self.step)
