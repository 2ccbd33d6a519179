"""The private names of Keras and TensorFlow that the package uses, with the reason for each: private_names.tsv.

`tests/test_private_names.py` compares the table with the sources and with CONTRIBUTING.md. If the installed Keras lacks
a name that is needed for `speed`, that optimisation is off; for the other names, `compile` raises an error.
"""

import importlib
import typing

import keras

from keras_vit.files import read_table


class PrivateName(typing.NamedTuple):
    """A row of the table.

    Attributes:
        name: an attribute or method, or an object of a private module.
        holder: path of the class or module that has it; after `tensorflow:` or `jax:`, for this backend only. With
            `()` at its end, only objects of the class have it. Empty if it is optional or exists only during training.
        needed: `speed`: for an optimisation that is off without the name; `always`: for every training; `replicas`: for
            training on several replicas of tf.distribute.
        why: what it is used for.
        issue: address of the upstream issue, or "none known".
        test: the test file in tests/ that fails, or should be read, when the name is no longer needed.
    """

    name: str
    holder: str
    needed: str
    why: str
    issue: str
    test: str


TABLE = tuple(PrivateName(**{"holder": "", **row}) for row in read_table("compat/private_names.tsv"))


def check_installed(replicas: int, *owners: typing.Any) -> None:
    """Raise an error if a private name that training needs is missing.

    Args:
        replicas: number of replicas of tf.distribute.
        *owners: objects that training uses, which must have the names that only objects have.

    Raises:
        ImportError: if a name is missing; the error states the first such name and the version of Keras.
    """
    for row in TABLE:
        if (row.needed == "always" or (row.needed == "replicas" and replicas > 1)) and not exists(row, *owners):
            raise ImportError(
                f"keras_vit needs {row.name} of {row.holder.split(':')[-1]} for {row.why}; Keras {keras.__version__} "
                "does not have it (install a version of Keras that keras_vit was tested with)"
            )


def exists(row: PrivateName, *owners: typing.Any) -> bool:
    """Return whether a private name exists in the installed packages, is optional or is for another backend.

    A name that only objects have must exist in each of the `owners` that is such an object.
    """
    backend, _, path = row.holder.rpartition(":")
    if not path or backend not in ("", keras.backend.backend()):
        return True
    if path.endswith("()"):
        kind = find(path.removesuffix("()"))
        return kind is not None and all(hasattr(owner, row.name) for owner in owners if isinstance(owner, kind))
    return find(f"{path}.{row.name}") is not None


def has(*names: str) -> bool:
    """Return whether all these private names of classes and modules exist."""
    return all(exists(row) for row in TABLE if row.name in names)


def find(path: str) -> typing.Any:
    """Return the object at a dotted path, None if there is none."""
    parts = path.split(".")
    found = importlib.import_module(parts[0])
    for end, name in enumerate(parts[1:], 2):
        try:
            found = getattr(found, name) if hasattr(found, name) else importlib.import_module(".".join(parts[:end]))
        except ImportError:
            return None
    return found
