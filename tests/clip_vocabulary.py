"""A small made vocabulary of a CLIP, and the token ids that transformers 5.24.0 gives for some texts."""

import json
import shutil

from conftest import TESTS

PAD = {"pad_token": "!"}  # as the published files of OWL state
_MERGES = ["c a", "ca t</w>", "d o", "do g</w>", "' s</w>"]
_LETTERS = [*"!'acdghost", "Ã", "©"]
_WORDS = [*_LETTERS, *(f"{letter}</w>" for letter in _LETTERS), *(merge.replace(" ", "") for merge in _MERGES)]
START, END = len(_WORDS), len(_WORDS) + 1
# CLIPTokenizer.from_pretrained(folder)(text)["input_ids"], without and with PAD
IDS = {
    "a cat": ([29, 14, 25, 30], [29, 14, 25, 30]),
    "  The\tDog's\n\ncats ": ([29, 9, 6, 30, 27, 28, 24, 9, 20, 30], [29, 9, 6, 30, 27, 28, 24, 9, 20, 30]),
    "": ([29, 30], [29, 30]),
    "a!!": ([29, 14, 0, 12, 30], [29, 14, 0, 0, 30]),
    "É": ([29, 10, 23, 30], [29, 10, 23, 30]),
    "cat<|endoftext|>dog": ([29, 25, 30, 27, 30], [29, 25, 30, 27, 30]),
}


def copy_with_vocabulary(case, folder):
    """Copy a golden case with a text tower, OWL's or CLIPSeg's; add the vocabulary and state its end token."""
    shutil.copytree(TESTS / "golden_tasks" / case, folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["text_config"]["eos_token_id"] = END
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return write_vocabulary(folder, **PAD)


def write_vocabulary(folder, **stated):
    """Write vocab.json, merges.txt and, if anything is stated, special_tokens_map.json."""
    words = [*_WORDS, "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words)}), "utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *_MERGES, ""]), "utf-8")
    if stated:
        (folder / "special_tokens_map.json").write_text(json.dumps(stated), "utf-8")
    return folder
