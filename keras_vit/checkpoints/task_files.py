"""Files of task models: what a config.json states of the head, and the model with its weights."""

import dataclasses
import functools
import re

from keras_vit import checks
from keras_vit.checkpoints import names
from keras_vit.checkpoints.config_json import HF_TYPES, count_labels
from keras_vit.checkpoints.config_keys import KEYS, checked, flag
from keras_vit.checkpoints.load import read_ahead
from keras_vit.checkpoints.match import OF_HEAD, make_plan
from keras_vit.checkpoints.origin import COUNTS, Origin
from keras_vit.checkpoints.text_towers import huggingface_text
from keras_vit.checkpoints.tokenizers import tokenizer_of
from keras_vit.compat.initial_values import build_deferred, initialise
from keras_vit.config.base import count_patches
from keras_vit.config.text import TextConfig
from keras_vit.layers.dpt import SCALES
from keras_vit.logs import LOGGER
from keras_vit.models.clipseg import CLIPSeg
from keras_vit.models.dpt import DPT, DPTSegmentation
from keras_vit.models.eomt import EoMT
from keras_vit.models.owl import OWL
from keras_vit.models.sam import SAM
from keras_vit.models.texts import WithTexts
from keras_vit.models.vit import VisionTransformer
from keras_vit.models.vitpose import ViTPose
from keras_vit.models.yolos import YOLOS

CLASSIFIER_ARGUMENTS = (*COUNTS, "classifier_activation", "head", "include_top", "pooling", "representation_size")
_PLACE = " in config.json"


def build_task(resolved, evidence, resize="auto", preprocessing=None, labels=None, name=None, given=None):
    """Build the task model that a file of transformers holds, with its weights, and log the report.

    Args:
        resolved: what the file holds of the encoder, see `resolve`.
        evidence: its `Evidence`.
        resize, preprocessing, labels, name: as in `load`.
        given: see `plan_task`.

    Raises:
        ValueError: if config.json states something that the model cannot do, or the arrays do not fit it.
    """
    model, pending, values, report = plan_task(resolved, evidence, resize, preprocessing, name, given)
    initialise(pending, read_ahead(values, [id(variable) for variable in pending if id(variable) in values]))
    model.labels = labels or (None if report.reinitialised else evidence.labels)
    model.weights_source = f"{evidence.checkpoint.path.name} ({evidence.library} names)"
    model.origin = Origin.of(evidence, report.unused, model._arguments.get("classes"))
    if isinstance(model, WithTexts):
        model.tokenizer = tokenizer_of(evidence.checkpoint.path.parent)
    LOGGER.info(report)
    return model


def plan_task(resolved, evidence, resize="auto", preprocessing=None, name=None, given=None):
    """Return the task model that a file holds, without values, and how it is loaded.

    Args:
        resolved, evidence, resize, preprocessing, name: as in `build_task`.
        given: dict of the arguments for a head that the user gave, see `CLASSIFIER_ARGUMENTS`. Another number of
            classes, or of keypoints, makes a new last layer.

    Returns:
        The model; its variables, see `build_deferred`; a dict from `id(variable)` to a callable that reads its array;
        and the `LoadReport`.

    Raises:
        ValueError: as `build_task`, and if the model has no such argument.
    """
    make = _TASKS[evidence.task](evidence.checkpoint.config_json, evidence.entries)
    known, kind = preprocessing or resolved.preprocessing, make.func.__name__
    own = " and ".join(argument for argument in COUNTS if argument in make.keywords) or "no classes"
    for argument, value in (given or {}).items():
        if argument not in make.keywords:
            raise ValueError(
                f"{argument} must be left out for a model of the kind {kind}, whose head has {own}; got {value!r}"
            )

    def build(**changed):
        return build_deferred(
            lambda: make(VisionTransformer(resolved.config, preprocessing=known), name=name, **changed)
        )

    of_file, pending = build()
    plan = make_plan(of_file, evidence, resize)
    changed = {argument: value for argument, value in (given or {}).items() if value != make.keywords[argument]}
    if not changed:
        return of_file, pending, plan.values, plan.report
    model, pending = build(**changed)
    pairs = [(old, new) for old, new in zip(of_file.variables, model.variables, strict=True) if id(old) in plan.values]
    values = {id(new): plan.values[id(old)] for old, new in pairs if old.shape == new.shape}
    fresh = tuple(new.path for _, new in pairs if id(new) not in values)
    rules = [names.find_rule(evidence.layout, path, resolved.config, evidence.entries) for path in fresh]
    old = {evidence.entries[theirs].name for rule in rules for theirs in rule.theirs}
    used, unused = (name for name in plan.report.used if name not in old), dict.fromkeys(old, OF_HEAD)
    report = {"used": tuple(used), "unused": {**plan.report.unused, **unused}, "reinitialised": fresh}
    return model, pending, values, dataclasses.replace(plan.report, **report)


