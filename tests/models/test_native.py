"""Models for native aspect ratios: each image gets the numbers of the model of its size, alone and packed."""

import keras
import numpy as np
import pytest
from any_size import FAMILIES, images_of
from faults import for_each
from slow_rows import slow_after

import keras_vit
from keras_vit.compat.inference import inference
from keras_vit.data import native_batch
from keras_vit.layers.patches import PADDING

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
SIZES = ((16, 16), (8, 24), (20, 4), (4, 4), (12, 8), (8, 8))
ROWS = {
    **{name: changes for name, changes in FAMILIES.items() if name != "SAM"},
    "distilled": {"distilled": True},
    "unpooled": {"pooling": "gap", "norm_position": "after_pooling"},
}


def pictures(sizes=SIZES, seed=0):
    return [images_of(size, 1, seed + place)[0] for place, size in enumerate(sizes)]


@pytest.mark.parametrize("family", slow_after(1, ROWS))
def test_each_image_gets_what_the_model_of_its_size_gives(make_model, run, family):
    model, images = make_model(**ROWS[family]), pictures()
    expected = [run(keras_vit.resize(model, image.shape[:2]), image[None])[0] for image in images]
    native = keras_vit.resize(model, "native")
    for length in (None, 30):
        np.testing.assert_allclose(run(native, native_batch(images, 4, length=length)), expected, atol=1e-5)
    np.testing.assert_allclose(native.predict(native_batch(images, 4), verbose=0), expected, atol=1e-5)
    if model.config.position_placement == "stem":
        packed = keras_vit.resize(model, "native", images_per_sequence=3)
        found = run(packed, native_batch(images, 4, 3))
        assert found.shape == packed.compute_output_shape({"patches": (2, 9, 48), "coordinates": (2, 9, 5)})
        np.testing.assert_allclose(found.reshape(len(images), -1), expected, atol=1e-5)
        assert keras_vit.resize(packed, model.config.image_size).config == model.config


def test_position_placements_that_repeat_cannot_pack(make_model):
    with pytest.raises(ValueError, match="images_per_sequence above 1 repeats the class tokens after the positions"):
        keras_vit.resize(make_model(**FAMILIES["TIPS"]), "native", images_per_sequence=2)


