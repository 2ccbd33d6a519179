"""Text towers and their tokenizers: tokens as in transformers, OpenCLIP's files, and what is refused.

The golden cases `zeroshot_*` compare the towers with transformers.
"""

import json
import pathlib
import re
import shutil
import sys

import keras
import numpy as np
import pytest
import safetensors.numpy
from faults import for_each

from keras_vit import TextEncoder
from keras_vit.checkpoints import tokenizers as readers
from keras_vit.versions import install_command

pytest.importorskip("tokenizers", reason="needs the extra [text]")

TESTS = pathlib.Path(__file__).parents[1]
CLIP, SIGLIP = TESTS / "golden" / "zeroshot_clip_hf", TESTS / "golden" / "zeroshot_siglip_hf"


@pytest.fixture(scope="module")
def encoders():
    return {folder: TextEncoder(folder) for folder in (CLIP, SIGLIP)}


@pytest.fixture
def folder(tmp_path):
    """Function that copies a golden folder, changes values of its JSON files, and returns the copy."""

    def copy(source, arrays=None, left_out=(), **changes):
        for file in source.iterdir():
            if file.name not in ("io.npz", "case.json", *left_out):
                shutil.copy(file, tmp_path)
        for name, values in changes.items():
            path = tmp_path / f"{name}.json"
            path.write_text(json.dumps(_merged(json.loads(path.read_text()), values)))
        if arrays is not None:
            safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
        return tmp_path

    return copy


def _merged(values, changes):
    for name, value in changes.items():
        values[name] = _merged(values[name], value) if isinstance(value, dict) and name in values else value
    return values


def arrays_of(source):
    return safetensors.numpy.load_file(source / "model.safetensors")


@pytest.mark.parametrize("source", [CLIP, SIGLIP], ids=["clip", "siglip"])
def test_200_strings_have_the_ids_of_transformers(encoders, source):
    stored = json.loads((TESTS / "token_ids.json").read_text())
    assert len(stored["texts"]) == 200
    np.testing.assert_array_equal(encoders[source].tokenize(stored["texts"]), stored[source.name])


def test_no_texts(encoders):
    assert encoders[CLIP].tokenize([]).size == 0
    with pytest.raises(ValueError, match="texts must have at least one string"):
        encoders[CLIP].embed([])


@for_each("texts", ["a cat", [b"a cat"], [3], None])
def test_what_is_no_list_of_strings(encoders, texts):
    with pytest.raises(ValueError, match=r"texts(\[0\])? must be a "):
        encoders[CLIP].tokenize(texts)


