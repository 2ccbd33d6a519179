"""An array of a file belongs to one variable, and each variable has its own array, in every layout."""

import numpy as np
import pytest
from file_shapes import file_of, resolved

import keras_vit
from keras_vit.checkpoints import names


def test_the_distillation_token_is_no_register(make_kind, save_foreign, logits_of, tmp_path):
    source = make_kind("distilled", 1, gelu="erf")
    for layout in ("huggingface", "timm"):
        path = tmp_path / f"{layout}.safetensors"
        save_foreign(source, path, layout)
        for arguments in ({}, {"distilled": True}):
            model = keras_vit.load(path, num_heads=2, epsilon=source.config.epsilon, **arguments)
            assert (model.config.distilled, model.config.num_registers) == (True, 0)
            np.testing.assert_allclose(logits_of(model), logits_of(source), atol=1e-6, err_msg=layout)


def test_a_published_variant_is_distilled_by_an_argument():
    for layout in ("huggingface", "timm"):
        config, description = file_of("DeiT-Ti_16", layout, distilled=True)
        for arguments in ({}, {"distilled": True}):
            built, table, _ = resolved(description, "DeiT-Ti_16", arguments)
            assert (built, table.name) == (config.replace(dtype=built.dtype), "DeiT-Ti_16")


def test_an_array_for_two_variables_is_refused(make_kind, make_model, refused, arrays, tmp_path):
    teacher = tmp_path / "a.safetensors"
    keras_vit.save_weights(make_kind("distilled"), teacher, "huggingface")
    both = make_model(distilled=True, num_registers=1)
    with pytest.raises(ValueError, match=r"! embeddings.distillation_token is used 2 times: class_token/class_token, "):
        keras_vit.load_weights(both, teacher)
    lines = refused(arrays, make_model(position_placement="every"))
    assert "  ! Transformer/posembed_input/pos_embedding is used 2 times: position_embs/embedding, " in "\n".join(lines)


def test_no_layout_uses_an_array_twice(make_model, monkeypatch, tmp_path):
    """As if a table of names had one name for two variables of one shape."""
    model, find_rule = make_model(seed=1), names.find_rule
    files = {layout: tmp_path / f"{layout}.safetensors" for layout in ("timm", "huggingface", "original")}
    files = {"official": tmp_path / "a.npz", **files}
    for layout, path in files.items():
        keras_vit.save_weights(model, path, layout)
    monkeypatch.setattr(
        names, "find_rule", lambda of, path, *rest: find_rule(of, path.replace("norm2", "norm1"), *rest)
    )
    for path in files.values():
        with pytest.raises(ValueError, match="is used 2 times: block_00/norm1/gamma, block_00/norm2/gamma"):
            keras_vit.load_weights(make_model(), path)