def whole_of(evidence):
    """Return the evidence of the whole model if a file has more than the encoder that its layout reads (SAM).

    Args:
        evidence: `Evidence` of the file, which is returned unchanged for other files.
    """
    model_type, arrays = (evidence.checkpoint.config_json or {}).get("model_type"), evidence.checkpoint.entries
    of_encoder, *of_whole = (names.LAYOUTS["vit"][name] for name in _WHOLE.get(model_type, ("huggingface",)))
    layout = next((one for one in of_whole if one.needs in arrays and not _is_excluded(one, arrays)), None)
    if layout is None or _DECODER not in arrays or evidence.task is not None or evidence.layout is not of_encoder:
        return evidence
    entries, unread = names.fold_entries(evidence.checkpoint.path, arrays, layout)
    notes = tuple(note for note in evidence.notes if not note.startswith(tuple(of_encoder.aside)))
    return dataclasses.replace(evidence, task=model_type, layout=layout, entries=entries, unread=unread, notes=notes)


def _is_excluded(layout, arrays):
    return layout.excludes is not None and any(re.search(layout.excludes, name) for name in arrays)


def with_size(resolved, evidence, image_size):
    """Return what a file holds of an encoder, whose position tables are resized as its layout does.

    Args:
        resolved, evidence: as in `build_task`.
        image_size: the image size that the user gave; None takes images of any size, with the table of the file, if
            the task allows it.
    """
    if evidence.task not in _OF_ANY_SIZE or resolved.config.stem is not None:
        return resolved
    config, known = resolved.config.replace(**{"embedding.resize": evidence.layout.resize}), resolved.preprocessing
    if image_size is None:
        config = config.replace(image_size="any", **{"embedding.position_grid": config.table_grid})
        known = evidence.preprocessing or known
    return dataclasses.replace(resolved, config=config, preprocessing=known)


def _depth_anything(values, entries):
    fields = _own(values, "depth_anything") | _of_backbone(values["backbone_config"])
    is_metric, max_depth = fields.pop("is_metric", False), fields.pop("max_depth", None)
    return functools.partial(DPT, **fields, max_depth=max_depth or 1.0 if is_metric else None)


def _dpt(values, entries):
    is_hybrid, backbone = flag(values, "is_hybrid"), values.get("backbone_config")
    if is_hybrid:  # the first two levels are stages of the ResNet, which are not resized
        checked(backbone or {}, KEYS["dpt_resnet"], " in backbone_config")
        values = {**values, "reassemble_factors": [4, 2, *values.get("reassemble_factors", SCALES)[2:]]}
    fields = {"readout": "project", "fusion_width": 256, **_own(values, "dpt", "vit")}
    if fields.get("use_bias") is None:
        fields["use_bias"] = not fields.get("batch_norm")
    if is_hybrid:
        fields |= {name: fields[name][2:] for name in ("blocks", "neck_widths")}
    if "head.head.1.weight" not in entries:
        of_backbone = {"normalised": False} if is_hybrid or backbone is None else _of_backbone(backbone)
        return functools.partial(DPT, **{**fields, **of_backbone}, same_size=False)
    fields.pop("projected", None)  # of depth alone
    about = {"classes": count_labels(values), "auxiliary": "auxiliary_head.head.1.weight" in entries}
    return functools.partial(DPTSegmentation, **fields, **about)


