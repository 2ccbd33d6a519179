"""Texts of OWL and CLIPSeg: strings give the embeddings of their token ids."""

import numpy as np
import pytest
from clip_vocabulary import IDS, copy_with_vocabulary
from conftest import TESTS
from faults import for_each

import keras_vit

pytest.importorskip("tokenizers", reason="needs the extra [text]")

TEXTS = [text for text, (ids, _) in IDS.items() if len(ids) < 10]  # the context of these models has 9 tokens


@pytest.fixture(scope="module", params=["owlv2", "clipseg_text"])
def model(request, tmp_path_factory):
    return keras_vit.load(copy_with_vocabulary(request.param, tmp_path_factory.mktemp("texts") / "folder"))


def test_strings_are_embedded_as_their_ids(model):
    ids = np.zeros((len(TEXTS), 9), "int32")
    for row, text in zip(ids, TEXTS, strict=True):
        row[: len(IDS[text][1])] = IDS[text][1]
    expected = np.array(model.embed_text(ids))
    assert len(TEXTS) > 3 and len(np.unique(expected.round(4), axis=0)) == len(TEXTS)
    for texts in (TEXTS, tuple(TEXTS), np.array(TEXTS), np.array(TEXTS, object)):
        np.testing.assert_array_equal(model.embed_text(texts), expected)
    np.testing.assert_allclose(model.embed_text([TEXTS, TEXTS[::-1]]), [expected, expected[::-1]], atol=2e-6)
    np.testing.assert_allclose(model.embed_text(TEXTS[0]), expected[:1], atol=2e-6)


def test_padding_is_not_attended(model):
    """The processor of CLIPSeg pads with the end token and a mask, that of OWL with 0."""
    ids = np.full((1, 9), 30)
    ids[0, :4] = IDS["a cat"][1]
    expected = np.array(model.embed_text("a cat"))
    np.testing.assert_allclose(model.embed_text(ids), expected, atol=2e-6)
    np.testing.assert_array_equal(model.embed_text(ids, np.arange(9)[None] < 4), expected)


@for_each(
    "texts, mask, message",
    [
        (["a cat", "cat " * 8], None, "texts must have at most 9 tokens, with those of start and end; got 10 for 'cat"),
        (["a cat"], [[1, 1]], r"attention_mask must be None for strings; got \[\[1, 1\]\]"),
        (["a cat", 3], None, r"texts must be strings, or integers \(texts, tokens\)"),
        ([], None, r"texts must be strings, or integers .*; got float.* of shape \(0,\)"),
    ],
)
def test_errors(model, texts, mask, message):
    with pytest.raises(ValueError, match=message):
        model.embed_text(texts, mask)


def test_a_folder_without_a_tokenizer():
    model = keras_vit.load(TESTS / "golden_tasks" / "owlv2")
    assert model.tokenizer is None
    with pytest.raises(ValueError, match=r"tokenizer.json, or vocab.json and merges.txt\); got \['a cat'\]"):
        model.embed_text(["a cat"])
