"""How the golden cases of DINOv2's and DINOv3's training are compared: `machine` of each `case.json` has the rules.

Arrays are crop-major: crop 0 of every image, then crop 1. A key `KEY_float64` is compared like KEY.
"""

import itertools
import re

import keras
import numpy as np
import safetensors.numpy
from golden_arrays import stored_in
from golden_block_masks import compare_masks
from gradients import gradients_of
from keras import ops

import keras_vit
from keras_vit.compat.saved_objects import clip_by_module
from keras_vit.layers import ProjectionHead
from keras_vit.models import block_masks as masks
from keras_vit.models import self_distillation_loss as losses
from keras_vit.training.compile import layer_rates


def compare_ssl(folder, case):
    """A case by the keys of its arrays: the losses, the head, the masks, the schedules, or a whole step."""
    arrays, keys = stored_in(folder / "io.npz"), set(case["io_keys"])
    compare = next((function for key, function in _CASES.items() if key in keys), None)
    assert compare, f"no function compares {sorted(keys)}"
    if case["params_file"]:
        arrays |= {f"params/{k}": v for k, v in safetensors.numpy.load_file(folder / case["params_file"]).items()}
    report(case, arrays, compare(arrays, case))


def report(case, arrays, found):
    """Compares what was found; every key of the file that is neither an input nor a mistake must be among it."""
    tolerances, exact = case["tolerance"]["per_key_atol"], set(case["exact_keys"])
    mistakes = {key for key in arrays if key.startswith("other_")}
    expected = {key for key in case["io_keys"] if not key.endswith("_float64")} - set(case["inputs"]) - mistakes
    assert set(found) == expected, sorted(set(found) ^ expected)
    for key, value in found.items():
        value, tolerance = _numpy(value), 1e-9 if key in exact else tolerances[key]
        for stored in {key, f"{key}_float64"} & set(arrays):
            expected = arrays[stored].astype("float32") if value.dtype == "float32" else arrays[stored]
            np.testing.assert_allclose(value, expected, atol=tolerance, rtol=0, err_msg=stored)
    numbers = {key: float(_numpy(value)) for key, value in found.items() if np.ndim(_numpy(value)) == 0}
    for mistake, (key, number) in itertools.product(mistakes, numbers.items()):
        if "sinkhorn" in mistake and key.startswith("softmax"):
            continue  # in the first step, Sinkhorn-Knopp without a round is a softmax
        assert abs(number - arrays[mistake]) > tolerances.get(key, 0), f"{key} is {mistake}"


def _image_loss(arrays, case):
    """DINO's loss; every step with the softmax and its running centre, and with Sinkhorn-Knopp."""
    config, rules, found = case["config"], case["machine"], {}
    center = ops.zeros(config["prototypes"])
    for step, temperature in enumerate(config["teacher_temps"], start=1):
        given = {kind: arrays[f"step{step}/{kind}"] for kind in ("student_global", "student_local", "teacher_global")}
        taught = _by_image(given["teacher_global"], config["global_crops"])
        after = losses.moving_average(center, ops.mean(taught, axis=(0, 1)), rules["center_momentum"])
        rows, iterations = ops.convert_to_tensor(given["teacher_global"]), config["sinkhorn_iterations"]
        targets = {
            "softmax": losses.teacher_probabilities(rows, center, temperature),
            "sinkhorn": losses.sinkhorn_knopp(rows, temperature, iterations),
        }
        for kind, target in targets.items():
            student = _variables(given["student_global"], given["student_local"])
            prefix = f"{kind}/step{step}"
            values = _terms(target, *(one.value for one in student), config, rules["student_temp"])
            gradients = gradients_of(
                lambda target=target, student=student: _loss(target, *student, config, rules["student_temp"]), student
            )
            found |= {f"{prefix}/teacher_probs": target, f"{prefix}/loss": _loss(target, *student, config, 0.1)}
            found |= dict(zip((f"{prefix}/loss_local", f"{prefix}/loss_global"), values, strict=True))
            names = f"{prefix}/grad_student_global", f"{prefix}/grad_student_local"
            found |= dict(zip(names, gradients, strict=True))
        found |= {f"softmax/step{step}/center_before": center[None], f"softmax/step{step}/center_after": after[None]}
        center = after
    return found | _without_local_crops(arrays, case)


