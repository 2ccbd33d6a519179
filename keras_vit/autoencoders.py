"""load_masked_autoencoder: build the masked autoencoder that a file holds, encoder and decoder."""

from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints.decoder import read_decoder
from keras_vit.checkpoints.load import read_ahead
from keras_vit.checkpoints.locate import fetch, locate
from keras_vit.checkpoints.match import make_plan
from keras_vit.checkpoints.readers import open_checkpoint
from keras_vit.compat.initial_values import build_deferred, initialise
from keras_vit.config import DecoderConfig
from keras_vit.config.base import ARGUMENTS
from keras_vit.logs import LOGGER
from keras_vit.models import MaskedAutoencoder
from keras_vit.typing import PathLike
from keras_vit.zoo import load


def load_masked_autoencoder(
    source: PathLike,
    *,
    decoder: DecoderConfig | Mapping[str, Any] | None = None,
    mask_ratio: float | None = None,
    norm_pixels: bool | None = None,
    seed: int | None = None,
    name: str | None = None,
    **arguments: Any,
) -> MaskedAutoencoder:
    """Build the masked autoencoder that a file or repository holds.

    It has the weights of encoder and decoder. `keras_vit.load` builds the encoder alone, also from files that have a
    decoder. `save_weights` writes the files.

    Args:
        source: as in `keras_vit.load`: a folder of transformers' `ViTMAEForPreTraining`, such as
            `"facebook/vit-mae-base"`, or a `.safetensors` file with the names of facebookresearch/mae.
            `keras.models.load_model` reads a `.keras` file of a `MaskedAutoencoder`.
        decoder: `DecoderConfig`, or a dict of fields that take precedence over the file. Arrays show all of them but
            `num_heads`, which is 16 if the file does not state it.
        mask_ratio, norm_pixels, seed, name: as in `MaskedAutoencoder`; None uses the value that the file states, or the
            default.
        **arguments: as in `keras_vit.load`, for the encoder, such as `num_heads` and `epsilon`.

    Returns:
        A `MaskedAutoencoder`; `encoder` is its encoder.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file has no decoder, is damaged or a pickle, or an array is missing, unexpected or of another
            shape; also as `keras_vit.load`.
    """
    given = {"mask_ratio": mask_ratio, "norm_pixels": norm_pixels, "seed": seed, "name": name}
    evidence, settings = read_decoder(open_checkpoint(fetch(locate(source))))
    sizes = decoder.to_dict() if isinstance(decoder, DecoderConfig) else decoder or {}
    settings["decoder"] = ARGUMENTS["decoder"]("decoder", {**settings["decoder"], **sizes})
    settings |= {argument: value for argument, value in given.items() if value is not None}
    if evidence.checkpoint.config_json is None:  # names and shapes are also those of other families
        arguments = {"variant": "mae", **arguments}
    encoder = load(source, **arguments)
    model, pending = build_deferred(lambda: MaskedAutoencoder(encoder, **settings))
    plan = make_plan(model.get_layer("decoder"), evidence)
    initialise(pending, read_ahead(plan.values, [id(variable) for variable in pending if id(variable) in plan.values]))
    LOGGER.info(f"Its decoder: {len(plan.report.used)} arrays, {model.decoder}, norm_pixels={model.norm_pixels}")
    return model
