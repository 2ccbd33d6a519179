"""Recipes, and the runs that follow them."""

from keras_vit.training.recipe import Recipe
from keras_vit.training.recipes import RECIPES, list_recipes
from keras_vit.training.run import TrainResult, train

__all__ = ["RECIPES", "Recipe", "TrainResult", "list_recipes", "train"]
