"""Workarounds for Keras bugs and missing features; one file per problem."""

# Imported to register their classes with Keras, so that `load_model` can load compiled models.
from keras_vit.compat import label_forms, per_variable, warmup  # noqa: F401
