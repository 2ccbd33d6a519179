"""Files of whole models as names and shapes: what `save_weights` would write, without any array."""

import pathlib

import numpy as np

import keras_vit
from keras_vit.checkpoints import names, save
from keras_vit.checkpoints.entries import Checkpoint, Entry
from keras_vit.checkpoints.evidence import read_evidence
from keras_vit.checkpoints.names.rules import theirs_shape
from keras_vit.checkpoints.resolve import resolve
from keras_vit.compat.graph import owned_variables
from keras_vit.compat.initial_values import build_deferred


def file_of(name, library, **arguments):
    """Describes the file that `save_weights` would write for a variant, with shapes only."""
    model, _ = build_deferred(lambda: keras_vit.create_model(name, **arguments))
    rules, _ = save._chosen(model.config, library, ".safetensors", is_autoencoder=False)
    shapes = {}
    for owned in owned_variables(model):
        path, shape = owned.variable.path, list(owned.variable.shape)
        rule = names.find_rule(rules, path, model.config)
        if path == "position_embs/embedding":
            table = next(iter(rules.position_tables))
            has_no_class_rows = library == "timm" and model.config.num_registers
            shapes[table] = [1, shape[1] - (model.config.num_position_rows if has_no_class_rows else 0), shape[2]]
            if rules.rank_of(table) == 4:
                shapes[table] = [1, *model.config.table_grid, shape[2]]
            continue
        shape[rule.axis] //= len(rule.theirs)
        for theirs in rule.theirs:
            stem, cut, _ = theirs.partition("#")
            piece = theirs_shape(shape, rule.form, model.config.num_heads)
            shapes[stem] = (shapes.get(stem, [0])[0] + piece[0], *piece[1:]) if cut else piece
    for key in [key for key in shapes if key.endswith(".qkv.bias") and library == "original"]:
        shapes[key] = [3 * model.config.hidden_dim]  # with the part that the mask removes
    shapes = {key: tuple(shape) for key, shape in shapes.items()}
    zeros = {key: np.broadcast_to(np.float32(0), shape) for key, shape in shapes.items()}  # they take no memory
    entries = {key: Entry(key, zero.shape, "F32", lambda zero=zero: zero) for key, zero in zeros.items()}
    return model.config, read_evidence(Checkpoint(pathlib.Path(name), "safetensors", entries, {}))


def resolved(evidence, variant, arguments):
    """Return the config, the row of the table and the notes of what a file holds."""
    found = resolve(evidence, variant, arguments)
    return found.config, found.row, found.notes
