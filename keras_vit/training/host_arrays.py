"""JAX arrays that several processes hold together: saved with Orbax, each process its own parts, and checksums."""

import numpy as np

from keras_vit.versions import import_optional, install_command

_FACTOR = np.uint32(2654435761)  # odd and large, so that the factors of neighbours differ in many bits


def is_shared(array):
    """Whether an array is a JAX array; checkpoints have these only in a run of several processes."""
    return hasattr(array, "sharding")


def checkpointer():
    """Return Orbax's object that writes and reads; its files appear under their names when they are complete.

    Raises:
        ImportError: if Orbax is not installed.
    """
    needed = f"checkpoints of several processes need Orbax: {install_command('hosts')}"
    orbax = import_optional("orbax.checkpoint", needed)
    return orbax.Checkpointer(orbax.StandardCheckpointHandler())


def save(folder, arrays, metadata):
    """Write a dict of arrays and JSON values; all processes must call this. NumPy arrays must be equal in all."""
    with checkpointer() as writer:
        writer.save(folder.absolute(), arrays, custom_metadata=metadata)


def read_metadata(folder):
    """Return the JSON values in a folder that `save` wrote."""
    with checkpointer() as reader:
        return reader.metadata(folder.absolute()).custom_metadata


def restore(folder, forms, like):
    """Return the arrays in a folder that `save` wrote; all processes must call this.

    Args:
        folder: its path.
        forms: dict from name to the name of the dtype and the shape.
        like: dict from name to array; an array that has the name and shape of a JAX array is distributed over the
            devices as it is. The others become NumPy arrays.
    """
    import jax

    targets = {}
    for name, (dtype, shape) in forms.items():
        target = like.get(name)
        if is_shared(target) and target.shape == tuple(shape):
            targets[name] = jax.ShapeDtypeStruct(target.shape, np.dtype(dtype), sharding=target.sharding)
        else:
            targets[name] = np.empty(shape, np.dtype(dtype))
    with checkpointer() as reader:
        return reader.restore(folder.absolute(), targets)


def checksum(array):
    """Return a number from the bits of a JAX or NumPy array, however it is distributed; all processes must call this.

    It is the sum, modulo 2**32, of all values times odd numbers that depend on their places, so that it changes with
    every single value.
    """
    import jax

    if array.dtype.itemsize == 8:  # NumPy's alone
        array = np.atleast_1d(array).view("uint32")
    return int(jax.jit(_checksum)(array))


def _checksum(array):
    from jax import numpy as jnp

    words = jnp.asarray(array).view(f"uint{8 * array.dtype.itemsize}").astype("uint32")
    factors = jnp.arange(array.size, dtype="uint32").reshape(array.shape) * _FACTOR | np.uint32(1)
    return jnp.sum(words * factors, dtype="uint32")
