"""Label sets: names and WordNet ids of published heads."""

import pytest
from faults import for_each

from keras_vit.checkpoints.releases import release as labels

# index -> (WordNet id, name), of ILSVRC 2012 in sorted order; looked up by hand
KNOWN = {
    0: ("n01440764", "tench"),
    285: ("n02124075", "Egyptian cat"),
    872: ("n04485082", "tripod"),
    967: ("n07920052", "espresso"),
    999: ("n15075141", "toilet tissue"),
}


def test_imagenet2012_names_and_ids_stand_in_the_order_of_the_logits():
    names = labels.label_set("imagenet2012")
    ids = labels.wordnet_ids(names)
    assert {index: (ids[index], names[index]) for index in KNOWN} == KNOWN
    assert len(names) == len(ids) == len(set(ids)) == 1000
    assert list(ids) == sorted(ids)
    assert all(name == name.strip() and name for name in names)
    assert [index for index, name in enumerate(names) if name in ("crane", "maillot")] == [134, 517, 638, 639]


def test_file_is_read_once():
    assert labels.label_set("imagenet2012")[0] is labels.label_set("imagenet2012")[0]


def test_imagenet21k_is_known_but_has_no_names():
    assert labels.label_set("imagenet21k") is None


@for_each("name", ["imagenet", "", None, "imagenet2012.tsv"])
def test_unknown_label_set_is_refused_with_the_choices(name):
    with pytest.raises(ValueError, match=r"name must be one of 'imagenet2012', 'imagenet21k'; got"):
        labels.label_set(name)


def test_wordnet_ids_take_a_list_as_well_as_a_tuple():
    assert labels.wordnet_ids(list(labels.label_set("imagenet2012")))[285] == "n02124075"


def test_wordnet_ids_of_other_labels_are_none():
    names = labels.label_set("imagenet2012")
    swapped = (names[1], names[0], *names[2:])
    for other in (None, (), names[:-1], swapped, (*names, "none of these"), ("cat", "dog")):
        assert labels.wordnet_ids(other) is None
