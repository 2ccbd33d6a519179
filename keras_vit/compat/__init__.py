"""Workarounds for Keras bugs and missing features; private_names.tsv lists the private names that the package uses."""

# Imported to register its classes with Keras, so that `load_model` can load compiled models.
from keras_vit.compat import saved_objects  # noqa: F401
