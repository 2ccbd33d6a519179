"""Published accuracies: of files that there are, within what is possible, and larger images do better."""

import collections

from keras_vit.checkpoints.releases import list_releases


def test_only_heads_for_imagenet_have_one():
    known = [release for release in list_releases() if release.top1 or release.top1_source]
    assert {release.data_set for release in known} == {"imagenet2012"}
    assert all(70 < release.top1 < 90 and release.top1_source for release in known)
    assert len(known) == 37


def test_larger_images_do_better():
    by_model = collections.defaultdict(list)
    for release in sorted(list_releases(), key=lambda release: release.image_size):
        if release.top1:
            by_model[release.model, release.alias].append(release.top1)
    pairs = [tops for tops in by_model.values() if len(tops) > 1]
    assert len(pairs) >= 6
    assert all(small < large for small, large in pairs)


def test_distillation_helps():
    """The distilled ones are ahead of their like."""
    tops = {(r.model, r.image_size, r.alias): r.top1 for r in list_releases("DeiT-B_16")}
    assert tops["DeiT-B_16", 384, "imagenet2012-distilled"] == 85.2
    assert all(
        tops["DeiT-B_16", size, "imagenet2012"] < tops["DeiT-B_16", size, "imagenet2012-distilled"]
        for size in (224, 384)
    )
