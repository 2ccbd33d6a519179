"""Recipes that train by self-distillation: what they compile, refuse and train, with an exact resume."""

import keras
import numpy as np
import pytest
from faults import for_each

import keras_vit
from keras_vit import SelfDistillation, ViTConfig
from keras_vit.data import from_arrays
from keras_vit.models.layer_states import lora_layers
from keras_vit.models.self_distillation import CollapseReport
from keras_vit.training import RECIPES, continued_pretraining, train

CONFIG = ViTConfig(
    name="toy",
    image_size=16,
    patch_size=8,
    hidden_dim=8,
    num_layers=1,
    num_heads=2,
    mlp_dim=8,
    classes=2,
    drop_path_rate=0.1,
)
SMALL = {"out_dim": 8, "hidden_dim": 8, "bottleneck_dim": 4}
PRETRAINING = {**SMALL, "teacher_temperature": 0.05}
CROPS = {"local_crops": 1, "local_size": 8, "augment": (("flip",), ("flip",), ("flip",))}
RECIPE = RECIPES["dino/imagenet"].replace(
    batch_size=4, epochs=3, warmup_epochs=1, image_size=16, pretraining=PRETRAINING, crops=CROPS, model=CONFIG
)

pytestmark = pytest.mark.usefixtures("eagerly")


@pytest.fixture(scope="module")
def source():
    images = np.random.default_rng(0).integers(0, 256, (8, 20, 20, 3))
    return from_arrays(images.astype("uint8"), np.arange(8) % 2, class_names=("night", "day"))


