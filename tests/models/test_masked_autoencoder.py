"""MaskedAutoencoder: what it predicts, its loss in NumPy, what it trains, saves, draws and writes."""

import json

import keras
import numpy as np
import pytest
from faults import for_each
from keras import ops
from replica_process import run_cases
from slow_rows import slow_after

import keras_vit
from keras_vit import DecoderConfig, MaskedAutoencoder, Preprocessing, VisionTransformer
from keras_vit.layers.patches import cut_patches
from keras_vit.layers.position_grid import sincos2d_table
from keras_vit.models.encoders import find_encoder
from keras_vit.training.compile import layer_rates

DECODER = {"hidden_dim": 8, "num_layers": 1, "num_heads": 2}
SINCOS = {"embedding": {"position_init": "sincos2d_mae"}}
# changes of the tiny config, and (rows, columns) of its grid
ENCODERS = {
    "plain": ({}, (4, 4)),
    "not square": ({"image_size": (8, 24), "patch_size": (2, 8)}, (4, 3)),
    "registers": ({"num_registers": 2, "pooling": "map", "channels": 1}, (4, 4)),
    "distilled": ({"distilled": True, "position_embedding": "sincos2d_mae"}, (4, 4)),
    "no class token": ({"pooling": "gap", "representation_size": 6}, (4, 4)),
    "norm after the pooling": ({"norm_position": "after_pooling", "pooling": "gap", "class_token": True}, (4, 4)),
    "pre norm": ({"embedding": {"pre_norm": True}, "dropout_rate": 0.1, "include_top": False}, (4, 4)),
}


def numpy(tensor):
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


@pytest.fixture
def build(make_model):
    """Function from arguments of the model and changes of the tiny config to a model."""

    def make(arguments=None, **changes):
        return MaskedAutoencoder(make_model(**changes), **{"decoder": DECODER, **(arguments or {})})

    return make


def parts_of(model, images, seed=0):
    """What the layers of a model give one after another: indices of the kept patches, encoded tokens, its output."""
    encoder = model.encoder
    visible, encode, decode = (model.get_layer(name) for name in ("visible", "encode", "decoder"))
    noise = np.random.default_rng(seed).uniform(size=(len(images), np.prod(encoder.config.grid_size)))
    names = [layer.name for layer in encoder.layers]
    last = next(name for name in ("pre_norm", "position_embs") if name in names)
    embedded = keras.Model(encoder.input, encoder.get_layer(last).output)(images)
    tokens, ranks, places = visible(embedded, ops.convert_to_tensor(noise.astype("float32")))
    encoded = encode(tokens)
    return noise, numpy(embedded), numpy(tokens), numpy(encoded), numpy(places), numpy(decode([encoded, ranks, places]))


@pytest.mark.parametrize(("name"), slow_after(1, ENCODERS))
def test_encoder_sees_the_visible_patches_alone(build, make_images, name):
    changes, (rows, columns) = ENCODERS[name]
    model = build(**changes)
    config, images = model.encoder.config, make_images(model.encoder)
    prefix, kept = config.num_prefix_tokens, rows * columns // 4
    noise, embedded, tokens, encoded, places, predictions = parts_of(model, images)
    order = noise.argsort(axis=1)
    assert tokens.shape == (3, prefix + kept, config.hidden_dim)
    np.testing.assert_array_equal(tokens[:, :prefix], embedded[:, :prefix])
    for image, row in enumerate(order):
        np.testing.assert_allclose(tokens[image, prefix:], embedded[image, prefix + row[:kept]], rtol=1e-6)
    np.testing.assert_array_equal(places, np.sort(order[:, kept:], axis=1))
    expected = tokens
    for index in range(config.num_layers):
        expected = model.encoder.get_layer(f"block_{index:02d}")(ops.convert_to_tensor(expected))
    norm = model.encoder.get_layer("encoder_norm")
    if name == "norm after the pooling":
        norm = keras_vit.layers.base.LayerNorm(epsilon=config.epsilon)
    np.testing.assert_allclose(encoded, numpy(norm(expected)), atol=1e-4)
    height, width = config.patch_size
    assert predictions.shape == (3, rows * columns - kept, height * width * config.channels)
    assert model(images)["predictions"].shape == predictions.shape
    assert model.reconstruct(images).mask.shape == (3, rows, columns)
    assert model.encoder.get_layer("block_00").output.shape[1] == prefix + rows * columns, "its graph is as before"