@pytest.mark.parametrize("pooling", ["token", "gap", "map"])
def test_no_token_sees_another_image(make_model, run, pooling):
    """Other pixels of an image, and of padding, change neither the tokens nor the outputs of its neighbours."""
    model = keras_vit.resize(make_model(pooling=pooling), "native", images_per_sequence=2)
    outputs = keras.Model(model.input, [model.get_layer("encoder_norm").output, model.output])
    batch = native_batch(pictures(SIZES[:2]), 4, 2, length=32)
    image = np.concatenate([np.repeat([0, 1], model.config.num_prefix_tokens), batch["coordinates"][0, :, 4]])
    changed = {**batch, "patches": np.where(batch["coordinates"][..., 4:] == 0, batch["patches"], 7.0)}
    (tokens, scores), (others, other_scores) = (map(keras.ops.convert_to_numpy, outputs(b)) for b in (batch, changed))
    np.testing.assert_array_equal(tokens[0][image == 0], others[0][image == 0])
    np.testing.assert_array_equal(scores[0, 0], other_scores[0, 0])
    assert np.abs(scores[0, 1] - other_scores[0, 1]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("remat", slow_after(1, [None, "attention", "block"]))
def test_packed_training_is_that_of_single_images(make_model, remat):
    """One step of SGD shows the gradients."""
    images, labels = pictures(), np.arange(6) % 5
    steps = []
    for count in (1, 3):
        model = keras_vit.resize(make_model(remat=remat), "native", images_per_sequence=count)
        model.compile(keras.optimizers.SGD(1.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        before = model.get_weights()
        batch = native_batch(images, 4, count)
        model.train_on_batch(batch, labels if count == 1 else labels.reshape(-1, count))
        steps.append([new - old for new, old in zip(model.get_weights(), before, strict=True)])
    for packed in steps[1:]:
        for one, other in zip(steps[0], packed, strict=True):
            np.testing.assert_allclose(other, one, atol=1e-5 * max(1.0, np.abs(one).max()))
    assert max(np.abs(step).max() for step in steps[0]) > 1e-3


def test_saved_model_and_other_policies(make_model, run, tmp_path):
    model, batch = keras_vit.resize(make_model(), "native", max_tokens=20), native_batch(pictures(), 4)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert (loaded.config, loaded.preprocessing) == (model.config, model.preprocessing)
    assert loaded.preprocessing.max_tokens == 20
    np.testing.assert_array_equal(run(loaded, batch), run(model, batch))
    mixed = keras_vit.clone(model).config.replace(dtype="mixed_bfloat16")
    mixed = keras_vit.VisionTransformer(mixed)
    mixed.set_weights(model.get_weights())
    np.testing.assert_allclose(run(mixed, batch), run(model, batch), atol=0.1)


@pytest.mark.skipif(not ON_TENSORFLOW, reason="counts the traces of TensorFlow")
@pytest.mark.slow
def test_one_graph_serves_all_lengths(make_model):
    import tensorflow as tf

    model = keras_vit.resize(make_model(), "native")
    forward = tf.function(model, reduce_retracing=True)
    for count in range(1, 7):
        forward({name: tf.constant(values) for name, values in native_batch(pictures(SIZES[:count]), 4).items()})
        forward({name: tf.constant(values) for name, values in native_batch(pictures(SIZES[-count:]), 4).items()})
    assert forward.experimental_get_tracing_count() <= 3  # known sizes, one unknown, all unknown


def _coordinates(**changes):
    rows = {"row": 0, "column": 0, "rows": 2, "columns": 2, "image": 0, **changes}
    return np.array([[[rows["row"], rows["column"], rows["rows"], rows["columns"], rows["image"]], PADDING]], "int32")


@pytest.fixture(scope="module")
def native_model(make_model):
    return keras_vit.resize(make_model(), "native")


@for_each(
    ("coordinates", "message"),
    [
        (_coordinates(image=-1), "a patch of an image in every sequence, not padding alone"),
        (_coordinates(image=1), r"images from 0 to 0, and -1 for padding; got 1"),
        (_coordinates(row=2), "inside of grids of at most 65536 rows and columns"),
        (_coordinates(column=-1), "inside of grids"),
        (_coordinates(rows=70_000), "inside of grids"),
    ],
)
def test_contradicting_coordinates_are_refused(native_model, coordinates, message):
    model, patches = native_model, np.zeros((1, 2, 48), "float32")
    with pytest.raises(ValueError, match=message):
        model({"patches": patches, "coordinates": coordinates})
    if ON_TENSORFLOW:
        import tensorflow as tf

        with pytest.raises(tf.errors.InvalidArgumentError, match=message.replace("got 1", "got.*1")):
            model.predict({"patches": patches, "coordinates": coordinates}, verbose=0)


@for_each(
    ("arguments", "message"),
    [
        ({"image_size": "own"}, "image_size must be one of 'any', 'native'; got image_size='own'"),
        ({"image_size": 16, "images_per_sequence": 2}, "need image_size='native'; got images_per_sequence=2, max_tok"),
        ({"image_size": "native", "images_per_sequence": 0}, "images_per_sequence must be an integer of at least 1"),
        ({"image_size": "any", "max_tokens": 9}, "need image_size='native'; got images_per_sequence=1, max_tokens=9"),
        ({"image_size": "native", "max_tokens": 0}, "max_tokens must be an integer of at least 1"),
        ({"image_size": "native", "pad": True}, "embedding.pad needs whole images as input"),
    ],
)
def test_arguments_are_checked(make_model, arguments, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.resize(make_model(), **arguments)


def test_preprocessing_must_make_patches(make_model):
    model = keras_vit.resize(make_model(), "native")
    with pytest.raises(ValueError, match=r"3 channels, and patch_size=\(4, 4\); got \(16, 16\), 3 and None"):
        model.preprocessing = keras_vit.Preprocessing(size=16)
    with pytest.raises(ValueError, match=r"3 channels, and patch_size=None; got \(16, 16\), 3 and \(4, 4\)"):
        make_model().preprocessing = model.preprocessing


@pytest.mark.parametrize("kind", [keras_vit.GlobalAveragePooling, keras_vit.AttentionPooling])
def test_several_images_need_the_image_of_each_token(kind):
    arguments = (2, None) if kind is keras_vit.AttentionPooling else ()
    tokens, images = np.zeros((2, 3, 8), "float32"), np.zeros((2, 3), "int32")
    with pytest.raises(ValueError, match="images_per_sequence and sequence_ids belong together; got 2 and None"):
        kind(*arguments, images_per_sequence=2)(tokens)
    with pytest.raises(ValueError, match="images_per_sequence and sequence_ids belong together; got None"):
        kind(*arguments)(tokens, images)


def test_no_images_give_no_outputs(make_model):
    none = {"patches": np.zeros((0, 3, 48), "float32"), "coordinates": np.zeros((0, 3, 5), "int32")}
    native, every = (keras_vit.resize(make_model(), size) for size in ("native", "any"))
    assert inference(native)(none).shape == inference(every)(np.zeros((0, 8, 12, 3))).shape == (0, 5)
    assert native(none).shape == (0, 5)


def test_resized_patches_are_resized_once(make_model, run):
    model = make_model().with_patch_size(2)
    native, images = keras_vit.resize(model, "native"), pictures(SIZES[:3])
    assert native.preprocessing.patch_size == native.config.patch_size == (2, 2)
    expected = [run(keras_vit.resize(model, image.shape[:2]), image[None])[0] for image in images]
    np.testing.assert_allclose(run(native, native_batch(images, 2)), expected, atol=1e-5)


@pytest.mark.parametrize("use", ["distil", "attention"])
def test_what_needs_images_refuses_sequences(make_model, use):
    native, batch = keras_vit.resize(make_model(), "native"), native_batch(pictures(), 4)
    with pytest.raises(ValueError, match="must take images, not sequences of patches"):
        if use == "distil":
            keras_vit.Distiller(native, make_model())
        keras_vit.analysis.attention_weights(native, batch)


def test_pixel_values_are_remarked(make_model):
    native, batch = keras_vit.resize(make_model(), "native"), native_batch(pictures(), 4)
    with pytest.warns(UserWarning, match="predict of tiny got images with values"):
        native.predict({**batch, "patches": 200 + batch["patches"]}, verbose=0)