def test_published_values():
    """main_dino.py of facebookresearch/dino and the commands of its README."""
    recipe, longer = RECIPES["dino/imagenet"], RECIPES["dino/imagenet-300ep"]
    for each in (recipe, longer):
        assert each.learning_rate == 0.0005 * each.batch_size / 256
        assert (each.final_learning_rate, each.warmup_epochs, each.weight_decay) == (1e-6, 10, 0.04)
        assert (each.final_weight_decay, each.clip_weight_norm, each.drop_path_rate) == (0.4, 3.0, 0.1)
    assert (recipe.epochs, recipe.batch_size, longer.epochs, longer.batch_size) == (100, 512, 300, 1024)
    model = keras_vit.resize(keras_vit.VisionTransformer(CONFIG), "any")
    for each, expected in ((recipe, [0.04] * 31), (longer, np.linspace(0.04, 0.07, 30).tolist() + [0.07])):
        distilled = SelfDistillation(model, **{**PRETRAINING, **each.pretraining})
        each.compile(distilled, steps_per_epoch=2)
        np.testing.assert_allclose(distilled._temperatures[:62:2], expected, rtol=1e-6)
        assert len(distilled._momenta) == 2 * each.epochs and distilled._momenta[0] == np.float32(0.996)
        assert distilled.settings["freeze_epochs"] == 1 and distilled.settings["center_momentum"] == 0.9
        optimizer = distilled.optimizer
        assert (optimizer.clipnorm, optimizer.global_clipnorm) == (3.0, None)
        decays = [float(optimizer.weight_decay(step)) for step in (0, each.epochs, 2 * each.epochs)]
        np.testing.assert_allclose(decays, [0.04, 0.22, 0.4], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dino", "dinov3"])
def test_train_resumes_exactly_and_the_teacher_goes_on(source, tmp_path, monkeypatch, method):
    settings = {**PRETRAINING, "method": method, "seed": 1}
    recipe = RECIPE.replace(pretraining=settings, model=CONFIG.replace(patch_size=4), crops={**CROPS, "local_size": 12})

    class Killed(Exception):
        pass

    def end(self, epoch, logs=None):
        if epoch == 1:
            raise Killed

    result = train(recipe, source, tmp_path / "whole", verbose=0)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(CollapseReport, "on_epoch_end", end)
        train(recipe, source, tmp_path / "part", verbose=0, checkpoint_every=3)
    again = train(recipe, source, tmp_path / "part", verbose=0, checkpoint_every=3)
    assert type(again.model) is SelfDistillation and int(again.model.step) == 6
    best = [keras.models.load_model(tmp_path / run / "best.keras").get_weights() for run in ("whole", "part")]
    for ours, theirs in zip(*best, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (tmp_path / "whole" / "start.json").read_text() == (tmp_path / "part" / "start.json").read_text()
    saved = keras.models.load_model(tmp_path / "whole" / "model.keras")
    for ours, theirs, loaded in zip(*(one.weights for one in (again.model, result.model, saved)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(loaded, theirs)
    for name in ("loss", "teacher_entropy", "batch_entropy", "rankme", "collapsed"):
        assert again.history[name] == result.history[name]
    tuned = RECIPES["quickstart"].replace(batch_size=4, epochs=1, augment=(), dataset=None, model=None)
    found = train(tuned, source, tmp_path / "tuned", model=result.model.teacher, validation=source, verbose=0)
    assert found.model is result.model.teacher and found.accuracy in np.arange(9) / 8
    with pytest.raises(ValueError, match="out_dim is 8 there, 9 here"):
        train(recipe.replace(pretraining={**settings, "out_dim": 9}), source, tmp_path / "whole")


@for_each(
    ("changes", "message"),
    [
        ({"augment": ("flip",)}, "augment requires another loss"),
        ({"mix": ("mixup(0.2)",)}, "mix requires loss 'softmax' or 'sigmoid'; got mix="),
        ({"input_dtype": "uint8"}, "input_dtype requires loss 'softmax' or 'sigmoid'; got input_dtype='uint8'"),
        ({"loss": "softmax", "pretraining": None}, "crops requires loss 'self_distillation'; got crops={"),
        ({"weight_decay": 0.0}, "final_weight_decay requires weight_decay; got final_weight_decay=0.4, weight_decay=0"),
        (
            {"clip_norm": 1.0},
            "at most one of clip_norm, clip_module_norm and clip_weight_norm may be given; got clip_norm=1",
        ),
        ({"crops": ["local_crops"]}, r"crops must be a dict of arguments by name; got crops=\['local_crops'\]"),
    ],
)
def test_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        RECIPE.replace(**changes)


def test_refused_by_train(source, tmp_path):
    one_class = from_arrays(np.zeros((3, 16, 16, 3), "uint8"), [0, 0, 0], class_names=("night",))
    with pytest.raises(ValueError, match="validation must have at least 2 images and 2 classes; got 3 and 1"):
        train(RECIPE, source, tmp_path / "run", validation=one_class)
    with pytest.raises(ValueError, match="for a keras_vit.SelfDistillation, and for no other model; got VisionTransf"):
        RECIPE.compile(keras_vit.VisionTransformer(CONFIG), steps=3)
    assert not (tmp_path / "run").exists()


def test_a_built_encoder_goes_on(source, tmp_path):
    """`train` makes the model from an encoder with LoRA, for crops of two sizes; heads warm up before it moves."""
    encoder = keras_vit.VisionTransformer(CONFIG)
    keras_vit.add_lora(encoder, rank=2)
    recipe = continued_pretraining(encoder, images=8, batch_size=4, epochs=4)
    assert recipe.crops["local_size"] == [8, 8] and recipe.pretraining["centering"] == "softmax"
    small = {
        "pretraining": {**recipe.pretraining, "seed": 1, "centering": "sinkhorn_knopp", **PRETRAINING},
        "crops": CROPS,
    }
    recipe = recipe.replace(**small, warmup_steps=2, encoder_warmup_steps=2, patch_rate=0.5)
    model = train(recipe, source, tmp_path / "run", model=encoder, verbose=0).model
    assert type(model) is SelfDistillation and model.settings["out_dim"] == 8
    assert model.student.input_shape[1:3] == (None, None) and len(lora_layers(model.student)) == 2
    optimizer = model.optimizer
    assert optimizer.global_clipnorm == 3.0 and {*optimizer.modules} == {"encoder", "student_head"}
    rates = [float(optimizer.encoder_rate(step)) for step in range(5)]
    assert rates[:3] == [0, 0, 0] and rates[3] > 0
    places = {variable.name: place for place, variable in enumerate(model.trainable_variables)}
    assert optimizer.rate_factors[places["lora_kernel_a"]] == 0.5 and optimizer.rate_factors[places["mask_token"]] == 1
    whole = SelfDistillation(keras_vit.resize(keras_vit.VisionTransformer(CONFIG), "any"), **recipe.pretraining)
    recipe.compile(whole, steps_per_epoch=2)
    pairs = zip(whole.trainable_variables, whole.optimizer.rate_factors, strict=True)
    of_patches = [v.path for v, rate in pairs if rate == 0.25]
    assert of_patches and all("patch_encoder/" in path for path in of_patches)


def test_rules_of_continued_pretraining():
    encoder = keras_vit.VisionTransformer(CONFIG.replace(image_size=112))
    found = [continued_pretraining(encoder, images, batch) for images, batch in ((100, 8), (50_000, 64), (10**7, 128))]
    assert [each.pretraining["out_dim"] for each in found] == [512, 2048, 65536]
    assert [each.learning_rate for each in found] == pytest.approx([0.0015, 0.003 * 2**0.5, 0.006])
    momenta = [each.pretraining["teacher_momentum"] for each in found]
    assert momenta == pytest.approx([0.9, 0.996, 0.996])
    assert found[0].pretraining["koleo_weight"] == 0 and "koleo_weight" not in found[1].pretraining
    assert all(each.crops["local_size"] == [48, 48] for each in found)
    assert [(each.warmup_steps, each.encoder_warmup_steps) for each in found[:2]] == [(12, 12), (20, 20)]
    with pytest.raises(TypeError, match="model must be a keras_vit.VisionTransformer; got"):
        continued_pretraining(encoder.config, 100)
    with pytest.raises(ValueError, match="batch_size must be at most 10"):
        continued_pretraining(encoder, 10)
    in_steps = continued_pretraining(encoder, 3200, steps=1000)
    assert in_steps.steps == 1000 and in_steps == continued_pretraining(encoder, 3200).replace(steps=1000)
    assert continued_pretraining(encoder, 3200, steps=50).pretraining["teacher_momentum"] == 0.9
    with pytest.raises(ValueError, match="exactly one of epochs and steps must be given; got epochs=2, steps=3"):
        continued_pretraining(encoder, 3200, epochs=2, steps=3)
