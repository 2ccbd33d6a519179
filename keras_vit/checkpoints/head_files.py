"""load_heads: load the projection heads of self-distillation from training checkpoints of DINO and DINOv2."""

import collections
import re
from typing import Any

from keras_vit import checks
from keras_vit.checkpoints.load import check_all
from keras_vit.checkpoints.match import LoadReport
from keras_vit.checkpoints.readers import open_checkpoint
from keras_vit.logs import LOGGER
from keras_vit.models import SelfDistillation
from keras_vit.typing import PathLike

_HEAD = re.compile(r"(.*\.)?(head|dino_head|ibot_head)\.((?:mlp|last_)\w*\..+)")


def load_heads(model: SelfDistillation, source: PathLike) -> LoadReport:
    """Load the projection heads of a training checkpoint.

    The checkpoints are those of DINO (`head`) and DINOv2 (`dino_head` and `ibot_head`). Their pickles must be converted
    first; the guide "Convert checkpoints" shows how. Student and teacher get their own heads. If the file has the head
    of only one of them, both get it. Centres are not loaded: they follow the teacher within a few steps.
    `keras_vit.load` reads the backbone of the teacher.

    Args:
        model: a `SelfDistillation` with heads of the sizes in the file.
        source: path of a `.safetensors` or `.npz` file whose array names are joined by dots, such as
            `teacher.head.mlp.0.weight`.

    Returns:
        A `LoadReport`, which is also logged to `keras_vit` at level INFO.

    Raises:
        TypeError: if `model` is no `SelfDistillation`.
        FileNotFoundError: if there is no such file.
        ValueError: if the file is a pickle, is damaged or has no heads; if its heads have other sizes or layers than
            the model's; or if patches have heads of their own in only one of the two. The model is unchanged.
    """
    checks.check_instance("model", model, SelfDistillation, "a keras_vit.SelfDistillation")
    checkpoint, values = open_checkpoint(source), []
    found: dict[tuple[bool, str], dict[str, Any]] = collections.defaultdict(dict)
    for name, entry in checkpoint.entries.items():
        if match := _HEAD.fullmatch(name):
            owner = "student" if "student" in (match[1] or "").split(".") else "teacher"
            found[match[2] == "ibot_head", owner][match[3]] = entry
    path, is_separate = repr(str(checkpoint.path)), any(is_of_patches for is_of_patches, _ in found)
    if all(is_of_patches for is_of_patches, _ in found):
        raise ValueError(
            f"{path} must have heads of self-distillation, such as teacher.head.mlp.0.weight; it has none. The "
            "published files of DINOv2 and DINOv3 have none: train new ones (field encoder_warmup_steps of a recipe)"
        )
    if model.patch_heads and model.settings["separate_heads"] != is_separate:
        raise ValueError(f"model must have separate_heads={is_separate}, as the heads of {path}; got {not is_separate}")
    heads = {(False, "student"): model.student_head, (False, "teacher"): model.teacher_head}
    if is_separate and model.patch_heads:
        heads |= zip(((True, "student"), (True, "teacher")), model.patch_heads, strict=True)
    for (is_of_patches, owner), head in heads.items():
        entries = found.get((is_of_patches, owner)) or next(v for k, v in found.items() if k[0] == is_of_patches)
        variables = {"last_layer.weight_v": head.kernel, "last_layer.weight_g": head.scale}
        for number, dense in enumerate(head.mlp):  # the GELUs between them have numbers, too
            variables |= {f"mlp.{2 * number}.weight": dense.kernel, f"mlp.{2 * number}.bias": dense.bias}
        theirs = {name: [side for side in entry.shape[::-1] if side != 1] for name, entry in entries.items()}
        own = {name: [side for side in variable.shape if side != 1] for name, variable in variables.items()}
        if theirs != own:
            last, first = (theirs.get(name) or "??" for name in ("last_layer.weight_v", "mlp.0.weight"))
            raise ValueError(
                f"model must fit a head of {path}: out_dim={last[-1]}, bottleneck_dim={last[0]}, "
                f"hidden_dim={first[-1]}, a student of width {first[0]} and three dense layers; "
                f"{sorted(name for name in {**theirs, **own} if theirs.get(name) != own.get(name))} differ"
            )
        values += [(variables[name], entry) for name, entry in entries.items()]
    check_all(entry for _, entry in values)
    for variable, entry in values:
        variable.assign(entry.read().T.reshape(variable.shape))
    used = dict.fromkeys(entry.name for _, entry in values)
    unused = {name: "not of a head of the model" for name in checkpoint.entries if name not in used}
    report = LoadReport(tuple(used), (), (), unused, (), f"{checkpoint.path} (heads of self-distillation)", ())
    LOGGER.info(report)
    return report
