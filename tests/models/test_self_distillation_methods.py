"""SelfDistillation with DINOv2's and DINOv3's terms: each against its definition in NumPy, and what they train.

The golden cases in tests/golden_ssl compare the functions of the losses with the original program.
"""

import json

import keras
import numpy as np
import pytest
from replica_process import start, wait

import keras_vit
from keras_vit import SelfDistillation
from keras_vit.models import self_distillation_parts as parts

SETTINGS = {
    **{"out_dim": 16, "hidden_dim": 24, "bottleneck_dim": 8},
    **{"warmup_temperature": 0.05, "teacher_temperature": 0.09, "warmup_epochs": 3},
}
MASKS = np.zeros((8, 4, 4), bool)  # of two crops of four images
MASKS[0, :2, 1:3], MASKS[3, 2:] = True, True  # four and eight patches


def make_crops(count):
    rng = np.random.default_rng(0)
    crops = {"global": (count, 2, 16, 16, 3), "local": (count, 3, 8, 8, 3)}
    return {name: rng.normal(size=shape).astype("float32") for name, shape in crops.items()}


def numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@pytest.fixture
def student(make_model):
    return keras_vit.resize(make_model(num_layers=1, patch_size=4), "any")


def make(student, method, **changes):
    model = SelfDistillation(student, method=method, **{**SETTINGS, "seed": 3, **changes})
    model.compile(keras.optimizers.SGD(0.1), epochs=4, steps_per_epoch=2)
    return model


def outputs(encoder, images, masks=None, token=None):
    """Features and patch tokens of an encoder, whose masked patch embeddings are `token`."""
    embeddings = encoder.get_layer("patch_encoder").output
    wanted = [encoder.get_layer(name).output for name in ("pooling", "encoder_norm")]
    values = keras.Model(encoder.input, embeddings)(images)
    if masks is not None:
        values = keras.ops.where(masks.reshape(len(images), -1, 1), keras.ops.convert_to_tensor(token), values)
    features, tokens = keras.Model([embeddings, encoder.input], wanted)([values, images])
    return numpy(features), numpy(tokens)[:, encoder.config.num_prefix_tokens :]


def sinkhorn(logits, temperature):
    rows = np.exp(logits.astype("float64") / temperature)
    for _ in range(3):
        rows /= rows.sum(0, keepdims=True)
        rows /= rows.sum(1, keepdims=True)
    return rows


def cross_entropy(targets, logits, temperature):
    return -(targets * np.log(softmax(logits.astype("float64") / temperature))).sum(-1)


def koleo(features):
    features = features / np.linalg.norm(features, axis=-1, keepdims=True)
    distances = [
        [np.linalg.norm(a - b) if i != j else np.inf for j, b in enumerate(features)] for i, a in enumerate(features)
    ]
    return -np.log(np.min(distances, axis=1)).mean()


def gram(own, wanted):
    own, wanted = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (own, wanted))
    return np.mean([((a @ a.T - b @ b.T) ** 2).mean() for a, b in zip(own, wanted, strict=True)])


@pytest.mark.parametrize("separate_heads", [False, True])
def test_terms_are_their_definitions(student, eagerly, monkeypatch, separate_heads):
    monkeypatch.setattr(parts, "draw_masks", lambda seeds, maps: keras.ops.convert_to_tensor(MASKS))
    model, rng = make(student, "dinov3", separate_heads=separate_heads), np.random.default_rng(0)
    for variable in model.student.trainable_variables:  # away from the teachers
        variable.assign(numpy(variable) + 0.05 * rng.normal(size=variable.shape))
    model.mask_token.assign(rng.normal(size=model.mask_token.shape))
    crops = make_crops(4)
    images = keras.ops.convert_to_tensor(crops["global"].reshape(-1, *crops["global"].shape[2:]))
    features, patches = outputs(model.student, images, MASKS, model.mask_token)
    taught, taught_patches = outputs(model.teacher, images)
    _, anchors = outputs(model.gram_teacher, images)

    found = model(crops, training=True)
    temperature, is_masked = SETTINGS["warmup_temperature"], MASKS.reshape(8, -1)
    targets = sinkhorn(numpy(model.teacher_head(taught)), temperature).reshape(4, 2, -1)
    np.testing.assert_allclose(numpy(found["teacher"]), targets, atol=1e-5)
    np.testing.assert_allclose(
        numpy(found["student"])[:, :2], numpy(model.student_head(features)).reshape(4, 2, -1), atol=1e-4
    )
    own, other = (
        numpy(head(rows[is_masked])) for head, rows in zip(model.patch_heads, (patches, taught_patches), strict=True)
    )
    weights = np.repeat(1 / np.maximum(is_masked.sum(1), 1), is_masked.sum(1))
    ibot = (weights * cross_entropy(sinkhorn(other, temperature), own, 0.1)).sum() / 8
    by_crop = features.reshape(4, 2, -1)
    expected = [0.1 * (koleo(by_crop[:, 0]) + koleo(by_crop[:, 1])), 2 * gram(patches, anchors), ibot]
    np.testing.assert_allclose(numpy(found["added"]), np.full(4, sum(expected)), rtol=1e-4)
    assert (model.patch_heads[0] is model.student_head) != separate_heads


