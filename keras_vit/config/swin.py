"""SwinConfig: the architecture of a Swin Transformer."""

import dataclasses
from collections.abc import Sequence
from dataclasses import field
from operator import mod
from typing import ClassVar

from keras_vit import checks
from keras_vit.config.base import ImageConfig, count_patches
from keras_vit.config.fields import about
from keras_vit.typing import Pair


def _one_or_several(name, value):
    return (checks.check_integer if isinstance(value, int) else checks.check_integers)(name, value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwinConfig(ImageConfig):
    """Describe a Swin Transformer (arXiv 2103.14030, section 3 and appendix A).

    Args:
        patch_size: height and width of a patch in pixels; it must divide `image_size`.
        embed_dim: width C of the tokens of the first stage; each further stage doubles it.
        depths: number of blocks per stage.
        num_heads: number of attention heads per stage; they must divide the width of the stage.
        window_size: side of a window in tokens, or one per stage (arXiv 2111.14725). If the shorter side of a stage's
            map is at most this long, that side becomes the side of the window.
        mlp_ratio: ratio of each MLP's hidden width to the width of the stage; the hidden width is rounded down.
        qkv_bias: whether query, key and value projections have biases.
        dropout_rate: dropout rate in [0, 1) after the patches, the attention output and both MLP layers.
        drop_path_rate: stochastic depth rate in [0, 1) of the last block; it grows linearly from 0 with depth.
        gelu: `erf` (the authors' code) or `tanh`.
        epsilon: epsilon of every LayerNorm.

    Raises:
        ValueError: if a value is out of range, a choice is unknown or arguments contradict each other.
    """

    network: ClassVar[str] = "swin"
    own_checks = {"num_heads": checks.check_integers, "window_size": _one_or_several}

    patch_size: Pair = (4, 4)
    embed_dim: int = field(metadata=about(defines=True, shown="patch_encoder/projection/kernel", axis=-1))
    depths: Sequence[int] = field(metadata=about(defines=True))
    num_heads: Sequence[int] = field(metadata=about(defines=True, unseen=True))
    window_size: int | Sequence[int] = field(metadata=about(unseen=True, resized=True))
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    dropout_rate: float = 0.0
    drop_path_rate: float = 0.0
    gelu: str = field(default="erf", metadata=about(unseen=True, close=True))
    epsilon: float = field(default=1e-5, metadata=about(unseen=True, close=True))

    def __post_init__(self):
        super().__post_init__()
        checks.check_divisible("image_size", self.image_size, "patch_size", self.patch_size)
        widths = tuple(self.stage_dim(stage) for stage in range(len(self.num_heads)))
        self._refuse(
            {
                "{window_size} must be one number, or one per stage": len(self.window_sizes) != len(self.depths),
                "{depths} and {num_heads} must have one number per stage, for at least one stage": (
                    not self.depths or len(self.depths) != len(self.num_heads)
                ),
                "{mlp_ratio} * {embed_dim} must be at least 1, the width of the MLPs": self.mlp_dim(0) < 1,
                f"{{num_heads}} must divide the widths of the stages, {widths}": any(map(mod, widths, self.num_heads)),
            }
        )

    @property
    def window_sizes(self) -> tuple[int, ...]:
        """Return the side of the windows of each stage."""
        sizes = self.window_size
        return (sizes,) * len(self.depths) if isinstance(sizes, int) else tuple(sizes)

    @property
    def grid_size(self) -> tuple[int, int]:
        """Return the (rows, columns) of the patch grid, the map of the first stage."""
        return self.stage_size(0)

    def stage_dim(self, stage: int) -> int:
        """Return the width of the tokens of a stage.

        Args:
            stage: index of the stage, from 0.
        """
        return self.embed_dim * 2**stage

    def mlp_dim(self, stage: int) -> int:
        """Return the width of the hidden layer of the MLPs of a stage.

        Args:
            stage: index of the stage, from 0.
        """
        return int(self.mlp_ratio * self.stage_dim(stage))

    def stage_size(self, stage: int) -> tuple[int, int]:
        """Return the (rows, columns) of a stage's map; halving rounds odd sides up.

        Args:
            stage: index of the stage, from 0.
        """
        return count_patches(count_patches(self.image_size, self.patch_size), (2**stage,) * 2, pad=True)
