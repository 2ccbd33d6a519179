"""A small made vocabulary of a CLIP, and the token ids that transformers 5.24.0 gives for some texts."""

import json

PAD = {"pad_token": "!"}  # as the published files of OWL state
_MERGES = ["c a", "ca t</w>", "d o", "do g</w>", "' s</w>"]
_LETTERS = [*"!'acdghost", "Ã", "©"]
_WORDS = [*_LETTERS, *(f"{letter}</w>" for letter in _LETTERS), *(merge.replace(" ", "") for merge in _MERGES)]
START, END = len(_WORDS), len(_WORDS) + 1
# CLIPTokenizer.from_pretrained(folder)(text)["input_ids"], without and with PAD
IDS = {
    "a cat": ([29, 14, 25, 30], [29, 14, 25, 30]),
    "  The\tDog's\n\ncats ": ([29, 9, 6, 30, 27, 28, 24, 9, 18, 30], [29, 9, 6, 30, 27, 28, 24, 9, 18, 30]),
    "": ([29, 30], [29, 30]),
    "a!!": ([29, 14, 0, 12, 30], [29, 14, 0, 0, 30]),
    "É": ([29, 10, 23, 30], [29, 10, 23, 30]),
    "cat<|endoftext|>dog": ([29, 25, 30, 27, 30], [29, 25, 30, 27, 30]),
}


def write_vocabulary(folder, **stated):
    """Write vocab.json, merges.txt and, if anything is stated, special_tokens_map.json."""
    words = [*_WORDS, "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words)}), "utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *_MERGES, ""]), "utf-8")
    if stated:
        (folder / "special_tokens_map.json").write_text(json.dumps(stated), "utf-8")
    return folder
