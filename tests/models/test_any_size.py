"""Models for images of any size: the numbers of the model of each size, from every way to run them."""

import logging
import zipfile

import keras
import numpy as np
import pytest
from any_size import FAMILIES, images_of
from slow_rows import slow_after

import keras_vit
from keras_vit import analysis
from keras_vit.analysis.attention import attention_graph
from keras_vit.layers.position_grid import resize_position_embedding
from keras_vit.models.derived import with_dtype

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
SIZES = ((16, 16), (24, 24), (12, 20), (32, 8), (8, 8), (40, 36), (4, 48))


@pytest.mark.parametrize("family", slow_after(1, FAMILIES))
def test_each_size_gives_what_its_own_model_gives(make_model, run, family):
    model = make_model(**FAMILIES[family])
    every = keras_vit.resize(model, "any")
    assert every.config.image_size == "any" and every.input.shape == (None, None, None, 3)
    compiled = _compiled(every)
    for size in SIZES:
        images = images_of(size)
        expected = run(keras_vit.resize(model, size), images)
        np.testing.assert_allclose(run(every, images), expected, atol=2e-5)
        np.testing.assert_allclose(run(compiled, images), expected, atol=2e-5)
    back = keras_vit.resize(every, SIZES[0])
    assert back.config == model.config
    np.testing.assert_array_equal(run(back, images_of(SIZES[0])), run(model, images_of(SIZES[0])))


def _compiled(model):
    if not ON_TENSORFLOW:
        import jax

        return jax.jit(lambda images: model(images))
    import tensorflow as tf

    return tf.function(model, input_signature=[tf.TensorSpec((None, None, None, 3), "float32")])


