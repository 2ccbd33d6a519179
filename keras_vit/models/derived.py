"""Models made from another one: feature_extractor and of_pixels share its weights, the others copy them."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.compat.graph import graph_calls
from keras_vit.config import UNPOOLED, Preprocessing
from keras_vit.layers.feature_pyramid import Enlarge
from keras_vit.layers.patches import PatchMap
from keras_vit.layers.position_grid import RESIZE_METHODS
from keras_vit.layers.token_merging import MergingTransformerBlock, TokenUnmerging
from keras_vit.models.base import ImageModel, Model, standardisation
from keras_vit.models.copies import HEADS, ModelT, check_not_quantized, copy_of, is_of_head
from keras_vit.models.encoders import check_model, is_projection, preprocessing_of
from keras_vit.models.layer_states import layer_states
from keras_vit.typing import Size

OPEN_SIZES = ("any", "native")  # image sizes that a model does not fix
DTYPES = ("uint8", "float32")  # of pixels


def resize(
    model: ModelT,
    image_size: Size | Literal["any", "native"],
    method: str = "auto",
    pad: bool = False,
    images_per_sequence: int = 1,
    max_tokens: int | None = None,
) -> ModelT:
    """Return a copy of a model for another size, any size, or native aspect ratios.

    Only the position tables are resized. With a fixed size, this happens once, in the copy; for images of any size, it
    happens in every call, with the same results. A model of `with_patch_size` resizes its patch kernel in every call;
    with `native`, the copy has the resized kernel. On TensorFlow, one graph serves all sizes; on JAX, each is compiled.

    With `any`, all images of a batch have the same size. With `native`, each image has its own aspect ratio (NaFlex,
    arXiv 2502.14786, section 2.4.2; NaViT, arXiv 2307.06304): the model takes a dict of `patches` (batch, patches,
    patch height * patch width * channels) and `coordinates`, which `data.native_batch` and `data.native_pipeline` make;
    `predict` and `evaluate` do it themselves.

    Args:
        model: a model of this package, such as `VisionTransformer`.
        image_size: (height, width) in pixels or one integer; `any` takes images of any size, and `native` sequences of
            patches. Both need a `VisionTransformer` without a stem. `native` allows no attention in windows.
        method: resize method, see `resize_position_embedding`, which the copy keeps; `auto` is the one that the model
            keeps, or else that of the authors.
        pad: whether images whose sides the patch size does not divide are padded with zeros at the bottom and at the
            right; otherwise see `whole_patches` of `EmbeddingConfig`.
        images_per_sequence: with `native`, the number of images that a sequence may hold. The outputs are (batch,
            classes) for 1, and (batch, images_per_sequence, classes) above.
        max_tokens: with `native`, the most patches of an image; its preprocessing neither crops nor pads. None is 256.

    Raises:
        TypeError: if `model` is not a model of this package.
        ValueError: if the method is unknown or the architecture does not support the size or the padding.
    """
    checks.check_choice("method", method, ("auto", *RESIZE_METHODS))
    if isinstance(image_size, str):
        checks.check_choice("image_size", image_size, OPEN_SIZES)
    config, is_native = check_model(model).config, image_size == "native"
    is_open = image_size in OPEN_SIZES
    if (is_open or pad) and not hasattr(config, "table_grid"):
        raise ValueError(
            f"image_size 'any' and 'native' and pad=True need a VisionTransformer, whose blocks take any number of "
            f"patches; got image_size={image_size!r}, pad={pad} for {config.name}"
        )
    if (images_per_sequence != 1 or max_tokens is not None) and not is_native:
        raise ValueError(
            f"images_per_sequence and max_tokens need image_size='native'; got images_per_sequence="
            f"{images_per_sequence}, max_tokens={max_tokens} and image_size={image_size}"
        )
    changes: dict[str, Any] = {"image_size": "any" if is_open else image_size}
    if hasattr(config, "table_grid"):
        changes["embedding.pad"] = checks.check_flag("pad", pad)
        is_kept = is_open or config.embedding.square_positions or config.embedding.kernel_size
        changes["embedding.position_grid"] = config.table_grid if is_kept else None
        changes["embedding.images_per_sequence"] = images_per_sequence if is_native else None
        if method != "auto":
            changes["embedding.resize"] = method
    if is_native:  # patches are cut, and resized, before they reach the model
        changes["embedding.kernel_size"] = None
    config = config.replace(**changes)
    preprocessing = model.preprocessing.at(config.fixed_size or model.preprocessing.image_size)
    if is_native:
        preprocessing = preprocessing.native(config.patch_size, 256 if max_tokens is None else max_tokens)
    return copy_of(model, {"config": config.to_dict(), "preprocessing": preprocessing.to_dict()}, method=method)


def with_config(model: ModelT, **changes: Any) -> ModelT:
    """Return a copy of a model with another config and the same weights.

    Args:
        model: a model of this package.
        **changes: new values of fields that change no shape of a weight, as in `Config.replace`.

    Raises:
        TypeError: if `model` is not a model of this package.
        ValueError: if a value is out of range or arguments contradict each other.
    """
    return copy_of(model, {"config": check_model(model).config.replace(**changes).to_dict()})


def for_images(model: ModelT, images: Any) -> ModelT:
    """Return the model itself, or, if it takes images of any size, a copy for the size of these.

    Args:
        model: a keras model.
        images: (batch, height, width, channels).
    """
    if not isinstance(model, ImageModel) or model.config.fixed_size is not None:
        return model
    if model.config.field("embedding.images_per_sequence"):
        raise ValueError(f"model must take images, not sequences of patches (keras_vit.resize); got {model.name!r}")
    return resize(model, np.shape(images)[1:3], pad=bool(model.config.field("embedding.pad")))


def with_dtype(model: ModelT, dtype: Any) -> ModelT:
    """Return a copy of a model with another dtype policy and the same weights.

    Args:
        model: a model of this package.
        dtype: name of a Keras dtype policy, such as `"mixed_bfloat16"`, or the policy.

    Raises:
        TypeError: if `model` is not a model of this package.
        ValueError: if `dtype` is not a policy, or the model is quantised.
    """
    check_not_quantized(model, f"dtype={dtype!r}")
    return with_config(model, dtype=dtype)


def feature_extractor(model: keras.Model, names: Sequence[str], grid: bool = True, enlarge: int = 1) -> keras.Model:
    """Build a model that returns several intermediate outputs of `model`.

    It shares the layers and weights of `model`.

    Args:
        model: a model of this package; its docstring lists the intermediates.
        names: names of layers, such as `["block_03", "block_11", "encoder_norm"]`; the custom stem model of a hybrid
            counts as a layer.
        grid: True returns tokens (batch, tokens, dim) as maps (batch, rows, columns, dim) without class, distillation
            and register tokens. Outputs of another rank (maps of stems, stages and Swin) and outputs of a model for
            native aspect ratios stay unchanged. False returns every output unchanged. In both cases, merged tokens
            (`token_merging`) are copied back to the places of the original tokens.
        enlarge: factor by which rows and columns of maps grow, bilinearly; the patch size enlarges them to the size of
            the image. `keras_vit.layers.FeaturePyramid` makes maps of several resolutions with learned layers.

    Returns:
        A Keras model from images to the list of outputs in the order of `names`, or to the output of a single name.

    Raises:
        TypeError: if `model` is not a model of this package.
        ValueError: if a name is not a layer of the model (the message lists the layers), or the model calls the layer
            several times, such as `position_embs` with `position_placement="shared"`; if `enlarge` is not 1 and an
            output is not a map.
    """
    check_model(model)
    checks.check_integer("enlarge", enlarge)
    names = [names] if isinstance(names, str) else list(names)
    if not names:
        raise ValueError("names must name at least one layer; got an empty list")
    outputs = [_output(model, name) for name in names]
    if grid:
        outputs = [_as_map(output, model) for output in outputs]
    if enlarge > 1:
        outputs = [Enlarge(enlarge, dtype=model.config.dtype)(output) for output in outputs]
    return keras.Model(model.input, outputs if len(outputs) > 1 else outputs[0], name=f"{model.name}_features")


def of_pixels(model: ImageModel, dtype: str = "uint8") -> Model:
    """Return a model around `model` that takes pixel values; weights are shared.

    If `model` has `include_preprocessing`, `model` itself is returned.

    Args:
        model: a model of this package, or with layers after one; its `preprocessing` gives mean and std.
        dtype: dtype of the pixels: `"uint8"`, or `"float32"` for the fractional values of resized images.

    Returns:
        `keras_vit.Model` of (batch, height, width, channels), values 0 to 255, that returns the output of `model` for
        (pixels / 255 - mean) / std. For a distilled model this is the mean of its heads, also in training.

    Raises:
        TypeError: if `model` is not a model of this package.
        ValueError: if `dtype` is not one of these.
    """
    checks.check_choice("dtype", dtype, DTYPES)
    preprocessing = preprocessing_of(model) or check_model(model).preprocessing
    if preprocessing.in_model:
        return model
    scale, offset = standardisation(preprocessing)
    pixels = keras.Input(model.input_shape[1:], dtype=dtype, name="pixels")
    # bfloat16 would lose precision of the normalised values
    rescaling = keras.layers.Rescaling(scale, offset, dtype="float32", name="rescaling")
    return Model(pixels, model(rescaling(pixels)), name=f"{model.name}_of_pixels")


def with_head(
    model: ModelT,
    kernel: np.ndarray,
    bias: np.ndarray | None,
    labels: Sequence[str] | None = None,
    preprocessing: Preprocessing | None = None,
    activation: str | None = None,
    normalize: bool = False,
) -> ModelT:
    """Return a copy of a model with a given linear head.

    The model may have a head or not. A distilled model gets the head twice: the mean of the two outputs equals the
    output of one head for the mean of the inputs.

    Args:
        model: a model of this package.
        kernel: array (dim, classes); dim is the number of features that the head reads.
        bias: array (classes,), or None for a head without bias.
        labels: sequence of names, one per class, or None.
        preprocessing: `Preprocessing` of its images; None uses the model's.
        activation: activation of the head; None gives logits.
        normalize: whether the head reads L2-normalised features. The projection of a CLIP, which is a head without
            bias, then stays in front of the new head.

    Returns:
        A model of the same class and config, except for `classes`, `include_top=True`, `classifier_activation` and
        what the head reads. Its layers are frozen, quantised or adapted with LoRA as in `model`; the head is new and
        trainable.

    Raises:
        TypeError: if `model` is not a model of this package.
        ValueError: if the model does not pool its tokens, or kernel and bias have other shapes.
    """
    check_pools(model)
    fields = {"include_top": True, "classes": kernel.shape[1], "classifier_activation": activation}
    fields |= {"head.bias": bias is not None} if hasattr(model.config, "head") else {}
    states, given = layer_states(model), {f"{head}/kernel": kernel for head in HEADS}
    given |= {} if bias is None else {f"{head}/bias": bias for head in HEADS}
    if normalize and is_projection(model):
        fields["head.projection"] = model.config.classes
        given["projection/kernel"] = ops.convert_to_numpy(model.get_layer("head").kernel)  # with LoRA, if any
        states |= {"projection": states["head"]} if "head" in states else {}
    config = model.config.replace(**fields, **({"head.normalize": True} if normalize else {}))
    states = {path: state for path, state in states.items() if not is_of_head(path)}
    changes = {"config": config.to_dict(), "labels": labels, "layer_states": states}
    built = copy_of(model, changes, given=given)
    if preprocessing is not None:
        built.preprocessing = preprocessing
    return built


def check_pools(model: keras.Model) -> None:
    """Raise an error unless the head of the model reads one vector per image.

    Args:
        model: a model of this package, with or without a head.

    Raises:
        TypeError: if `model` is not a model of this package.
        ValueError: if it does not pool its tokens.
    """
    config = check_model(model).config
    if getattr(config, "pooling", None) in UNPOOLED:
        raise ValueError(
            f"model must pool its tokens before the head (as 'gap' does); {config.name} has pooling={config.pooling!r}"
        )


def _output(model, name):
    known = [layer.name for layer in model.layers]
    if name not in known:
        raise ValueError(f"names must be layers of the model, among {known}; got {name!r}")
    layer = model.get_layer(name)
    calls = [call for call in graph_calls(model) if call.operation is layer]
    if len(calls) > 1:
        raise ValueError(
            f"names must be of layers called once; got {name!r}, called {len(calls)} times (name the layers after it)"
        )
    if isinstance(layer, MergingTransformerBlock):
        tokens, _, groups = calls[0].outputs
        return TokenUnmerging(dtype=layer.dtype_policy.name, name=f"{name}_unmerging")(tokens, groups)
    return calls[0].outputs[0]


def _as_map(tokens, model):
    config = model.config
    if len(tokens.shape) != 3 or config.fixed_size is None and config.embedding.images_per_sequence:
        return tokens
    if config.fixed_size is None:
        return PatchMap(config.patch_size, config.embedding.pad, dtype=config.dtype)(tokens, model.input)
    length, dim = tokens.shape[1:]
    # the patch grid, or that of a later Swin stage
    grids = [config.stage_size(stage) for stage in range(len(config.depths))] if config.network == "swin" else []
    rows, columns = next((grid for grid in grids if math.prod(grid) == length), config.grid_size)
    num_prefix = length - rows * columns  # 0 right after the patch encoder
    return ops.reshape(tokens[:, num_prefix:], (-1, rows, columns, dim))
