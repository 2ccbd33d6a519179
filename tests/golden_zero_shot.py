"""How the golden cases of zero-shot classification are compared: tokens, the states of both towers, heads, logits."""

import re

import keras
import numpy as np
from golden_arrays import stored_in
from golden_configs import load_arguments

import keras_vit


def compare(folder, case, intermediate):
    """Compares a case; `intermediate(model, config, key)` is the output of the image tower that is stored as `key`."""
    arrays, tolerances = stored_in(folder / "io.npz"), case["tolerance"]["per_key_atol"]

    def check(key, value):
        value = keras.ops.convert_to_numpy(value).reshape(arrays[key].shape)
        np.testing.assert_allclose(value, arrays[key], atol=tolerances[key], rtol=0, err_msg=key)

    encoder = keras_vit.TextEncoder(folder)
    _compare_texts(encoder, case, arrays, check)
    model = keras_vit.load(folder, **load_arguments(case, True))
    others = ("images", "logit_scale", "logit_bias", "logits_float64", "image_embeds_l2", *_OF_CLASSES)
    seen = [key for key in arrays if key not in others and not re.search(r"text_|input_ids|attention_mask", key)]
    outputs = {key: model.output if key == "image_embeds" else intermediate(model, model.config, key) for key in seen}
    for key, value in keras.Model(model.input, outputs)(arrays["images"]).items():
        check(key, value)
    _compare_classifiers(model, encoder, case, arrays, check)


def _compare_texts(encoder, case, arrays, check):
    prompts = [template.replace("{}", name) for name in case["classes"] for template in case["templates"]]
    ids = encoder.tokenize(case["prompts"])
    np.testing.assert_array_equal(ids, arrays["input_ids"])
    np.testing.assert_array_equal(encoder.tokenize(prompts), arrays["template_input_ids"])
    np.testing.assert_allclose(encoder.logit_scale, arrays["logit_scale"].item(), rtol=1e-6)
    assert (encoder.logit_bias is not None) == ("logit_bias" in arrays)
    if encoder.logit_bias is not None:
        np.testing.assert_allclose(encoder.logit_bias, arrays["logit_bias"].item(), rtol=1e-6)
    tower, rows = encoder.tower, case["token_rows"]
    is_token = arrays["attention_mask"] > 0 if encoder.config.causal else np.ones_like(ids, bool)
    states = {f"text_layer_{index}": f"block_{index:02d}" for index in range(encoder.config.num_layers)}
    states |= {"text_after_embeddings": "position_embs", "text_final_norm": "encoder_norm"}
    # transformers pools after the projection of SigLIP
    pooled = "pooling" if "text_projected" in arrays else "projection"
    states |= {"text_pooled": pooled, **({"text_projected": "projection"} if pooled == "pooling" else {})}
    assert set(states) == {key for key in arrays if key.startswith("text_")} - {"text_embeds_l2"}
    found = keras.Model(tower.input, {key: tower.get_layer(name).output for key, name in states.items()})({"ids": ids})
    for key, value in found.items():
        value = keras.ops.convert_to_numpy(value)
        check(key, value if value.ndim == 2 else value[rows] * is_token[rows][..., None])
    check("text_embeds_l2", encoder.embed(case["prompts"]))
    check("template_embeds_l2", encoder.embed(prompts))


def _compare_classifiers(model, encoder, case, arrays, check):
    """With the prompts themselves as classes, and with classes in templates."""
    images = arrays["images"]
    scale, bias = np.exp(arrays["logit_scale"].item()), arrays.get("logit_bias", np.zeros(1)).item()
    of_prompts = keras_vit.zero_shot(model, [f"prompt {n}" for n in range(len(case["prompts"]))], **_arrays(arrays))
    assert encoder.config.projection_dim == arrays["text_embeds_l2"].shape[1]
    logits = keras.ops.convert_to_numpy(of_prompts(images))
    for key in ("logits", "logits_per_image"):
        check(key, logits)
    atol = case["tolerance"]["logits_atol"]
    np.testing.assert_allclose(logits, arrays["logits_float64"], atol=atol, rtol=0)
    features = keras.Model(of_prompts.input, of_prompts.get_layer("normalization").output)
    check("image_embeds_l2", features(images))
    activation = "sigmoid" if "logit_bias" in arrays else "softmax"
    check("probs", getattr(keras.ops, activation)(logits))
    for text in (None, model.weights_path.parent, encoder):
        built = keras_vit.zero_shot(model, case["classes"], templates=case["templates"], text=text)
        kernel, *biases = built.get_layer("head").get_weights()
        check("class_weights", kernel.T / scale)
        np.testing.assert_allclose(biases, [np.full(len(case["classes"]), bias)] * len(biases), rtol=1e-6)
        check("class_logits", built(images))
    given = {"templates": case["templates"], "classifier_activation": activation}
    check("class_probs", keras_vit.zero_shot(model, case["classes"], text=encoder, **given)(images))


def _arrays(arrays):
    """The text embeddings of the prompts as the caller's own."""
    bias = {"bias": arrays["logit_bias"].item()} if "logit_bias" in arrays else {}
    return {"text": arrays["text_embeds_l2"], "scale": float(np.exp(arrays["logit_scale"].item())), **bias}


_OF_CLASSES = (
    "logits",
    "logits_per_image",
    "probs",
    "template_embeds_l2",
    "class_weights",
    "class_logits",
    "class_probs",
)
