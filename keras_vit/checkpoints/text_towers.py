"""Read the text tower of a CLIP or SigLIP from the file of its checkpoint."""

import re

from keras_vit import checks
from keras_vit.checkpoints import names
from keras_vit.checkpoints.config_json import HF_TYPES, named, openclip_fields
from keras_vit.checkpoints.config_keys import KEYS, checked
from keras_vit.checkpoints.load import read_ahead
from keras_vit.checkpoints.match import plan_equal
from keras_vit.checkpoints.names.rules import TEXT_LAYOUTS
from keras_vit.checkpoints.readers import open_checkpoint
from keras_vit.checkpoints.shown import Variables
from keras_vit.compat.initial_values import build_deferred, initialise
from keras_vit.config.text import TextConfig
from keras_vit.logs import LOGGER
from keras_vit.models.text import text_tower

# size -> our variable whose shape shows it, and the axis
_SIZES = {
    "vocab_size": ("token_embedding/embeddings", 0),
    "hidden_dim": ("token_embedding/embeddings", 1),
    "context_length": ("position_embs/embedding", 1),
    "mlp_dim": ("block_0/mlp/dense1/kernel", 1),
    "projection_dim": ("projection/kernel", 1),
}


def read_text_tower(path):
    """Build the text tower in a file, with its weights; the image tower is not read.

    Args:
        path: a folder with `config.json` and `model.safetensors` or with OpenCLIP's files, or the weights file in it.

    Returns:
        Tuple of its `TextConfig`; the model, see `text_tower`; the natural logarithm of the factor of the cosine
        similarities, or None; the number that SigLIP adds to the logits, or None; and how texts are cleaned, see
        `read_tokenizer`.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it holds no text tower of a known layout, arrays are missing, unexpected or of other shapes than
            stated, or the JSON file is absent or states what is not supported.
    """
    checkpoint = open_checkpoint(path)
    arrays, values, name = checkpoint.entries, checkpoint.config_json, repr(str(checkpoint.path))
    marks = {key: [x for x in arrays if re.search(one.marker, names.fold(one, x))] for key, one in TEXT_LAYOUTS.items()}
    layout = next((TEXT_LAYOUTS[key] for key, found in marks.items() if found), None)
    if layout is None or values is None:
        problem = "no token embedding" if layout is None else "no config.json or open_clip_config.json beside it"
        raise ValueError(f"{name} must hold the text tower of a CLIP or SigLIP of transformers or OpenCLIP; {problem}")
    entries, _ = names.fold_entries(checkpoint.path, arrays, layout)
    scale, bias = (_scalar(entries.pop(key, None), name) for key in ("logit_scale", "logit_bias"))
    with named(f"the text tower of {name}"):
        stated, cleaning = (_openclip if "model_cfg" in values else huggingface_text)(values)
        sizes = _sizes(layout, entries)
        for key, size in sizes.items():
            if stated.get(key, size) != size:
                raise ValueError(f"{key} must be {size}, as the arrays show; got {stated[key]}")
        config = TextConfig(**{**stated, **sizes})
    tower, pending = build_deferred(lambda: text_tower(config))
    reads = plan_equal(tower, config, checkpoint.path, layout, entries)
    initialise(pending, read_ahead(reads, [id(variable) for variable in pending]))
    return config, tower, scale, bias, cleaning


def _scalar(entry, path):
    """Return the number in an array of shape () or (1,); None without one."""
    if entry is None:
        return None
    if entry.shape not in ((), (1,)) or not entry.is_floating:
        raise ValueError(f"{entry.name} of {path} must be one number; got {entry.dtype} of shape {entry.shape}")
    return checks.check_number(entry.name, float(entry.read().reshape(())), "number below 50", lambda x: abs(x) < 50)


def _sizes(layout, entries):
    """Return the sizes of a text tower that the shapes of its arrays show."""
    shown = {path.replace("@biased", ""): shape for path, shape in Variables(layout, entries).items()}
    missing = dict.fromkeys(path for path, _ in _SIZES.values() if len(shown.get(path, ())) < 2)
    if missing:
        raise ValueError(f"it must have matrices for {', '.join(missing)}")
    sizes = {name: shown[path][axis] for name, (path, axis) in _SIZES.items()}
    return sizes | {"num_layers": len({match[0] for path in shown if (match := re.match(r"block_\d+/", path))})}


def huggingface_text(values):
    """Return the fields of `TextConfig` that a config.json states, and how texts are cleaned, see `read_tokenizer`.

    Args:
        values: config.json of a text tower, or of a model with one as its part `text_config`.

    Raises:
        ValueError: if it states another model type, or what is not supported.
    """
    own = "_text_model"
    known = [name for name, row in HF_TYPES.items() if row["network"] == "text"]
    model_type = f"{values.get('model_type')}".removesuffix(own)
    checks.check_choice("model_type", model_type, [name.removesuffix(own) for name in known])
    row = HF_TYPES[model_type + own]
    parts = (values.get("text_config") or {}, values.get("text_config_dict") or {})  # files of 2022 have both
    text = values if values["model_type"].endswith(own) else {**parts[0], **parts[1]}
    text = {**row["defaults"], **{key: value for key, value in text.items() if value is not None}}
    fields, unread = checked(text, KEYS["text"])
    if unread:
        LOGGER.info("text_config also has %s, which keras_vit does not read", checks.shortened(", ".join(unread)))
    end = fields.pop("end_token", None)
    # The published files of OpenAI state 2, which is not the id of their last token; transformers then takes the
    # highest id.
    fields["end_token"] = None if end == 2 or row["config"]["pooling"] == "last" else end
    return {**fields, **row["config"]}, "siglip" if row["config"]["pooling"] == "last" else None


def _openclip(values):
    """Return the fields of `TextConfig` that an open_clip_config.json states, and the cleaning."""
    model = values["model_cfg"]
    text = {"context_length": 77, "vocab_size": 49408, "width": 512, "heads": 8, "layers": 12, **model["text_cfg"]}
    text = {key: value for key, value in text.items() if value is not None}
    fields = openclip_fields(model, {"pool_type": "argmax", "proj_bias": False, **text}, "text_cfg")
    fields["causal"] = not fields.pop("is_bidirectional", False)
    end = fields.pop("end_token", 2)
    fields["end_token"] = end if text.get("pool_type") == "eos" else None
    words = text.get("tokenizer_kwargs", {})
    if set(words) - {"clean"}:
        raise ValueError(f"tokenizer_kwargs may only have clean; got {words}")
    return fields, words.get("clean")