@pytest.mark.parametrize("policy", ["mixed_bfloat16"])
def test_positions_are_computed_in_float32_under_every_policy(make_model, run, policy):
    model = make_model(**FAMILIES["EVA-02"])
    mixed = with_dtype(model, policy)
    for size in ((40, 36), (4, 48)):
        expected = run(keras_vit.resize(mixed, size), images_of(size))
        np.testing.assert_allclose(run(keras_vit.resize(mixed, "any"), images_of(size)), expected, atol=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("family", slow_after(1, [name for name in FAMILIES if name != "SAM"]))
def test_training_is_that_of_the_model_of_the_size(make_model, family):
    """With frozen tables two steps give equal weights."""
    size, labels = (12, 20), np.arange(4) % 5
    fixed = keras_vit.resize(make_model(**FAMILIES[family]), size)
    every = keras_vit.resize(make_model(**FAMILIES[family]), "any")
    for model in (fixed, every):
        for layer in model.layers:
            layer.trainable = not layer.name.startswith("position_embs")
        model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(images_of(size, 8), np.tile(labels, 2), batch_size=4, shuffle=False, verbose=0)
    for one, other in zip(fixed.weights, every.weights, strict=True):
        if one.shape == other.shape and "position_embs" not in one.path:
            np.testing.assert_allclose(_array(one), _array(other), atol=1e-6, err_msg=one.path)


def _array(x):
    return keras.ops.convert_to_numpy(x)


@pytest.mark.skipif(not ON_TENSORFLOW, reason="takes gradients with TensorFlow")
def test_gradient_of_the_table_is_that_of_the_resized_one_through_the_resizing(make_model):
    import tensorflow as tf

    size, grid = (12, 20), (3, 5)
    fixed, every = keras_vit.resize(make_model(), size), keras_vit.resize(make_model(), "any")
    gradients = []
    for model in (fixed, every):
        table = model.get_layer("position_embs").embedding.value
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(images_of(size))))
        gradients.append(tape.gradient(loss, table).numpy()[0])
    identity = np.eye(16)[None]  # one table per row of the 4 x 4 table
    resizing = resize_position_embedding(identity, (4, 4), grid, 0)[0]  # (15, 16)
    of_resized, of_table = gradients
    np.testing.assert_allclose(of_table[1:], resizing.T @ of_resized[1:], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(of_table[0], of_resized[0], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(not ON_TENSORFLOW, reason="counts the traces of TensorFlow")
def test_one_graph_serves_data_of_all_sizes(make_model):
    import tensorflow as tf

    traced = []

    class Counted(keras.layers.Layer):
        def call(self, x):
            traced.append(x.shape)
            return x

    every = keras_vit.resize(make_model(), "any")
    model = keras_vit.Model(every.input, Counted()(every.output))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    spec = (tf.TensorSpec((None, None, None, 3), tf.float32), tf.TensorSpec((None,), tf.int64))
    batches = [(images_of(size), np.arange(2)) for size in SIZES]
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)
    data = data.apply(tf.data.experimental.assert_cardinality(len(batches)))
    traced.clear()
    assert np.isfinite(model.fit(data, verbose=0, shuffle=False).history["loss"]).all()
    assert len(traced) == 1
    traced.clear()
    for size in SIZES[:4]:  # arrays have known sizes: the second one makes Keras trace for all
        model.predict(images_of(size), verbose=0)
    assert len(traced) == 2


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX compiles each size")
def test_more_than_eight_compiled_sizes_are_remarked(make_model, caplog):
    every = keras_vit.resize(make_model(), "any")
    with caplog.at_level(logging.INFO, "keras_vit"):
        for side in range(4, 36, 4):
            every.predict(images_of((side, 4)), verbose=0)
        assert caplog.messages == []
        every.predict(images_of((36, 4)), verbose=0)
    assert caplog.messages == ["tiny: JAX compiles each size of images anew; this is number 9"]


def test_sides_that_the_patches_do_not_divide(make_model, run):
    """A convolution without padding reads no pixel after the last whole patch; DINOv2's authors refuse such images."""
    model, images = make_model(), images_of((18, 23))
    every, read = keras_vit.resize(model, "any"), images[:, :16, :20]
    expected = run(keras_vit.resize(model, (16, 20)), read)
    fixed = keras_vit.resize(model, (18, 23))
    assert (fixed.config.grid_size, fixed.config.covered_size, fixed.config.image_size) == ((4, 5), (16, 20), (18, 23))
    for one in (fixed, every):
        np.testing.assert_allclose(run(one, images), expected, atol=2e-5)
    features = keras_vit.feature_extractor(every, "block_00")
    assert run(features, images).shape[:3] == (2, 4, 5)
    np.testing.assert_array_equal(
        analysis.seen_images(every, images), model.preprocessing.to_images(images)[:, :16, :20]
    )
    assert attention_graph(fixed)[1][0].cell_size == (4, 4)  # pixels, not 18 / 4
    padded = keras_vit.resize(model, "any", pad=True)
    assert analysis.seen_images(padded, images).shape == (2, 20, 24, 3)
    whole = keras_vit.resize(make_model(embedding={"whole_patches": True}), "any")
    for one, size, message in ((whole, (16, 18), "divisible by"), (every, (16, 3), "at least")):
        with pytest.raises(ValueError, match=f"image_size must be {message} patch_size"):
            one(images_of(size))
        if ON_TENSORFLOW:
            import tensorflow as tf

            with pytest.raises(tf.errors.InvalidArgumentError, match=f"image_size must be {message} patch_size"):
                _compiled(one)(images_of(size))


@pytest.mark.parametrize(("height", "width"), slow_after(1, [(3, 50), (10, 16), (15, 17)]))
def test_padding_is_that_with_zeros_below_and_to_the_right(make_model, run, height, width):
    size = height, width
    every = keras_vit.resize(make_model(), "any", pad=True)
    padding = [-side % 4 for side in size]
    padded = np.pad(images_of(size), ((0, 0), (0, padding[0]), (0, padding[1]), (0, 0)))
    expected = run(keras_vit.resize(make_model(), padded.shape[1:3]), padded)
    fixed = keras_vit.resize(make_model(), size, pad=True)
    for model in (every, _compiled(every), fixed):
        np.testing.assert_allclose(run(model, images_of(size)), expected, atol=2e-5)


@pytest.mark.slow
def test_it_is_saved_and_its_weights_go_to_models_of_one_size(make_model, run, tmp_path):
    every = keras_vit.resize(make_model(), "any", pad=True)
    images = images_of((12, 20))
    every.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.config == every.config
    np.testing.assert_array_equal(run(again, images), run(every, images))
    expected = run(keras_vit.resize(make_model(), (12, 20)), images)
    every.save_weights(tmp_path / "a.weights.h5")
    keras_vit.save_weights(every, tmp_path / "a.npz")
    for name in ("a.npz", "a.weights.h5"):
        fixed = make_model(image_size=(12, 20))
        keras_vit.load_weights(fixed, tmp_path / name)
        np.testing.assert_allclose(run(fixed, images), expected, atol=2e-5)
        other = keras_vit.resize(make_model(num_layers=2, image_size=8), "any")
        keras_vit.load_weights(other, tmp_path / name)
        assert other.config.table_grid == (2, 2)


def test_features_are_maps_and_attention_is_that_of_the_size(make_model, run):
    model, images = make_model(num_registers=2), images_of((12, 20))
    every, fixed = keras_vit.resize(model, "any"), keras_vit.resize(model, (12, 20))
    names = ["patch_encoder", "block_00", "encoder_norm"]
    found = run(keras_vit.feature_extractor(every, names), images)
    expected = run(keras_vit.feature_extractor(fixed, names), images)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == (2, 3, 5, 16)
        np.testing.assert_allclose(one, other, atol=2e-5)
    rollout = analysis.attention_rollout(every, images)
    np.testing.assert_allclose(rollout, analysis.attention_rollout(fixed, images), atol=1e-5)
    with pytest.raises(ValueError, match="model must take images of one size; this one takes any"):
        analysis.attention_model(every)


@pytest.mark.slow
def test_constructors_and_load_take_none(make_model, run, tmp_path):
    small = keras_vit.ViT_Ti16(image_size="any", classes=3)
    assert small.config.table_grid == (14, 14) and small.preprocessing.image_size == (224, 224)
    assert keras_vit.create_model("ViT-Ti_16", image_size="any", embedding={"pad": True}).config.embedding.pad
    keras_vit.save_weights(keras_vit.ViT_Ti16(image_size=96, include_top=False), tmp_path / "a.safetensors", "timm")
    loaded = keras_vit.load(tmp_path / "a.safetensors", image_size="any")
    assert loaded.config.image_size == "any" and loaded.config.table_grid == (6, 6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "axial", "pooling": "gap"}, r"\(use attention='global'\)"),
        ({"token_merging": 2}, "token_merging needs images of one size"),
        (
            {"position_embedding": "relative", "position_placement": "every"},
            "position_embedding='relative' needs images of one size",
        ),
    ],
)
def test_blocks_that_need_one_grid_refuse(make_model, changes, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.resize(make_model(**changes), "any")


def test_what_needs_one_size_refuses(make_model):
    with pytest.raises(ValueError, match="encoder must take images of one size"):
        keras_vit.MaskedPatchPrediction(keras_vit.resize(make_model(), "any"))
    with pytest.raises(
        ValueError, match="image_size must be one of 'auto', 'file', 'any', 'native'; got image_size='224'"
    ):
        keras_vit.ViT_Ti16(image_size="224")


def test_none_is_refused_with_the_word_to_write(make_model, tmp_path):
    model, path = make_model(), tmp_path / "a.keras"
    calls = {
        "config": lambda: model.config.replace(image_size=None),
        "resize": lambda: keras_vit.resize(model, None),
        "constructor": lambda: keras_vit.ViT_Ti16(image_size=None),
        "create_model": lambda: keras_vit.create_model("ViT-Ti_16", image_size=None),
        "load": lambda: keras_vit.load(path, image_size=None),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match="image_size must not be None: image_size='any' takes images of"):
            pytest.fail(f"{name} accepted {call()}")


def test_older_files_state_none(make_model, run, tmp_path):
    every = keras_vit.resize(make_model(), "any")
    every.save(tmp_path / "a.keras")
    with zipfile.ZipFile(tmp_path / "a.keras") as new, zipfile.ZipFile(tmp_path / "b.keras", "w") as older:
        for name in new.namelist():
            content = new.read(name)
            if name == "config.json":
                assert content.count(b'"image_size": "any"') == 1
                content = content.replace(b'"image_size": "any"', b'"image_size": null')
            older.writestr(name, content)
    read = keras.models.load_model(tmp_path / "b.keras")
    assert read.config == every.config and read.config.image_size == "any"
    images = images_of((12, 20))
    np.testing.assert_array_equal(run(read, images), run(every, images))


@pytest.mark.parametrize("method", ["geometric", "geometric_cubic"])
def test_methods_for_offsets_are_refused(make_model, method):
    with pytest.raises(ValueError, match=f"is for tables of offsets.*embedding.resize='{method}'"):
        keras_vit.resize(make_model(), "any", method=method)


def test_other_architectures_refuse():
    with pytest.raises(ValueError, match="image_size 'any' and 'native' and pad=True need a VisionTransformer"):
        keras_vit.Swin_T(image_size="any")
    with pytest.raises(ValueError, match="needs a grid for its table of positions"):
        keras_vit.ViTConfig(
            name="x", image_size="any", patch_size=4, hidden_dim=8, num_layers=1, num_heads=1, mlp_dim=8
        )
