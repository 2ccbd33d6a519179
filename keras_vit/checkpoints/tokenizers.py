"""Read the tokenizer of a text tower: the tokenizer.json of its repository, by Hugging Face's tokenizers library."""

import contextlib
import functools
import re
import string

import numpy as np

from keras_vit import checks
from keras_vit.checkpoints.hub import cached_address, fetch_repository
from keras_vit.checkpoints.readers import json_beside
from keras_vit.versions import import_optional, install_command

TOKENIZER = "tokenizer.json"
SETTINGS = ("special_tokens_map.json", "tokenizer_config.json")  # the second has precedence
MAX_BYTES = 64 * 2**20  # of one file; tokenizer.json of SigLIP 2 has 34 MB

_CLEANINGS = (None, "siglip", "canonicalize", "lower")
_SIDES = ("truncation_side", "padding_side")
_OF_CLIP = ("vocab.json", "merges.txt")
# Start and end of a text, and what a word is, for CLIP (openai/CLIP, simple_tokenizer.py)
_START, _END = "<|startoftext|>", "<|endoftext|>"
_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def read_tokenizer(folder, context_length, cleaning):
    """Return a function from a list of strings to their token ids, int32 (texts, context_length).

    Texts are cut to the context, with the special tokens that tokenizer.json adds, and padded with the `pad_token` that
    the other files state, or the `eos_token`.

    Args:
        folder: `pathlib.Path` of the folder with tokenizer.json, or with the vocab.json and merges.txt of a CLIP.
        context_length: number of tokens of every text.
        cleaning: what is done to texts first, unless tokenizer.json does it. `lower`: lower case; `canonicalize`, as
            OpenCLIP: lower case, blanks for underscores, no ASCII punctuation, one blank for white space, none at the
            ends; `siglip`, as transformers: `lower` for the Gemma tokenizer of SigLIP 2, else `canonicalize` that
            deletes underscores; None: nothing.

    Raises:
        ImportError: if tokenizers is not installed.
        FileNotFoundError: if there is no tokenizer.
        ValueError: if a file is too large or is not what its name says, or no token for padding is stated.
    """
    checks.check_choice("cleaning", cleaning, _CLEANINGS)
    path = folder / TOKENIZER
    tokenizer, library, stated = _opened(folder)
    pad = _content(stated.get("pad_token") or stated.get("eos_token"))
    pad_id = tokenizer.token_to_id(pad) if isinstance(pad, str) else None
    if pad_id is None:
        files = " or ".join(SETTINGS)
        raise ValueError(
            f"{files} of {str(folder)!r} must name a pad_token that {TOKENIZER} has; got {checks.quoted(pad)}"
        )
    sides = {key: checks.check_choice(key, stated.get(key, "right"), ("right", "left")) for key in _SIDES}
    if cleaning == "siglip" and re.search("Gemma|Siglip2", str(stated.get("tokenizer_class"))):
        cleaning = "lower"
    with _explained(f"{str(path)!r} must be a tokenizer for {context_length} tokens"):
        _clean(tokenizer, library, cleaning)
        tokenizer.enable_truncation(context_length, direction=sides["truncation_side"])
        tokenizer.enable_padding(direction=sides["padding_side"], pad_id=pad_id, pad_token=pad, length=context_length)

    def ids_of(text):
        with _explained(f"{str(path)!r} cannot encode the text {checks.quoted(text)} to {context_length} tokens"):
            return np.array(tokenizer.encode(text).ids, "int32").reshape(context_length)

    def encode(texts):
        # One by one: encode_batch starts threads, and the library then warns of every fork of the process.
        return np.array([ids_of(text) for text in texts], "int32")

    return encode


