"""Learning rates over the steps of a training run, as Keras schedules."""

import keras

from keras_vit import checks


def warmup_cosine(learning_rate, steps, warmup_steps=0):
    """Linear warm-up from zero, then half a cosine down to zero.

        LR(t) = learning_rate * min(1, t / w) * (1 + cos(pi p)) / 2    with p = (t - w) / (T - w), clipped to
        [0, 1]

    This is the fine-tuning schedule of the official code (google-research/vision_transformer,
    vit_jax/utils.py), and exactly what Keras's own `CosineDecay` computes when it warms up from zero: so
    models compiled with it load without this package.

    Args:
        learning_rate: highest learning rate, reached after the warm-up.
        steps: T, optimizer steps of the whole run; later steps have learning rate 0.
        warmup_steps: w, steps of the warm-up, fewer than `steps`; 0 for none.

    Returns:
        A `keras.optimizers.schedules.CosineDecay`.

    Raises:
        ValueError: on a number out of range.
    """
    learning_rate = checks.check_positive("learning_rate", learning_rate)
    steps = checks.check_integer("steps", steps)
    warmup_steps = checks.check_integer("warmup_steps", warmup_steps, minimum=0)
    if warmup_steps >= steps:
        raise ValueError(
            "warmup_steps must be fewer than the steps of the run; "
            f"got warmup_steps={warmup_steps}, steps={steps}"
        )
    if not warmup_steps:
        return keras.optimizers.schedules.CosineDecay(learning_rate, steps)
    return keras.optimizers.schedules.CosineDecay(
        0.0, steps - warmup_steps, warmup_target=learning_rate, warmup_steps=warmup_steps
    )