def test_what_is_trained(student, eagerly):
    model, crops = make(student, "dinov3", separate_heads=True, freeze_epochs=0, teacher_momentum=0.5), make_crops(4)
    fixed = [numpy(variable) for variable in model.gram_teacher.variables]
    trained = [model.mask_token, *model.patch_heads[0].trainable_variables, *model.student_head.trainable_variables]
    before = [numpy(variable) for variable in trained]
    average = numpy(model.patch_heads[1].kernel)
    model.fit(crops, batch_size=4, epochs=1, verbose=0)
    assert all(np.abs(numpy(new) - old).max() > 0 for new, old in zip(trained, before, strict=True))
    for new, old in zip(model.gram_teacher.variables, fixed, strict=True):
        np.testing.assert_array_equal(numpy(new), old)
    expected = average + (1 - model._momenta[0]) * (numpy(model.patch_heads[0].kernel) - average)
    np.testing.assert_allclose(numpy(model.patch_heads[1].kernel), expected, atol=1e-6)
    assert not {id(x) for x in model.gram_teacher.variables} & {id(x) for x in model.trainable_variables}


def test_a_frozen_last_layer_and_centres(student, eagerly):
    model = make(student, "dinov2", separate_heads=True, centering="softmax", freeze_epochs=1)
    before = [numpy(head.kernel) for head in (model.student_head, model.patch_heads[0])]
    model.fit(make_crops(4), batch_size=4, epochs=1, verbose=0)
    for head, old in zip((model.student_head, model.patch_heads[0]), before, strict=True):
        np.testing.assert_array_equal(numpy(head.kernel), old)
    assert np.abs(numpy(model.center)).max() > 0 and np.abs(numpy(model.patch_center)).max() > 0
    none = make(student, "dinov2", patch_weight=0.0, koleo_weight=0.0)
    found = none(make_crops(2), training=True)
    assert found["student"].shape == (2, 5, 16) and not numpy(found["added"]).any()


def test_masks_are_drawn_anew_and_bounded():
    seeds, maps = keras.random.SeedGenerator(5), np.zeros((8, 6, 6, 1), "float32")
    first, second = (numpy(parts.draw_masks(seeds, maps)) for _ in range(2))
    assert (first != second).any()
    for masks in (first, second):
        counts = masks.sum((1, 2))
        assert (counts > 0).sum() <= 4 and counts.max() <= 18


def test_refused(student, make_model):
    with pytest.raises(ValueError, match="method must be one of 'dino', 'dinov2', 'dinov3'; got method='ibot'"):
        SelfDistillation(student, method="ibot")
    with pytest.raises(ValueError, match="koleo_weight must be a finite number of at least 0; got koleo_weight=-1"):
        SelfDistillation(student, koleo_weight=-1.0, **SETTINGS)
    swin = keras_vit.SwinTransformer(keras_vit.SwinConfig(name="s", image_size=32, patch_size=2, embed_dim=24,
        depths=(1,), num_heads=(2,), window_size=4, classes=3))  # fmt: skip
    with pytest.raises(ValueError, match="student must be a VisionTransformer without stem, token_merging"):
        SelfDistillation(swin, method="dinov2", **SETTINGS)
    dropping = make_model(embedding={"patch_drop_rate": 0.5})
    with pytest.raises(ValueError, match="token_merging and patch_drop_rate, and with norm_position='before_pooling'"):
        SelfDistillation(dropping, method="dinov2", **SETTINGS)
    with pytest.raises(ValueError, match="centering must be one of 'softmax', 'sinkhorn_knopp'; got centering='none'"):
        SelfDistillation(student, centering="none", **SETTINGS)


def test_the_teacher_follows_merged_lora(student, eagerly):
    keras_vit.add_lora(student, rank=2)
    given = keras_vit.merge_lora(student)
    model = make(student, "dinov3", freeze_epochs=0, teacher_momentum=0.5)
    assert [len(one.weights) for one in (model.teacher, model.gram_teacher)] == [len(given.weights)] * 2
    model.fit(make_crops(4), batch_size=4, epochs=1, verbose=0)
    merged = keras_vit.merge_lora(student)
    changed = 0
    for average, new, old in zip(model.teacher.weights, merged.weights, given.weights, strict=True):
        expected = numpy(old) + (1 - model._momenta[0]) * (numpy(new) - numpy(old))
        np.testing.assert_allclose(numpy(average), expected, atol=1e-6)
        changed += np.abs(numpy(new) - numpy(old)).max() > 0
    assert changed == 2  # qkv and proj of the only block
    for anchor, old in zip(model.gram_teacher.weights, given.weights, strict=True):
        np.testing.assert_array_equal(numpy(anchor), numpy(old))


def test_a_teacher_of_frozen_blocks_is_trainable(make_model, eagerly):
    student = keras_vit.resize(make_model(num_layers=2, patch_size=4), "any")
    keras_vit.freeze(student, "block_00")
    model, kernel = make(student, "dinov2", freeze_epochs=0), student.get_layer("block_00").attention.qkv.kernel
    before = numpy(kernel)
    model.fit(make_crops(4), batch_size=4, epochs=1, verbose=0)
    np.testing.assert_array_equal(numpy(kernel), before)
    assert len(model.teacher.trainable_variables) == len(model.teacher.weights) > len(student.trainable_variables)


def test_schedule_of_the_temperature(student):
    assert make(student, "dino")._temperatures == pytest.approx(np.repeat([0.05, 0.07, 0.09, 0.09], 2))  # per epoch
    assert make(student, "dinov2")._temperatures == pytest.approx([*np.linspace(0.05, 0.09, 6), 0.09, 0.09])


@pytest.mark.slow
def test_four_devices_of_jax_are_one(tmp_path):
    """Masks are equal, too, because a batch is one array on all devices."""
    pytest.importorskip("jax")
    file = tmp_path / "found.json"
    wait([start("self_distillation_devices.py", file, KERAS_BACKEND="jax")])
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found.keys() == {"dinov2", "dinov3"} and max(found.values()) < 1e-5, found