def test_decoder_puts_tokens_at_their_places(build, make_images):
    """The table is that of MAE without a class token's position; the removed patches have the mask token."""
    model = build(num_registers=1, image_size=(8, 16))
    decode, images = model.get_layer("decoder"), make_images(model.encoder)
    table = numpy(decode.get_layer("decoder_position_embs").embedding)
    np.testing.assert_allclose(table[0, 1:], sincos2d_table((2, 4), 8, "sincos2d_mae"), atol=1e-7)
    assert not table[0, 0].any()
    noise, *_, encoded, places, _ = parts_of(model, images)
    inside = keras.Model(decode.inputs, decode.get_layer("decoder_tokens").output)
    ranks = noise.argsort(axis=1).argsort(axis=1).astype("int32")
    filled = numpy(inside([ops.convert_to_tensor(x) for x in (encoded, ranks, places.astype("int32"))]))
    embedded = numpy(decode.get_layer("decoder_embed")(ops.convert_to_tensor(encoded)))
    token = numpy(decode.get_layer("decoder_tokens").mask_token)[0, 0]
    for image in range(3):
        expected = [embedded[image, 2 + rank] if rank < 2 else token for rank in ranks[image]]
        np.testing.assert_allclose(filled[image], [*embedded[image, :2], *expected], rtol=1e-5)


@pytest.mark.parametrize(
    ("norm_pixels", "include_preprocessing"),
    slow_after(2, [(True, False), (False, True), (True, True), (False, False)]),
)
def test_loss_is_that_of_the_removed_patches(build, norm_pixels, include_preprocessing):
    model = build({"norm_pixels": norm_pixels}, include_preprocessing=include_preprocessing)
    mean, std = np.array([0.5, 0.4, 0.3]), np.array([0.2, 0.3, 0.25])
    model.encoder.preprocessing = Preprocessing(size=16, mean=tuple(mean), std=tuple(std))
    levels = np.random.default_rng(0).uniform(size=(4, 16, 16, 3))
    seen = (levels - mean) / std
    images = (255 * levels if include_preprocessing else seen).astype("float32")
    model.compile("sgd")
    y_pred = model(images)
    places, predictions = (ops.convert_to_numpy(y_pred[name]) for name in ("places", "predictions"))
    targets = np.stack([seen[:, r : r + 4, c : c + 4].reshape(4, -1) for r in range(0, 16, 4) for c in range(0, 16, 4)])
    targets = targets.transpose(1, 0, 2)
    if norm_pixels:
        variance = targets.var(axis=-1, keepdims=True, ddof=1)
        targets = (targets - targets.mean(-1, keepdims=True)) / np.sqrt(variance + 1e-6)
    losses = np.square(np.take_along_axis(targets, places[..., None], 1) - predictions).mean((1, 2))
    for weights in (None, np.array([0.5, 2.0, 0.0, 1.0], "float32")):
        expected = (losses if weights is None else losses * weights).mean()
        np.testing.assert_allclose(numpy(model.compute_loss(images, None, y_pred, weights)), expected, rtol=2e-4)
    shown = model.reconstruct(images)
    np.testing.assert_allclose(shown.images, levels, atol=1e-5)


def test_reconstruction_of_the_right_answer_is_the_image(build):
    """A decoder whose answer is zero draws the mean of each patch, in grey where the patch was hidden."""
    model = build({"norm_pixels": True})
    head = model.get_layer("decoder").get_layer("decoder_pred").projection
    head.set_weights([np.zeros(weight.shape) for weight in head.get_weights()])
    images = np.random.default_rng(0).uniform(-1, 1, size=(2, 16, 16, 3)).astype("float32")
    shown = model.reconstruct(images, seed=3)
    assert shown.mask.sum((1, 2)).tolist() == [12, 12]
    image, corrupted, predicted = (
        numpy(cut_patches(each, (4, 4))) for each in (shown.images, shown.corrupted, shown.predicted)
    )
    mask = shown.mask.reshape(2, 16)
    assert (corrupted[mask] == 0.5).all()
    np.testing.assert_array_equal(predicted[~mask], image[~mask])
    means = image[mask].mean((1, 2, 3), keepdims=True)
    np.testing.assert_allclose(predicted[mask], np.broadcast_to(means, predicted[mask].shape), atol=1e-5)
    again, other = model.reconstruct(images, seed=3), model.reconstruct(images, seed=4)
    assert (again.mask == shown.mask).all() and (other.mask != shown.mask).any()


def step(model, images, **compile_arguments):
    """Trains one step; returns the paths of the weights that changed."""
    eagerly = {"run_eagerly": True} if keras.backend.backend() == "tensorflow" else {}
    model.compile(keras.optimizers.SGD(0.1), **eagerly, **compile_arguments)
    before = [numpy(weight) for weight in model.weights]
    model.fit(images, verbose=0)
    return {w.path for w, value in zip(model.weights, before, strict=True) if np.any(numpy(w) != value)}


