"""Models that merge tokens: the weights and files of those that do not, and their answers where alike tokens merge."""

import keras
import numpy as np
import pytest
from slow_rows import slow_after

import keras_vit
from keras_vit import VisionTransformer
from keras_vit.analysis import attention_model, attention_rollout, attention_weights, mean_attention_distance
from keras_vit.analysis import rollout_model as make_rollout_model
from keras_vit.compat.graph import owned_variables
from keras_vit.layers.token_merging import MergingTransformerBlock
from keras_vit.models import feature_extractor

MERGING = {"token_merging": 3, "num_layers": 3}


def pair(make_model, **changes):
    """Two models of equal weights: one that merges, one that does not."""
    merging = make_model(**{**MERGING, **changes})
    plain = make_model(**{**MERGING, **changes, "token_merging": 0})
    return merging, plain


def in_fours(images):
    """Images in which every row of 4 x 4 patches has one patch four times."""
    rows = images[:, :, :4]
    return np.concatenate([rows] * 4, axis=2)


@pytest.mark.parametrize(
    "changes",
    slow_after(
        3,
        [
            {},
            {"token_merging": 3},
            {"pooling": "gap", "class_token": True, "num_registers": 2},
            {"pooling": "unpooled", "qk_norm": True},
            {"pooling": "gap", "norm_position": "after_pooling"},
            {"pooling": "map"},
            {"distilled": True},
        ],
    ),
    ids=str,
)
def test_tokens_that_are_equal_merge_without_a_trace(changes, make_model, images, run):
    """Of four equal tokens, two blocks of three, or of eight and then four, merge none that differ."""
    merging, plain = pair(make_model, **{"token_merging": 8, "num_layers": 2, "position_embedding": "none", **changes})
    expected = run(plain, in_fours(images))
    np.testing.assert_allclose(run(merging, in_fours(images)), expected, atol=1e-4, rtol=1e-4)
    assert np.abs(run(merging, images) - run(plain, images)).max() > 1e-3  # other tokens do leave a trace


def test_no_merging_is_the_plain_model(make_model):
    model = make_model(token_merging=0)
    assert not [layer for layer in model.layers if isinstance(layer, MergingTransformerBlock)]
    assert "unmerging" not in [layer.name for layer in model.layers]


def test_weights_have_the_names_of_the_plain_model(make_model):
    merging, plain = pair(make_model)
    assert [weight.path for weight in merging.weights] == [weight.path for weight in plain.weights]
    stored = [[owned.stored_name for owned in owned_variables(model)] for model in (merging, plain)]
    assert stored[0] == stored[1]


@pytest.mark.parametrize("name", slow_after(1, ["file.weights.h5", "file.npz", "file.safetensors"]))
def test_weights_move_both_ways(name, make_model, make_config, tmp_path):
    merging, plain = pair(make_model)
    for source in (merging, plain):
        path = tmp_path / f"{source.config.token_merging}{name}"
        source.save_weights(path) if name.endswith("h5") else keras_vit.save_weights(
            source, path, "official" if name.endswith("npz") else "huggingface"
        )
        changes = {**MERGING, "token_merging": 3 - source.config.token_merging}
        target = VisionTransformer(make_config(**changes))
        target.load_weights(path) if name.endswith("h5") else keras_vit.load_weights(target, path)
        for old, new in zip(source.weights, target.weights, strict=True):
            np.testing.assert_array_equal(old, new, err_msg=old.path)


@pytest.mark.slow
def test_training_changes_every_weight_alike_with_and_without_recomputing(make_model, images):
    steps = []
    for remat in (None, "attention", "block"):
        model = make_model(token_merging=3, remat=remat)
        before = {weight.path: keras.ops.convert_to_numpy(weight) for weight in model.weights}
        model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.train_on_batch(images, np.arange(6) % 5)
        assert [weight.path for weight in model.weights if np.array_equal(weight, before[weight.path])] == []
        steps.append(model.get_weights())
    for values in zip(*steps, strict=True):
        for again in values[1:]:
            np.testing.assert_allclose(values[0], again, atol=1e-5)


def test_saved_and_copied_models_give_equal_outputs(make_model, images, run, tmp_path):
    model = make_model(**MERGING)
    model.save(tmp_path / "model.keras")
    expected = run(model, images)
    for again in (keras.models.load_model(tmp_path / "model.keras"), keras_vit.clone(model)):
        assert again.config == model.config
        np.testing.assert_array_equal(run(again, images), expected)
    larger = keras_vit.resize(model, (24, 16))
    assert larger.get_layer("block_02").output[0].shape == (None, 25 - 9, 16)


def test_a_plain_keras_model_of_its_layers_is_saved(make_model, images, run, tmp_path):
    model = make_model(**MERGING)
    keras.Model(model.input, [model.output, feature_extractor(model, "block_01").output]).save(tmp_path / "model.keras")
    logits, maps = run(keras.models.load_model(tmp_path / "model.keras"), images)
    np.testing.assert_array_equal(logits, run(model, images))
    np.testing.assert_array_equal(maps, run(feature_extractor(model, "block_01"), images))


def test_merging_stops_when_one_patch_is_left(make_model, images, run):
    model = make_model(token_merging=100, num_layers=6)
    lengths = [model.get_layer(f"block_{index:02d}").output[0].shape[1] for index in range(6)]
    assert lengths == [9, 5, 3, 2, 2, 2]
    assert np.isfinite(run(model, images)).all()


