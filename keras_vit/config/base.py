"""The check of each argument name, and the base classes of all configs.

Configs and layers share the checks, so an argument has the same meaning everywhere. Configs are frozen, validated
dataclasses that convert to a plain dict and back.
"""

import dataclasses
import functools
import string
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from typing import Any, ClassVar, Self

import keras

from keras_vit import checks
from keras_vit.config.fields import About, about
from keras_vit.config.needs import values_of
from keras_vit.typing import Pair
from keras_vit.words import answer_argument, check_arguments

Check = Callable[[str, Any], Any]

GELUS = ("tanh", "erf", "quick")
REMAT = ("attention", "block")  # what the backward pass computes again
RESIZE_METHODS = (
    *("align_corners", "bilinear", "bilinear_antialias", "bicubic", "bicubic_antialias", "bicubic_offset"),
    *("geometric", "geometric_cubic"),  # of tables of offsets
)
NESTED = ("embedding", "block", "block.rotary", "window", "head")  # fields that are configs with fields of their own


def one_of(choices: Collection[Any]) -> Check:
    """Return a check that accepts only the given choices.

    Args:
        choices: the valid values.
    """
    return functools.partial(checks.check_choice, choices=choices)


def optional(check: Check) -> Check:
    """Return a check that also accepts None.

    Args:
        check: check for all other values.
    """
    return lambda name, value: None if value is None else check(name, value)


def _policy_name(name, policy):
    """Return the name of a Keras dtype policy, given as a name or a policy object."""
    try:
        return keras.dtype_policies.get(policy).name
    except (ValueError, TypeError, AttributeError):
        raise ValueError(
            f"{name} must be the name of a Keras dtype policy, such as 'mixed_bfloat16'; got {name}={policy!r}"
        ) from None


def _classes(name, value):
    """Return `value`, a number of classes; 0 is what timm calls a model without a head."""
    if isinstance(value, int) and value == 0 and value is not False:
        raise ValueError(f"{name} must be an integer of at least 1; got {name}=0 (include_top=False builds no head)")
    return checks.check_integer(name, value)


def _remat(name, value):
    """Return `value`, or the string for one of the booleans that older files state."""
    if isinstance(value, bool):
        return "block" if value else None
    return optional(one_of(REMAT))(name, value)


_NAMES: dict[Check, str] = {
    checks.check_integer: "bottleneck_dim channels context_length embed_dim epochs expert_dim filters fusion_width "
    "head_width hidden_dim images_per_sequence iou_dim map_heads map_mlp_dim mask_channels max_tokens mlp_dim neck "
    "num_blocks num_detection_tokens num_experts num_heads num_keypoints num_layers num_masks num_points num_queries "
    "num_tokens num_units num_upscales out_dim position_mlp_dim projection projection_dim reduction "
    "representation_size steps_per_epoch strides vocab_size width window_size",
    functools.partial(
        checks.check_integer, minimum=0
    ): "expert freeze_epochs index num_class_tokens num_prefix_tokens num_registers patch_padding token_merging "
    "warmup_epochs",
    optional(functools.partial(checks.check_integer, minimum=0)): "seed",
    checks.check_integers: "depths neck_widths prediction_shape stage_sizes",
    checks.check_indices: "blocks global_blocks",
    checks.check_pair: "crop grid_size image_size kernel_size patch_size position_grid reference_grid size table_grid",
    checks.check_rate: "attention_dropout_rate drop_path_rate dropout_rate patch_drop_rate teacher_momentum",
    optional(checks.check_rate): "center_momentum lambda_init",
    checks.check_epsilon: "epsilon gn_epsilon std_epsilon",
    functools.partial(
        checks.check_number, kind="finite number of at least 0", is_valid=lambda number: number >= 0
    ): "gram_weight koleo_weight patch_weight",
    checks.check_positive: "init mlp_ratio student_temperature teacher_temperature warmup_temperature width_factor",
    optional(checks.check_positive): "layer_scale_init max_depth",
    checks.check_flag: "attention_bias attention_norm auxiliary batch_norm bias causal class_position class_token "
    "distilled gated in_model include_preprocessing include_top is_first is_window key_bias map_prefix masked "
    "mid_positions mlp_norm norm_last_layer normalised normalize objectness pad patch_bias patch_norm pre_norm "
    "projected projection_bias qk_norm qkv_bias refined relative_positions same_size scan_layers separate_heads "
    "shifted square_positions use_bias whole_patches",
    checks.check_string: "classifier_activation kernel_initializer name",
    one_of(("deviation", "variance")): "epsilon_form std_form",
}

