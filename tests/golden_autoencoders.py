"""How the golden cases of masked autoencoders are compared: with the noise of the case, and written back."""

import json
import pathlib
import tempfile

import keras
import numpy as np
import safetensors.numpy
from golden_arrays import stored_in
from golden_configs import load_arguments

import keras_vit


def compare_autoencoder(folder, case):
    """Compare every stored array of a case, then the arrays and the config.json that are written back."""
    is_folder = (folder / "config.json").exists()
    source, arguments = folder if is_folder else folder / case["params_file"], load_arguments(case, is_folder)
    if not is_folder:
        arguments |= {"norm_pixels": case["norm_pix_loss"], "mask_ratio": case["mask_ratio"]}
        arguments["decoder"] = {"num_heads": case["config"]["decoder_num_heads"]}
        del arguments["block"]  # the family of MAE states it
    model = keras_vit.load_masked_autoencoder(source, **arguments)
    assert (model.settings["mask_ratio"], model.settings["norm_pixels"]) == (case["mask_ratio"], case["norm_pix_loss"])
    arrays = stored_in(folder / "io.npz")
    found = _outputs(model, arrays["images"], arrays["noise"])
    for key in arrays:
        if key not in ("images", "noise", "logits_float64"):
            value = keras.ops.convert_to_numpy(found[key]).reshape(arrays[key].shape)
            tolerance = case["tolerance"]["logits_atol" if key == "logits" else "per_key_atol"]
            tolerance = tolerance if key == "logits" else tolerance.get(key, 5e-5)
            np.testing.assert_allclose(value, arrays[key], atol=tolerance, rtol=0, err_msg=key)
    _compare_written(model, source, folder / case["params_file"], is_folder)


def _outputs(model, images, noise):
    """Return {key of a case: array}; the keys of both libraries, whichever the case has."""
    encoder, (rows, columns) = model.encoder, model.encoder.config.grid_size
    embedded = keras.Model(model.input, encoder.get_layer("position_embs").output)(images)
    tokens, ranks, places = model.get_layer("visible")(embedded, keras.ops.convert_to_tensor(noise))
    found = {"after_embeddings": tokens, "ids_restore": ranks}
    for index in range(encoder.config.num_layers):
        tokens = encoder.get_layer(f"block_{index:02d}")(tokens)
        found[f"layer_{index}"] = found[f"block_{index}"] = tokens
    found["layernorm"] = found["norm"] = tokens = encoder.get_layer("encoder_norm")(tokens)
    np.testing.assert_array_equal(tokens, model.get_layer("encode")(found["after_embeddings"]))
    decoder, every = model.get_layer("decoder"), np.tile(np.arange(rows * columns, dtype="int32"), (len(images), 1))
    every = keras.ops.convert_to_tensor(every)
    inside = {"decoder_embed": "decoder_embed", "decoder_norm": "decoder_norm"}
    for index in range(model.decoder.num_layers):
        inside |= {f"decoder_{kind}_{index}": f"decoder_block_{index:02d}" for kind in ("layer", "block")}
    outputs = {key: decoder.get_layer(name).output for key, name in inside.items()}
    found |= keras.Model(decoder.inputs, {**outputs, "logits": decoder.output})([tokens, ranks, every])
    mask = np.zeros(noise.shape)
    np.put_along_axis(mask, keras.ops.convert_to_numpy(places), 1.0, axis=1)
    assert mask.sum() == mask.size - len(images) * (found["after_embeddings"].shape[1] - 1)
    found["target"] = model._targets(images)
    y_pred = {"places": places, "predictions": decoder([tokens, ranks, places])}
    model.compile("sgd")
    return {**found, "mask": mask, "loss": model.compute_loss(images, None, y_pred)}


def _compare_written(model, source, file, is_folder):
    """Every array of the file has the same name and bytes after `save_weights`, and the copy has the same settings."""
    written = pathlib.Path(tempfile.mkdtemp(), "written" if is_folder else "written.safetensors")
    keras_vit.save_weights(model, written, "huggingface" if is_folder else "original")
    ours = safetensors.numpy.load_file(written / "model.safetensors" if is_folder else written)
    theirs = safetensors.numpy.load_file(file)
    assert set(ours) == set(theirs)
    for name, array in ours.items():
        assert array.shape == theirs[name].shape and array.tobytes() == theirs[name].tobytes(), name
    if is_folder:
        values, stated = (json.loads((path / "config.json").read_text()) for path in (written, source))
        assert {key: values[key] for key in values if key in stated} == {
            key: stated[key] for key in values if key in stated
        }
        assert {key for key in stated if key.startswith(("decoder_", "mask_", "norm_"))} <= set(values)
    again = keras_vit.load_masked_autoencoder(written)
    assert again.settings == model.settings and again.encoder.config == model.encoder.config
    for copied, weight in zip(again.weights, model.weights, strict=True):
        if "seed" not in weight.path:
            np.testing.assert_array_equal(copied, weight)
