"""Release: one published checkpoint, where it lies, which model it fits, what images it expects."""

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
    """One published `.npz` file, or one repository of Hugging Face's hub.

    Args:
        model: name of the zoo's model whose weights it holds, such as `"R50+ViT-B_16"`.
        address: `https://host/bucket/directory/file.npz`, not quoted, or `hf://org/repo`.
        alias: short name under which `find_release` finds it, None for a file outside the table.
        data_set: what its head tells apart, a key of `CLASSES`.
        preprocessing: `Preprocessing` of the images it was evaluated on by its authors.
        bytes: size of the weights, approximate.
        source: paper and place of publication.
        representation_size: width of its `pre_logits` layer, None for none.
        arguments: dict of arguments that a model needs to hold it, such as `distilled`; `create_model` takes them as
            defaults.
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
        """Whether it is a repository of the hub."""
        return self.address.startswith(HUB)

    @property
    def path(self):
        """Its full name: the address of a repository, else directory and file; `+` is not yet quoted."""
        return self.address if self.is_on_hub else f"{self.directory}/{self.file}.npz"

    @property
    def directory(self):
        """Name of the folder that holds it, such as `"imagenet21k"`, or of the organisation on the hub."""
        return self.address.split("/")[-2]

    @property
    def file(self):
        """Its name in there, without `.npz`."""
        return self.address.split("/")[-1].removesuffix(".npz")

    @property
    def image_size(self):
        """Side in pixels of the square images it is for."""
        return self.preprocessing.image_size[0]

    @property
    def classes(self):
        """Number of logits of its head."""
        return CLASSES[self.data_set]

    @property
    def label_set(self):
        """Name in `labels.LABEL_SETS` of the classes of its head, None where there is none."""
        return self.data_set if self.data_set in labels.LABEL_SETS else None

    @property
    def labels(self):
        """Class names, one per logit, or None where the package has none."""
        return None if self.label_set is None else labels.label_set(self.label_set)