def _without_local_crops(arrays, case):
    """The first step with the targets of Sinkhorn-Knopp."""
    config, temperature = case["config"], case["config"]["teacher_temps"][0]
    rows = ops.convert_to_tensor(arrays["step1/teacher_global"])
    target = losses.sinkhorn_knopp(rows, temperature, config["sinkhorn_iterations"])
    (student,) = _variables(arrays["step1/student_global"])

    def loss():
        crops = [_by_image(rows, config["global_crops"]) for rows in (target, student.value)]
        return losses.SelfDistillationLoss(case["machine"]["student_temp"], least_pairs=3)(*crops)

    return {"no_local_loss": loss(), "no_local_grad_student_global": gradients_of(loss, [student])[0]}


def _loss(target, global_, local, config, temperature):
    """The loss of rows: the mean over all pairs of different views."""
    student = _by_image(ops.concatenate([global_.value, local.value]), config["global_crops"] + config["local_crops"])
    loss = losses.SelfDistillationLoss(temperature, least_pairs=3)
    return loss(_by_image(target, config["global_crops"]), student)


def _terms(target, global_, local, config, temperature):
    """The parts of the loss that are of local and of global crops."""
    taught = _by_image(target, config["global_crops"])
    count = config["global_crops"]
    pairs = _numpy(losses.pair_losses(taught, _by_image(global_, count), temperature)).mean(0)
    of_local = _numpy(losses.pair_losses(taught, _by_image(local, config["local_crops"]), temperature)).mean(0)
    terms = of_local.size + pairs.size - len(pairs)
    return of_local.sum() / terms, (pairs.sum() - np.trace(pairs)) / terms


def _patch_loss(arrays, case):
    """iBOT's loss, from a buffer with more places than masked patches."""
    config, rules, found = case["config"], case["machine"], {}
    center = ops.zeros(config["prototypes"])
    for step, temperature in enumerate(config["teacher_temps"], start=1):
        mask, taught = arrays[f"step{step}/masks"], arrays[f"step{step}/teacher_patches"]
        places, weights = _places(mask, config["grid"], mask.size)
        number = int((_numpy(weights) > 0).sum())
        found |= {
            f"step{step}/mask_indices": places[:number],
            f"step{step}/masks_weight": weights[:number],
            f"step{step}/n_masked_patches": np.array(number),
        }
        rows = ops.take(ops.reshape(taught, (-1, taught.shape[-1])), places, axis=0)
        after = losses.mean_of_patches(rows, weights, center)
        after = losses.moving_average(center, after, rules["center_momentum"])
        targets = {
            "softmax": losses.teacher_probabilities(rows, center, temperature),
            "sinkhorn": losses.sinkhorn_knopp(rows, temperature, config["sinkhorn_iterations"], weights),
        }
        for kind, target in targets.items():
            (student,) = _variables(arrays[f"step{step}/student_patches"])

            def loss(student=student, target=target, places=places, weights=weights, mask=mask):
                logits = ops.take(ops.reshape(student.value, (-1, student.shape[-1])), places, axis=0)
                return losses.masked_patch_loss(target, logits, weights, rules["student_temp"], len(mask))

            prefix = f"{kind}/step{step}"
            found |= {f"{prefix}/teacher_probs": target[:number], f"{prefix}/loss": loss()}
            found |= {f"{prefix}/loss_as_logged": loss() / 2}
            found[f"{prefix}/grad_student_patches"] = gradients_of(loss, [student])[0]
        found |= {f"softmax/step{step}/center_before": center[None], f"softmax/step{step}/center_after": after[None]}
        center = after
    return found