def _of_backbone(values):
    """Return the arguments that a `backbone_config` states: the blocks, and whether their tokens are normalised."""
    blocks = checks.check_integers("out_indices in backbone_config", values.get("out_indices"))
    fields = {"blocks": [block - 1 for block in blocks]}  # 0 is the embedding
    return fields | {"normalised": checks.check_flag("apply_layernorm", values.get("apply_layernorm", True))}


def _yolos(values, entries):
    fields = _own(values, "yolos", "vit")
    size, step = (checks.check_pair(key, values.get(key)) for key in ("image_size", "patch_size"))
    return functools.partial(YOLOS, **fields, classes=count_labels(values), table_grid=count_patches(size, step))


def _vitpose(values, entries):
    fields = _own(values, "vitpose")
    decoder = "simple" if fields.get("decoder", True) else "classic"
    return functools.partial(ViTPose, num_keypoints=entries["head.conv.weight"].shape[0], decoder=decoder)


def _eomt(values, entries):
    fields = _own(values, "eomt", HF_TYPES[HF_TYPES[values["model_type"]]["task"]]["dialect"])
    return functools.partial(EoMT, **fields, classes=count_labels(values))


def _owl(values, entries):
    # transformers takes the highest id, whatever the file states as its end token
    text = {**huggingface_text(values)[0], "end_token": None}
    text["projection_dim"] = _own(values, "owl").get("projection_dim", 512)
    return functools.partial(OWL, text=TextConfig(**text), objectness="objectness_head.dense0.weight" in entries)


def _sam(values, entries):
    fields = _of_part(values, "prompt_encoder_config", "sam_prompts")
    return functools.partial(SAM, **fields, **_of_part(values, "mask_decoder_config", "sam_decoder"))


def _of_part(values, part, dialect):
    """Return the arguments that a part of a config.json states; keys that the dialect does not have are not read."""
    rows, stated = KEYS[dialect], values.get(part) or {}
    known = {key: value for key, value in stated.items() if any(re.fullmatch(pattern, key) for pattern in rows)}
    fields, _ = checked(known, rows, f" in {part}")
    wanted = {field for field, _ in rows.values()} - {"channels", "patch_size"}
    return {name: value for name, value in fields.items() if name in wanted}


def _clipseg(values, entries):
    fields = _own(values, "clipseg")
    text = {**huggingface_text(values)[0], "projection_dim": fields.pop("projection_dim", 512)}
    return functools.partial(CLIPSeg, text=TextConfig(**text), **fields)


def _own(values, dialect, *others):
    """Return the arguments of the head that a config.json states; a key that no dialect has raises an error.

    Args:
        values: the config.json.
        dialect: dialect of the task model in config_keys.tsv.
        *others: dialects of its encoder, whose fields `resolve` reads.
    """
    fields, _ = checked(values, {key: row for one in (*others, dialect) for key, row in KEYS[one].items()}, _PLACE)
    names = {field for field, _ in KEYS[dialect].values()} - {"channels", "patch_size"}
    return {name: value for name, value in fields.items() if name in names}


_OF_ANY_SIZE = ("clipseg", "depth_anything", "dpt", "yolos")
# `model_type` of transformers -> function of config.json and the arrays; it returns a function of an encoder and a name
_TASKS = {
    "clipseg": _clipseg,
    "depth_anything": _depth_anything,
    "dpt": _dpt,
    "eomt": _eomt,
    "eomt_dinov3": _eomt,
    "owlv2": _owl,
    "owlvit": _owl,
    "sam": _sam,
    "vitpose": _vitpose,
    "yolos": _yolos,
}
# `model_type` -> layout that reads the encoder only, and those that read the whole model, see `whole_of`
_WHOLE = {"sam": ("sam_huggingface", "sam_prompts_tied_huggingface", "sam_prompts_huggingface")}
_DECODER = "mask_decoder.iou_token.weight"  # an array that only a whole SAM has
