"""What every config is: a frozen, validated dataclass that goes to a plain dict and back."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from keras_vit import checks
from keras_vit.typing import Pair

GELUS = ("tanh", "erf")


class Config:
    """Plain-dict round trip for the dataclasses of this folder."""

    __dataclass_fields__: ClassVar[dict[str, Any]]  # every config is one

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as a dict of JSON values: `from_dict(to_dict())` builds an equal object."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the config of a dict, as `to_dict` gives it.

        Args:
            values: dict from the names of fields to their values; fields with a default may be left out.

        Raises:
            ValueError: on a key that is no field, and on what the config refuses.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                hint = checks.suggestion(key, known, foreign=checks.FOREIGN_NAMES)
                among = checks.listed(known, bool(hint))
                raise ValueError(f"{cls.__name__} keys must be among {among}; got {key!r}{hint}")
        return cls(**values)

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed.

        Args:
            **changes: the new values by the names of the fields.

        Raises:
            ValueError: on a name that is no field, and on what the config refuses.
        """
        return type(self).from_dict({**self.to_dict(), **changes})

    def _set(self, **values):
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check(self, check, *names):
        """Runs `check(name, value)` on these fields and keeps what it returns."""
        for name in names:
            self._set(**{name: check(name, getattr(self, name))})

    def _check_optional(self, check, *names):
        """The same for fields that may be None."""
        self._check(check, *(name for name in names if getattr(self, name) is not None))

    def _check_choice(self, name, choices):
        checks.check_choice(name, getattr(self, name), choices)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageConfig(Config):
    """What every architecture of the package has.

    Args:
        name: name of the variant, such as `"ViT-B_16"`.
        image_size: height and width of the input in pixels, or one integer for both.
        classes: number of logits.
        include_top: False ends the model at the pooled features.
        classifier_activation: activation of the head, such as `"softmax"`; None gives logits.
        channels: channels of the input image.
        dtype: Keras dtype policy, such as `"mixed_bfloat16"`; None is the global policy.
        include_preprocessing: True builds a model of pixel values from 0 to 255, uint8 or float, in the model's image
            size, whose layer `preprocessing` maps them by the mean and standard deviation of `model.preprocessing`.

    Raises:
        ValueError: on a value out of range, an unknown choice or a contradiction between arguments.
    """

    family: ClassVar[str]  # which tables of array names its checkpoints follow

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
        """Returns a copy in which every value is stated that None leaves to a default."""
        return self


def check_string(name, value):
    """Returns `value` if it is a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a string that is not empty; got {name}={value!r}")
    return value


def check_integers(name, value, minimum=1):
    """Returns `value`, a sequence of integers of at least `minimum`, as a tuple."""
    if not isinstance(value, (tuple, list)):
        raise ValueError(f"{name} must be a sequence of integers; got {name}={value!r}")
    return tuple(checks.check_integer(f"{name}[{index}]", item, minimum) for index, item in enumerate(value))


def _policy_name(name, policy):
    """The name of a Keras dtype policy, given as its name or as the policy."""
    text = getattr(policy, "name", policy)
    if not isinstance(text, str):
        raise ValueError(f"{name} must be the name of a Keras dtype policy, such as 'mixed_bfloat16'; got {policy!r}")
    return text


def _plain(value):
    if isinstance(value, Config):
        return {"class_name": type(value).__name__, **value.to_dict()}
    return list(value) if isinstance(value, tuple) else value
