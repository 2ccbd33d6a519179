"""Fields that the user does not set take the value that the weights file states."""

from keras_vit.config import ViTConfig
from keras_vit.config.unseen import differences

# Fields that the report lists if the file's value is not the default.
_NAMED = ("pooling", "norm_position", "position_embedding", "num_registers", "qkv_bias", "qk_norm", "channels")


def follow(config, description, fixed=(), given=None):
    """Return the config with the values of the file in the fields that the user left open.

    Args:
        config: config of the model to build.
        description: `Description` of the file; see `Description.known`.
        fixed: names of the fields that define the architecture; they do not change.
        given: dict of the user's arguments; those that are not None do not change.
    """
    given = given or {}
    changes = {
        name: value
        for name, value in description.known.items()
        if hasattr(config, name) and name not in fixed and given.get(name) is None
    }
    if not isinstance(config, ViTConfig):
        return config.replace(**changes)
    # A head trained after pre_logits needs that layer. A new head has none, as in the paper's fine-tuning.
    if config.representation_size is None and config.include_top and config.classes == description.classes:
        changes["representation_size"] = description.representation_size
    if config.stem is not None:
        known = description.known.items()
        stem = {name.removeprefix("stem."): value for name, value in known if name.startswith("stem.")}
        changes["stem"] = config.stem.replace(**stem)
    return config.replace(**changes)


def followed_note(config, followed):
    """Return a tuple with a note about the values from the file other than GELU and epsilons; empty without any."""
    found = differences({name: getattr(followed, name) for name in _NAMED if hasattr(followed, name)}, config)
    stated = ", ".join(f"{name}={theirs!r}" for name, theirs, _ in found)
    return (f"built with {stated}, as the file states",) if found else ()
