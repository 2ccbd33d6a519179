"""SelfDistillation: a step against its formulas, what it trains and saves, replicas, and collapse.

The golden case `dino_loss` compares head, loss, centre, average and schedules with the original program.
"""

import keras
import numpy as np
import pytest
from replica_process import run_cases

import keras_vit
from keras_vit import SelfDistillation
from keras_vit.models.self_distillation_loss import cosine_schedule, temperature_schedule

SIZES = {"out_dim": 16, "hidden_dim": 24, "bottleneck_dim": 8}
SETTINGS = {**SIZES, "warmup_temperature": 0.05, "teacher_temperature": 0.09, "warmup_epochs": 3}


@pytest.fixture
def student(make_model):
    return keras_vit.resize(make_model(num_layers=1, patch_size=8), "any")


def make_crops(count=8, seed=0):
    """Crops that differ more between images than between the crops of one."""
    rng = np.random.default_rng(seed)
    colours = rng.normal(size=(count, 1, 1, 1, 3))

    def crops(number, side):
        shift, noise = (0.3 * rng.normal(size=(count, number, n, n, 3)) for n in (1, side))
        return (colours + shift + noise).astype("float32")

    return {"global": crops(2, 16), "local": crops(3, 8)}


def numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)


def values(*layers):
    return [numpy(variable) for layer in layers for variable in layer.variables]


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def logits_of(model, owner, crops):
    """Logits (batch, crops, out_dim) of the features of each crop."""
    body = keras.Model(getattr(model, owner).input, getattr(model, owner).get_layer("pooling").output)
    features = [body(views[:, n]) for views in crops for n in range(views.shape[1])]
    return numpy(getattr(model, f"{owner}_head")(keras.ops.stack(features, axis=1)))


def entropy(probabilities):
    return -(probabilities * np.log(probabilities)).sum(-1)


def test_steps_are_those_of_the_formulas(student, eagerly):
    model, crops = SelfDistillation(student, **SETTINGS, teacher_momentum=0.8, center_momentum=0.7), make_crops()
    for average, value in zip(
        values(model.teacher, model.teacher_head), values(student, model.student_head), strict=True
    ):
        np.testing.assert_array_equal(average, value)
    model.compile(keras.optimizers.SGD(0.5), epochs=4, steps_per_epoch=2)
    momenta, temperatures = cosine_schedule(0.8, 1.0, 8), temperature_schedule(0.05, 0.09, 3, 4)
    center = np.zeros(16)
    for step in range(4):
        frozen, before = numpy(model.student_head.kernel), values(model.teacher, model.teacher_head)
        taught = logits_of(model, "teacher", [crops["global"]])
        scores = np.log(softmax(logits_of(model, "student", crops.values()) / 0.1))
        targets = softmax((taught - center) / temperatures[step // 2])
        pairs = [-(targets[:, t] * scores[:, s]).sum(-1) for t in range(2) for s in range(5) if s != t]
        logs = model.train_on_batch(crops, return_dict=True)
        model.reset_metrics()
        assert logs["loss"] == pytest.approx(np.mean(pairs), rel=1e-5)
        assert logs["teacher_entropy"] == pytest.approx(entropy(targets).mean(), rel=1e-4)
        assert logs["batch_entropy"] == pytest.approx(entropy(targets.mean((0, 1))), rel=1e-4)
        center = 0.7 * center + 0.3 * taught.mean((0, 1))
        np.testing.assert_allclose(numpy(model.center), center, atol=1e-5)
        pairs = zip(before, values(student, model.student_head), values(model.teacher, model.teacher_head), strict=True)
        for average, value, found in pairs:
            expected = momenta[step] * average + (1 - momenta[step]) * value
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
        assert np.array_equal(frozen, numpy(model.student_head.kernel)) == (step < 2)  # freeze_epochs=1
    assert int(model.step) == 4


def test_student_is_trained_in_place_without_its_head(student, eagerly):
    model = SelfDistillation(student, **SIZES)
    model.compile(keras.optimizers.SGD(0.5), epochs=1, steps_per_epoch=1)
    trained = set(map(id, model.trainable_variables))
    of_head = set(map(id, student.get_layer("head").variables))
    assert set(map(id, student.trainable_variables)) - trained == of_head
    assert trained.isdisjoint(map(id, [*model.teacher.variables, *model.teacher_head.variables]))
    before = values(student)
    model.fit(make_crops(), epochs=1, verbose=0)
    changed = [not np.array_equal(a, b) for a, b in zip(before, values(student), strict=True)]
    assert sum(changed) == len(student.variables) - len(of_head)
    assert type(model.teacher) is keras_vit.VisionTransformer and model.teacher.config == student.config
    images = make_crops()["global"][:, 0]
    np.testing.assert_allclose(numpy(model(images)), logits_of(model, "student", [images[:, None]])[:, 0], atol=1e-5)


@pytest.mark.slow
def test_saved_and_resumed(student, eagerly, tmp_path):
    model = SelfDistillation(student, **SETTINGS, name="mine")
    model.compile(keras.optimizers.SGD(0.5, momentum=0.9), epochs=2, steps_per_epoch=3)
    model.fit(make_crops(), batch_size=4, epochs=1, verbose=0, shuffle=False)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again) is SelfDistillation and again.name == "mine" and again.settings == model.settings
    for one in (model, again):
        one.fit(make_crops(seed=1), batch_size=4, epochs=1, verbose=0, shuffle=False)
    assert int(again.step) == 4
    for ours, theirs in zip(values(again), values(model), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("changes", [{"distilled": True}, {"pooling": "gap", "include_top": False}])
@pytest.mark.slow
def test_other_students(make_model, eagerly, changes):
    model = SelfDistillation(make_model(num_layers=1, patch_size=8, **changes), **SIZES)
    model.compile("sgd", epochs=1, steps_per_epoch=1)
    crops = {"global": make_crops()["global"]}  # of the size of the student
    assert model.fit(crops, verbose=0).history["loss"][0] > 0
    assert model.predict(crops, verbose=0)["student"].shape == (8, 2, 16)


def train(make_config, center_momentum, **changes):
    config = make_config(num_layers=1, patch_size=8, include_top=False)
    settings = {**SIZES, "hidden_dim": 32, "teacher_temperature": 0.04, "warmup_epochs": 0, "freeze_epochs": 0}
    student = keras_vit.resize(keras_vit.VisionTransformer(config), "any")
    settings |= {"teacher_momentum": 0.9, "center_momentum": center_momentum, **changes}
    model = SelfDistillation(student, **settings)
    model.compile(keras.optimizers.Adam(3e-3), epochs=9, steps_per_epoch=4)
    return model.fit(make_crops(32), batch_size=8, epochs=9, verbose=0).history


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {"method": "dinov2", "centering": "softmax", "koleo_weight": 0.0, "seed": 1}],
    ids=["dino", "dinov2"],
)
def test_a_run_without_centring_is_reported_as_collapsed(make_config, compiled, changes):
    with pytest.warns(
        UserWarning, match=r"has collapsed in epoch \d+: the teacher gives every image the same"
    ) as found:
        history = train(make_config, None, **changes)
    assert len([warning for warning in found if "has collapsed" in str(warning.message)]) == 1
    assert history["batch_entropy"][-1] - history["teacher_entropy"][-1] < 0.02


