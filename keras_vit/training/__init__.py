"""Recipes and training runs."""

from keras_vit.training.checkpoint_files import CheckpointError
from keras_vit.training.distribution import MissingDevicesError
from keras_vit.training.preemption import Interrupted, Preempted
from keras_vit.training.recipe import Recipe
from keras_vit.training.recipes import RECIPES, bit_hyperrule, continued_pretraining, list_recipes
from keras_vit.training.result import TrainResult
from keras_vit.training.resume import NonFiniteError, Resume
from keras_vit.training.run import train

__all__ = [
    "RECIPES",
    "CheckpointError",
    "Interrupted",
    "MissingDevicesError",
    "NonFiniteError",
    "Preempted",
    "Recipe",
    "Resume",
    "TrainResult",
    "bit_hyperrule",
    "continued_pretraining",
    "list_recipes",
    "train",
]
