"""add_lora: train thin matrices beside frozen kernels. `copies.merge_lora` merges them into the kernels."""

import dataclasses
import math
from collections.abc import Sequence

import keras

from keras_vit import checks
from keras_vit.compat.graph import inner_layers, owned_variables
from keras_vit.logs import LOGGER
from keras_vit.models.copies import check_not_quantized, is_of_head
from keras_vit.models.encoders import find_encoder
from keras_vit.models.layer_states import has_lora, warn_if_compiled


@dataclasses.dataclass(frozen=True)
class LoraReport:
    """Report which weights are trained after `add_lora`.

    Attributes:
        layers: paths of the dense layers that have LoRA, such as `block_00/attention/qkv`.
        rank: number of columns of A and of rows of B.
        lora: number of values in the matrices A and B of all layers.
        trained: number of trainable values in the model: A, B and the head.
        total: number of values in the model, with A and B.
    """

    layers: tuple[str, ...]
    rank: int
    lora: int
    trained: int
    total: int

    @property
    def share(self) -> float:
        """Return the share of the values that are trained, in [0, 1]."""
        return self.trained / self.total

    def __str__(self):
        return (
            f"LoRA of rank {self.rank} in {len(self.layers)} layers: {self.trained:,} of {self.total:,} values are "
            f"trained ({self.share:.2%}), {self.lora:,} of LoRA and {self.trained - self.lora:,} of the head"
        )


def add_lora(
    model: keras.Model, rank: int = 8, targets: Sequence[str] = ("qkv", "proj"), alpha: float | None = None
) -> LoraReport:
    """Add LoRA to dense layers, and freeze everything else but the head.

    LoRA (arXiv 2106.09685, section 4.1) replaces the kernel W of a dense layer by W + alpha / rank * A B. W is frozen.
    A (inputs, rank) starts as He-uniform, B (rank, outputs) as zeros, so the outputs do not change at first. These are
    the matrices of Keras's `Dense.enable_lora`, in float32.

    A, B and the head of the model (the two heads of a distilled one) are trained. All other weights are frozen,
    including biases and norms; dropout and stochastic depth stay active. In a model around one of this package, the
    layers outside stay as they are, such as a new head.

    Call it before `compile`, and under the strategy that the model was created under. `keras_vit.train` saves A and B
    in its checkpoints and resumes from them. `save`, `save_weights` and `export` write merged kernels: what they write
    gives the same outputs and has no LoRA. Load weights before this call, and call `merge_lora` before `quantize`.

    Args:
        model: a model of this package, or a Keras model that contains one.
        rank: number of columns of A and of rows of B.
        targets: names of dense layers: `qkv` and `proj` of the attention, `dense1` and `dense2` of the MLP; the error
            for another name lists those of the model. Layers of a custom stem are not among them.
        alpha: scale of A B, above 0; None is `rank`, a factor of 1.

    Returns:
        A `LoraReport`, which is also logged to `keras_vit` at level INFO.

    Raises:
        TypeError: if `model` is not and does not contain exactly one model of this package.
        ValueError: if a target is not a dense layer of the model, the model has no dense layers (BiT), already has
            LoRA, or is quantised.
    """
    encoder = find_encoder(model)
    if encoder is None:
        raise TypeError(f"model must be or contain one model of keras_vit; got {type(model).__name__}")
    rank = checks.check_integer("rank", rank)
    alpha = checks.check_positive("alpha", rank if alpha is None else alpha)
    check_not_quantized(encoder, "add_lora (add LoRA first; quantize the copy that merge_lora returns)")
    layers = {inner.path: inner.layer for inner in inner_layers(encoder)}
    dense = {path: x for path, x in layers.items() if isinstance(x, keras.layers.Dense) and not is_of_head(path)}
    if any(map(has_lora, dense.values())):
        raise ValueError(f"model must not have LoRA yet; {encoder.name} has (merge_lora returns a copy without it)")
    known = list(dict.fromkeys(layer.name for layer in dense.values()))
    if not known:
        raise ValueError(f"model must have dense layers besides its head for LoRA; {encoder.name} has none")
    if not isinstance(targets, (tuple, list)) or not targets:
        raise ValueError(f"targets must be a sequence of names among {known}; got targets={targets!r}")
    for name in targets:
        checks.check_choice("targets", name, known)
    chosen = {path: layer for path, layer in dense.items() if layer.name in targets}

    encoder.trainable = True  # Keras trains nothing inside a frozen layer
    for path, layer in layers.items():  # outer before inner
        layer.trainable = is_of_head(path) or any(f"{name}/".startswith(f"{path}/") for name in chosen)
    for owned in owned_variables(encoder):  # biases beside the kernels, and weights of the layers around them
        if not is_of_head(owned.stored_name):
            owned.variable.trainable = False
    for layer in chosen.values():
        layer.enable_lora(rank, alpha)
    for one in (model, encoder):  # compiled functions hold the kernels alone
        one.train_function = one.test_function = one.predict_function = None
    warn_if_compiled(model, "got LoRA")

    added = rank * sum(sum(layer.kernel.shape) for layer in chosen.values())
    trained = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    report = LoraReport(tuple(chosen), rank, added, trained, model.count_params())
    LOGGER.info(report)
    return report