@pytest.mark.parametrize("source", [CLIP, SIGLIP], ids=["clip", "siglip"])
def test_many_texts_are_embedded_as_few(encoders, source):
    """Two batches, compiled; CLIP leaves out the padding after the longest text."""
    texts = [f"a {number} <|endoftext|> and more" if number == 63 else f"{number} birds" for number in range(70)]
    found = encoders[source].embed(texts)
    np.testing.assert_allclose(found[60:], encoders[source].embed(texts[60:]), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_another_end_token_is_pooled_at_its_first_place(folder, encoders):
    space = encoders[CLIP].tokenize(["a b c"])[0, 2]  # the id of "b"
    encoder = TextEncoder(folder(CLIP, config={"text_config": {"eos_token_id": int(space)}}))
    assert encoder.config.end_token == space
    ids = encoder.tokenize(["a b c", "c a b b"])
    tower = encoder.tower
    norm, pooled = keras.Model(tower.input, [tower.get_layer(n).output for n in ("encoder_norm", "pooling")])(
        {"ids": ids}
    )
    for row, place in enumerate((2, 3)):
        np.testing.assert_array_equal(pooled[row], norm[row, place])


def test_a_config_that_leaves_out_what_is_usual(folder, encoders):
    """transformers' defaults: 8 heads, QuickGELU, 1e-5; here 5 heads must be stated."""
    path = folder(CLIP) / "config.json"
    values = json.loads(path.read_text())
    values["text_config"] = {"num_attention_heads": 5, "eos_token_id": 2, "model_type": "clip_text_model"}
    path.write_text(json.dumps(values))
    np.testing.assert_array_equal(TextEncoder(path.parent).embed(["a cat"]), encoders[CLIP].embed(["a cat"]))


@pytest.mark.parametrize("source", [CLIP, SIGLIP], ids=["clip", "siglip"])
def test_openclip_files(tmp_path, encoders, source):
    """The same arrays under OpenCLIP's names. Measured against open_clip 3.3.0 itself: 3e-7, logits 5e-6."""
    arrays, config = arrays_of(source), encoders[source].config
    start, prefix = "text_model.encoder.layers.", "" if source == CLIP else "text."
    theirs = {
        "token_embedding.weight": arrays["text_model.embeddings.token_embedding.weight"],
        "positional_embedding": arrays["text_model.embeddings.position_embedding.weight"],
        **{f"ln_final.{end}": arrays[f"text_model.final_layer_norm.{end}"] for end in ("weight", "bias")},
    }
    for block in range(config.num_layers):
        for end in ("weight", "bias"):
            ours = {name: arrays[f"{start}{block}.{name}.{end}"] for name in _OPENCLIP_PARTS}
            qkv = [arrays[f"{start}{block}.self_attn.{name}_proj.{end}"] for name in "qkv"]
            theirs |= {f"transformer.resblocks.{block}.{_OPENCLIP_PARTS[name]}.{end}": ours[name] for name in ours}
            theirs[f"transformer.resblocks.{block}.attn.in_proj_{end}"] = np.concatenate(qkv)
    model = {"embed_dim": config.projection_dim, "vision_cfg": {}, "text_cfg": {"width": config.hidden_dim}}
    model["text_cfg"] |= {"heads": config.num_heads, "layers": config.num_layers, "vocab_size": config.vocab_size}
    model["text_cfg"]["context_length"] = config.context_length
    if source == CLIP:
        theirs["text_projection"] = np.ascontiguousarray(arrays["text_projection.weight"].T)
        model["quick_gelu"] = True
    else:
        theirs |= {f"text_projection.{end}": arrays[f"text_model.head.{end}"] for end in ("weight", "bias")}
        model["text_cfg"] |= {"no_causal_mask": True, "proj_bias": True, "pool_type": "last"}
        model["text_cfg"] |= {"norm_kwargs": {"eps": 1e-6}, "act_kwargs": {"approximate": "tanh"}}
        model["text_cfg"]["tokenizer_kwargs"] = {"clean": "canonicalize"}
    theirs = {prefix + name: array for name, array in theirs.items()}
    theirs |= {"logit_scale": arrays["logit_scale"].reshape(()), "visual.proj": np.zeros((3, 3), "float32")}
    safetensors.numpy.save_file(theirs, tmp_path / "open_clip_model.safetensors")
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": model}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, tmp_path)
    encoder = TextEncoder(tmp_path)
    assert encoder.config == config
    np.testing.assert_array_equal(
        encoder.embed(["a photo of a cat", ""]), encoders[source].embed(["a photo of a cat", ""])
    )


_OPENCLIP_PARTS = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "self_attn.out_proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}


@pytest.mark.parametrize(
    ("tokenizer_class", "cleaned"),
    [("SiglipTokenizer", "A Photo, of_a: DOG!"), ("GemmaTokenizer", "a photo, of_a: dog!")],
)
def test_texts_of_siglip_are_cleaned_where_tokenizer_json_does_not(folder, encoders, tokenizer_class, cleaned):
    """SigLIP 1 loses its punctuation, SigLIP 2 does not; both are changed to lower case."""
    source = folder(SIGLIP, tokenizer={"normalizer": None}, tokenizer_config={"tokenizer_class": tokenizer_class})
    found = TextEncoder(source).tokenize(["  A Photo,  of_a: DOG! "])
    if tokenizer_class == "SiglipTokenizer":
        expected = encoders[SIGLIP].tokenize([cleaned])
    else:
        plain = readers.read_tokenizer(source, 16, None)
        expected = plain(["  a photo,  of_a: dog! "])
        assert (expected != encoders[SIGLIP].tokenize([cleaned])).any()
    np.testing.assert_array_equal(found, expected)


def test_openclip_makes_blanks_of_underscores(folder):
    source = folder(SIGLIP, tokenizer={"normalizer": None})
    encode = readers.read_tokenizer(source, 16, "canonicalize")
    np.testing.assert_array_equal(encode(["A_b"]), encode(["a b"]))
    keeps = readers.read_tokenizer(source, 16, "siglip")
    np.testing.assert_array_equal(keeps(["A_b"]), keeps(["ab"]))


@for_each(
    ("changes", "message"),
    [
        ({"config": {"model_type": "tipsv2"}}, "model_type must be one of .*'clip', 'siglip', 'siglip2'"),
        ({"config": {"text_config": {"num_attention_heads": 3}}}, "hidden_dim must be divisible by num_heads"),
        ({"config": {"text_config": {"hidden_act": "relu"}}}, "hidden_act must be one of"),
        ({"config": {"text_config": {"max_position_embeddings": 77}}}, "context_length must be 24, as the arrays show"),
        ({"config": {"text_config": {"num_hidden_layers": 999}}}, "num_layers must be 2, as the arrays show"),
        ({"config": {"text_config": {"eos_token_id": [1]}}}, "eos_token_id must be an integer"),
        ({"config": {"text_config": {"layer_norm_eps": "1"}}}, "layer_norm_eps must be"),
        ({"config": {"text_config": {"layer_norm_eps": 1e308}}}, "layer_norm_eps must be"),
        ({"config": {"text_config": 3}}, "its structure is invalid"),
        ({"tokenizer_config": {"pad_token": "<pad>"}}, "must name a pad_token that tokenizer.json has; got '<pad>'"),
        ({"tokenizer_config": {"padding_side": "up"}}, "padding_side must be one of 'right', 'left'"),
        ({"tokenizer": {"model": 3}}, "must be a tokenizer of Hugging Face"),
    ],
)
def test_refused_json(folder, changes, message):
    with pytest.raises(ValueError, match=message):
        TextEncoder(folder(CLIP, **changes))


def test_every_error_of_the_library_is_a_value_error(folder, encoders):
    """A panic of its Rust code is no `Exception`; the library raises the base class, or TypeError."""
    with pytest.raises(ValueError, match=r"cannot encode the text '\\ud800' to 24 tokens: "):
        encoders[CLIP].tokenize(["a cat", "\ud800"])
    greedy = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}
    word = {"type": "WordLevel", "vocab": {"a": 0, "<|endoftext|>": 1}, "unk_token": "[UNK]"}
    template = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}], "pair": []}
    many = {"X": {"id": "X", "ids": [1] * 30, "tokens": ["X"] * 30}}
    single = [{"SpecialToken": {"id": "X", "type_id": 0}}, *template["single"]]
    for changes in (
        {"normalizer": greedy},
        {"model": word, "post_processor": None},
        {"post_processor": {**template, "single": single, "special_tokens": many}},
    ):
        path = folder(CLIP) / "tokenizer.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        with pytest.raises(ValueError, match=r"tokenizer\.json' (cannot encode the text|must be a tokenizer for 24)"):
            readers.read_tokenizer(path.parent, 24, None)(["a" * 40 + "b"])