def _koleo(arrays, case):
    """KoLeo of each global crop; the distances are found from the values, the neighbours from the distances."""
    (features,), found = _variables(arrays["student_global_cls"]), {}

    def loss():
        return case["config"]["weight"] * sum(ops.mean(losses.koleo(one)) for one in ops.split(features.value, 2))

    for crop, rows in enumerate(np.split(arrays["student_global_cls"], 2)):
        values = _numpy(losses.koleo(rows))
        found |= {f"loss_{crop}": values.mean(), f"distances_{crop}": np.exp(-values) - 1e-8}
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        distances = np.linalg.norm(rows[:, None] - rows, axis=-1)
        found[f"neighbours_{crop}"] = np.abs(distances - found[f"distances_{crop}"][:, None]).argmin(1)
    for kind in {"duplicate", "single"} & {key.removesuffix("_cls") for key in arrays}:
        found[f"{kind}_loss"] = ops.mean(losses.koleo(arrays[f"{kind}_cls"]))
    return found | {"loss": loss(), "grad_student_global_cls": gradients_of(loss, [features])[0]}


def _gram(arrays, case):
    """Gram anchoring, with Gram teachers of several resolutions."""
    (student,), found = _variables(arrays["student_patches"]), {}
    grid = student.shape[1:3]
    for kind in case["config"]["gram_teacher_grids"]:
        taught = arrays[f"gram_teacher_{kind}"]

        def loss(taught=taught):
            return ops.mean(losses.gram_losses(student.value, taught))

        resized = losses.reduced_map(taught, grid)
        found |= {f"{kind}/gram_teacher_resized": resized, f"{kind}/gram_teacher_gram": losses._similarities(resized)}
        found |= {f"{kind}/loss_mean": loss(), f"{kind}/loss_frobenius": loss() * np.prod(grid) ** 2}
        found[f"{kind}/grad_student_patches"] = gradients_of(loss, [student])[0]
    return found | {"student_gram": losses._similarities(student.value)}


def _head(arrays, case):
    """The projection head with a trained gain."""
    head, (features,) = _Head(case["config"], _under(arrays, "params/")), _variables(arrays["features"])
    names = list(head.variables)
    gradients = gradients_of(
        lambda: ops.sum(head.layer(features.value) * arrays["upstream"]), [features, *head.variables.values()]
    )
    x = features.value
    for number, dense in enumerate(head.layer.mlp):
        x = dense(ops.gelu(x, approximate=False) if number else x)
    kernel = head.layer.kernel / ops.norm(head.layer.kernel, axis=0) * head.layer.scale
    found = {}
    for name, value in zip(names, gradients[1:], strict=True):
        _keep(found, case, f"grad/{name}", _stored(name, value))
    return found | {
        "bottleneck": x,
        "bottleneck_l2": head.layer.bottleneck(features.value),
        "output": head.layer(features.value),
        "last_layer_weight": ops.transpose(kernel),
        "grad/features": gradients[0],
    }


