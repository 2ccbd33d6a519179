"""Published accuracies: of files that there are, within what is possible, and larger images do better."""

import collections

from keras_vit.checkpoints.releases import list_releases, tables
from keras_vit.checkpoints.releases.tables import published_accuracy


def test_each_is_of_one_release():
    keys = [(release.model, release.alias, release.image_size) for release in list_releases()]
    assert [key for key in tables._ACCURACIES if keys.count(key) != 1] == []


def test_only_heads_for_imagenet_have_one():
    known = [release for release in list_releases() if published_accuracy(release)]
    assert {release.data_set for release in known} == {"imagenet2012"}
    assert all(70 < published_accuracy(release).top1 < 90 and published_accuracy(release).source for release in known)
    assert len(known) == len(tables._ACCURACIES) > 30


def test_larger_images_do_better():
    by_model = collections.defaultdict(list)
    for release in sorted(list_releases(), key=lambda release: release.image_size):
        if found := published_accuracy(release):
            by_model[release.model, release.alias].append(found.top1)
    pairs = [tops for tops in by_model.values() if len(tops) > 1]
    assert len(pairs) >= 6
    assert all(small < large for small, large in pairs)


def test_distillation_helps():
    """The distilled ones are ahead of their like."""
    tops = {(r.model, r.image_size, r.alias): published_accuracy(r).top1 for r in list_releases("DeiT-B_16")}
    assert tops["DeiT-B_16", 384, "imagenet2012-distilled"] == 85.2
    assert all(
        tops["DeiT-B_16", size, "imagenet2012"] < tops["DeiT-B_16", size, "imagenet2012-distilled"]
        for size in (224, 384)
    )
