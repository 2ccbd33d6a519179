"""Configs of the ResNets: the stem of the hybrids, BiT and the AxialResNet."""

import dataclasses
from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar, Self

from keras_vit import checks
from keras_vit.config.base import Config, ImageConfig, one_of
from keras_vit.config.fields import about
from keras_vit.typing import Pair

# style -> epsilon of GroupNorm, epsilon of the weight standardisation, what the latter is added to
_STEM_EPSILONS = {
    "vit": (1e-6, 1e-5, "deviation"),  # vit_jax and big_vision: (w - mean) / (std + epsilon)
    "timm": (1e-5, 1e-8, "variance"),  # (w - mean) / sqrt(variance + epsilon)
}


def _check_width_factor(name, value):
    """Return `value` if `64 * value` is divisible by 32."""
    value = checks.check_positive(name, value)
    if (64 * value) % 32:
        raise ValueError(f"{name} must be a multiple of 0.5, as GroupNorm has 32 groups; got {name}={value}")
    return value


def _check_stages(name, value):
    value = checks.check_integers(name, value)
    if not value:
        raise ValueError(f"{name} must have at least one stage; got {name}={value}")
    return value


class _Root:
    """The width of a ResNet's root."""

    width_factor: float

    @property
    def width(self) -> int:
        """Return the number of channels of the root."""
        return round(64 * self.width_factor)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResNetConfig(_Root, Config):
    """Describe the ResNet stem of a hybrid ViT (arXiv 2010.11929, section 3.1, B.3).

    The stem is a 7 x 7 root with stride 2, a max-pool with stride 2 and bottleneck stages. Every stage but the first
    has stride 2. SAME padding rounds sides up, so any input size works.

    Args:
        stage_sizes: number of bottleneck units per stage, such as `(3, 4, 9)`; `()` is the root alone.
        width_factor: the root has 64 times this number of channels.
        style: `vit` (the official code) or `timm`; they differ in their epsilons.
        gn_epsilon: epsilon of every GroupNorm; None uses the style's, 1e-6 (`vit`) or 1e-5 (`timm`).
        std_epsilon: epsilon of the weight standardisation; None uses the style's, 1e-5 added to the standard deviation
            (`vit`) or 1e-8 added to the variance (`timm`).

    Raises:
        ValueError: if a value is out of range, or the 32 groups of GroupNorm do not divide the width.
    """

    own_checks = {"width_factor": _check_width_factor, "style": one_of(_STEM_EPSILONS)}

    stage_sizes: Sequence[int] = field(metadata=about(defines=True))
    width_factor: float = field(default=1.0, metadata=about(defines=True))
    style: str = field(default="vit", metadata=about(unseen=True, close=True))
    gn_epsilon: float | None = field(default=None, metadata=about(unseen=True, close=True))
    std_epsilon: float | None = field(default=None, metadata=about(unseen=True, close=True))

    @property
    def std_form(self) -> str:
        """Return what `std_epsilon` is added to: `deviation` or `variance`."""
        return _STEM_EPSILONS[self.style][2]

    def resolve(self, **changes: Any) -> Self:
        """Return a copy in which both epsilons are set.

        Args:
            **changes: new values of other fields, as in `replace`.
        """
        gn_epsilon, std_epsilon, _ = _STEM_EPSILONS[self.style]
        filled = {"gn_epsilon": self.gn_epsilon or gn_epsilon, "std_epsilon": self.std_epsilon or std_epsilon}
        return self.replace(**filled, **changes)

    def feature_size(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns of the feature map.

        Args:
            image_size: (height, width) of the input in pixels.
        """
        stride, (height, width) = stride_of(self.stage_sizes), image_size
        return -(-height // stride), -(-width // stride)


def stride_of(stage_sizes: Sequence[int] | None) -> int:
    """Return the pixels of an image per cell of the feature map of a ResNet with these stages; None is no ResNet."""
    return 1 if stage_sizes is None else 4 * 2 ** max(len(stage_sizes) - 1, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureMapConfig(Config):
    """Describe the feature map of a custom stem; `VisionTransformer` creates it.

    Args:
        size: (rows, columns) of the feature map.
    """

    size: Pair

    def feature_size(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns of the feature map.

        Args:
            image_size: (height, width) of the input in pixels; ignored, because the stem determines the size.
        """
        return self.size


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiTConfig(_Root, ImageConfig):
    """Describe a BiT ResNet-v2 (arXiv 1912.11370), the CNN baseline of the ViT paper.

    Args:
        stage_sizes: number of pre-activation bottleneck units per stage, such as `(3, 4, 6, 3)`.
        width_factor: the root has 64 times this number of channels.
        gn_epsilon: epsilon of every GroupNorm.
        std_epsilon: epsilon of the weight standardisation, added to the variance.
        max_pool_padding: padding of the max-pool: `zeros` (the BiT authors' code) or `minus_infinity` (big_vision).
            They differ if values at the border are negative.

    Raises:
        ValueError: if a value is out of range or a choice is unknown.
    """

    network: ClassVar[str] = "bit"
    own_checks = {
        "stage_sizes": _check_stages,
        "width_factor": _check_width_factor,
        "max_pool_padding": one_of(("zeros", "minus_infinity")),
    }

    stage_sizes: Sequence[int] = field(metadata=about(defines=True))
    width_factor: float = field(metadata=about(defines=True))
    gn_epsilon: float = field(default=1e-5, metadata=about(unseen=True, close=True))
    std_epsilon: float = field(default=1e-10, metadata=about(unseen=True, close=True))
    max_pool_padding: str = field(default="zeros", metadata=about(unseen=True, close=True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxialResNetConfig(_Root, ImageConfig):
    """Describe an axial-attention ResNet (arXiv 2003.07853; 2010.11929, D.6).

    Each 3 x 3 convolution of the ResNet is replaced by attention along the height, then along the width.

    Args:
        stage_sizes: number of bottleneck units per stage, such as `(3, 4, 6, 3)`.
        width_factor: the root has 64 times this number of channels; 0.5, 0.75 and 1 are the S, M and L models of
            axial-deeplab.
        num_heads: number of heads of every axial attention.
        epsilon: epsilon of every batch normalisation.

    Raises:
        ValueError: if a value is out of range, or `num_heads` does not divide the channels of the root.
    """

    network: ClassVar[str] = "axial_resnet"
    own_checks = {"stage_sizes": _check_stages}

    stage_sizes: Sequence[int]
    width_factor: float = 1.0
    num_heads: int = field(default=8, metadata=about(unseen=True))
    epsilon: float = field(default=1e-5, metadata=about(unseen=True, close=True))

    def __post_init__(self):
        super().__post_init__()
        # The narrowest attention has twice as many channels as the root, and its keys have half of those channels.
        is_broken = (64 * self.width_factor) % self.num_heads
        self._refuse({"64 * {width_factor} must be an integer divisible by {num_heads}": is_broken})

    def stage_width(self, index: int) -> int:
        """Return the attention channels of a stage; its output has twice as many.

        Args:
            index: index of the stage, from 0.
        """
        return 2 * self.width * 2**index