def _step(arrays, case):
    """A whole step from tokens, with a head for both losses and with one for each."""
    config, found = case["config"], {}
    kinds = {"separate_sinkhorn": ("dino_head", "ibot_head"), "shared_softmax": ("dino_head", "dino_head")}
    names = "student_global_cls", "student_local_cls", "student_patches"
    places, weights = _places(arrays["masks"], config["grid"], arrays["masks"].size)
    for kind, used in kinds.items():
        if f"{kind}/loss" not in arrays:
            continue
        student = dict(zip(names, _variables(*(arrays[name] for name in names)), strict=True))
        sizes = {"dino_head": config["prototypes"], "ibot_head": config["ibot_prototypes"]}
        heads = {
            (owner, name): _Head(
                {**config, "out_dim": sizes[name], "nlayers": 3}, _under(arrays, f"params/{owner}.{name}.")
            )
            for owner in ("student", "teacher")
            for name in set(used)
        }

        def patches(tokens):
            return ops.take(ops.reshape(tokens, (-1, tokens.shape[-1])), places, axis=0)

        def target(rows, weights=None, kind=kind):
            if kind == "shared_softmax":
                return losses.teacher_probabilities(rows, ops.zeros(rows.shape[-1]), config["teacher_temp"])
            return losses.sinkhorn_knopp(rows, config["teacher_temp"], weights=weights)

        of_images = target(heads["teacher", used[0]].layer(arrays["teacher_global_cls"]))
        of_patches = target(heads["teacher", used[1]].layer(patches(arrays["teacher_patches"])), weights)

        def terms(student=student, heads=heads, used=used, of_images=of_images, of_patches=of_patches):
            """The loss of images and its parts, KoLeo, and the loss of patches."""
            crops = [_Rows(heads["student", used[0]].layer(student[name].value)) for name in names[:2]]
            image = _loss(of_images, *crops, config, config["student_temp"])
            first = ops.split(student["student_global_cls"].value, config["global_crops"])
            spread = config["koleo_weight"] * sum(ops.mean(losses.koleo(one)) for one in first)
            logits = heads["student", used[1]].layer(patches(student["student_patches"].value))
            images = len(arrays["masks"])
            patch = losses.masked_patch_loss(of_patches, logits, weights, config["student_temp"], images)
            return crops, image, spread, patch

        crops, image, spread, patch = terms()
        values = _terms(of_images, *(one.value for one in crops), config, config["student_temp"])
        found |= dict(zip((f"{kind}/loss_dino_local", f"{kind}/loss_dino_global"), values, strict=True))
        found |= {f"{kind}/loss_koleo": spread, f"{kind}/loss_ibot": patch, f"{kind}/loss": image + spread + patch}
        own = {head: heads["student", head] for head in sorted(set(used))}
        flat = {(head, name): variable for head in own for name, variable in own[head].variables.items()}
        gradients = gradients_of(lambda terms=terms: sum(terms()[1:]), [*student.values(), *flat.values()])
        found |= {f"{kind}/grad_{name}": gradients[number] for number, name in enumerate(names)}
        of_heads = [ops.convert_to_tensor(one) for one in gradients[len(names) :]]
        clipped = clip_by_module(of_heads, [head for head, _ in flat], config["clip_grad"])
        for (head, name), gradient, after in zip(flat, of_heads, clipped, strict=True):
            found[f"{kind}/grad/{head}.{name}"] = _stored(name, gradient)
            _keep(found, case, f"{kind}/grad_clipped/{head}.{name}", _stored(name, after))
            averages = [heads[owner, head].variables[name].value for owner in ("teacher", "student")]
            moved = losses.moving_average(*averages, config["ema_momentum"])
            _keep(found, case, f"{kind}/teacher_after/{head}.{name}", _stored(name, moved))
        for head in own:
            squares = [np.square(_numpy(g)).sum() for (of, _), g in zip(flat, of_heads, strict=True) if of == head]
            found[f"{kind}/grad_norm_{head}"] = np.sqrt(sum(squares))
    return found


def _schedules(arrays, case):
    """The schedules as they are computed here, and the learning rates of the layers of a ViT."""
    optim, teacher, train = (case["config"][name] for name in ("optim", "teacher", "train"))
    length = train["OFFICIAL_EPOCH_LENGTH"]
    steps, warmup, frozen = (optim[f"{name}epochs"] * length for name in ("", "warmup_", "freeze_last_layer_"))

    def then(values, final):
        return np.concatenate([values, np.full(len(arrays["schedule_lr"]) - steps, float(final))])

    for row in case["lr_scaling"]:
        share = row["batch_size_per_gpu"] * row["gpus"] / 1024
        assert abs(row["base_lr"] * share**0.5 / row["lr"] - 1) < case["schedules_rtol"]
    rates = then(losses.cosine_schedule(case["scaled_lr"], optim["min_lr"], steps, warmup), optim["min_lr"])
    ends = optim["weight_decay"], optim["weight_decay_end"]
    momenta = teacher["momentum_teacher"], teacher["final_momentum_teacher"]
    warmed = teacher["warmup_teacher_temp"], teacher["teacher_temp"], teacher["warmup_teacher_temp_epochs"] * length
    for grouped in case["param_groups"]:
        _compare_rates(grouped)
    return {
        "schedule_lr": rates,
        "schedule_last_layer_lr": np.where(
            np.arange(len(rates)) < optim["freeze_last_layer_epochs"] * length, 0, rates
        ),
        "schedule_weight_decay": then(losses.cosine_schedule(*ends, steps), ends[1]),
        "schedule_momentum": then(losses.cosine_schedule(*momenta, steps), momenta[1]),
        "schedule_teacher_temp": losses.temperature_schedule(*warmed, len(rates)),
    }


