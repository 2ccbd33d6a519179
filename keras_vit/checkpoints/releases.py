"""The table of published checkpoint files: where each lies, which model it fits, what pictures it expects."""

import dataclasses
import math
import re

from keras_vit import checks
from keras_vit.checkpoints import labels
from keras_vit.config import Preprocessing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Release:
    """One published `.npz` file.

    Args:
        model: name of the zoo's model whose weights it holds, such as `"R50+ViT-B_16"`.
        directory: folder below the base address, such as `"imagenet21k"`.
        file: name in that folder, without `.npz`.
        alias: short name under which `find_release` finds it, None for a file outside the table.
        image_size: side in pixels of the square pictures it was last trained on.
        classes: number of logits of its head.
        representation_size: width of its `pre_logits` layer, None for none.
        label_set: name in `labels.LABEL_SETS` of the classes of its head, None where there is none.
        bytes: size of the file, approximate.
        source: paper and place of publication.
    """

    model: str
    directory: str
    file: str
    alias: str | None
    image_size: int
    classes: int
    representation_size: int | None
    label_set: str | None
    bytes: int
    source: str

    @property
    def path(self):
        """Path below the base address; `+` is not yet quoted."""
        return f"{self.directory}/{self.file}.npz"

    @property
    def preprocessing(self):
        """The official protocol at the file's size: plain square resize, values in [-1, 1]."""
        return Preprocessing(size=self.image_size)

    @property
    def labels(self):
        """Class names, one per logit, or None where the package has none."""
        return None if self.label_set is None else labels.label_set(self.label_set)


def list_releases(model=None):
    """Returns the table's releases, all or those of one model (none for a model without published files).

    Args:
        model: name of a model, such as `"ViT-B_16"`, or None for all.
    """
    return tuple(release for release in _RELEASES if model in (None, release.model))


def find_release(model, weights, image_size=None):
    """Returns the published file that `weights` means for a model.

    Args:
        model: name of the model, such as `"ViT-B_16"`.
        weights: an alias (`"imagenet21k"`, `"imagenet21k+imagenet2012"`, `"sam"`, `"augreg"`: the recommended
            ImageNet-21k file of AugReg, `"augreg+imagenet2012"`: its recommended fine-tune), or the name of a
            published file with or without its directory and `.npz`. An AugReg file outside the table is known
            by its name's scheme, see `parse_augreg`.
        image_size: side in pixels, or (height, width), of the model's input: where an alias has files of
            several sizes, the nearest to the side of a square of equal area is taken, the larger if two are
            equally near. None takes the largest. It plays no part when `weights` names a file.

    Raises:
        TypeError: if `weights` is no string.
        ValueError: if no file is meant, several are, or the one that is fits another model; the message lists
            what is published for `model`.
    """
    if not isinstance(weights, str):
        raise TypeError(f"weights must be a string; got weights={weights!r}")
    pair = (math.inf, math.inf) if image_size is None else checks.check_pair("image_size", image_size)
    side = math.sqrt(math.prod(pair))
    candidates = [release for release in list_releases(model) if release.alias == weights]
    if candidates:
        # every size is as far from infinity as any other, so that None takes the largest
        return min(candidates, key=lambda release: (abs(release.image_size - side), -release.image_size))
    return _find_by_name(model, weights)


