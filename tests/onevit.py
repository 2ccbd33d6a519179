"""The parts of a Vision Transformer in NumPy, with the switches of the published families.

A function takes its weights in PyTorch's layout: `w` (out, in) and `b` of a dense layer, or of a norm. `settings` has
`heads` and `eps`, and, if they differ from the paper's, `norm`, `act`, `rope`, `prefix`, `grid`, `order`, `pool_heads`.
"""

import math

import numpy as np

_ERF = np.vectorize(math.erf, otypes=[np.float64])
ACTIVATIONS = {
    "erf": lambda x: 0.5 * x * (1 + _ERF(x / math.sqrt(2))),
    "tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def norm(x, weights, eps, kind="layer"):
    if weights is None:
        return x
    if kind == "rms":  # the mean is not subtracted, and there is no bias
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weights["w"]
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps) * weights["w"] + weights["b"]


def dense(x, weights):
    y = x @ weights["w"].T
    return y if weights.get("b") is None else y + weights["b"]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def split_heads(x, heads):
    """(batch, tokens, dim) -> (batch, heads, tokens, head_dim)"""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def rope_table(kind, rows, columns, head_dim, reference=None, offset=0.0, theta=None):
    """Return the angles (rows * columns, head_dim), laid out for the rotation of that kind."""
    if kind == "dinov3":  # the angles of rows, then those of columns, then both again
        inverse = (theta or 100.0) ** -(np.arange(head_dim // 4) * 4 / head_dim)
        y = 2 * (np.arange(rows) + 0.5) / rows - 1
        x = 2 * (np.arange(columns) + 0.5) / columns - 1
        grid = np.stack(np.meshgrid(y, x, indexing="ij"), -1).reshape(-1, 2)
        angles = (2 * math.pi * grid[:, :, None] * inverse).reshape(rows * columns, -1)
        return np.concatenate([angles, angles], -1)
    inverse = (theta or 10000.0) ** -(np.arange(head_dim // 4) * 4 / head_dim)
    y, x = np.arange(rows) + offset, np.arange(columns) + offset
    if reference:  # coordinates are scaled to the grid of pre-training
        y, x = y / rows * reference[0], x / columns * reference[1]
    grid_y, grid_x = np.meshgrid(y, x, indexing="ij")
    pair = (grid_x, grid_y) if kind == "pe" else (grid_y, grid_x)
    angles = np.concatenate([axis.reshape(-1, 1) * inverse for axis in pair], -1)
    return np.repeat(angles, 2, -1)  # f0 f0 f1 f1 ...


def rotate(x, angles, kind, prefix):
    """Rotate the tokens (batch, heads, tokens, head_dim) after the first `prefix` ones."""
    head, body = x[:, :, :prefix], x[:, :, prefix:]
    if kind == "dinov3":
        first, second = np.split(body, 2, -1)
        turned = np.concatenate([-second, first], -1)
    else:
        turned = np.stack([-body[..., 1::2], body[..., ::2]], -1).reshape(body.shape)
    return np.concatenate([head, body * np.cos(angles) + turned * np.sin(angles)], 2)


def beit_index(rows, columns):
    """Return the row of BEiT's table for each (query, key), the class token first."""
    count = rows * columns
    y, x = np.divmod(np.arange(count), columns)
    total = (2 * rows - 1) * (2 * columns - 1) + 3
    index = np.zeros((count + 1, count + 1), int)
    index[1:, 1:] = (y[:, None] - y[None] + rows - 1) * (2 * columns - 1) + x[:, None] - x[None] + columns - 1
    index[0, :], index[:, 0], index[0, 0] = total - 3, total - 2, total - 1
    return index


def attention(x, weights, settings, angles=None, bias=None):
    """Return multi-head self-attention; `weights` has `q`, `k`, `v`, `o`, and `qn` and `kn` or `inner` if any."""
    eps, kind = settings["eps"], settings.get("norm", "layer")
    q, k, v = (split_heads(dense(x, weights[name]), settings["heads"]) for name in "qkv")
    q, k = norm(q, weights.get("qn"), eps, kind), norm(k, weights.get("kn"), eps, kind)
    if angles is not None:
        q, k = (rotate(t, angles, settings["rope"], settings["prefix"]) for t in (q, k))
    logits = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])
    logits = logits if bias is None else logits + bias
    joined = (softmax(logits) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
    return dense(norm(joined, weights.get("inner"), eps, kind), weights["o"])


def mlp(x, weights, settings):
    """Return the MLP; `weights` has `fc1`, or `gate` and `up`, then `fc2`, and `sub` if any."""
    if "gate" in weights:
        hidden = ACTIVATIONS["silu"](dense(x, weights["gate"])) * dense(x, weights["up"])
    else:
        hidden = ACTIVATIONS[settings.get("act", "tanh")](dense(x, weights["fc1"]))
    kind = settings.get("norm", "layer")
    return dense(norm(hidden, weights.get("sub"), settings["eps"], kind), weights["fc2"])


def block(x, weights, settings, angles=None):
    """Return a transformer block; `weights` has both branches, `n1`, `n2`, and `table`, `ls1`, `ls2` if any."""
    eps, kind, order = settings["eps"], settings.get("norm", "layer"), settings.get("order", "pre_norm")
    bias = None
    if "table" in weights:
        bias = weights["table"][beit_index(*settings["grid"])].transpose(2, 0, 1)
    one, two = weights.get("ls1", 1.0), weights.get("ls2", 1.0)
    if order == "parallel":  # ViT-22B
        y = norm(x, weights["n1"], eps, kind)
        return x + attention(y, weights, settings, angles, bias) + mlp(y, weights, settings)
    if order == "post_norm":  # EVA-02-CLIP-E
        x = x + one * norm(attention(x, weights, settings, angles, bias), weights["n1"], eps, kind)
        return x + two * norm(mlp(x, weights, settings), weights["n2"], eps, kind)
    x = x + one * attention(norm(x, weights["n1"], eps, kind), weights, settings, angles, bias)
    return x + two * mlp(norm(x, weights["n2"], eps, kind), weights, settings)


def map_pool(x, weights, settings):
    """Return attention pooling; `weights` has `probe`, `k`, `v`, `o`, and `q` and the MLP with its norm `n` if any."""
    heads = settings["pool_heads"]
    probe = np.repeat(weights["probe"], len(x), 0)
    q = split_heads(dense(probe, weights["q"]) if "q" in weights else probe, heads)
    k, v = (split_heads(dense(x, weights[name]), heads) for name in "kv")
    y = softmax(q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])) @ v
    y = dense(y.transpose(0, 2, 1, 3).reshape(len(x), 1, -1), weights["o"])
    if "fc1" in weights:
        y = y + mlp(norm(y, weights["n"], settings["eps"]), weights, settings)
    return y[:, 0]


def resize_matrix(old, new, method="bilinear", antialias=False, offset=0.0):
    """Return the matrix (new, old) that resizes one axis, with half-pixel centres.

    bicubic: a = -0.75 without antialiasing (torch), -0.5 with it. `offset`: DINOv2 without registers resizes by the
    factor (new + 0.1) / old.
    """
    scale = old / (new + offset)
    wide = max(scale, 1.0) if antialias else 1.0
    centre = (np.arange(new) + 0.5) * scale - 0.5
    taps = np.arange(-8 * math.ceil(wide), old + 8 * math.ceil(wide))
    t = np.abs(taps[None] - centre[:, None]) / wide
    if method == "bilinear":
        kernel = np.maximum(0, 1 - t)
    else:
        a = -0.5 if antialias else -0.75
        near, far = (a + 2) * t**3 - (a + 3) * t**2 + 1, a * (t**3 - 5 * t**2 + 8 * t - 4)
        kernel = np.where(t <= 1, near, np.where(t < 2, far, 0))
    if antialias:  # taps outside are left out, the rest sums to one
        kernel = kernel[:, (taps >= 0) & (taps < old)]
        return kernel / kernel.sum(1, keepdims=True)
    matrix = np.zeros((new, old))
    np.add.at(matrix.T, np.clip(taps, 0, old - 1), kernel.T)  # values at the border are repeated
    return matrix


# --- our weights, {path inside the layer: array}, in the form above


def of_layer(weights, path):
    """Return the dense layer or norm at this path, with `b` None if it has none; None if there is no such layer."""
    if f"{path}/kernel" in weights:
        return {"w": weights[f"{path}/kernel"].T, "b": weights.get(f"{path}/bias")}
    scale = weights.get(f"{path}/gamma", weights.get(f"{path}/scale"))
    return None if scale is None else {"w": scale, "b": weights.get(f"{path}/beta")}


def of_attention(weights, path=""):
    """Return the weights of a `MultiHeadSelfAttention` for `attention`."""
    queries, keys, values = np.split(weights[f"{path}qkv/kernel"], 3, axis=1)
    if f"{path}query_bias" in weights:
        biases = weights[f"{path}query_bias"], None, weights[f"{path}value_bias"]
    else:
        fused = weights.get(f"{path}qkv/bias")
        biases = (None,) * 3 if fused is None else np.split(fused, 3)
    parts = {name: {"w": w.T, "b": b} for name, w, b in zip("qkv", (queries, keys, values), biases, strict=True)}
    names = {"o": "proj", "qn": "query_norm", "kn": "key_norm", "inner": "output_norm"}
    return parts | _present({short: of_layer(weights, f"{path}{name}") for short, name in names.items()})


def of_mlp(weights, path="", gated=False):
    """Return the weights of an `MlpBlock` for `mlp`."""
    first = of_layer(weights, f"{path}dense1")
    parts = {"fc2": of_layer(weights, f"{path}dense2"), "sub": of_layer(weights, f"{path}hidden_norm")}
    if not gated:
        return _present({"fc1": first, **parts})
    biases = (None, None) if first["b"] is None else np.split(first["b"], 2)
    halves = zip(("gate", "up"), np.split(first["w"], 2), biases, strict=True)
    return _present({**{name: {"w": w, "b": b} for name, w, b in halves}, **parts})


def of_block(weights, gated=False):
    """Return the weights of a `TransformerBlock` for `block`."""
    scales = {f"ls{index}": weights.get(f"layer_scale{index}/gamma") for index in (1, 2)}
    norms = {f"n{index}": of_layer(weights, f"norm{index}") for index in (1, 2)}
    return of_attention(weights, "attention/") | of_mlp(weights, "mlp/", gated) | _present(scales | norms)


def _present(values):
    return {name: value for name, value in values.items() if value is not None}
