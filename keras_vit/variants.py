"""The tables of named architectures: published families (families.toml) and their variants (variants.tsv)."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from keras_vit.config import ImageConfig, Preprocessing, ResNetConfig, ViTConfig
from keras_vit.config.base import flattened
from keras_vit.config.fields import fields_of, names_of
from keras_vit.files import read_table, read_toml
from keras_vit.models import MODELS

# Fields that no signature lists. `attention` and `stem` are the variant's; of the others, constructors take a dict.
DESIGN = ("attention", "window", "stem", "embedding", "block", "head")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A published family of Vision Transformers: a section of families.toml.

    Attributes:
        name: its key, such as `"dinov2"`.
        title: its name, such as `"DINOv2"`.
        source: publication.
        licence: licence of the weights.
        preprocessing: `Preprocessing` that the authors evaluate with.
        gated: whether downloads require accepted conditions.
        config: fields of `ViTConfig` that all variants share, nested as in `ViTConfig.to_dict()`.
    """

    name: str
    title: str
    source: str
    licence: str
    preprocessing: Preprocessing
    gated: bool = False
    config: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields that it sets, with dots for nested ones."""
        return {"name": self.name, **flattened(self.config)}


@dataclasses.dataclass(frozen=True)
class Variant:
    """A named architecture: a row of variants.tsv.

    The row has `architecture` and `defaults`. These follow from them: `config(...)` makes a config, `reference` is the
    one without arguments, `fields` are its fields, and `defining` are those fields that define the variant.

    Attributes:
        name: such as `"ViT-B_16"`.
        config_class: class of its config.
        source: publication that states its sizes.
        architecture: config fields that define the variant; they are not arguments of its constructor.
        defaults: arguments whose default differs from the config's default; they also replace None.
        preprocessing: `Preprocessing` that the authors evaluate with, None for the official ViT one.
        family: its section of families.toml, None for the models of the paper and those without one.
        result: published accuracy, or None.
        parameters: number of parameters with the default arguments.
        macs: multiply-accumulates per image, see `models.costs`, with the default arguments.
    """

    name: str
    config_class: type[ImageConfig]
    source: str
    architecture: dict[str, Any]
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
    preprocessing: Preprocessing | None = None
    family: str | None = None
    result: str | None = None
    parameters: int = 0
    macs: int = 0

    @property
    def image_size(self) -> int:
        """Return the side of its images in pixels, if the user gives none."""
        return self.defaults.get("image_size", 224)

    @functools.cached_property
    def reference(self) -> ImageConfig:
        """Return its config at its own image size."""
        return self.config(image_size=self.image_size)

    @functools.cached_property
    def fields(self) -> dict[str, Any]:
        """Return the fields that it sets, with dots for nested ones; of a stem only those that define it."""
        declared = fields_of(self.config_class)
        names = [name for name, one in declared.items() if not one.is_part and name != "image_size"]
        fields = {name: self.reference.field(name) for name in names}
        is_left = lambda name: name.startswith("stem.") and not declared[name].defines  # noqa: E731
        return {name: value for name, value in fields.items() if value is not None and not is_left(name)}

    @functools.cached_property
    def defining(self) -> dict[str, Any]:
        """Return the fields that define it; DeiTs with and without a distillation token have one name."""
        declared, free = fields_of(self.config_class), () if self.family else ("distilled",)
        names = [name for name, one in declared.items() if one.defines and not one.changeable and name not in free]
        return {name: self.reference.field(name) for name in names if not declared[name].is_part}

    def config(self, **arguments: Any) -> ImageConfig:
        """Return the variant's config with these arguments; a field of a nested config may have a dot in its name."""
        missing = {name: value for name, value in self.defaults.items() if arguments.get(name) is None}
        fields = {"name": self.name, **self.architecture, **arguments, **missing}
        nested = {name: fields.pop(name) for name in list(fields) if "." in name}
        config = self.config_class(**fields)
        return config.replace(**nested) if nested else config


FAMILIES: dict[str, Family] = {
    name: Family(**{"name": name, **section, "preprocessing": Preprocessing(**section["preprocessing"])})
    for name, section in read_toml("families.toml").items()
}


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested dict with the values of another one.

    Args:
        base: the dict.
        changes: values that replace those of `base`; a dict in it is merged with the dict in `base`.
    """
    result = dict(base)
    for name, value in changes.items():
        old = result.get(name)
        result[name] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def _read_variants():
    """Yield the `Variant` of each line of variants.tsv."""
    configs = {config.__name__: config for config in MODELS}
    # What defines the architecture of every family, whether it sets it or not. Rows replace what has no default.
    declared = {name: one for name, one in fields_of(ViTConfig).items() if "." not in name}
    fixed = {name: one.default for name, one in declared.items() if one.defines and not one.changeable}
    for row in read_table("variants.tsv", ("architecture", "defaults", "preprocessing", "parameters", "macs")):
        family = FAMILIES.get(row.get("family"))
        if family is not None:
            fields = merged({**fixed, **family.config}, row["architecture"])
            optional = {name: fields.pop(name) for name in names_of(ViTConfig, changeable=True) if name in fields}
            row |= {"architecture": fields, "defaults": {**optional, **row.get("defaults", {})}}
            row.setdefault("preprocessing", family.preprocessing)
        architecture = {name: tuple(v) if isinstance(v, list) else v for name, v in row["architecture"].items()}
        if architecture.get("stem"):
            architecture["stem"] = ResNetConfig(**architecture["stem"])
        if isinstance(row.get("preprocessing"), dict):
            row["preprocessing"] = Preprocessing(**row["preprocessing"])
        yield Variant(**{**row, "config_class": configs[row["config_class"]], "architecture": architecture})


VARIANTS: dict[str, Variant] = {variant.name: variant for variant in _read_variants()}