@pytest.mark.parametrize("name", slow_after(2, ["published", "norm after the pooling", "learned", "remat"]))
def test_trains_what_leads_to_the_patches_and_nothing_else(build, make_images, name):
    changes = {"published": SINCOS, "remat": {**SINCOS, "remat": "block", "drop_path_rate": 0.1}}
    model = build(**changes.get(name, ENCODERS["norm after the pooling"][0] if name.startswith("norm") else {}))
    trained = {weight.path for weight in model.trainable_weights}
    assert step(model, make_images(model.encoder), **({"microbatches": 3} if name == "remat" else {})) == trained
    rest = {weight.path.split("/")[0] for weight in model.weights if weight.path not in trained}
    expected = {"head", "decoder_position_embs"}
    expected |= {"encoder_norm"} if name.startswith("norm") else {"position_embs"} if name != "learned" else set()
    assert rest == expected
    assert "position_embs/embedding" in {weight.path for weight in model.encoder.trainable_weights}
    assert {id(weight) for weight in model.encoder.weights} <= {id(weight) for weight in model.weights}


def test_fresh_encoder_of_mae_has_its_positions(make_config):
    encoder = VisionTransformer(make_config(**SINCOS, image_size=(8, 16)))
    table = numpy(encoder.get_layer("position_embs").embedding)
    np.testing.assert_allclose(table[0, 1:], sincos2d_table((2, 4), 16, "sincos2d_mae"), atol=1e-7)
    assert not table[0, 0].any()
    assert keras_vit.variants.VARIANTS["MAE-B_16"].config(image_size=224).embedding.position_init == "sincos2d_mae"


def test_bfloat16(build, images):
    model = build(dtype="mixed_bfloat16")
    assert keras.backend.standardize_dtype(model(images)["predictions"].dtype) == "float32"
    assert step(model, images) and np.isfinite(model.evaluate(images, verbose=0))


@pytest.mark.slow
def test_learns(make_config):
    """Images of one value each: 12 of 16 patches follow from the 4 that are seen."""
    levels = np.random.default_rng(1).choice([-1.0, 1.0], size=(64, 1, 1, 1))
    images = np.broadcast_to(levels, (64, 8, 8, 1)).astype("float32")
    encoder = VisionTransformer(make_config(image_size=8, patch_size=2, channels=1, num_layers=1, **SINCOS))
    model = MaskedAutoencoder(encoder, DECODER, norm_pixels=False, seed=1)
    eagerly = {"run_eagerly": True} if keras.backend.backend() == "tensorflow" else {}
    model.compile(keras.optimizers.Adam(3e-2), **eagerly)
    losses = model.fit(images, batch_size=32, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < 0.3 < losses[0], losses


@pytest.mark.slow
def test_survives_saving_with_all_of_its_encoder(build, images, tmp_path):
    arguments = {"mask_ratio": 0.5, "norm_pixels": False, "seed": 9, "name": "mine"}
    model = build(arguments, norm_position="after_pooling", pooling="gap")
    step(model, images)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again) is MaskedAutoencoder and again.settings == model.settings and again.name == "mine"
    assert again.decoder == DecoderConfig(**DECODER) and again.encoder.config == model.encoder.config
    for ours, theirs in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(numpy(ours), numpy(theirs))
    np.testing.assert_array_equal(again.reconstruct(images).predicted, model.reconstruct(images).predicted)
    assert int(again.optimizer.iterations) == 1
    assert {weight.path for weight in again.trainable_weights} == {weight.path for weight in model.trainable_weights}


def test_gives_its_encoder_back(build, images, run):
    model = build()
    encoder = model.encoder
    assert find_encoder(model) is encoder and isinstance(model, keras_vit.Model)
    before = run(encoder, images)
    step(model, images)
    assert np.abs(run(encoder, images) - before).max() > 1e-4, "the weights are shared"
    rates = dict(zip((weight.path for weight in model.trainable_weights), layer_rates(model, 0.5), strict=True))
    assert rates["patch_encoder/projection/kernel"] == 0.125 and rates["block_00/mlp/dense1/kernel"] == 0.25
    assert {rate for path, rate in rates.items() if path.startswith("decoder")} == {1.0}


