"""The table of published checkpoints: one module of rows per family, and the search in all of them."""

import math

from keras_vit import checks
from keras_vit.checkpoints.releases.accuracies import PublishedAccuracy, published_accuracy
from keras_vit.checkpoints.releases.augreg import AUGREG_RELEASES, is_augreg, parse_augreg
from keras_vit.checkpoints.releases.bit import BIT_RELEASES
from keras_vit.checkpoints.releases.deit import DEIT_RELEASES
from keras_vit.checkpoints.releases.release import HUB, Release
from keras_vit.checkpoints.releases.swin import SWIN_RELEASES
from keras_vit.checkpoints.releases.vit import VIT_RELEASES

__all__ = [
    "PublishedAccuracy",
    "Release",
    "aliases_of",
    "find_address",
    "find_release",
    "list_releases",
    "parse_augreg",
    "published_accuracy",
]

BEST = "imagenet"  # of Keras applications: the best published ImageNet-1k file
_DATA_SET = "imagenet2012"
# Best first, by the published top-1 of ViT-B/16, DeiT-B and BiT-R152x4 at one size (accuracies.py).
_RANKED = (
    "augreg+imagenet2012",
    "imagenet21k+imagenet2012",
    "imagenet22k+imagenet2012",
    "imagenet2012-distilled",
    "imagenet2012",
    "sam",
)
_RELEASES = (*VIT_RELEASES, *AUGREG_RELEASES, *DEIT_RELEASES, *SWIN_RELEASES, *BIT_RELEASES)


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
        weights: `"imagenet"`, the best ImageNet-1k file of the nearest size; an alias (`"imagenet21k"`,
            `"imagenet21k+imagenet2012"`, `"imagenet2012"` and others, see `alias` in the tables; `"augreg"` is the
            recommended ImageNet-21k file of AugReg and `"augreg+imagenet2012"` its fine-tunes), or the name of a
            published file with or without its directory and `.npz`. An AugReg file outside the table is known by its
            name's scheme, see `parse_augreg`.
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
    candidates = [release for release in list_releases(model) if weights in aliases_of(release)]
    if candidates:
        # every size is as far from infinity as any other, so that None takes the largest
        rank = {alias: place for place, alias in enumerate(_RANKED)}
        return min(candidates, key=lambda r: (abs(r.image_size - side), -r.image_size, rank.get(r.alias, 0)))
    return _find_by_name(model, weights)


def aliases_of(release):
    """Returns the short names under which `find_release` finds a release of the table."""
    return (BEST, release.alias) if release.data_set == _DATA_SET else (release.alias,)


def find_address(model, address):
    """Returns the release of a model that is the repository `hf://org/repo` of the hub, or None if none is."""
    return next((release for release in list_releases(model) if release.address == address.rstrip("/")), None)


def _find_by_name(model, weights):
    directory, _, file = weights.removeprefix(HUB).removesuffix(".npz").rpartition("/")
    named = [r for r in _RELEASES if r.file == file and directory in ("", r.directory)]
    if not named and directory in ("", "augreg") and is_augreg(file):
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
    if named:
        raise ValueError(f"weights={weights!r} is a file of {named[0].model}, not of {model}; {_published(model)}")
    near = checks.suggestion(weights.removesuffix(".npz"), _names(model))
    raise ValueError(f"weights={weights!r} is no file of {model}{near or '; ' + _published(model)}")


def _names(model):
    """What the files of a model may be called, the shortest form first."""
    releases = list_releases(model)
    return dict.fromkeys(getattr(release, form) for form in ("alias", "file", "path") for release in releases)


def _published(model):
    releases = list_releases(model)
    if not releases:
        models = ", ".join(dict.fromkeys(release.model for release in _RELEASES))
        return f"nothing is published for {model!r}; models with published files are {models}"
    listed = ", ".join(f"{r.path!r} (alias {r.alias!r}, {r.image_size} px)" for r in releases)
    return f"published for it are {listed}"
