"""A config follows a file of weights: what its user leaves open is as the file states."""

from keras_vit.config import ViTConfig
from keras_vit.config.unseen import differences

# Fields that the report names where the file states another value than the default.
_NAMED = ("pooling", "norm_position", "position_embedding", "num_registers", "qkv_bias", "qk_norm", "channels")


def follow(config, description, fixed=(), given=None):
    """Returns the config with what is known of a file, see `Description.known`.

    Args:
        config: of the model to be built.
        description: `Description` of the file.
        fixed: names of fields that make the architecture what it is; they stay.
        given: dict of the arguments that the user gave; those that are not None stay.
    """
    given = given or {}
    changes = {
        name: value
        for name, value in description.known.items()
        if hasattr(config, name) and name not in fixed and given.get(name) is None
    }
    if not isinstance(config, ViTConfig):
        return config.replace(**changes)
    # A head that read pre_logits is only right behind them; a new head does without, as the paper's fine-tuning.
    if config.representation_size is None and config.include_top and config.classes == description.classes:
        changes["representation_size"] = description.representation_size
    if config.stem is not None:
        known = description.known.items()
        stem = {name.removeprefix("stem."): value for name, value in known if name.startswith("stem.")}
        changes["stem"] = config.stem.replace(**stem)
    return config.replace(**changes)


def followed_note(config, followed):
    """Returns a tuple with a note for the report on what was followed, other than GELU and epsilons; empty without."""
    found = differences({name: getattr(followed, name) for name in _NAMED if hasattr(followed, name)}, config)
    stated = ", ".join(f"{name}={theirs!r}" for name, theirs, _ in found)
    return (f"built with {stated}, as the file states",) if found else ()