def test_features_stand_in_all_places_of_the_first_tokens(make_model, images, run):
    model = make_model(**MERGING)
    tokens, sizes, groups = run(keras.Model(model.input, model.get_layer("block_01").output), images)
    maps = run(feature_extractor(model, "block_01"), images)
    assert (tokens.shape, maps.shape) == ((6, 11, 16), (6, 4, 4, 16))
    for image in range(6):
        places = groups[image].astype(int)
        np.testing.assert_array_equal(np.bincount(places), sizes[image])
        np.testing.assert_array_equal(maps[image].reshape(16, 16), tokens[image][places[1:]])
    np.testing.assert_array_equal(
        run(feature_extractor(model, "block_01", grid=False), images)[:, 1:], maps.reshape(6, 16, 16)
    )


class TestAnalysis:
    def test_weights_are_between_first_tokens(self, make_model, images, run):
        model = make_model(**MERGING, num_registers=1)
        blocks = attention_weights(model, images)
        assert [block.shape for block in blocks] == [(6, 2, 18, 18)] * 3
        groups = run(keras.Model(model.input, model.get_layer("block_01").output[2]), images).astype(int)
        for block in blocks:
            np.testing.assert_allclose(block.sum(-1), 1, atol=1e-5)
        for image, first in enumerate(groups):
            for number in range(18):  # those in one token are alike
                for axis in (1, 2):
                    rows = np.compress(first == first[number], blocks[2][image], axis=axis)
                    np.testing.assert_array_equal(rows, np.take(rows, [0] * rows.shape[axis], axis=axis))
        for block, graph in zip(blocks, run(attention_model(model), images), strict=True):
            np.testing.assert_allclose(graph, block, atol=1e-6)

    def test_weights_of_equal_tokens_are_those_of_the_plain_model(self, make_model, images):
        merging, plain = pair(make_model, position_embedding="none", num_layers=2, token_merging=8)
        blocky = in_fours(images)
        for merged, expected in zip(attention_weights(merging, blocky), attention_weights(plain, blocky), strict=True):
            np.testing.assert_allclose(merged, expected, atol=1e-5)
        rollout = attention_rollout(merging, blocky)
        np.testing.assert_allclose(rollout, attention_rollout(plain, blocky), atol=1e-5)
        np.testing.assert_allclose(keras.ops.convert_to_numpy(make_rollout_model(merging)(blocky)), rollout, atol=1e-5)
        distance = mean_attention_distance(plain, blocky)
        np.testing.assert_allclose(mean_attention_distance(merging, blocky), distance, atol=1e-4)


def test_bfloat16_is_near_float32(make_model, images, run):
    expected = run(make_model(token_merging=3, pooling="gap", position_embedding="none"), in_fours(images))
    mixed = make_model(token_merging=3, pooling="gap", position_embedding="none", dtype="mixed_bfloat16")
    assert keras.backend.standardize_dtype(mixed.get_layer("block_01").output[0].dtype) == "bfloat16"
    assert np.abs(run(mixed, in_fours(images)) - expected).max() < 0.1 * expected.std()


def test_layers_are_frozen_up_to_a_merging_block(make_model):
    model = make_model(**MERGING)
    frozen = keras_vit.freeze(model, "block_01")
    assert frozen == ["patch_encoder", "class_token", "position_embs", "block_00", "block_01"]
    assert keras_vit.freeze(model)[-3:] == ["unmerging", "encoder_norm", "pooling"]


@pytest.mark.slow
@pytest.mark.parametrize("norm_position", ["before_pooling", "after_pooling"])
def test_masked_patches_are_predicted_at_their_places(norm_position, make_model):
    encoder = make_model(**MERGING, pooling="gap", norm_position=norm_position)
    model = keras_vit.MaskedPatchPrediction(encoder, "pixels", seed=0)
    model.compile("sgd")
    images = np.random.default_rng(0).uniform(-1, 1, (4, 16, 16, 3)).astype("float32")
    assert np.isfinite(model.fit(images, verbose=0, batch_size=4).history["loss"]).all()
    assert model.reconstruct(images).predicted.shape == images.shape


@pytest.mark.slow
def test_student_and_teacher_may_merge(make_model, images):
    model = keras_vit.Distiller(make_model(**MERGING, distilled=True), make_model(**MERGING))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert np.isfinite(model.fit(images, np.arange(6) % 5, verbose=0).history["loss"]).all()


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="SavedModels need TensorFlow")
@pytest.mark.slow
def test_saved_model_gives_equal_outputs_for_any_batch(make_model, run, tmp_path):
    import tensorflow as tf

    model = make_model(**MERGING)
    folder = keras_vit.export(model, tmp_path, signatures=("images",), check=False)
    served = tf.saved_model.load(str(folder)).signatures["images"]
    pixels = np.random.default_rng(4).integers(0, 256, (3, 16, 16, 3)).astype("uint8")
    expected = run(model, keras_vit.preprocess(pixels, model.preprocessing))
    for count in (1, 3):
        logits = served(images=tf.constant(pixels[:count], "float32"))["logits"]
        np.testing.assert_allclose(logits, expected[:count], atol=1e-4)
