"""The decoder in files of masked autoencoders: what they state of it and of the training."""

import json

from keras_vit.checkpoints import names
from keras_vit.checkpoints.config_keys import KEYS, checked
from keras_vit.checkpoints.evidence import Evidence
from keras_vit.checkpoints.shown import Variables
from keras_vit.config import DecoderConfig

KEY = "keras_vit_autoencoder"  # in the metadata of .safetensors: the settings as JSON
NETWORK = DecoderConfig.network
_TRAINING = ("mask_ratio", "norm_pixels")  # settings of a `MaskedAutoencoder` that are no sizes of its decoder


def read_decoder(checkpoint):
    """Return the `Evidence` of the decoder in an open `Checkpoint`, and the settings that the file shows.

    The settings are `decoder`, a dict of fields, and `mask_ratio` and `norm_pixels` if the file states them.

    Raises:
        ValueError: if the file has no decoder.
    """
    path, config = repr(str(checkpoint.path)), checkpoint.config_json or {}
    layout = names.detect(checkpoint.entries, NETWORK)
    if layout is None:
        raise ValueError(f"{path} must hold the decoder of a masked autoencoder; keras_vit.load reads an encoder alone")
    entries, _ = names.fold_entries(checkpoint.path, checkpoint.entries, layout)
    config = {"norm_pix_loss": False, **config} if config.get("model_type") == "vit_mae" else config
    sizes, _ = checked(config, KEYS["decoder"])
    try:
        ours = json.loads(checkpoint.metadata.get(KEY, "{}"))
        sizes |= {name: ours[name] for name in _TRAINING if name in ours} | ours.get("decoder", {})
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"the metadata {KEY!r} of {path} must be what save_weights writes; got {error!r}") from None
    settings = {name: sizes.pop(name) for name in _TRAINING if name in sizes}
    found = Variables(layout, entries)
    sizes |= zip(("hidden_dim", "mlp_dim"), found.get("decoder_block_0/mlp/dense1/kernel", ()), strict=False)
    sizes["num_layers"] = max(len({name.partition("/")[0] for name in found if name.startswith("decoder_block_")}), 1)
    about = {"network": NETWORK, "layout": layout, "entries": entries}
    return Evidence(checkpoint=checkpoint, **about), {**settings, "decoder": sizes}


def config_values(settings):
    """Return the keys of config.json that describe the `settings` of a `MaskedAutoencoder`."""
    values = {**settings, **settings["decoder"]}
    return {key: values[field] for key, (field, _) in KEYS["decoder"].items()}