@for_each(
    ("changes", "arguments", "message"),
    [
        ({"channels": 4}, {}, "encoder must take images of 1 or 3 channels; got 4"),
        (
            {"attention": "axial", "pooling": "gap"},
            {},
            r"a MaskedAutoencoder takes patches away \(use attention='global'\); got attention='axial'",
        ),
        ({"position_placement": "every"}, {}, "takes patches away .*; got position_placement='every'"),
        ({"block": {"rotary": {"kind": "dinov3"}}}, {}, r"block.rotary=RotaryConfig\(kind='dinov3'"),
        (
            {"window": {"size": 2}, "pooling": "gap"},
            {},
            r"\(use window=None\); got window=WindowConfig\(size=2",
        ),
        ({"token_merging": 1}, {}, "token_merging=1"),
        ({"image_size": (16, 7)}, {}, r"image_size of encoder must be divisible by its patch_size; got .*\(16, 7\)"),
        ({"stem": keras_vit.ResNetConfig(stage_sizes=()), "image_size": 32, "patch_size": 2}, {}, "stem=ResNetConfig"),
        ({"embedding": {"patch_drop_rate": 0.5}}, {}, "embedding.patch_drop_rate must be 0; got .*_rate=0.5"),
        ({}, {"mask_ratio": 1.0}, r"mask_ratio must be a number in \(0, 1\); got mask_ratio=1.0"),
        ({}, {"mask_ratio": 0.99}, "mask_ratio must keep and remove at least one of the 16 patches; got 0.99"),
        ({}, {"norm_pixels": 1}, "norm_pixels must be True or False; got norm_pixels=1"),
        ({}, {"decoder": {"hidden_dim": 6, "num_heads": 2}}, "hidden_dim must be at least 8 and divisible by 4"),
        ({}, {"decoder": {"hidden_dim": 20}}, "and by num_heads; got hidden_dim=20, num_heads=16"),
        ({}, {"decoder": {"depth": 2}}, "DecoderConfig keys must be among .*; got 'depth'"),
        ({}, {"decoder": 8}, "decoder must be a DecoderConfig of keras_vit, or None; got decoder=8"),
        (
            {"image_size": 4, "patch_size": 1, "channels": 1},
            {},
            "norm_pixels=True needs patches of more than one value",
        ),
    ],
)
def test_refuses(make_config, changes, arguments, message):
    with pytest.raises(ValueError, match=message):
        MaskedAutoencoder(VisionTransformer(make_config(**changes)), **arguments)


def test_refuses_what_a_file_cannot_hold(build, make_model, tmp_path):
    for changes, message in (
        ({"num_registers": 1}, "needs num_registers=0; the model has 1"),
        ({"norm_position": "after_pooling", "pooling": "gap", "class_token": True}, "needs norm_position="),
    ):
        with pytest.raises(ValueError, match=message):
            keras_vit.save_weights(build(**changes), tmp_path / "a.safetensors", "original")
    with pytest.raises(ValueError, match="layout must be one of 'original', 'huggingface'; got layout='timm'"):
        keras_vit.save_weights(build(), tmp_path / "a.safetensors", "timm")
    keras_vit.save_weights(make_model(), tmp_path / "a.safetensors", "timm")
    with pytest.raises(ValueError, match="must hold the decoder of a masked autoencoder; keras_vit.load reads an enc"):
        keras_vit.load_masked_autoencoder(tmp_path / "a.safetensors")


@pytest.mark.parametrize("layout", ["original", "huggingface"])
def test_files_of_fresh_models(make_config, tmp_path, layout):
    """A grey model with a head, which such files do not hold, on a grid that is not square."""
    encoder = VisionTransformer(make_config(image_size=(8, 16), channels=1, gelu="erf", **SINCOS))
    model = MaskedAutoencoder(encoder, DECODER, 0.5, norm_pixels=False)
    path = tmp_path / ("folder" if layout == "huggingface" else "file.safetensors")
    keras_vit.save_weights(model, path, layout)
    again = keras_vit.load_masked_autoencoder(path, seed=4, name="again")
    assert again.settings == {**model.settings, "seed": 4} and again.name == "again"
    assert not again.encoder.config.include_top and again.encoder.config.grid_size == (2, 4)
    images = np.random.default_rng(0).normal(size=(2, 8, 16, 1)).astype("float32")
    ours, theirs = (each.reconstruct(images).predicted for each in (model, again))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    fixed = {weight.path for weight in again.weights} - {weight.path for weight in again.trainable_weights}
    assert fixed == {"position_embs/embedding", "decoder_position_embs/embedding"}
    alone = keras_vit.load(path, num_heads=2)
    assert alone.count_params() == again.encoder.count_params()


def test_the_encoder_is_of_the_family_that_config_json_states(build, tmp_path):
    keras_vit.save_weights(build(), tmp_path, "huggingface")
    values = json.loads((tmp_path / "config.json").read_text())
    for model_type, family in (("vit_mae", "mae"), ("vit", "vit")):
        (tmp_path / "config.json").write_text(json.dumps(values | {"model_type": model_type}))
        config = keras_vit.load_masked_autoencoder(tmp_path).encoder.config
        assert config == keras_vit.load(tmp_path).config and config.name == family


@pytest.mark.slow
def test_replicas_and_microbatches_train_as_one_device(tmp_path_factory):
    pytest.importorskip("tensorflow")
    found = run_cases(tmp_path_factory, "replica_cases.py", ("masked_autoencoder",))["masked_autoencoder"]
    assert len(found) == 2 and max(found.values()) < 1e-5, found