def tokenizer_of(folder):
    """Return a function from a list of strings to lists of token ids, neither padded nor cut.

    The first call reads the tokenizer, and downloads it if the folder is one of the hub's cache.

    Args:
        folder: as in `read_tokenizer`; None is returned if it is no folder of the cache and has no tokenizer.
    """
    address = None if _has_tokenizer(folder) else cached_address(folder)
    if address is None and not _has_tokenizer(folder):
        return None

    @functools.cache
    def read():
        files = dict.fromkeys((TOKENIZER, *_OF_CLIP, *SETTINGS), MAX_BYTES)
        tokenizer, *_ = _opened(folder if address is None else fetch_repository(address, beside=files))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def encode(texts):
        tokenizer = read()
        with _explained(f"the tokenizer of {str(folder)!r} cannot encode {checks.quoted(texts)}"):
            return [tokenizer.encode(text).ids for text in texts]

    return encode


def _has_tokenizer(folder):
    return (folder / TOKENIZER).is_file() or all((folder / name).is_file() for name in _OF_CLIP)


def _opened(folder):
    """Return the tokenizer in a folder, Hugging Face's library, and a dict of what the other files state."""
    library = import_optional("tokenizers", f"a text tower needs tokenizers: {install_command('text')}")
    if not _has_tokenizer(folder):
        raise FileNotFoundError(
            f"{str(folder)!r} must hold {TOKENIZER}, or {' and '.join(_OF_CLIP)}, for its text tower; it does not "
            "(text='hf://org/repo' downloads it)"
        )
    paths = [folder / name for name in ((TOKENIZER,) if (folder / TOKENIZER).is_file() else _OF_CLIP)]
    for path in paths:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"{str(path)!r} must not exceed {MAX_BYTES} bytes; got {path.stat().st_size}")
    stated = {}
    for name in SETTINGS:
        stated |= json_beside(paths[0], name) or {}
    with _explained(f"{str(paths[0])!r} must be a tokenizer of Hugging Face"):
        if len(paths) == 1:
            return library.Tokenizer.from_file(str(paths[0])), library, stated
        return _of_clip(library, *map(str, paths), _content(stated.get("pad_token"))), library, stated


def _of_clip(library, vocabulary, merges, pad):
    """Return the tokenizer of a CLIP, as transformers makes it of its two files and the token for padding, or None."""
    split, normal = library.pre_tokenizers, library.normalizers
    tokenizer = library.Tokenizer(
        library.models.BPE.from_file(vocabulary, merges, unk_token=_END, end_of_word_suffix="</w>")
    )
    marks = [(mark, tokenizer.token_to_id(mark)) for mark in (_END, _START)]
    if None in dict(marks).values():
        raise ValueError(f"{_START} and {_END} must be in the vocabulary")
    tokenizer.normalizer = normal.Sequence(
        [normal.NFC(), normal.Replace(library.Regex(r"\s+"), " "), normal.Lowercase()]
    )
    tokenizer.pre_tokenizer = split.Sequence(
        [split.Split(library.Regex(_WORDS), "removed", invert=True), split.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.post_processor = library.processors.RobertaProcessing(*marks, trim_offsets=False, add_prefix_space=False)
    tokenizer.add_special_tokens([_START, _END, *([pad] if pad else [])])  # OWL's is "!", also inside a text
    return tokenizer


def _content(token):
    return token.get("content") if isinstance(token, dict) else token


@contextlib.contextmanager
def _explained(expectation):
    """Convert the errors of the library to `ValueError`; a panic of its Rust code is a BaseException."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # the library raises Exception itself
        raise ValueError(f"{expectation}: {checks.shortened(str(error))}") from error


def _clean(tokenizer, library, cleaning):
    """Put the cleaning in front of the normalizer of a tokenizer, except for what this does already."""
    own = tokenizer.normalizer
    probe = "A,B" if own is None else own.normalize_str("A,B")
    steps = [library.normalizers.Lowercase()] if cleaning is not None and "A" in probe else []
    if cleaning in ("siglip", "canonicalize") and "," in probe:
        replaced = {"_": " "} if cleaning == "canonicalize" else {}
        replaced |= {f"[{re.escape(string.punctuation)}]": "", r"\s+": " "}
        steps += [library.normalizers.Replace(library.Regex(key), value) for key, value in replaced.items()]
        steps.append(library.normalizers.Strip())
    if steps:
        tokenizer.normalizer = library.normalizers.Sequence(steps + ([] if own is None else [own]))
