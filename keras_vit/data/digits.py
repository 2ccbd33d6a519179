"""from_digits: the handwritten digits of scikit-learn, which need no download."""

import numpy as np

from keras_vit.data.sources import ImageSource, from_arrays

HELD_OUT = 5  # one image in five is held out


def from_digits() -> tuple[ImageSource, ImageSource]:
    """Return (train, held-out) sources of scikit-learn's digits.

    The data set has 1797 grey images of handwritten digits, 8 x 8 pixels, in ten classes (E. Alpaydin and C. Kaynak,
    Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998). A fifth of them, 359 images, is
    held out; the split is always the same.

    Returns:
        A pair of `ImageSource`: uint8 images (8, 8, 1), labels 0 to 9, class names `"0"` to `"9"`.

    Raises:
        ImportError: if scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "from_digits needs scikit-learn, which contains the images: pip install scikit-learn"
        ) from error
    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype("uint8")[..., np.newaxis]  # from 0 ... 16, (1797, 8, 8, 1)
    labels = digits.target.astype("int32")
    # The file repeats the digits 0 to 9 in order, so the held-out fifth is drawn at random.
    # NumPy guarantees RandomState's stream, so the split is the same everywhere.
    order = np.random.RandomState(0).permutation(len(images))
    held_out, train = np.split(order, [len(order) // HELD_OUT])
    names = [str(name) for name in digits.target_names]
    sources = [from_arrays(images[part], labels[part], class_names=names) for part in (train, held_out)]
    return sources[0], sources[1]
