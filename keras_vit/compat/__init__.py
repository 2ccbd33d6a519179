"""Workarounds for Keras bugs and missing features: all private names of Keras and TensorFlow, see private_names.py."""

# Imported to register its classes with Keras, so that `load_model` can load compiled models.
from keras_vit.compat import saved_objects  # noqa: F401
