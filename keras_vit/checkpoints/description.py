"""Description: what `keras_vit.describe` returns of a weights file."""

import dataclasses
from collections.abc import Mapping

from keras_vit.config import ImageConfig, Preprocessing
from keras_vit.variants import FAMILIES, Variant


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
    """Describe what a weights file holds, without its weights.

    Attributes:
        variant: name of the variant that it belongs to, None if its sizes are not published.
        family: name of the published family, None for models of the paper and plain ones.
        licence: licence of the published weights of the family, or None.
        layout: whose names its arrays have, such as `timm`.
        task: model type of a task model, such as `depth_anything`, or None.
        config: config of the model that `load` builds, or of its encoder.
        sources: dict from fields of the config to what their values are from.
        unused: dict from the names of arrays that `load` does not read to the reason.
        preprocessing: `Preprocessing` of its images, None if nothing states it.
        labels: class names of its head, or None.
        timm_file: name of the file in timm, such as `vit_base_patch16_224.augreg_in21k`, or None.
        notes: tuple of strings, such as what else fits.
    """

    variant: str | None
    family: str | None
    licence: str | None
    layout: str
    task: str | None
    config: ImageConfig
    sources: Mapping[str, str]
    unused: Mapping[str, str]
    preprocessing: Preprocessing | None
    labels: tuple[str, ...] | None
    timm_file: str | None
    notes: tuple[str, ...]


def description_of(evidence, resolved, report):
    """Return the `Description` of a file, from its `Evidence`, its `Resolved` and its `LoadReport`."""
    row = resolved.row
    family = FAMILIES.get(row.family or "") if isinstance(row, Variant) else row
    return Description(
        variant=row.name if isinstance(row, Variant) else None,
        family=None if family is None else family.name,
        licence=None if family is None else family.licence,
        layout=evidence.library,
        task=evidence.task,
        config=resolved.config,
        sources=resolved.sources,
        unused=report.unused,
        preprocessing=resolved.preprocessing,
        labels=resolved.labels,
        timm_file=evidence.timm_file,
        notes=(*report.notes, *resolved.notes),
    )
