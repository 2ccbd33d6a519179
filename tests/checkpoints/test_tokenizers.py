"""tokenizer_of: the token ids of transformers for the two files of a CLIP; test_text_towers.py has tokenizer.json."""

import json
import shutil

import pytest
from clip_vocabulary import IDS, PAD, write_vocabulary
from conftest import TESTS

from keras_vit.checkpoints.tokenizers import tokenizer_of

tokenizers = pytest.importorskip("tokenizers", reason="needs the extra [text]")


@pytest.mark.parametrize(("stated", "column"), [({}, 0), (PAD, 1), ({"pad_token": {"content": "!"}}, 1)])
def test_the_ids_are_those_of_transformers(tmp_path, stated, column):
    encode = tokenizer_of(write_vocabulary(tmp_path, **stated))
    assert encode([*IDS]) == [ids[column] for ids in IDS.values()]
    assert encode([]) == []


def test_texts_are_neither_cut_nor_padded(tmp_path):
    """tokenizer.json of CLIP may state both."""
    shutil.copy(TESTS / "golden" / "zeroshot_clip_hf" / "tokenizer.json", tmp_path)
    expected = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    expected.no_truncation()
    expected.no_padding()
    values = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    values["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(values), "utf-8")
    texts = ["a", "a photo of a fire truck"]
    assert tokenizer_of(tmp_path)(texts) == [expected.encode(text).ids for text in texts]


def test_a_folder_without_a_tokenizer(tmp_path):
    assert tokenizer_of(tmp_path) is None
    (write_vocabulary(tmp_path) / "merges.txt").unlink()
    assert tokenizer_of(tmp_path) is None


def test_a_vocabulary_without_the_end_token(tmp_path):
    write_vocabulary(tmp_path)
    words = json.loads((tmp_path / "vocab.json").read_text("utf-8"))
    del words["<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps(words), "utf-8")
    with pytest.raises(ValueError, match="must be a tokenizer of Hugging Face"):
        tokenizer_of(tmp_path)(["a cat"])
