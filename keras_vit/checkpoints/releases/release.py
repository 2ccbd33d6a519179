"""Release: one published checkpoint, its address, the model it fits and the images it expects."""

import dataclasses

from keras_vit.checkpoints import labels
from keras_vit.config import Preprocessing

HUB = "hf://"

# data set -> logits of a head for it
CLASSES = {
    "imagenet21k": 21843,
    "imagenet22k": 21841,  # Swin's: ImageNet-21k without the two ids that seem to have no images
    "imagenet2012": 1000,
    "cifar10": 10,
    "cifar100": 100,
    "oxford_iiit_pet": 37,
    "kitti": 4,
    "resisc45": 45,
}


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
        representation_size: width of its `pre_logits` layer, None without this layer.
        arguments: dict of arguments that the model needs, such as `distilled`; `create_model` uses them as defaults.
    """

    model: str
    address: str
    alias: str | None
    data_set: str
    preprocessing: Preprocessing
    bytes: int
    source: str
    representation_size: int | None = None
    arguments: dict = dataclasses.field(default_factory=dict, hash=False)

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
    def label_set(self):
        """Return the name in `labels.LABEL_SETS` of its head's classes, or None."""
        return self.data_set if self.data_set in labels.LABEL_SETS else None

    @property
    def labels(self):
        """Return the class names, one per logit, or None if the package does not have them."""
        return None if self.label_set is None else labels.label_set(self.label_set)