@pytest.mark.slow
def test_a_healthy_run_is_not(make_config, compiled):
    history = train(make_config, 0.9)
    assert history["batch_entropy"][-1] - history["teacher_entropy"][-1] > 0.1


@pytest.mark.slow
def test_replicas_are_one_device(tmp_path_factory):
    found = run_cases(tmp_path_factory, "replica_cases.py", ("self_distillation", "self_distillation_dinov3"))
    assert max(found.values()) < 1e-5, found


@pytest.mark.slow
def test_replicas_without_an_image_are_refused(tmp_path_factory):
    found = run_cases(tmp_path_factory, "replica_cases.py", ("self_distillation_without_rows",))
    errors = found["self_distillation_without_rows"]
    assert errors["1"] == "no error" and "each replica must have an image of every batch" in errors["2"], found


def test_refused(student, make_model):
    fixed = make_model(num_layers=1, patch_size=8)
    for arguments, message in (
        ({"out_dim": 0}, "out_dim must be an integer of at least 1; got out_dim=0"),
        ({"teacher_temperature": 0}, "teacher_temperature must be a finite number above 0; got teacher_temperature=0"),
        ({"center_momentum": 1.0}, r"center_momentum must be a number in \[0, 1\); got center_momentum=1.0"),
        ({"freeze_epochs": -1}, "freeze_epochs must be an integer of at least 0; got freeze_epochs=-1"),
        ({"norm_last_layer": 1}, "norm_last_layer must be True or False; got norm_last_layer=1"),
    ):
        with pytest.raises(ValueError, match=message):
            SelfDistillation(student, **{**SIZES, **arguments})
    with pytest.raises(TypeError, match="model must be a model of keras_vit; got Dense"):
        SelfDistillation(keras.layers.Dense(3))
    with pytest.raises(ValueError, match="student must take images, not sequences of patches"):
        SelfDistillation(keras_vit.resize(fixed, "native"), **SIZES)
    model, crops = SelfDistillation(fixed, **SIZES), make_crops()
    with pytest.raises(ValueError, match=r"takes \(16, 16\) \(use keras_vit.resize\(student, 'any'\)\)"):
        model(crops)
    for wrong in ({"local": crops["local"]}, {"global": crops["local"]}, {**crops, "small": crops["local"]}):
        with pytest.raises(ValueError, match="x must have two 'global' crops of each image, and may have 'local' ones"):
            model(wrong)
    with pytest.raises(ValueError, match="microbatches must be 1 for a model with its own train_step"):
        model.compile("sgd", epochs=1, steps_per_epoch=1, microbatches=2)
    with pytest.raises(ValueError, match="epochs must be an integer of at least 1; got epochs=0"):
        model.compile("sgd", epochs=0, steps_per_epoch=1)
    model.compile("sgd", epochs=1, steps_per_epoch=1)
    with pytest.raises(ValueError, match="x must be a dict of crops, 'global' and 'local', such as of"):
        model.fit(crops["global"][:, 0], verbose=0)


def test_schedules_are_checked():
    with pytest.raises(ValueError, match="warmup_steps must not exceed steps; got warmup_steps=3, steps=2"):
        cosine_schedule(1.0, 0.0, 2, 3)
    assert temperature_schedule(0.04, 0.07, 3, 2) == pytest.approx([0.04, 0.055])  # ends within the warm-up
    assert cosine_schedule(0.0, 0.0, 3, 3, 1.0).tolist() == [1.0, 0.5, 0.0]
