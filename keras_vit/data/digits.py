"""from_digits: the handwritten digits that come with scikit-learn, for runs without a download."""

import numpy as np

from keras_vit.data.sources import ImageSource, from_arrays

HELD_OUT = 5  # one image in five


def from_digits() -> tuple[ImageSource, ImageSource]:
    """Returns (train, held-out) sources of scikit-learn's bundled digits.

    The images are real handwriting: 1797 grey images of 8 x 8 pixels, ten classes (E. Alpaydin and C.
    Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998). A fifth of
    them, 359, is held out; which ones is fixed for good.

    Returns:
        A pair of `ImageSource`: uint8 images (8, 8, 1), labels 0 to 9, class names `"0"` to `"9"`.

    Raises:
        ImportError: if scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "from_digits needs scikit-learn, which carries the images: pip install scikit-learn"
        ) from error
    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype("uint8")[..., np.newaxis]  # from 0 ... 16, (1797, 8, 8, 1)
    labels = digits.target.astype("int32")
    # The file is in the order of its writing, 0 to 9 over and over, so the held-out fifth is drawn.
    # RandomState's stream is frozen by NumPy: the split is the same everywhere.
    order = np.random.RandomState(0).permutation(len(images))
    held_out, train = np.split(order, [len(order) // HELD_OUT])
    names = [str(name) for name in digits.target_names]
    sources = [from_arrays(images[part], labels[part], class_names=names) for part in (train, held_out)]
    return sources[0], sources[1]
