"""The table of published checkpoints, and functions that search it."""

import dataclasses
import functools
import math
import re

from keras_vit import checks
from keras_vit.checkpoints.releases.release import HUB, Release
from keras_vit.config import Preprocessing
from keras_vit.files import read_table, read_toml

BEST = "imagenet"  # the name in keras.applications: the best published ImageNet-1k checkpoint
_DATA_SET, _LARGE = "imagenet2012", "imagenet21k"
_NAMES = read_toml("checkpoints/releases/names.toml")
_PARSED = ("arguments", "bytes", "preprocessing", "representation_size", "top1")


@functools.cache
def _releases():
    rows = read_table("checkpoints/releases/releases.tsv", _PARSED)
    return tuple(Release(**{**row, "preprocessing": Preprocessing(**row["preprocessing"])}) for row in rows)


def list_releases(model=None):
    """Return the releases of the table, all or those of one model.

    Args:
        model: name of a model, such as `"ViT-B_16"`, or None for all.
    """
    return tuple(release for release in _releases() if model in (None, release.model))


def find_release(model, weights, image_size=None):
    """Return the published file that `weights` stands for.

    Args:
        model: name of the model, such as `"ViT-B_16"`.
        weights: `"imagenet"`, the best ImageNet-1k file of the nearest size; an alias (`"imagenet21k"`,
            `"imagenet21k+imagenet2012"`, `"imagenet2012"` and others, see `alias` in the table; `"augreg"` is the
            recommended ImageNet-21k file of AugReg and `"augreg+imagenet2012"` its fine-tuned versions); or the name of
            a published file, with or without its directory and `.npz`. AugReg files outside the table are recognised by
            their names; whether they exist is not checked.
        image_size: side in pixels, or (height, width), of the model's input. If an alias has files of several sizes,
            the one nearest to the side of a square of equal area is selected; ties prefer the larger. None selects the
            largest. Ignored if `weights` is the name of a file.

    Raises:
        TypeError: if `weights` is not a string.
        ValueError: if no file matches, several match, or the match is for another model; the message lists the files
            published for `model`.
    """
    if not isinstance(weights, str):
        raise TypeError(f"weights must be a string; got weights={weights!r}")
    pair = (math.inf, math.inf) if image_size is None else checks.check_pair("image_size", image_size)
    side = math.sqrt(math.prod(pair))
    candidates = [release for release in list_releases(model) if weights in aliases_of(release)]
    if candidates:
        # every size is equally far from infinity, so None selects the largest
        rank = {alias: place for place, alias in enumerate(_NAMES["ranked"])}
        return min(candidates, key=lambda r: (abs(r.image_size - side), -r.image_size, rank.get(r.alias, 0)))
    return _find_by_name(model, weights)


def aliases_of(release):
    """Return the short names under which `find_release` finds a release of the table."""
    return (BEST, release.alias) if release.data_set == _DATA_SET else (release.alias,)


def find_address(model, address):
    """Return a model's release that is the hub repository `hf://org/repo`, or None."""
    return next((release for release in list_releases(model) if release.address == address.rstrip("/")), None)


def _find_by_name(model, weights):
    directory, _, file = weights.removeprefix(HUB).removesuffix(".npz").rpartition("/")
    named = [r for r in _releases() if r.file == file and directory in ("", r.directory)]
    if not named and directory in ("", "augreg"):
        named = _find_augreg(file, model)
    fitting = [release for release in named if release.model == model]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        paths = ", ".join(repr(release.path) for release in fitting)
        raise ValueError(f"weights={weights!r} names several published files; name one of {paths}")
    if named:
        raise ValueError(f"weights={weights!r} is a file of {named[0].model}, not of {model}; {_published(model)}")
    near = checks.suggestion(weights.removesuffix(".npz"), _names(model), most=2)
    raise ValueError(f"weights={weights!r} is no file of {model}{near or '; ' + _published(model)}")


def _find_augreg(file, model):
    """Return a list with the release of an AugReg file that is not in the table; it is empty for other models."""
    architecture = file.partition("-")[0]
    listed = [r for r in _releases() if r.directory == "augreg" and r.file.startswith(f"{architecture}-")]
    if not listed:
        return []
    form = _NAMES["augreg"]
    match = re.fullmatch(form.replace("MODEL", architecture).replace("_X", r"_[\d.]+"), file)
    if match is None:
        raise ValueError(f"the name of an AugReg file must be {form}; got {file!r}; {_published(model)}")
    upstream, *_, data_set, _, size = match.groups()
    data_set, size = data_set or (_DATA_SET if upstream == "i1k" else _LARGE), int(size or 224)
    # The files of a model differ in size by head and position table, and only imagenet21k has a large head.
    nearest = min(listed, key=lambda r: ((r.data_set == _LARGE) != (data_set == _LARGE), r.image_size != size))
    address = nearest.address.replace(nearest.file, file)
    other = {"alias": None, "top1": None, "top1_source": "", "preprocessing": Preprocessing(size=size)}
    return [dataclasses.replace(nearest, address=address, data_set=data_set, **other)]


def _names(model):
    """Return the possible names of a model's files, the shortest form first."""
    releases = list_releases(model)
    aliases = [alias for release in releases for alias in aliases_of(release)]
    return dict.fromkeys([*aliases, *(getattr(release, form) for form in ("file", "path") for release in releases)])


def _published(model):
    releases = list_releases(model)
    if not releases:
        models = ", ".join(dict.fromkeys(release.model for release in _releases()))
        return f"nothing is published for {model!r}; models with published files are {models}"
    listed = ", ".join(f"{r.path!r} (alias {r.alias!r}, {r.image_size} px)" for r in releases)
    return f"published for {model}: {listed}"
