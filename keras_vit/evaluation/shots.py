"""Which images a few-shot classifier learns from."""

import numpy as np


def draw_shots(labels, class_names, shots, seed):
    """Draw images of each class at random.

    The images of every class are shuffled, class after class, by one generator of the seed, and the first ones are
    taken, as in big_vision's `fewshot_lsr`. So the draw of 5 shots contains that of 1, and another seed is another
    draw.

    Args:
        labels: integers (images,), the class of each.
        class_names: name of each class.
        shots: images of a class.
        seed: integer from 0.

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
