"""What a model is (`ViTConfig`) and what it eats (`Preprocessing`): frozen, validated, to and from plain dicts."""

import dataclasses
import difflib
import math
import numbers

from keras_vit import checks

CLASSIFIERS = ("token", "gap", "map", "first", "unpooled", "token_unpooled")
CLASS_TOKEN_CLASSIFIERS = ("token", "token_unpooled")
UNPOOLED_CLASSIFIERS = ("unpooled", "token_unpooled")
NORM_POSITIONS = ("before_pooling", "after_pooling")
POSITION_EMBEDDINGS = ("learned", "sincos2d", "none")
POSITION_PLACEMENTS = ("stem",)
GELUS = ("tanh", "erf")
INTERPOLATIONS = ("bilinear", "bilinear_antialias", "bicubic", "area", "nearest")

PAPER_GELU = "tanh"  # vit_jax: flax.linen.gelu, whose default is the tanh approximation
PAPER_EPSILON = 1e-6  # vit_jax: flax.linen.LayerNorm's default; Keras's own is 1e-3


class _Config:
    """Plain-dict round trip for the dataclasses below."""

    def to_dict(self):
        """Returns the fields as a dict of JSON values: `from_dict(to_dict())` builds an equal object."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, values):
        """Builds the config from a dict; raises `ValueError` on a key that is no field of it."""
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise ValueError(f"{cls.__name__} keys must be among {known}; got {key!r}{hint}")
        return cls(**values)

    def replace(self, **changes):
        """Returns a copy with the named fields changed; unknown names are refused as in `from_dict`."""
        return type(self).from_dict({**self.to_dict(), **changes})

    def _set(self, **values):
        for name, value in values.items():
            object.__setattr__(self, name, value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig(_Config):
    """The architecture of a Vision Transformer (arXiv 2010.11929, section 3.1 and Table 1).

    Args:
        name: name of the variant, such as `"ViT-B_16"`.
        image_size: height and width of the input in pixels, or one integer for both.
        patch_size: height and width of a patch in pixels; it must divide `image_size`.
        hidden_dim: width D of every token.
        num_layers: number of transformer blocks L.
        num_heads: attention heads per block; they must divide `hidden_dim`.
        mlp_dim: width of the hidden layer of each block's MLP.
        classes: number of logits.
        include_top: False ends the model at the pooled features.
        classifier: what the head reads: `token` the class token, `gap` the mean of the patch tokens, `map`
            multi-head attention pooling, `first` row 0 with no class token added, `unpooled` every patch token,
            `token_unpooled` every token with the class token first.
        class_token: None follows the classifier; True keeps a class token beside `gap` or `map`, which leave it out.
        norm_position: `before_pooling` (the paper) or `after_pooling` (timm's fc_norm).
        representation_size: width of the tanh layer `pre_logits` before the head, None for no such layer.
        classifier_activation: activation of the head, such as `"softmax"`; None gives logits.
        position_embedding: `learned` (1-D table), `sincos2d` (fixed, MoCo-v3 form) or `none`.
        position_placement: where positions are added: `stem`, once before the first block.
        dropout_rate: rate in [0, 1) after positions, attention output and both MLP layers.
        attention_dropout_rate: rate in [0, 1) on the attention weights.
        stochastic_depth_rate: rate in [0, 1) of the last block; it grows linearly with depth from 0.
        layer_scale_init: initial value of LayerScale (arXiv 2103.17239), None for no LayerScale.
        qkv_bias: whether query, key and value projections have biases.
        qk_norm: whether queries and keys are layer-normalised per head.
        num_registers: learned register tokens (arXiv 2309.16588) after the class token.
        gelu: `tanh` or `erf`; None is what given weights were trained with, without weights the paper's `tanh`.
        epsilon: of every LayerNorm; None is what given weights were trained with, without weights the paper's 1e-6.
        remat: recompute the blocks in the backward pass to save memory.
        channels: channels of the input picture.
        dtype: Keras dtype policy, such as `"mixed_bfloat16"`; None is the global policy.

    Raises:
        ValueError: on a value out of range, an unknown choice or a contradiction between arguments.
    """

    name: str
    image_size: tuple
    patch_size: tuple
    hidden_dim: int
    num_layers: int
    num_heads: int
    mlp_dim: int
    classes: int = 1000
    include_top: bool = True
    classifier: str = "token"
    class_token: bool | None = None
    norm_position: str = "before_pooling"
    representation_size: int | None = None
    classifier_activation: str | None = None
    position_embedding: str = "learned"
    position_placement: str = "stem"
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    stochastic_depth_rate: float = 0.0
    layer_scale_init: float | None = None
    qkv_bias: bool = True
    qk_norm: bool = False
    num_registers: int = 0
    gelu: str | None = None
    epsilon: float | None = None
    remat: bool = False
    channels: int = 3
    dtype: str | None = None

    def __post_init__(self):
        _check_string("name", self.name)
        self._set(
            image_size=checks.check_pair("image_size", self.image_size),
            patch_size=checks.check_pair("patch_size", self.patch_size),
        )
        for name in ("hidden_dim", "num_layers", "num_heads", "mlp_dim", "classes", "channels"):
            self._set(**{name: checks.check_integer(name, getattr(self, name))})
        self._set(num_registers=checks.check_integer("num_registers", self.num_registers, minimum=0))
        for name in ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate"):
            self._set(**{name: checks.check_rate(name, getattr(self, name))})
        for name in ("include_top", "qkv_bias", "qk_norm", "remat"):
            checks.check_flag(name, getattr(self, name))
        for name, choices in _CHOICES.items():
            checks.check_choice(name, getattr(self, name), choices)
        for name, check in _OPTIONAL.items():
            if getattr(self, name) is not None:
                self._set(**{name: check(name, getattr(self, name))})
        self._check_contradictions()

    def _check_contradictions(self):
        checks.check_divisible("image_size", self.image_size, "patch_size", self.patch_size)
        if self.hidden_dim % self.num_heads:
            raise ValueError(
                "hidden_dim must be divisible by num_heads; "
                f"got hidden_dim={self.hidden_dim}, num_heads={self.num_heads}"
            )
        if self.class_token and self.classifier in ("first", "unpooled"):
            raise ValueError(
                f"classifier={self.classifier!r} has no class token, so class_token must be None or False; "
                "got class_token=True"
            )
        if self.class_token is False and self.classifier in CLASS_TOKEN_CLASSIFIERS:
            raise ValueError(
                f"classifier={self.classifier!r} reads the class token, so class_token must be None or True; "
                "got class_token=False"
            )
        if self.norm_position == "after_pooling" and self.classifier in UNPOOLED_CLASSIFIERS:
            raise ValueError(
                "norm_position='after_pooling' needs a classifier that pools; "
                f"got classifier={self.classifier!r}"
            )
        if self.classifier == "first" and self.num_registers:
            raise ValueError(
                "classifier='first' reads row 0 of the patch tokens, so num_registers must be 0; "
                f"got num_registers={self.num_registers}"
            )
        if self.position_embedding == "sincos2d" and (self.hidden_dim % 4 or self.hidden_dim < 8):
            raise ValueError(
                "position_embedding='sincos2d' needs hidden_dim of at least 8, divisible by 4; "
                f"got hidden_dim={self.hidden_dim}"
            )

    @property
    def grid_size(self):
        """Rows and columns of the patch grid."""
        return tuple(side // step for side, step in zip(self.image_size, self.patch_size, strict=True))

    @property
    def num_class_tokens(self):
        """1 with a class token, else 0."""
        follows = self.classifier in CLASS_TOKEN_CLASSIFIERS
        return int(follows if self.class_token is None else self.class_token)

    @property
    def num_prefix_tokens(self):
        """Tokens that stand before the patch tokens: class token and registers."""
        return self.num_class_tokens + self.num_registers

    def resolve(self):
        """Returns a copy in which `gelu` and `epsilon` are stated: the paper's where they were None."""
        return self.replace(gelu=self.gelu or PAPER_GELU, epsilon=self.epsilon or PAPER_EPSILON)


_CHOICES = {
    "classifier": CLASSIFIERS,
    "norm_position": NORM_POSITIONS,
    "position_embedding": POSITION_EMBEDDINGS,
    "position_placement": POSITION_PLACEMENTS,
}
_OPTIONAL = {
    "class_token": checks.check_flag,
    "representation_size": checks.check_integer,
    "classifier_activation": lambda name, value: _check_string(name, value),
    "layer_scale_init": checks.check_positive,
    "gelu": lambda name, value: checks.check_choice(name, value, GELUS),
    "epsilon": checks.check_positive,
    "dtype": lambda name, value: _policy_name(value),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing(_Config):
    """From a picture to the numbers a checkpoint was trained on: the contract of checkpoint, data and serving.

    Pixels are scaled to [0, 1], resized, cropped, then mapped to `(x - mean) / std`. The default is the official one:
    a plain square resize to values in [-1, 1].

    Args:
        size: without `crop`, the exact size (height, width) the picture is resized to, whatever its aspect ratio
            (one integer for a square). With `crop` and one integer, the length the shorter side is resized to,
            aspect ratio kept; with `crop` and a pair, an exact resize before the crop.
        crop: size (height, width) of the central crop after the resize, None for no crop.
        interpolation: `bilinear` (TensorFlow's, not antialiased: the official code), `bilinear_antialias` and
            `bicubic` (antialiased, as in Pillow and timm), `area` or `nearest`.
        mean, std: one number per channel on the scale [0, 1]; their length is the number of channels, 1 or 3.

    Raises:
        ValueError: on a value out of range or a crop that exceeds `size`.
    """

    size: int | tuple = 224
    crop: tuple | None = None
    interpolation: str = "bilinear"
    mean: tuple = (0.5, 0.5, 0.5)
    std: tuple = (0.5, 0.5, 0.5)

    def __post_init__(self):
        checks.check_choice("interpolation", self.interpolation, INTERPOLATIONS)
        is_shorter_side = self.crop is not None and not isinstance(self.size, (tuple, list))
        resized = checks.check_pair("size", self.size)
        self._set(size=resized[0] if is_shorter_side else resized, mean=_floats("mean", self.mean))
        self._set(std=_floats("std", self.std))
        if self.crop is not None:
            self._set(crop=checks.check_pair("crop", self.crop))
            if any(side > limit for side, limit in zip(self.crop, resized, strict=True)):
                raise ValueError(f"crop must not exceed size; got crop={self.crop}, size={self.size}")
        if len(self.mean) != len(self.std) or len(self.mean) not in (1, 3):
            raise ValueError(
                f"mean and std must have one number per channel, 1 or 3; got mean={self.mean}, std={self.std}"
            )
        if min(self.std) <= 0:
            raise ValueError(f"std must be above 0; got std={self.std}")

    @property
    def image_size(self):
        """Height and width of the result in pixels."""
        return self.crop or self.size

    @property
    def channels(self):
        """Channels of the result: 1 (grey) or 3 (red, green, blue)."""
        return len(self.mean)

    def at(self, image_size):
        """The same protocol for another input size: exact resizes follow it, resize and crop keep their ratio."""
        image_size = checks.check_pair("image_size", image_size)
        if self.crop is None:
            return self.replace(size=image_size)
        if isinstance(self.size, tuple):
            sides = zip(self.size, image_size, self.crop, strict=True)
            return self.replace(size=tuple(round(s * new / old) for s, new, old in sides), crop=image_size)
        shorter = round(self.size * max(image_size) / max(self.crop))
        return self.replace(size=shorter, crop=image_size)


def _policy_name(policy):
    """The name of a Keras dtype policy, given as its name or as the policy."""
    name = getattr(policy, "name", policy)
    if not isinstance(name, str):
        raise ValueError(f"dtype must be the name of a Keras dtype policy, such as 'mixed_bfloat16'; got {policy!r}")
    return name


def _check_string(name, value):
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a string that is not empty; got {name}={value!r}")
    return value


def _plain(value):
    return list(value) if isinstance(value, tuple) else value


def _floats(name, values):
    values = tuple(values) if isinstance(values, (tuple, list)) else (values,)
    if not values or not all(isinstance(v, numbers.Real) and not isinstance(v, bool) for v in values):
        raise ValueError(f"{name} must be a sequence of numbers; got {name}={values}")
    if not all(math.isfinite(v) for v in values):
        raise ValueError(f"{name} must be a sequence of finite numbers; got {name}={values}")
    return tuple(float(v) for v in values)
