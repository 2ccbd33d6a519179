"""Release: one published checkpoint, its address, the model it fits, the images it expects and its class names."""

import dataclasses
import functools

from keras_vit import checks
from keras_vit.config import Preprocessing
from keras_vit.files import read_table, read_toml

HUB = "hf://"
CLASSES = read_toml("checkpoints/releases/names.toml")["classes"]  # data set -> logits of a head for it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Release:
    """One published `.npz` file, or one repository of the Hugging Face hub.

    Args:
        model: name of the model in the zoo, such as `"R50+ViT-B_16"`.
        address: `https://host/bucket/directory/file.npz`, not quoted, or `hf://org/repo`.
        alias: short name for `find_release`, None for a file outside the table.
        data_set: data set whose classes the head predicts, a key of `CLASSES`.
        preprocessing: `Preprocessing` that its authors evaluated it with.
        bytes: approximate size of the weights.
        source: paper and place of publication.
        licence: licence of the weights.
        representation_size: width of its `pre_logits` layer, None without this layer.
        arguments: dict of arguments that the model needs, such as `distilled`; `create_model` uses them as defaults.
        top1: published top-1 accuracy in percent on the ImageNet-2012 validation images, None if it is unknown.
        top1_source: publication of this number.
    """

    model: str
    address: str
    alias: str | None
    data_set: str
    preprocessing: Preprocessing
    bytes: int
    source: str
    licence: str
    representation_size: int | None = None
    arguments: dict = dataclasses.field(default_factory=dict, hash=False)
    top1: float | None = None
    top1_source: str = ""

    @property
    def is_on_hub(self):
        """Return whether it is a repository of the hub."""
        return self.address.startswith(HUB)

    @property
    def path(self):
        """Return its full name: the address of a repository, else directory and file, with `+` not quoted."""
        return self.address if self.is_on_hub else f"{self.directory}/{self.file}.npz"

    @property
    def directory(self):
        """Return its folder, such as `"imagenet21k"`, or its organisation on the hub."""
        return self.address.split("/")[-2]

    @property
    def file(self):
        """Return its file name in the folder, without `.npz`."""
        return self.address.split("/")[-1].removesuffix(".npz")

    @property
    def image_size(self):
        """Return the side in pixels of its square images."""
        return self.preprocessing.image_size[0]

    @property
    def classes(self):
        """Return the number of logits of its head."""
        return CLASSES[self.data_set]

    @property
    def labels(self):
        """Return the class names, one per logit, or None if the package does not have them."""
        return label_set(self.data_set) if self.data_set in LABEL_SETS else None


LABEL_SETS = ("imagenet2012", "imagenet21k")


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
    checks.check_choice("name", name, LABEL_SETS)
    return tuple(_imagenet2012().values()) if name == "imagenet2012" else None


def wordnet_ids(labels):
    """Return the WordNet ids of a model's labels, such as `"n01440764"`, one per logit.

    Args:
        labels: tuple or list of names, one per logit, or None for a model without labels.

    Returns:
        A tuple of 1000 ids if `labels` is exactly the `"imagenet2012"` list, else None.
    """
    is_imagenet = labels is not None and tuple(labels) == label_set("imagenet2012")
    return tuple(_imagenet2012()) if is_imagenet else None


@functools.cache
def _imagenet2012():
    """Return the names of the classes by their WordNet ids, in the order of the logits."""
    return {row["id"]: row["name"] for row in read_table("checkpoints/releases/imagenet2012.tsv")}
