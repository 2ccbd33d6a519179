"""The class names of published heads, in the order of their logits."""

import functools
import importlib.resources

from keras_vit import checks

# label set -> file in this folder, with lines `WordNet id <tab> name` in the order of the logits, or None
LABEL_SETS = {"imagenet2012": "imagenet2012.tsv", "imagenet21k": None}


def label_set(name):
    """Return the class names of a label set, one per logit.

    Args:
        name: `"imagenet2012"` or `"imagenet21k"`.

    Returns:
        A tuple of 1000 names for `"imagenet2012"`, in the order of their WordNet ids, as in every ILSVRC 2012 head
        ("crane" and "maillot" are the names of two classes each). None for `"imagenet21k"`, whose names are not in the
        package. Its heads have 21,843 logits: 21,841 synsets and two ids apparently without images. The names are
        published as `https://storage.googleapis.com/bit_models/imagenet21k_wordnet_lemmas.txt`.

    Raises:
        ValueError: if there is no such label set.
    """
    file = LABEL_SETS[checks.check_choice("name", name, LABEL_SETS)]
    return None if file is None else tuple(label for _, label in _read(file))


def wordnet_ids(labels):
    """Return the WordNet ids of a model's labels, such as `"n01440764"`, one per logit.

    Args:
        labels: tuple or list of names, one per logit, or None for a model without labels.

    Returns:
        A tuple of 1000 ids if `labels` is exactly the `"imagenet2012"` list, else None.
    """
    if labels is None or tuple(labels) != label_set("imagenet2012"):
        return None
    return tuple(wordnet_id for wordnet_id, _ in _read(LABEL_SETS["imagenet2012"]))


@functools.cache
def _read(file):
    text = importlib.resources.files(__package__).joinpath(file).read_text(encoding="utf-8")
    return tuple(tuple(line.split("\t")) for line in text.splitlines())
