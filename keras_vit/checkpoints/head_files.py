"""load_heads: load the heads and centres of self-distillation from training checkpoints of DINO, iBOT and DINOv2."""

import collections
import re

import numpy as np

from keras_vit.checkpoints.load import check_all
from keras_vit.checkpoints.match import LoadReport
from keras_vit.checkpoints.readers import open_checkpoint
from keras_vit.logs import LOGGER
from keras_vit.models import SelfDistillation
from keras_vit.typing import PathLike

_HEAD = re.compile(r"(.*\.)?(head|dino_head|ibot_head)\.((?:mlp|last_)\w*\..+)")
_OTHER = {"student": "teacher", "teacher": "student"}
_CENTERS = {  # end of a name -> attribute of the model; of DINO and DINOv2, and of iBOT
    **{"dino_loss.center": "center", "ibot_patch_loss.center": "patch_center"},
    **{"ibot_loss.center": "center", "ibot_loss.center2": "patch_center"},
}


def load_heads(model: SelfDistillation, source: PathLike) -> LoadReport:
    """Load the projection heads and centres of a training checkpoint.

    The checkpoints are those of DINO (`head`), iBOT (`head` with `last_layer2`) and DINOv2 (`dino_head` and
    `ibot_head`). Their pickles must be converted first; the guide "Convert checkpoints" shows how. Student and teacher
    get their own heads. If the file has the head of only one of them, both get it. iBOT's heads share all layers but
    the last, so each head of the model gets a copy of these layers. `keras_vit.load` reads the backbone of the teacher.

    Args:
        model: a `SelfDistillation` with heads of the sizes in the file.
        source: path of a `.safetensors` or `.npz` file whose array names are joined by dots, such as
            `teacher.head.mlp.0.weight`.

    Returns:
        A `LoadReport`, which is also logged to `keras_vit` at level INFO. Its note lists the variables of heads and
        centres that the file does not have; they keep their values.

    Raises:
        TypeError: if `model` is no `SelfDistillation`.
        FileNotFoundError: if there is no such file.
        ValueError: if the file is a pickle, is damaged or has no heads; if its heads have other sizes or layers than
            the model's; or if patches have their own heads in the file and not in the model. The model is unchanged.
    """
    if not isinstance(model, SelfDistillation):
        raise TypeError(f"model must be a keras_vit.SelfDistillation; got {type(model).__name__}")
    checkpoint = open_checkpoint(source)
    path, found, values, left = repr(str(checkpoint.path)), _of_file(checkpoint.entries), [], []
    kinds = {kind for kind, _ in found}
    if "class" not in kinds:
        raise ValueError(
            f"{path} must have heads of self-distillation, such as teacher.head.mlp.0.weight; it has none. The "
            "published files of DINOv2 and DINOv3 have none: train new ones (field encoder_warmup_steps of a recipe)"
        )
    if "patch" in kinds and model.patch_heads and not model.settings["separate_heads"]:
        raise ValueError(f"model must have separate_heads=True, as the heads of {path}; got separate_heads=False")
    for (kind, owner), variables in _of_model(model).items():
        entries = found.get((kind, owner)) or found.get((kind, _OTHER.get(owner)))
        if entries is None:
            left += [variable.path for variable in variables.values()]
            continue
        theirs = {name: [side for side in entry.shape[::-1] if side != 1] for name, entry in entries.items()}
        own = {name: [side for side in variable.shape if side != 1] for name, variable in variables.items()}
        if theirs != own:
            last, first = (theirs.get(name) or "??" for name in ("last_layer.weight_v", "mlp.0.weight"))
            differing = sorted(name for name in {**theirs, **own} if theirs.get(name) != own.get(name))
            raise ValueError(
                f"model must fit the {kind} head of {path}: out_dim={last[-1]}, bottleneck_dim={last[0]}, "
                f"hidden_dim={first[-1]}, a student of width {first[0]} and three dense layers; {differing} differ"
            )
        values += [(variables[name], entry) for name, entry in entries.items()]
    check_all(entry for _, entry in values)
    for variable, entry in values:
        variable.assign(entry.read().T.reshape(variable.shape))
    used = dict.fromkeys(entry.name for _, entry in values)
    unused = {name: "not of a head or centre of the model" for name in checkpoint.entries if name not in used}
    notes = (f"not in the file, and not changed: {', '.join(left)}",) if left else ()
    report = LoadReport(tuple(used), (), (), unused, (), f"{checkpoint.path} (heads of self-distillation)", notes)
    LOGGER.info(report)
    return report


def _of_file(entries):
    """Return {(kind, owner): {array: Entry}} of heads, of the kinds `class` and `patch`, and of centres.

    iBOT's last layers of patches are left out if they equal the others, as in a shared head.
    """
    found = collections.defaultdict(dict)
    for name, entry in entries.items():
        center = next((ours for end, ours in _CENTERS.items() if f".{name}".endswith(f".{end}")), None)
        if center is not None:
            found[center, ""].setdefault("", entry)
        elif match := _HEAD.fullmatch(name):
            owner = "student" if "student" in (match[1] or "").split(".") else "teacher"
            kind = "patch" if match[2] == "ibot_head" else "class"
            found[kind, owner].setdefault(match[3], entry)
    own = {}
    for (_, owner), arrays in found.items():
        second = {name.replace("layer2", "layer"): arrays.pop(name) for name in list(arrays) if "layer2." in name}
        own |= {("patch", owner): arrays | second} if second else {}
    names = ("last_layer.weight_g", "last_layer.weight_v")
    pairs = (
        (arrays.get(name), found["class", owner].get(name)) for (_, owner), arrays in own.items() for name in names
    )
    is_shared = all(None not in pair and np.array_equal(*(entry.read() for entry in pair)) for pair in pairs)
    return found if is_shared else found | own


def _of_model(model):
    """Return what `_of_file` returns, with the variables of the model in place of the file's arrays."""
    heads = {("class", "student"): model.student_head, ("class", "teacher"): model.teacher_head}
    if model.settings["separate_heads"]:
        heads |= zip((("patch", "student"), ("patch", "teacher")), model.patch_heads, strict=False)
    found = {}
    for key, head in heads.items():
        found[key] = {"last_layer.weight_v": head.kernel, "last_layer.weight_g": head.scale}
        for number, dense in enumerate(head.mlp):  # the GELUs between them have numbers, too
            found[key] |= {f"mlp.{2 * number}.weight": dense.kernel, f"mlp.{2 * number}.bias": dense.bias}
    centers = [name for name in ("center", "patch_center") if hasattr(model, name)]
    return found | {(name, ""): {"": getattr(model, name)} for name in centers}
