"""Augmentation: parse strings such as "randaugment(2, 15)" to TensorFlow operations that take a seed."""

from keras_vit.data.augment.parse import MIXES, OPERATIONS, Operation, parse_augment, parse_mix

__all__ = ["MIXES", "OPERATIONS", "Operation", "parse_augment", "parse_mix"]
