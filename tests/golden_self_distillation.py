"""How the golden cases of self-distillation (DINO) are compared: the definitions are in `machine` of `case.json`."""

import keras
import numpy as np
import safetensors.numpy
from golden_arrays import stored_in

from keras_vit.layers import ProjectionHead
from keras_vit.models.self_distillation_loss import (
    SelfDistillationLoss,
    cosine_schedule,
    moving_average,
    pair_losses,
    teacher_probabilities,
    temperature_schedule,
)


def compare_self_distillation(folder, case):
    """DINO's head, loss, centre, gradients, moving average and schedules; crop-major arrays become batch-major here."""
    arrays, config = stored_in(folder / "io.npz"), case["config"]
    parameters = safetensors.numpy.load_file(folder / case["params_file"])
    models = {owner: _DinoModel(config, parameters, f"{owner}.") for owner in ("student", "teacher")}
    student, teacher = models.values()
    globals_, locals_ = (
        [arrays[f"{kind}_crop_{n}"] for n in range(config[f"{kind}_crops"])] for kind in ("global", "local")
    )
    temperature = temperature_schedule(
        *(config[name] for name in ("warmup_teacher_temp", "teacher_temp", "warmup_teacher_temp_epochs", "epochs"))
    )
    center, views, count = _tensor(arrays["center_before"][0]), len(globals_), len(globals_ + locals_)

    def by_image(rows, crops):
        return keras.ops.transpose(keras.ops.reshape(rows, (crops, -1, rows.shape[-1])), (1, 0, 2))

    def outcome(student_output, teacher_output, center, epoch):
        logits, taught = by_image(student_output, count), by_image(teacher_output, views)
        probabilities = teacher_probabilities(taught, center, temperature[epoch])
        mean = keras.ops.mean(taught, axis=(0, 1))
        return probabilities, logits, moving_average(center, mean, config["center_momentum"])

    def loss_of(values):
        student.assign(values)
        output = student(globals_ + locals_)
        probabilities, logits, _ = outcome(output, teacher(globals_), center, config["epoch"])
        return SelfDistillationLoss(config["student_temp"])(probabilities, logits)

    found = {"student_features": student.features(globals_ + locals_), "student_output": student(globals_ + locals_)}
    found["student_bottleneck_l2"] = student.head.bottleneck(found["student_features"])
    found["teacher_output"] = teacher(globals_)
    probabilities, logits, after = outcome(found["student_output"], found["teacher_output"], center, config["epoch"])
    loss = SelfDistillationLoss(config["student_temp"])
    found |= {"loss": loss(probabilities, logits), "center_after": after[None]}
    found["teacher_probs"] = np.concatenate(np.moveaxis(_numpy(probabilities), 1, 0))
    pairs = _numpy(pair_losses(probabilities, logits, config["student_temp"])).mean(0)
    found["loss_terms"] = [pairs[t, s] for t, s in arrays["loss_term_pairs"]]
    second = {f"step2_{key}": arrays[f"step2_{key}"] for key in ("student_output", "teacher_output")}
    probabilities, logits, after = outcome(*map(_tensor, second.values()), after, config["step2_epoch"])
    found |= {"step2_loss": loss(probabilities, logits), "step2_center_after": after[None]}
    kernel = student.head.kernel / keras.ops.norm(student.head.kernel, axis=0)
    found["last_layer_weight"] = keras.ops.transpose(kernel * student.head.scale)
    trained = [name for name in student.names if f"grad/{name}" in arrays]
    gradients = student.gradients(loss_of, trained)
    found["grad_norms"] = [np.linalg.norm(gradient) for gradient in gradients.values()]
    clipped = [keras.Variable(np.zeros_like(gradient)) for gradient in gradients.values()]
    keras.optimizers.SGD(-1.0, clipnorm=config["clip_grad"]).apply(list(map(_tensor, gradients.values())), clipped)
    for key, values in {"grad": gradients, "grad_clipped": dict(zip(gradients, clipped, strict=True))}.items():
        found |= {f"{key}/{name}": value for name, value in values.items()}
    for name in teacher.names:
        moved = moving_average(*map(_tensor, (teacher[name], student[name])), config["ema_momentum"])
        found[f"teacher_after/{name}"] = teacher.averages[name] = _numpy(moved)
    teacher.assign(teacher.averages)
    found["teacher_output_after_ema"] = teacher(globals_)
    tolerances = case["tolerance"]["per_key_atol"]
    assert set(tolerances) - set(found) <= {"center_before", "grad_student_output"}
    for key, value in found.items():
        np.testing.assert_allclose(_numpy(value), arrays[key], atol=tolerances[key], rtol=0, err_msg=key)
    for name, given in case["schedules"].items():
        if isinstance(given, dict):
            per_epoch, warmup = given["niter_per_ep"], given.get("warmup_epochs", 0)
            counts = given["epochs"] * per_epoch, warmup * per_epoch
            values = cosine_schedule(given["base_value"], given["final_value"], *counts)
            np.testing.assert_allclose(values, arrays[f"schedule_{name}"], atol=case["tolerance"]["schedules_atol"])
    np.testing.assert_allclose(temperature, arrays["schedule_teacher_temp"], atol=1e-9)


class _DinoModel:
    """The stand-in backbone of the case, and our head, by the names of its file."""

    def __init__(self, config, parameters, prefix):
        sizes = config["out_dim"], config["hidden_dim"], config["bottleneck_dim"], config["nlayers"]
        self.head = ProjectionHead(*sizes, norm_last_layer=config["norm_last_layer"])
        self.body = keras.layers.Dense(config["embed_dim"])
        self.body.build((None, 12))
        self.head.build((None, config["embed_dim"]))
        layers = {"backbone.proj": self.body, **{f"head.mlp.{2 * n}": x for n, x in enumerate(self.head.mlp)}}
        self.variables = {}
        for name, layer in layers.items():
            self.variables |= {f"{name}.weight": layer.kernel, f"{name}.bias": layer.bias}
        self.variables |= {"head.last_layer.weight_v": self.head.kernel, "head.last_layer.weight_g": self.head.scale}
        self.names, self.averages = list(self.variables), {}
        self.assign({name: parameters[prefix + name] for name in self.names})

    def __getitem__(self, name):
        value = _numpy(self.variables[name])
        return value[:, None] if name.endswith("weight_g") else value.T

    def assign(self, values):
        for name, value in values.items():
            variable = self.variables[name]
            variable.assign(keras.ops.reshape(keras.ops.transpose(value), variable.shape))

    def features(self, crops):
        sides = [crop.shape[1] // 2 for crop in crops]
        means = [
            crop.reshape(len(crop), 2, side, 2, side, 3).mean((2, 4)).reshape(len(crop), -1)
            for crop, side in zip(crops, sides, strict=True)
        ]
        return self.body(np.concatenate(means))

    def __call__(self, crops):
        return self.head(self.features(crops))

    def gradients(self, loss_of, names):
        """The gradients of `loss_of(values)` by the variables of these names, in the file's layout."""
        values = {name: _tensor(self[name]) for name in names}
        if keras.backend.backend() == "jax":
            import jax

            def stateless(values):
                with keras.StatelessScope():
                    return loss_of(values)

            found = jax.grad(stateless)(values)
        else:
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = loss_of({})
            variables = [self.variables[name].value for name in names]
            found = {n: tf.transpose(g) for n, g in zip(names, tape.gradient(loss, variables), strict=True)}
        return {name: _numpy(found[name]) for name in names}


def _numpy(value):
    return keras.ops.convert_to_numpy(value)


def _tensor(array):
    return keras.ops.convert_to_tensor(array)
