"""Augmentation: strings such as "randaugment(2, 15)" become TensorFlow operations, determined by their seed."""

from keras_vit.data.augment.parse import MIXES, OPERATIONS, Operation, parse_augment, parse_mix

__all__ = ["MIXES", "OPERATIONS", "Operation", "parse_augment", "parse_mix"]
