"""The draw of training images for few-shot classification."""

import numpy as np


def draw_shots(labels, class_names, shots, seed):
    """Draw images of each class at random.

    One generator per seed shuffles the images of each class, class after class, and the first ones are used, as in
    big_vision's `fewshot_lsr`. The draw of 5 shots therefore contains that of 1, and another seed is another draw.

    Args:
        labels: integers (images,), the class of each image.
        class_names: name of each class.
        shots: images per class.
        seed: integer, 0 or above.

    Returns:
        Positions in `labels`, int64 (classes, shots): the first n columns are the draw of n shots.

    Raises:
        ValueError: if a class has fewer images; the message names it.
    """
    rng = np.random.default_rng(seed)
    drawn = [rng.permutation(np.flatnonzero(labels == number))[:shots] for number in range(len(class_names))]
    short = [number for number, positions in enumerate(drawn) if len(positions) < shots]
    if short:
        more = f"; {len(short)} classes have too few" if len(short) > 1 else ""
        raise ValueError(
            f"shots must not exceed the images of any class; got shots={shots}, "
            f"and train has {len(drawn[short[0]])} of class {class_names[short[0]]!r}{more}"
        )
    return np.stack(drawn)