def _compare_rates(grouped):
    """`layer_decay`; the factor of the patch embedding is not among what it does."""
    sizes = {"image_size": 8, "patch_size": 4, "hidden_dim": 8, "num_heads": 1, "mlp_dim": 8}
    changes = {"num_registers": 1, "layer_scale_init": 1.0, "include_top": False}
    config = keras_vit.ViTConfig(name="tiny", num_layers=grouped["depth"], **sizes, **changes)
    model = keras_vit.VisionTransformer(config)
    found = {}
    for variable, rate in zip(model.trainable_variables, layer_rates(model, grouped["layerwise_decay"]), strict=True):
        found.setdefault(re.sub(r"/.*", "", variable.path.removeprefix(f"{model.name}/")), set()).add(rate)
    names = {
        "class_token": "cls_token", "position_embs": "pos_embed", "registers": "register_tokens",
        "encoder_norm": "norm", "patch_encoder": "patch_embed",
    }  # fmt: skip
    for layer, rates in found.items():
        if layer.startswith("block_"):
            number = str(int(layer.removeprefix("block_")))
            given = [
                v for k, (v, *_) in grouped["backbone"].items() if re.match(rf"blocks\.(\d+\.)?{number}\.[a-z]", k)
            ]
        else:
            start = names[layer]
            given = [v for k, (v, *_) in grouped["backbone"].items() if k == start or k.startswith(f"{start}.")]
        factor = grouped["patch_embed_lr_mult"] if layer == "patch_encoder" else 1.0
        assert given and len(rates) == 1, layer
        np.testing.assert_allclose(given, factor * rates.pop(), rtol=1e-12, err_msg=layer)


class _Head:
    """Our head, by the names of the file."""

    def __init__(self, config, parameters):
        sizes = config["out_dim"], config["hidden_dim"], config["bottleneck_dim"], config["nlayers"]
        self.layer = ProjectionHead(*sizes, norm_last_layer=False)
        self.layer.build((None, config["embed_dim"]))
        self.variables = {}
        for number, dense in enumerate(self.layer.mlp):
            self.variables |= {f"mlp.{2 * number}.weight": dense.kernel, f"mlp.{2 * number}.bias": dense.bias}
        self.variables |= {"last_layer.weight_g": self.layer.scale, "last_layer.weight_v": self.layer.kernel}
        for name, variable in self.variables.items():
            if name in parameters:  # a head may have no biases
                variable.assign(parameters[name].T.reshape(variable.shape))


class _Rows:
    """A tensor with the attribute of a variable."""

    def __init__(self, value):
        self.value = value


def _stored(name, value):
    """The value of a variable in the layout of the file."""
    value = _numpy(value)
    return value[:, None] if name.endswith("weight_g") else value.T


def _keep(found, case, key, value):
    """The file has only some of these keys."""
    if key in case["io_keys"]:
        found[key] = value


def _places(mask, grid, size):
    return masks.masked_places(ops.convert_to_tensor(mask.astype(bool).reshape(-1, *grid)), size)


def _by_image(rows, crops):
    """Crop-major rows as (batch, crops, out_dim)."""
    return ops.transpose(ops.reshape(rows, (crops, -1, rows.shape[-1])), (1, 0, 2))


def _under(arrays, prefix):
    return {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}


def _variables(*arrays):
    return [keras.Variable(array) for array in arrays]


def _numpy(value):
    return np.asarray(value) if isinstance(value, (np.ndarray, float)) else ops.convert_to_numpy(value)


# a key of a case -> its function; the first one that the case has
_CASES = {
    "step1/student_global": _image_loss,
    "step1/student_patches": _patch_loss,
    "neighbours_0": _koleo,
    "generator0/masks": compare_masks,
    "batch0/masks": compare_masks,
    "upstream": _head,
    "schedule_lr": _schedules,
    "teacher_patches": _step,
    "student_gram": _gram,
}
