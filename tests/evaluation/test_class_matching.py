"""match_classes: which way is taken, and what is refused."""

import pytest

from keras_vit.checkpoints.releases.release import label_set, wordnet_ids
from keras_vit.evaluation.class_matching import match_classes

LABELS = ("tabby, tabby cat", "Great White_shark", "crane", "crane", "volley-ball")


def test_wordnet_ids_come_first():
    labels = label_set("imagenet2012")
    names = ("0007_n01514668", "n01484850", "0000_n01440764 tench")
    assert match_classes(names, labels, 1000) == ((7, 2, 0), "by WordNet id")
    assert match_classes(wordnet_ids(labels), labels, 1000) == (tuple(range(1000)), "by WordNet id")


def test_names_whatever_their_case_spaces_and_synonym():
    names = ("Volley_Ball", "tabby cat", "GREAT  white-shark")
    assert match_classes(names, LABELS, 5) == ((4, 0, 1), "by name")
    assert match_classes(("tabby, tabby cat",), LABELS, 5) == ((0,), "by name")
    assert match_classes(("mouser, TABBY",), LABELS, 5) == ((0,), "by name")


def test_the_same_list_in_the_same_order_may_have_a_name_twice():
    assert match_classes(LABELS, LABELS, 5) == ((0, 1, 2, 3, 4), "by name")
    imagenet = label_set("imagenet2012")
    assert match_classes(imagenet, imagenet, 1000) == (tuple(range(1000)), "by name")


def test_a_whole_label_goes_before_a_synonym():
    assert match_classes(("cat",), ("dog, cat", "cat"), 2) == ((1,), "by name")


def test_leading_indices_come_after_names():
    assert match_classes(("0003_x", "1", "2 y"), LABELS, 5) == ((3, 1, 2), "by leading index")
    assert match_classes(("1", "0"), ("0", "1"), 2) == ((1, 0), "by name")
    assert match_classes(("10", "02"), None, 11) == ((10, 2), "by leading index")
    assert match_classes(("2", "0"), None, 10) == ((2, 0), "by leading index")
    assert match_classes(("2", "0"), ["cat"] * 11, 11) == ((2, 0), "by leading index")


def test_without_labels_the_order_is_used_where_no_index_contradicts_it():
    order = "in order, as the model has no labels"
    assert match_classes(("cat", "dog"), None, 2) == ((0, 1), order)
    assert match_classes(("1", "10", "2"), None, 3) == ((0, 1, 2), order)
    assert match_classes(tuple(map(str, range(12))), None, 12) == (tuple(range(12)), "by leading index")


def test_an_index_that_another_order_contradicts_is_refused():
    """Models trained on folders have their order, in which 10 is before 2; others have that of the numbers."""
    folders = sorted(f"{n}_years" for n in range(12))
    for names in (folders, sorted(map(str, range(12))), sorted(map(str, range(43))), ("1", "0")):
        with pytest.raises(ValueError, match=rf"no names, in one way; .* range\({len(names)}\)\] if logit n is"):
            match_classes(tuple(names), None, len(names))
    with pytest.raises(ValueError, match="in one way"):
        match_classes(("10", "2"), None, 12)
    assert match_classes(folders, folders, 12) == (tuple(range(12)), "by name")
    assert match_classes(folders, [str(n) for n in range(12)], 12)[0] == tuple(int(x.split("_")[0]) for x in folders)
    with pytest.raises(ValueError, match="11 of 12 do not: '1', '10', '11', '2', '3', ...; 1 match by leading index"):
        match_classes(sorted(map(str, range(12))), folders, 12)  # the labels say that logit 2 is class 11


def test_what_does_not_match_is_named():
    refused = [
        (("tabby", "zebra"), LABELS, "the model's labels.*; 1 of 2 do not: 'zebra'; 1 match by name"),
        (("tabby", "tabby cat"), LABELS, "2 of 2 do not: 'tabby', 'tabby cat'$"),
        (("crane",), LABELS, "1 of 1 do not: 'crane'$"),
        (tuple("abcdefg"), LABELS, "7 of 7 do not: 'a', 'b', 'c', 'd', 'e', ...$"),
        (("5_x",), LABELS, "1 of 1 do not: '5_x'"),
        (("3d printer",), LABELS, "1 of 1 do not: '3d printer'"),
        (("0_x", "0_y", "1_z"), LABELS, "2 of 3 do not: '0_x', '0_y'; 1 match by leading index"),
        (("cat", "dog"), None, "the model's 5 classes, which have no names, by WordNet id"),
        (
            ("n99999999", "n01484850"),
            label_set("imagenet2012"),
            "1 of 2 do not: 'n99999999'; 1 match by WordNet id",
        ),
    ]
    for names, labels, message in refused:
        with pytest.raises(ValueError, match=f"class names must match {message}|class names .*{message}"):
            print(message, match_classes(names, labels, 5 if labels is None else len(labels)))
