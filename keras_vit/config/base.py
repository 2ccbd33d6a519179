"""The base classes of all configs: frozen, validated dataclasses that convert to a plain dict and back."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from keras_vit import checks
from keras_vit.typing import Pair

GELUS = ("tanh", "erf")


class Config:
    """Convert a config to a plain dict and back; the base class of all configs."""

    __dataclass_fields__: ClassVar[dict[str, Any]]  # every subclass is a dataclass

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict of JSON values.

        `from_dict(to_dict())` builds an equal object.
        """
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the config that a dict from `to_dict` describes.

        Args:
            values: dict from field names to values; fields with a default may be absent.

        Raises:
            ValueError: if a key is not a field or a value is invalid.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                hint = checks.suggestion(key, known, foreign=checks.FOREIGN_NAMES)
                among = checks.listed(known, bool(hint))
                raise ValueError(f"{cls.__name__} keys must be among {among}; got {key!r}{hint}")
        return cls(**values)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed.

        Args:
            **changes: new values by field name.

        Raises:
            ValueError: if a name is not a field or a value is invalid.
        """
        return type(self).from_dict({**self.to_dict(), **changes})

    def _set(self, **values):
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check(self, check, *names):
        """Run `check(name, value)` on these fields and store what it returns."""
        for name in names:
            self._set(**{name: check(name, getattr(self, name))})

    def _check_optional(self, check, *names):
        """Run `_check` on those of the fields that are not None."""
        self._check(check, *(name for name in names if getattr(self, name) is not None))

    def _check_choice(self, name, choices):
        checks.check_choice(name, getattr(self, name), choices)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageConfig(Config):
    """Hold the fields that all architectures share.

    Args:
        name: name of the variant, such as `"ViT-B_16"`.
        image_size: (height, width) of the input in pixels, or one integer for both.
        classes: number of logits.
        include_top: False ends the model at the pooled features.
        classifier_activation: activation of the head, such as `"softmax"`; None gives logits.
        channels: number of channels of the input image.
        dtype: Keras dtype policy, such as `"mixed_bfloat16"`; None uses the global policy.
        include_preprocessing: True builds a model that takes pixel values from 0 to 255 (uint8 or float) at the model's
            image size. Its layer `preprocessing` normalises them with the mean and std of `model.preprocessing`.

    Raises:
        ValueError: if a value is out of range, a choice is unknown or arguments contradict each other.
    """

    family: ClassVar[str]  # selects the array names of its checkpoints

    name: str
    image_size: Pair
    classes: int = 1000
    include_top: bool = True
    classifier_activation: str | None = None
    channels: int = 3
    dtype: str | None = None
    include_preprocessing: bool = False

    def __post_init__(self):
        self._check(check_string, "name")
        self._check(checks.check_pair, "image_size")
        self._check(checks.check_integer, "classes", "channels")
        self._check(checks.check_flag, "include_top", "include_preprocessing")
        if self.include_preprocessing and self.channels not in (1, 3):
            raise ValueError(
                f"include_preprocessing=True needs images of 1 or 3 channels; got channels={self.channels} (scale the "
                "images yourself)"
            )
        self._check_optional(check_string, "classifier_activation")
        self._check_optional(_policy_name, "dtype")

    def resolve(self) -> Self:
        """Return a copy in which defaults replace the fields that are None."""
        return self


def check_string(name, value):
    """Return `value` if it is a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a string that is not empty; got {name}={value!r}")
    return value


def check_integers(name, value, minimum=1):
    """Return `value`, a sequence of integers of at least `minimum`, as a tuple."""
    if not isinstance(value, (tuple, list)):
        raise ValueError(f"{name} must be a sequence of integers; got {name}={value!r}")
    return tuple(checks.check_integer(f"{name}[{index}]", item, minimum) for index, item in enumerate(value))


def _policy_name(name, policy):
    """Return the name of a Keras dtype policy, given as a name or a policy object."""
    text = getattr(policy, "name", policy)
    if not isinstance(text, str):
        raise ValueError(f"{name} must be the name of a Keras dtype policy, such as 'mixed_bfloat16'; got {policy!r}")
    return text


def _plain(value):
    if isinstance(value, Config):
        return {"class_name": type(value).__name__, **value.to_dict()}
    return list(value) if isinstance(value, tuple) else value