# name of an argument -> its check; parts.py adds the nested configs
ARGUMENTS: dict[str, Check] = {name: check for check, names in _NAMES.items() for name in names.split()} | {
    "classes": _classes,
    "dtype": _policy_name,
    "centering": one_of(("softmax", "sinkhorn_knopp")),
    "gelu": one_of(GELUS),
    "method": one_of(("dino", "dinov2", "dinov3")),
    "remat": _remat,
    "resize": optional(one_of(RESIZE_METHODS)),
}
_CHOICES = "attention norm_position pooling position_embedding position_placement block.order embedding.position_init"
ARGUMENTS |= {name.rpartition(".")[2]: one_of(values_of(name)) for name in _CHOICES.split()}


# type of a field that is not in the table -> its check
_OF_TYPE: dict[Any, Check] = {bool: checks.check_flag, int: checks.check_integer, str: checks.check_string}


class Config:
    """Check the fields of a config and convert it to a dict and back.

    It is the base class of all configs.

    `ARGUMENTS` has the check for each field name. `own_checks` has the checks for names that are not in that table or
    have another meaning in this config. None is valid if it is the default.

    Raises:
        ValueError: if a value is out of range, a choice is unknown or arguments contradict each other.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]  # every subclass is a dataclass
    own_checks: ClassVar[Mapping[str, Check]] = {}
    rule_hint: ClassVar[str] = ""  # added to the error of a broken rule; {0} is the first field that it shows

    def __new__(cls, *args: Any, **given: Any) -> Self:
        check_arguments(cls.__name__, given, [one.name for one in dataclasses.fields(cls)])
        return super().__new__(cls)

    def __post_init__(self):
        for name, default, check in _checks_of(type(self)):
            value = getattr(self, name)
            if value is not None or default is not None:
                self._set(**{name: check(name, value)})

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
        return cls._of_dict(values)

    @classmethod
    def _of_dict(cls, values):
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                hint = answer_argument(key, known, values[key])
                among = checks.listed(known, bool(hint))
                raise ValueError(f"{cls.__name__} keys must be among {among}; got {checks.quoted(key)}{hint}")
        return cls(**values)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed.

        Args:
            **changes: new values by field name. The name of a field of a nested config has a dot, such as
                `**{"block.gated": True}`.

        Raises:
            ValueError: if a name is not a field or a value is invalid.
        """
        values = self.to_dict()
        for name, value in changes.items():
            values = with_field(values, name, _plain(value))
        return self._of_dict(values)

    def field(self, name: str) -> Any:
        """Return the value of a field, None if there is no such field.

        A field of a nested config has a dot in its name, as in `replace`.

        Args:
            name: name of the field.
        """
        value: Any = self
        for part in name.split("."):
            value = getattr(value, part, None)
        return value

    def resolve(self, **changes: Any) -> Self:
        """Return a copy in which defaults replace the fields that are None.

        Args:
            **changes: new values of other fields, as in `replace`.
        """
        return self.replace(**changes)

    def _set(self, **values):
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _refuse(self, rules):
        """Raise `ValueError` for the first broken rule.

        Args:
            rules: dict from the text of each rule to whether it is broken. Braces around the name of a field, with dots
                for nested configs, add its value to the error.
        """
        rule = next((rule for rule, is_broken in rules.items() if is_broken), None)
        if rule is not None:
            names = dict.fromkeys(name for _, name, _, _ in string.Formatter().parse(rule) if name)
            got = ", ".join(f"{name}={checks.quoted(self.field(name))}" for name in names)
            rule = rule.replace("{", "").replace("}", "")
            raise ValueError(f"{rule}; got {got}{self.rule_hint.format(*names)}")


def check_of(owner: Any, name: str, kind: Any = None) -> Check:
    """Return the check of an argument of a config, layer or task model: its own, that of the table, or that of a type.

    Args:
        owner: class of the config, layer or task model.
        name: name of the argument.
        kind: type of the argument, None if it is unknown.

    Raises:
        TypeError: if there is no check for it.
    """
    check = owner.own_checks.get(name) or ARGUMENTS.get(name) or _OF_TYPE.get(kind)
    if check is None:
        raise TypeError(
            f"{owner.__name__} must have a check for each of its arguments; there is none for {name!r}: add the name "
            f"to the table _NAMES in keras_vit/config/base.py, or a check to own_checks of {owner.__name__}"
        )
    return check


