"""The decoder in files of masked autoencoders: what they state of it and of the training."""

import json

from keras_vit.checkpoints import names
from keras_vit.checkpoints.architecture import shown_variables
from keras_vit.checkpoints.description import Description
from keras_vit.config import DecoderConfig

KEY = "keras_vit_autoencoder"  # in the metadata of .safetensors: the settings as JSON
FAMILY = DecoderConfig.family
_HEADS, _RATIO, _NORM = "decoder_num_attention_heads", "mask_ratio", "norm_pix_loss"
_SIZES = {
    "hidden_dim": "decoder_hidden_size",
    "num_layers": "decoder_num_hidden_layers",
    "num_heads": _HEADS,
    "mlp_dim": "decoder_intermediate_size",
}  # field of `DecoderConfig` -> key of the config.json of transformers


def describe_decoder(checkpoint):
    """Return the `Description` of the decoder in an open `Checkpoint`, and the settings that the file shows.

    The settings are `decoder`, a dict of fields, and `mask_ratio` and `norm_pixels` if the file states them.

    Raises:
        ValueError: if the file has no decoder, or its arrays are not those of one.
    """
    path, config = repr(str(checkpoint.path)), checkpoint.config or {}
    layout = names.LAYOUTS[FAMILY].get(names.detect(checkpoint.entries, FAMILY))
    if layout is None:
        raise ValueError(f"{path} must hold the decoder of a masked autoencoder; keras_vit.load reads an encoder alone")
    entries = names.fold_entries(checkpoint.path, checkpoint.entries, layout)
    found = shown_variables(layout, entries)
    hidden = found.get("decoder_block_0/mlp/dense1/kernel")
    if hidden is None or len(hidden) != 2:
        raise ValueError(f"{path} must hold the MLP of the first block of its decoder; it has {sorted(entries)[:3]}")
    blocks = {name.partition("/")[0] for name in found if name.startswith("decoder_block_")}
    decoder = {"hidden_dim": hidden[0], "num_layers": len(blocks), "mlp_dim": hidden[1]}
    decoder |= {"num_heads": config[_HEADS]} if _HEADS in config else {}
    settings = {"norm_pixels": config.get(_NORM, False)} if config.get("model_type") == "vit_mae" else {}
    settings |= {"mask_ratio": config[_RATIO]} if _RATIO in config else {}
    try:
        ours = json.loads(checkpoint.metadata.get(KEY, "{}"))
        settings |= {name: ours[name] for name in ("mask_ratio", "norm_pixels") if name in ours}
        decoder |= {"num_heads": ours["decoder"]["num_heads"]} if "decoder" in ours else {}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"the metadata {KEY!r} of {path} must be what save_weights writes; got {error!r}") from None
    empty = {"usual": {}, "shown": (), "heads": set(), "pre_logits": set(), "classes": None}
    about = {"family": FAMILY, "layout": layout.library, "names": layout, "entries": entries}
    return Description(checkpoint=checkpoint, representation_size=None, **about, **empty), settings | {
        "decoder": decoder
    }


def config_values(settings):
    """Return the keys of config.json that describe the `settings` of a `MaskedAutoencoder`."""
    sizes = {key: settings["decoder"][field] for field, key in _SIZES.items()}
    return {**sizes, _RATIO: settings["mask_ratio"], _NORM: settings["norm_pixels"]}
