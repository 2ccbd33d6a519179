"""JAX arrays that several processes hold together: saved with Orbax, each process its own parts, and checked."""

import math

import numpy as np

_FACTOR = 2654435761  # odd and large: neighbouring places get very different factors (Knuth, TAOCP 3, section 6.4)


def orbax():
    """Return the module `orbax.checkpoint`.

    Raises:
        ImportError: if it is not installed.
    """
    try:
        import orbax.checkpoint
    except ImportError as error:
        raise ImportError("checkpoints of several processes need Orbax: pip install 'keras_vit[hosts]'") from error
    return orbax.checkpoint


def is_shared(array):
    """Whether an array is a JAX array; checkpoints have these only in a run of several processes."""
    return hasattr(array, "sharding")


def save(folder, arrays):
    """Write a dict of arrays to a new folder; all processes must call this. NumPy arrays must be equal in all."""
    with orbax().Checkpointer(orbax().StandardCheckpointHandler()) as checkpointer:
        checkpointer.save(folder.absolute(), args=orbax().args.StandardSave(arrays))


def restore(folder, forms, like):
    """Read the arrays of a folder.

    Args:
        folder: path that `save` wrote.
        forms: dict from name to the shape and the name of the dtype.
        like: dict from name to array; an array that has the name and shape of a JAX array is distributed over the
            devices as it is. The others become NumPy arrays.
    """
    import jax

    targets = {}
    for name, (shape, dtype) in forms.items():
        is_alike = is_shared(like.get(name)) and like[name].shape == tuple(shape)
        spread = {"sharding": like[name].sharding} if is_alike else {}
        targets[name] = (jax.ShapeDtypeStruct if is_alike else np.ndarray)(tuple(shape), np.dtype(dtype), **spread)
    with orbax().Checkpointer(orbax().StandardCheckpointHandler()) as checkpointer:
        return checkpointer.restore(folder.absolute(), args=orbax().args.StandardRestore(targets))


def wait_for_all(name):
    """Wait until all processes have called this with the same name."""
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices(name)


def is_finite(array):
    """Return whether an array has neither infinities nor NaN; all processes that hold parts must call this."""
    if not is_shared(array):
        return np.isfinite(array).all()
    import jax

    return bool(jax.jit(_all_finite)(array))


def _all_finite(array):  # a lambda would be compiled again for every array
    import jax

    return jax.numpy.isfinite(array).all()


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
    import jax
    from jax import numpy as jnp

    words = array.astype("uint8") if array.dtype == bool else array
    words = jax.lax.bitcast_convert_type(words, f"uint{8 * words.dtype.itemsize}").astype("uint32")
    place = jnp.zeros(array.shape, "uint32")
    for axis in range(array.ndim):
        stride = np.uint32(math.prod(array.shape[axis + 1 :]) % 2**32)
        place += jax.lax.broadcasted_iota("uint32", array.shape, axis) * stride
    return jnp.sum(words * (place * np.uint32(_FACTOR) | np.uint32(1)), dtype="uint32")
