"""The checks of arguments by name; configs and layers share them, so an argument means the same everywhere."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import keras

from keras_vit import checks

Check = Callable[[str, Any], Any]

GELUS = ("tanh", "erf")
POOLINGS = ("token", "gap", "map", "first", "unpooled", "token_unpooled")
NORM_POSITIONS = ("before_pooling", "after_pooling")
POSITION_EMBEDDINGS = ("learned", "learned_2d", "sincos2d", "relative", "none")
POSITION_PLACEMENTS = ("stem", "every", "shared")
ATTENTIONS = ("global", "axial")
EPSILON_FORMS = ("deviation", "variance")


def one_of(choices: Collection[Any]) -> Check:
    """Return the check of a choice.

    Args:
        choices: the valid values.
    """
    return partial(checks.check_choice, choices=choices)


def optional(check: Check) -> Check:
    """Return a check that also accepts None.

    Args:
        check: the check of any other value.
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


_NAMES: dict[Check, str] = {
    checks.check_integer: "channels classes embed_dim filters hidden_dim mlp_dim num_heads num_layers num_units "
    "representation_size strides width window_size",
    partial(checks.check_integer, minimum=0): "index num_class_tokens num_prefix_tokens num_registers token_merging",
    optional(partial(checks.check_integer, minimum=0)): "seed",
    checks.check_integers: "depths prediction_shape stage_sizes",
    checks.check_pair: "crop grid_size image_size kernel_size patch_size size",
    checks.check_rate: "attention_dropout_rate drop_path_rate dropout_rate",
    checks.check_positive: "epsilon gn_epsilon init mlp_ratio std_epsilon width_factor",
    optional(checks.check_positive): "layer_scale_init",
    checks.check_flag: "class_token distilled in_model include_preprocessing include_top qk_norm qkv_bias remat "
    "shifted",
    checks.check_string: "classifier_activation name",
}

ARGUMENTS: dict[str, Check] = {name: check for check, names in _NAMES.items() for name in names.split()} | {
    "attention": one_of(ATTENTIONS),
    "dtype": _policy_name,
    "epsilon_form": one_of(EPSILON_FORMS),
    "gelu": one_of(GELUS),
    "norm_position": one_of(NORM_POSITIONS),
    "pooling": one_of(POOLINGS),
    "position_embedding": one_of(POSITION_EMBEDDINGS),
    "position_placement": one_of(POSITION_PLACEMENTS),
    "std_form": one_of(EPSILON_FORMS),
}
