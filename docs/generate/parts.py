"""The parts of a model in order, read from its config: what diagrams.py draws."""

import dataclasses

from keras_vit.config import AxialResNetConfig, BiTConfig, SwinConfig, ViTConfig


@dataclasses.dataclass(frozen=True)
class Part:
    """A step from the image to the output.

    Attributes:
        kind: what it is compared with in another model.
        label: its name.
        facts: what else two models can differ in.
        size: sizes, which are not compared.
    """

    kind: str
    label: str
    facts: tuple[str, ...] = ()
    size: str = ""


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Parts that are repeated.

    Attributes:
        title: how often.
        branches: residual branches, each a tuple of parts; a tuple in it has parts that work side by side.
    """

    title: str
    branches: tuple[tuple, ...]


_POSITIONS = {
    "learned": "Learned positions",
    "learned_2d": "Learned positions of rows and columns",
    "factorized": "Learned positions of rows and columns",
    "sincos2d": "Fixed sines and cosines",
    "sincos2d_mae": "Fixed sines and cosines",
    "relative": "No position table",
    "relative_2d": "No position table",
    "none": "No position table",
}
_POOLINGS = {
    "token": "Pooling: the class token",
    "gap": "Pooling: mean of the patch tokens",
    "token_gap": "Pooling: class token and mean",
    "map": "Attention pooling",
    "aim": "Attention pooling",
    "first": "Pooling: the first patch token",
    "unpooled": "No pooling",
    "token_unpooled": "No pooling",
}
_GELUS = {"tanh": "GELU (tanh)", "erf": "GELU (exact)", "quick": "QuickGELU"}
_NORMS = {"layer": "LayerNorm", "rms": "RMSNorm"}


def parts_of(config):
    """Return the list of `Part` and `Blocks` of a model, from the image to the output."""
    inner = {ViTConfig: _vit, SwinConfig: _swin, BiTConfig: _bit, AxialResNetConfig: _axial_resnet}[type(config)]
    return [Part("image", "Image", size=f"{_by(*config.image_size)} pixels"), *inner(config), _head(config)]


def number(value):
    """Return a number as text, such as 1e-5."""
    return f"{value:g}".replace("e-0", "e-")


def _vit(config):
    config, parts = config.resolve(), config.embedding
    unit, tokens = "pixels" if config.stem is None else "cells", config.grid_size
    if config.stem is not None:
        stages = ", ".join(map(str, config.stem.stage_sizes))
        units = (f"bottleneck units per stage: {stages}",) if stages else ("root alone",)
        yield Part(
            "stem", "ResNet", ("group norm, standardised weights", *units), f"map of {_by(*config.feature_size)}"
        )
    facts = {"no bias": not parts.patch_bias, "kernel resized to the patch size": parts.kernel_size}
    sizes = f"{_by(*tokens)} tokens of width {config.hidden_dim}"
    yield Part("patches", f"Patches of {_by(*config.patch_size)} {unit}", _true(facts), sizes)
    norm = _NORMS[config.block.norm]
    if parts.patch_norm:
        yield Part("patch_norm", norm)
    named = ("No class token", "Class token", "Class and distillation token")[config.num_class_tokens]
    registers = f"{config.num_registers} register{'s' if config.num_registers > 1 else ''}, without positions"
    yield Part("tokens", named, _true({registers: config.num_registers}))
    yield _positions(config)
    if parts.pre_norm:
        yield Part("pre_norm", norm, ("before the first block",))
    yield Blocks(f"{config.num_layers} blocks", tuple(_branches(config, norm)))
    is_after = config.norm_position == "after_pooling"
    last = Part("norm", norm, _true({"after the pooling": is_after}))
    last = Part("norm", "No final norm") if config.norm_position == "none" else last
    if config.head.neck:
        yield Part("neck", "Neck", ("convolutions 1 × 1 and 3 × 3, with norms",), f"{config.head.neck} channels")
    pooling = _pooling(config)
    yield from (pooling, last) if is_after else (last, pooling)


def _positions(config):
    parts = config.embedding
    kind = _POSITIONS[config.position_embedding]
    if kind == "No position table":
        return Part("positions", kind)
    added = "of patches and class token" if config.num_position_rows else "of the patches"
    facts = {
        added: True,
        "start from sines and cosines": parts.position_init != "normal",
        "table resized in every call": parts.position_grid,
        "resized in the aspect ratio of the table": parts.square_positions,
    }
    return Part("positions", kind, _true(facts))


def _branches(config, norm):
    """Yield the residual branches of a block."""
    is_post = config.block.order == "post_norm"
    norm = Part("block_norm", norm, _true({"after attention or MLP": is_post}))
    attention, mlp = _attention(config), _mlp(config)
    scale = (
        []
        if config.layer_scale_init is None
        else [Part("scale", "LayerScale", (), f"from {number(config.layer_scale_init)}")]
    )
    if config.block.order == "parallel":
        yield (norm, (attention, mlp), *scale)
        return
    for direction in ("rows", "columns") if config.attention == "axial" else (None,):
        along = (f"along the {direction} of the grid",) if direction else ()
        attention = dataclasses.replace(attention, facts=attention.facts + along)
        for part in (attention, mlp):
            yield (part, norm, *scale) if is_post else (norm, part, *scale)
        attention = _attention(config)


def _attention(config):
    block, window = config.block, config.window
    facts = {
        "no bias in queries, keys and values": not config.qkv_bias,
        "no bias in keys": config.qkv_bias and not block.key_bias,
        "queries and keys normalised per head": config.qk_norm,
        f"rotary positions ({block.rotary and block.rotary.kind})": block.rotary,
        "learned bias per head and offset": config.position_embedding == "relative_2d",
        "norm before the output projection": block.attention_norm,
        "no bias in the output projection": not block.bias,
    }
    if window is not None:
        whole = ", ".join(str(index + 1) for index in window.global_blocks)
        facts |= {f"inside windows of {_by(window.size, window.size)}": True, f"whole grid in blocks {whole}": True}
        facts |= {"learned keys for row and column offsets": window.relative_positions}
    sizes = f"{config.num_heads} heads of width {config.hidden_dim // config.num_heads}"
    return Part("attention", "Self-attention", _true(facts), sizes)


def _mlp(config):
    block = config.block
    facts = {
        _GELUS[config.gelu]: not block.gated,
        "hidden layer gated by SiLU": block.gated,
        "norm of the hidden layer": block.mlp_norm,
        "no bias": not block.bias,
    }
    return Part("mlp", "SwiGLU" if block.gated else "MLP", _true(facts), f"hidden layer of {config.mlp_dim}")


def _pooling(config):
    facts = {
        "and distillation token, each with a head": config.distilled,
        "learned query that is not projected": config.pooling == "aim",
        "learned query, then an MLP": config.pooling == "map",
        "reads the class token, too": config.head.map_prefix and config.num_class_tokens,
    }
    return Part("pooling", _POOLINGS[config.pooling], _true(facts))


def _head(config):
    if not config.include_top:
        return Part("head", "No head")
    if isinstance(config, ViTConfig) and not config.head.bias:
        return Part("head", "Projection", ("no bias",), f"embedding of width {config.classes}")
    label, facts = ("Mean of two heads", ()) if getattr(config, "distilled", False) else ("Dense head", ())
    return Part("head", label, facts, f"{config.classes:,} classes")


def _swin(config):
    dims = [config.stage_dim(stage) for stage in range(len(config.depths))]
    sizes = f"{_by(*config.grid_size)} tokens of width {dims[0]}"
    yield Part("patches", f"Patches of {_by(*config.patch_size)} pixels", (), sizes)
    yield Part("patch_norm", "LayerNorm")
    window = config.window_size
    facts = (f"inside windows of {_by(window, window)}", "every second block: shifted windows")
    heads = f"heads per stage: {', '.join(map(str, config.num_heads))}"
    attention = Part("attention", "Self-attention", (*facts, "learned bias per head and offset"), heads)
    mlp = Part("mlp", "MLP", (_GELUS[config.gelu],), f"hidden layer of {config.mlp_ratio:g} times the width")
    norm = Part("block_norm", "LayerNorm")
    title = f"{len(config.depths)} stages of {', '.join(map(str, config.depths))} blocks"
    yield Blocks(title, ((norm, attention), (norm, mlp)))
    widths = ", ".join(map(str, dims))
    yield Part("merging", "Patch merging between stages", ("halves the sides, doubles the width",), f"widths {widths}")
    yield Part("norm", "LayerNorm")
    yield Part("pooling", "Pooling: mean of all tokens")


def _bit(config):
    width = config.width
    yield Part(
        "stem", "Convolution 7 × 7, max-pool", ("standardised weights",), f"{width} channels, a quarter of the sides"
    )
    before = "group norm and ReLU before it"
    units = tuple(Part("unit", f"Convolution {_by(side, side)}", (before,)) for side in (1, 3, 1))
    yield Blocks(_stages(config), (units,))
    yield Part("norm", "Group norm, ReLU")
    yield Part(
        "pooling", "Pooling: mean of the map", (), f"{4 * width * 2 ** (len(config.stage_sizes) - 1):,} features"
    )


def _axial_resnet(config):
    yield Part("stem", "Convolution 7 × 7, max-pool", (), f"{config.width} channels, a quarter of the sides")
    attention = tuple(
        Part("unit", f"Self-attention along the {axis}", ("learned relative positions",), f"{config.num_heads} heads")
        for axis in ("height", "width")
    )
    narrow = Part("unit", "Convolution 1 × 1", ("batch norm, ReLU",))
    yield Blocks(_stages(config), ((narrow, *attention, Part("unit", "Convolution 1 × 1", ("batch norm",))),))
    yield Part("pooling", "Pooling: mean of the map")


def _stages(config):
    return f"{len(config.stage_sizes)} stages of {', '.join(map(str, config.stage_sizes))} units"


def _true(facts):
    return tuple(fact for fact, holds in facts.items() if holds)


def _by(*sides):
    return " × ".join(map(str, sides))
