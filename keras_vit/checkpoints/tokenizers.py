"""Read the tokenizer of a text tower: the tokenizer.json of its repository, by Hugging Face's tokenizers library."""

import contextlib
import re
import string

import numpy as np

from keras_vit import checks
from keras_vit.checkpoints.readers import json_beside
from keras_vit.versions import import_optional, install_command

TOKENIZER = "tokenizer.json"
SETTINGS = ("special_tokens_map.json", "tokenizer_config.json")  # the second has precedence
MAX_BYTES = 64 * 2**20  # of tokenizer.json; that of SigLIP 2 has 34 MB

_CLEANINGS = (None, "siglip", "canonicalize", "lower")
_SIDES = ("truncation_side", "padding_side")


def read_tokenizer(folder, context_length, cleaning):
    """Return a function from a list of strings to their token ids, int32 (texts, context_length).

    Texts are cut to the context, with the special tokens that tokenizer.json adds, and padded with the `pad_token` that
    the other files state, or the `eos_token`.

    Args:
        folder: `pathlib.Path` of the folder with tokenizer.json.
        context_length: number of tokens of every text.
        cleaning: what is done to texts first, unless tokenizer.json does it. `lower`: lower case; `canonicalize`, as
            OpenCLIP: lower case, blanks for underscores, no ASCII punctuation, one blank for white space, none at the
            ends; `siglip`, as transformers: `lower` for the Gemma tokenizer of SigLIP 2, else `canonicalize` that
            deletes underscores; None: nothing.

    Raises:
        ImportError: if tokenizers is not installed.
        FileNotFoundError: if there is no tokenizer.json.
        ValueError: if a file is too large or is not what its name says, or no token for padding is stated.
    """
    checks.check_choice("cleaning", cleaning, _CLEANINGS)
    tokenizers = import_optional("tokenizers", f"a text tower needs tokenizers: {install_command('text')}")
    path = folder / TOKENIZER
    if not path.is_file():
        raise FileNotFoundError(
            f"{str(folder)!r} must hold {TOKENIZER} for its text tower; it does not (text='hf://org/repo' downloads it)"
        )
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{str(path)!r} must not exceed {MAX_BYTES} bytes; got {path.stat().st_size}")
    with _explained(f"{str(path)!r} must be a tokenizer of Hugging Face"):
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    stated = {}
    for name in SETTINGS:
        stated |= json_beside(path, name) or {}
    pad = stated.get("pad_token") or stated.get("eos_token")
    pad = pad.get("content") if isinstance(pad, dict) else pad
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
        _clean(tokenizer, tokenizers, cleaning)
        tokenizer.enable_truncation(context_length, direction=sides["truncation_side"])
        tokenizer.enable_padding(direction=sides["padding_side"], pad_id=pad_id, pad_token=pad, length=context_length)

    def ids_of(text):
        with _explained(f"{str(path)!r} cannot encode the text {checks.quoted(text)} to {context_length} tokens"):
            return np.array(tokenizer.encode(text).ids, "int32").reshape(context_length)

    def encode(texts):
        # One by one: encode_batch starts threads, and the library then warns of every fork of the process.
        return np.array([ids_of(text) for text in texts], "int32")

    return encode


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