def parse_augreg(filename):
    """Returns the release of any AugReg file by the scheme of its name (arXiv 2106.10270).

    The scheme is `{model}-{i1k|i21k|i21k_30}-{300|30}ep-lr_{x}-aug_{level}-wd_{x}-do_{x}-sd_{x}`, to which
    fine-tunes append `--{data_set}-steps_{20k|10k|2k|0k}-lr_{x}-res_{224|384}`. That the file exists is not
    checked.

    Args:
        filename: the name, with or without `augreg/` before and `.npz` behind it.

    Raises:
        ValueError: if the name does not follow the scheme or has a part that is none of the scheme's.
    """
    file = filename.removeprefix("augreg/").removesuffix(".npz")
    match = _AUGREG_NAME.fullmatch(file)
    if match is None:
        raise ValueError(
            "the name of an AugReg file must be "
            "{model}-{upstream}-{epochs}ep-lr_{x}-aug_{level}-wd_{x}-do_{x}-sd_{x}, "
            "for a fine-tune followed by --{data_set}-steps_{steps}-lr_{x}-res_{res}; "
            f"got {filename!r}"
        )
    for part, choices in _AUGREG_CHOICES.items():
        if match[part] is not None and match[part] not in choices:
            listed = ", ".join(repr(choice) for choice in choices)
            raise ValueError(f"{part} in {filename!r} must be one of {listed}; got {match[part]!r}")
    size = int(match["res"] or _UPSTREAM_SIZE)
    data_set = match["data_set"] or _UPSTREAMS[match["upstream"]]
    model, width, stride, parameters = _AUGREG_MODELS[match["model"]]
    new_positions = (size // stride) ** 2 - (_UPSTREAM_SIZE // stride) ** 2
    parameters += width * new_positions + (width + 1) * _CLASSES[data_set]
    return Release(
        model=model,
        directory="augreg",
        file=file,
        alias=_AUGREG_ALIASES.get(file),
        image_size=size,
        classes=_CLASSES[data_set],
        representation_size=None,
        label_set=data_set if data_set in labels.LABEL_SETS else None,
        bytes=4 * parameters,
        source="arXiv 2106.10270 (AugReg), github.com/google-research/vision_transformer",
    )


def _find_by_name(model, weights):
    directory, _, file = weights.removesuffix(".npz").rpartition("/")
    named = [r for r in _RELEASES if r.file == file and directory in ("", r.directory)]
    if not named and directory in ("", "augreg") and file.split("-")[0] in _AUGREG_MODELS:
        try:
            named = [parse_augreg(file)]
        except ValueError as error:
            raise ValueError(f"{error}; {_published(model)}") from error
    fitting = [release for release in named if release.model == model]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        paths = ", ".join(repr(release.path) for release in fitting)
        raise ValueError(f"weights={weights!r} names several published files; name one of {paths}")
    problem = f"is a file of {named[0].model}, not of {model}" if named else f"is no file of {model}"
    raise ValueError(f"weights={weights!r} {problem}; {_published(model)}")


def _published(model):
    releases = list_releases(model)
    if not releases:
        models = ", ".join(dict.fromkeys(release.model for release in _RELEASES))
        return f"nothing is published for {model!r}; models with published files are {models}"
    listed = ", ".join(f"{r.path!r} (alias {r.alias!r}, {r.image_size} px)" for r in releases)
    return f"published for it are {listed}"


def _official_releases():
    for directory, (data_set, source, rows) in _OFFICIAL.items():
        for model, suffix, image_size, representation_size, size in rows:
            yield Release(
                model=model,
                directory=directory,
                file=model + suffix,
                alias=directory,
                image_size=image_size,
                classes=_CLASSES[data_set],
                representation_size=representation_size,
                label_set=data_set,
                bytes=round(size),
                source=f"{source}, github.com/google-research/vision_transformer",
            )


def _recommended_augreg_files():
    for model, level, decay, dropout, rate, size in _AUGREG_RECOMMENDED:
        upstream = f"{model}-i21k-300ep-lr_0.001-aug_{level}-wd_{decay}-do_{dropout}-sd_{dropout}"
        yield upstream, "augreg"
        yield f"{upstream}--imagenet2012-steps_20k-lr_{rate}-res_{size}", "augreg+imagenet2012"


_CLASSES = {
    "imagenet21k": 21843,
    "imagenet2012": 1000,
    "cifar10": 10,
    "cifar100": 100,
    "oxford_iiit_pet": 37,
    "kitti": 4,
    "resisc45": 45,
}

_MIB, _GIB = 2**20, 2**30

# directory, which is also the alias -> data set of the head, source, rows of
# (model, what the file's name adds to it, image size, representation size, bytes by the bucket's listing)
_OFFICIAL = {
    "imagenet21k": (
        "imagenet21k",
        "arXiv 2010.11929",
        (
            ("ViT-B_16", "", 224, 768, 393.69 * _MIB),
            ("ViT-B_32", "", 224, 768, 400.01 * _MIB),
            ("ViT-B_8", "", 224, 768, 393.72 * _MIB),
            ("ViT-L_16", "", 224, 1024, 1.22 * _GIB),
            ("ViT-L_32", "", 224, 1024, 1.23 * _GIB),
            ("ViT-H_14", "", 224, 1280, 2.46 * _GIB),
            ("R50+ViT-B_16", "", 224, 768, 439.85 * _MIB),
            ("R26+ViT-B_32", "", 224, 768, 450.23 * _MIB),
            ("R50+ViT-L_32", "", 224, 1024, 1.31 * _GIB),
        ),
    ),
    "imagenet21k+imagenet2012": (
        "imagenet2012",
        "arXiv 2010.11929",
        (
            ("ViT-B_16", "", 384, None, 331.4 * _MIB),
            ("ViT-B_16", "-224", 224, None, 330.29 * _MIB),
            ("ViT-B_32", "", 384, None, 336.89 * _MIB),
            ("ViT-B_8", "", 384, None, 334.78 * _MIB),
            ("ViT-L_16", "", 384, None, 1.14 * _GIB),
            ("ViT-L_16", "-224", 224, None, 1.13 * _GIB),
            ("ViT-L_32", "", 384, None, 1.14 * _GIB),
            ("R50+ViT-B_16", "", 384, None, 377.57 * _MIB),
        ),
    ),
    "sam": (
        "imagenet2012",
        "arXiv 2106.01548 (sharpness-aware minimisation)",
        (
            ("ViT-B_16", "", 224, None, 330.3 * _MIB),
            ("ViT-B_32", "", 224, None, 336.61 * _MIB),
            ("ViT-L_16", "", 224, None, 1.13 * _GIB),
            ("ViT-L_32", "", 224, None, 1.14 * _GIB),
            ("ViT-S_16", "", 224, None, 252.57 * _MIB),  # three times its weights: with optimizer state?
        ),
    ),
}

# model in AugReg's names -> zoo model, width D, pixels per token, parameters at 224 without the head
_AUGREG_MODELS = {
    "Ti_16": ("ViT-Ti_16", 192, 16, 5_524_416),
    "S_32": ("ViT-S_32", 384, 32, 22_493_952),
    "S_16": ("ViT-S_16", 384, 16, 21_665_664),
    "B_32": ("ViT-B_32", 768, 32, 87_455_232),
    "B_16": ("ViT-B_16", 768, 16, 85_798_656),
    "B_8": ("ViT-B_8", 768, 8, 85_807_872),
    "L_16": ("ViT-L_16", 1024, 16, 303_301_632),
    "R_Ti_16": ("R+ViT-Ti_16", 192, 32, 6_144_704),  # named after 16, yet its tokens are 32 pixels apart
    "R26_S_32": ("R26+ViT-S_32", 384, 32, 36_046_912),
    "R50_L_32": ("R50+ViT-L_32", 1024, 32, 327_969_856),
}

# The ImageNet-21k file of highest validation accuracy of each model: augmentation, weight decay, dropout (and
# equal stochastic depth); then learning rate and image size of its best fine-tune on ImageNet 2012
_AUGREG_RECOMMENDED = (
    ("L_16", "strong1", "0.1", "0.0", "0.01", 384),
    ("B_16", "medium1", "0.1", "0.0", "0.03", 384),
    ("S_16", "light1", "0.03", "0.0", "0.03", 384),
    ("R50_L_32", "medium1", "0.1", "0.1", "0.01", 384),
    ("R26_S_32", "light1", "0.1", "0.0", "0.01", 384),
    ("Ti_16", "none", "0.03", "0.0", "0.03", 384),
    ("B_32", "light1", "0.1", "0.0", "0.01", 384),
    ("S_32", "none", "0.1", "0.0", "0.01", 384),
    ("R_Ti_16", "none", "0.03", "0.0", "0.03", 384),
    ("B_8", "medium2", "0.1", "0.0", "0.03", 224),
)

_UPSTREAM_SIZE = 224
_UPSTREAMS = {"i1k": "imagenet2012", "i21k": "imagenet21k", "i21k_30": "imagenet21k"}
_AUGREG_CHOICES = {
    "model": tuple(_AUGREG_MODELS),
    "upstream": tuple(_UPSTREAMS),
    "epochs": ("300", "30"),
    "level": ("none", "light0", "light1", "medium1", "medium2", "strong1", "strong2"),
    "data_set": tuple(data_set for data_set in _CLASSES if data_set != "imagenet21k"),
    "steps": ("20k", "10k", "2k", "0k"),
    "res": ("224", "384"),
}
_AUGREG_NAME = re.compile(
    r"(?P<model>\w+)-(?P<upstream>\w+)-(?P<epochs>\d+)ep-lr_[\d.]+-aug_(?P<level>\w+)-wd_[\d.]+-do_[\d.]+-sd_[\d.]+"
    r"(--(?P<data_set>\w+)-steps_(?P<steps>\w+)-lr_[\d.]+-res_(?P<res>\d+))?"
)
_AUGREG_ALIASES = dict(_recommended_augreg_files())
_RELEASES = (*_official_releases(), *(parse_augreg(file) for file in _AUGREG_ALIASES))
