"""Files under the names of the official weights, and how models of them are compared."""

import numpy as np

import keras_vit

TABLE = "Transformer/posembed_input/pos_embedding"
KERNEL = "Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel"


def official_arrays(model, path):
    keras_vit.save_weights(model, path)
    with np.load(path) as file:
        return dict(file)


def npz(path, arrays):
    np.savez(path, **arrays)  # without the grid that save_weights adds
    return path


def check_equal(weights, expected, leave_out=()):
    assert set(weights) - set(leave_out) == set(expected) - set(leave_out), sorted(set(weights) ^ set(expected))
    for path in set(weights) - set(leave_out):
        np.testing.assert_array_equal(weights[path], expected[path], err_msg=path)