def test_refused_arrays(folder):
    arrays, config = arrays_of(CLIP), {"text_config": {}}
    name = "text_model.encoder.layers.1.mlp.fc1.bias"
    for changes, message in (
        ({name: None}, f"missing .*{name[11:]}"),
        ({"text_model.more.weight": np.zeros(3, "float32")}, "extra more.weight"),
        ({name: np.zeros(3, "float32")}, r"shape \(3,\), the model needs \(80,\)"),
        (
            {"text_model.embeddings.position_embedding.weight": None},
            "it must have matrices for position_embs/embedding",
        ),
        ({"text_model.embeddings.token_embedding.weight": None}, "no token embedding"),
        ({"logit_scale": np.zeros(2, "float32")}, "logit_scale of .* must be one number"),
        ({"logit_scale": np.full((), 80, "float32")}, "logit_scale must be a number below 50"),
    ):
        changed = {key: value for key, value in {**arrays, **changes}.items() if value is not None}
        with pytest.raises(ValueError, match=message):
            TextEncoder(folder(CLIP, changed, config=config))
    smaller = {"text_model.embeddings.token_embedding.weight": np.zeros((500, 40), "float32")}
    encoder = TextEncoder(folder(CLIP, {**arrays, **smaller}, config={"text_config": {"vocab_size": 500}}))
    with pytest.raises(ValueError, match="vocabulary of 500 tokens; its tokenizer.json gives the id 573"):
        encoder.embed(["a cat"])
    bare = folder(CLIP)
    (bare / "config.json").unlink()
    with pytest.raises(ValueError, match="no config.json"):
        TextEncoder(bare)


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_a_missing_file(folder, name):
    with pytest.raises(FileNotFoundError, match=f"must hold {name}"):
        TextEncoder(folder(CLIP, left_out=[name]))


def test_without_tokenizers(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=f"needs tokenizers: {re.escape(install_command('text'))}$"):
        TextEncoder(CLIP)


def test_a_tokenizer_that_is_too_large(folder, monkeypatch):
    monkeypatch.setattr(readers, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="must not exceed 1000 bytes"):
        TextEncoder(folder(CLIP))
