"""What Keras gets wrong or leaves out, put right behind its own interfaces; one file per fault."""

# Registered with Keras here, so that `load_model` knows what a compiled model was trained with.
from keras_vit.compat import label_forms, per_variable, warmup  # noqa: F401