@functools.cache
def _checks_of(config_class):
    """Return the name, the default and the check of each field."""
    found = []
    for one in dataclasses.fields(config_class):
        check = one.metadata.get("about", About()).check
        found.append((one.name, one.default, check or check_of(config_class, one.name, one.type)))
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageConfig(Config):
    """Hold the fields that all architectures share.

    Args:
        name: name of the variant, such as `"ViT-B_16"`.
        image_size: (height, width) of the input in pixels, or one integer for both.
        classes: number of logits.
        include_top: False ends the model at the pooled features.
        classifier_activation: activation of the head, such as `"softmax"` or `"sigmoid"`; None gives logits.
        channels: number of channels of the input image.
        dtype: Keras dtype policy, such as `"mixed_bfloat16"`; None uses the global policy.
        include_preprocessing: True builds a model that takes pixel values from 0 to 255 (uint8 or float) at the model's
            image size. Its layer `preprocessing` normalises them with the mean and std of `model.preprocessing`.

    Raises:
        ValueError: if a value is out of range, a choice is unknown or arguments contradict each other.
    """

    network: ClassVar[str]  # selects the array names of its checkpoints

    name: str
    image_size: Pair
    classes: int = field(default=1000, metadata=about(changeable=True))
    include_top: bool = field(default=True, metadata=about(changeable=True))
    classifier_activation: str | None = None
    channels: int = 3
    dtype: str | None = field(default=None, metadata=about(runtime=True))
    include_preprocessing: bool = field(default=False, metadata=about(runtime=True))

    def __post_init__(self):
        super().__post_init__()
        rule = "{include_preprocessing}=True needs images of 1 or 3 {channels} (scale other images yourself)"
        self._refuse({rule: self.include_preprocessing and self.channels not in (1, 3)})

    @property
    def fixed_size(self) -> Pair | None:
        """Return the image size; None if it is `"any"`."""
        return None if self.image_size == "any" else self.image_size

    @property
    def score_activation(self) -> str:
        """Return the name of the function of the logits that gives the scores.

        It is `classifier_activation`. A head that gives logits has `softmax`, or `sigmoid` if it has one class.
        """
        return self.classifier_activation or ("sigmoid" if self.classes == 1 else "softmax")


def count_patches(size: Any, patch_size: tuple[int, int], pad: bool = False) -> tuple[Any, Any]:
    """Return the rows and columns of patches in an image; None where the size is unknown.

    Args:
        size: (height, width), integers, tensors or None.
        patch_size: height and width of a patch.
        pad: whether a part of a patch at the bottom or at the right counts as one.
    """
    sides = zip(size, patch_size, strict=True)
    rows, columns = (None if side is None else -(-side // step) if pad else side // step for side, step in sides)
    return rows, columns


def with_field(values: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Return a nested dict with one value changed.

    Args:
        values: dict of a config, see `Config.to_dict`.
        name: name of the field, with dots for nested dicts.
        value: new value.
    """
    holder, dot, rest = name.partition(".")
    return {**values, holder: with_field(values.get(holder) or {}, rest, value) if dot else value}


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested dict of a config with dots in the names of the fields of `NESTED`; other values stay as they are.

    Args:
        values: dict of a config, see `Config.to_dict`; nested values may also be configs.
        prefix: start of every name.
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        name = f"{prefix}{name}"
        value = value.to_dict() if isinstance(value, Config) and name in NESTED else value
        if isinstance(value, Mapping) and name in NESTED:
            flat |= flattened(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def one_config_of(*config_classes: type[Config]) -> Check:
    """Return a check that accepts a nested config, or the dict for it that the outer config's `to_dict()` contains.

    Args:
        *config_classes: the classes that the config may have.
    """
    classes = {config_class.__name__: config_class for config_class in config_classes}

    def check(name, value):
        if isinstance(value, Mapping):
            values = dict(value)
            usual = next(iter(classes)) if len(classes) == 1 else None
            found = checks.check_choice(f"class_name of {name}", values.pop("class_name", usual), classes)
            return classes[found].from_dict(values)
        if not isinstance(value, config_classes):
            raise ValueError(f"{name} must be a {' or '.join(classes)} of keras_vit, or None; got {name}={value!r}")
        return value

    return check


def one_config_or_default(config_class: type[Config]) -> Check:
    """Return a check as `one_config_of`, for which None stands for the default config.

    Args:
        config_class: class of the config.
    """
    check = one_config_of(config_class)
    return lambda name, value: config_class() if value is None else check(name, value)


def _plain(value):
    if isinstance(value, Config):
        return {"class_name": type(value).__name__, **value.to_dict()}
    return list(value) if isinstance(value, tuple) else value
