"""Published accuracies of released weights: top-1 on the ImageNet-2012 validation images."""

import dataclasses

_PAPER = "arXiv 2010.11929, Table 5"
_VIT = "github.com/google-research/vision_transformer"
_TIMM = "measured by timm"
_DEIT = "github.com/facebookresearch/deit"
_SWIN = "github.com/microsoft/Swin-Transformer"
_BIT = "arXiv 1912.11370"


@dataclasses.dataclass(frozen=True)
class PublishedAccuracy:
    """An accuracy that others measured.

    Attributes:
        top1: top-1 accuracy in percent.
        source: publication of the number.
    """

    top1: float
    source: str


def published_accuracy(release):
    """Return the `PublishedAccuracy` of a `Release`, None if it is unknown.

    The numbers of Table 5 are from the paper's own runs, which the published files repeat.
    """
    found = _TABLE.get((release.model, release.alias, release.image_size))
    return None if found is None else PublishedAccuracy(*found)


# model, alias and side of the images in pixels -> top-1 in percent, source
_TABLE = {
    ("ViT-B_16", "imagenet21k+imagenet2012", 224): (81.78, _TIMM),
    ("ViT-B_16", "imagenet21k+imagenet2012", 384): (84.21, _TIMM),
    ("ViT-B_32", "imagenet21k+imagenet2012", 384): (81.28, _PAPER),
    ("ViT-L_16", "imagenet21k+imagenet2012", 224): (82.7, _VIT),
    ("ViT-L_16", "imagenet21k+imagenet2012", 384): (85.15, _PAPER),
    ("ViT-L_32", "imagenet21k+imagenet2012", 384): (81.51, _TIMM),
    ("R50+ViT-B_16", "imagenet21k+imagenet2012", 384): (84.99, _TIMM),
    ("ViT-B_16", "augreg+imagenet2012", 224): (84.53, _TIMM),
    ("ViT-S_16", "augreg+imagenet2012", 224): (81.40, _TIMM),
    ("ViT-Ti_16", "augreg+imagenet2012", 224): (75.45, _TIMM),
    ("ViT-B_16", "sam", 224): (80.25, _TIMM),
    ("ViT-B_32", "sam", 224): (73.70, _TIMM),
    ("ViT-L_16", "augreg+imagenet2012", 384): (85.59, _VIT),
    ("ViT-B_16", "augreg+imagenet2012", 384): (85.49, _VIT),
    ("ViT-S_16", "augreg+imagenet2012", 384): (83.73, _VIT),
    ("R50+ViT-L_32", "augreg+imagenet2012", 384): (85.99, _VIT),
    ("R26+ViT-S_32", "augreg+imagenet2012", 384): (83.85, _VIT),
    ("ViT-Ti_16", "augreg+imagenet2012", 384): (78.22, _VIT),
    ("ViT-B_32", "augreg+imagenet2012", 384): (83.59, _VIT),
    ("ViT-S_32", "augreg+imagenet2012", 384): (79.58, _VIT),
    ("R+ViT-Ti_16", "augreg+imagenet2012", 384): (75.40, _VIT),
    ("DeiT-Ti_16", "imagenet2012", 224): (72.2, _DEIT),
    ("DeiT-Ti_16", "imagenet2012-distilled", 224): (74.5, _DEIT),
    ("DeiT-S_16", "imagenet2012", 224): (79.9, _DEIT),
    ("DeiT-S_16", "imagenet2012-distilled", 224): (81.2, _DEIT),
    ("DeiT-B_16", "imagenet2012", 224): (81.8, _DEIT),
    ("DeiT-B_16", "imagenet2012", 384): (82.9, _DEIT),
    ("DeiT-B_16", "imagenet2012-distilled", 224): (83.4, _DEIT),
    ("DeiT-B_16", "imagenet2012-distilled", 384): (85.2, _DEIT),
    ("Swin-T", "imagenet2012", 224): (81.2, _SWIN),
    ("Swin-S", "imagenet2012", 224): (83.2, _SWIN),
    ("Swin-B", "imagenet22k+imagenet2012", 224): (85.2, _SWIN),
    ("Swin-B", "imagenet22k+imagenet2012", 384): (86.4, _SWIN),
    ("Swin-L", "imagenet22k+imagenet2012", 224): (86.3, _SWIN),
    ("Swin-L", "imagenet22k+imagenet2012", 384): (87.3, _SWIN),
    ("BiT-R152x4", "imagenet2012", 224): (81.30, _BIT),
    ("BiT-R152x4", "imagenet21k+imagenet2012", 480): (85.39, _BIT),
}
