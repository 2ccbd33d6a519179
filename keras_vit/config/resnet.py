"""ResNets: the stems of hybrids, the BiT classifiers and the AxialResNet."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Self

from keras_vit import checks
from keras_vit.config.base import Config, ImageConfig, check_integers
from keras_vit.typing import Pair

STEM_STYLES = ("vit", "timm")
POOL_PADDINGS = ("zeros", "minus_infinity")

# style -> epsilon of GroupNorm, epsilon of the weight standardisation, what that epsilon is added to
_STEM_EPSILONS = {
    "vit": (1e-6, 1e-5, "deviation"),  # vit_jax and big_vision: (w - mean) / (std + epsilon)
    "timm": (1e-5, 1e-8, "variance"),  # (w - mean) / sqrt(variance + epsilon)
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResNetConfig(Config):
    """The ResNet below a hybrid Vision Transformer (arXiv 2010.11929, section 3.1 and appendix B.3).

    A 7 x 7 root of stride 2 and a max-pool of stride 2, then bottleneck stages, all with stride 2 but the first. Sides
    are rounded up (SAME padding), so that the feature map of an input of any size exists.

    Args:
        stage_sizes: bottleneck units per stage, such as `(3, 4, 9)`; `()` is the root alone.
        width_factor: the root has 64 times this many channels.
        style: `vit` (the official code) or `timm`: their epsilons differ.
        gn_epsilon: of every GroupNorm; None is the style's, 1e-6 or 1e-5.
        std_epsilon: of the weight standardisation; None is the style's, 1e-5 added to the deviation (`vit`) or 1e-8
            added to the variance (`timm`).

    Raises:
        ValueError: on a value out of range, or a width that the 32 groups of GroupNorm do not divide.
    """

    stage_sizes: Sequence[int]
    width_factor: float = 1.0
    style: str = "vit"
    gn_epsilon: float | None = None
    std_epsilon: float | None = None

    def __post_init__(self):
        self._check(check_integers, "stage_sizes")
        self._check(check_width_factor, "width_factor")
        self._check_choice("style", STEM_STYLES)
        self._check_optional(checks.check_positive, "gn_epsilon", "std_epsilon")

    @property
    def width(self) -> int:
        """Channels of the root."""
        return round(64 * self.width_factor)

    @property
    def std_form(self) -> str:
        """What `std_epsilon` is added to: `deviation` or `variance`."""
        return _STEM_EPSILONS[self.style][2]

    def resolve(self) -> Self:
        """Returns a copy in which both epsilons are stated."""
        gn_epsilon, std_epsilon, _ = _STEM_EPSILONS[self.style]
        return self.replace(gn_epsilon=self.gn_epsilon or gn_epsilon, std_epsilon=self.std_epsilon or std_epsilon)

    def feature_size(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Returns the rows and columns of the feature map.

        Args:
            image_size: (height, width) of the input in pixels.
        """
        stride = 4 * 2 ** max(len(self.stage_sizes) - 1, 0)
        return tuple(-(-side // stride) for side in image_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureMapConfig(Config):
    """The feature map of a stem that the user brings, any keras model; `VisionTransformer` fills it in.

    Args:
        size: its rows and columns.
    """

    size: Pair

    def __post_init__(self):
        self._check(checks.check_pair, "size")

    def resolve(self) -> Self:
        """Returns itself: nothing in it is left to a default."""
        return self

    def feature_size(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Returns the rows and columns of the feature map, whatever the input: the stem knows.

        Args:
            image_size: (height, width) of the input in pixels, which is not looked at.
        """
        return self.size


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiTConfig(ImageConfig):
    """The architecture of a BiT ResNet-v2 (arXiv 1912.11370): the CNN that the paper compares ViT with.

    Args:
        stage_sizes: pre-activation bottleneck units per stage, such as `(3, 4, 6, 3)`.
        width_factor: the root has 64 times this many channels.
        gn_epsilon: of every GroupNorm.
        std_epsilon: of the weight standardisation, added to the variance.
        max_pool_padding: what surrounds the map that is max-pooled: `zeros` (the BiT authors' code) or
            `minus_infinity` (big_vision), which differ where the values at the border are negative.

    Raises:
        ValueError: on a value out of range or an unknown choice.
    """

    family: ClassVar[str] = "bit"

    stage_sizes: Sequence[int]
    width_factor: float
    gn_epsilon: float = 1e-5
    std_epsilon: float = 1e-10
    max_pool_padding: str = "zeros"

    def __post_init__(self):
        super().__post_init__()
        self._check(_check_stages, "stage_sizes")
        self._check(check_width_factor, "width_factor")
        self._check(checks.check_positive, "gn_epsilon", "std_epsilon")
        self._check_choice("max_pool_padding", POOL_PADDINGS)

    @property
    def width(self) -> int:
        """Channels of the root."""
        return round(64 * self.width_factor)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxialResNetConfig(ImageConfig):
    """A ResNet whose 3 x 3 convolutions are height then width attention (arXiv 2003.07853; 2010.11929, D.6).

    Args:
        stage_sizes: bottleneck units per stage, such as `(3, 4, 6, 3)`.
        width_factor: the root has 64 times this many channels; 0.5, 0.75 and 1 are the S, M and L of axial-deeplab.
        num_heads: attention heads of every axial attention.
        epsilon: of every batch normalisation.

    Raises:
        ValueError: on a value out of range, or heads that do not divide the channels of the root.
    """

    family: ClassVar[str] = "axial_resnet"

    stage_sizes: Sequence[int]
    width_factor: float = 1.0
    num_heads: int = 8
    epsilon: float = 1e-5

    def __post_init__(self):
        super().__post_init__()
        self._check(_check_stages, "stage_sizes")
        self._check(checks.check_positive, "width_factor", "epsilon")
        self._check(checks.check_integer, "num_heads")
        # The narrowest attention has twice the channels of the root, and its keys have half of those.
        if (64 * self.width_factor) % self.num_heads:
            raise ValueError(
                "64 * width_factor must be an integer divisible by num_heads; "
                f"got width_factor={self.width_factor}, num_heads={self.num_heads}"
            )

    @property
    def width(self) -> int:
        """Channels of the root."""
        return round(64 * self.width_factor)

    def stage_width(self, index: int) -> int:
        """Returns the channels of the attention in a stage; the stage's output has twice as many.

        Args:
            index: of the stage, from 0.
        """
        return 2 * self.width * 2**index


def check_width_factor(name, value):
    """Returns `value` if a root of 64 times it has whole channels that 32 groups divide."""
    value = checks.check_positive(name, value)
    if (64 * value) % 32:
        raise ValueError(f"{name} must be a multiple of 0.5, for GroupNorm has 32 groups; got {name}={value}")
    return value


def _check_stages(name, value):
    value = check_integers(name, value)
    if not value:
        raise ValueError(f"{name} must name at least one stage; got {name}={value}")
    return value
