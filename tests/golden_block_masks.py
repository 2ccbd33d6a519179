"""How the golden cases of block masks are compared; see `golden_ssl`."""

import itertools
import random

import numpy as np
from keras import ops

from keras_vit.models import block_masks as masks


def compare_masks(arrays, case):
    """The block masks with the draws of the case, which `_rules` turns into numbers in [0, 1)."""
    found = {}
    for number, given in enumerate(case["config"]["generators"]):
        prefix, sizes = f"generator{number}", (given["min_num_patches"], given["max_num_patches"])
        requests, seeds = (arrays[f"{prefix}/{name}"] for name in ("requests", "seeds"))
        drawn = [
            _rules(random.Random(int(seed)), int(n), given["grid"], *sizes)
            for n, seed in zip(requests, seeds, strict=True)
        ]
        made = _made(drawn, requests, given)
        found |= {f"{prefix}/{name}": arrays[f"{prefix}/{name}"] for name in ("requests", "seeds")}
        found |= {f"{prefix}/masks": made, f"{prefix}/counts": made.sum((1, 2))}
        found |= _draws(prefix, [draws for draws, _ in drawn])
        offsets = np.cumsum([0, *(len(draws) for draws, _ in drawn)])
        found[f"{prefix}/draw_offsets"] = offsets
        for count, expected in given["counts_of_400_masks"].items():
            draws = np.random.default_rng(number).random((64, 4, 400), "float32")
            made = _block_masks(draws, np.full(400, int(count)), given)
            counts = made.sum((1, 2))
            assert counts.max() <= int(count)
            assert abs(counts.mean() - expected["mean"]) <= 4 * expected["std"] / 20, (count, counts.mean())
    for number, given in enumerate(case["config"]["batches"]):
        found |= _batch(arrays, f"batch{number}", given)
    return found


def _batch(arrays, prefix, given):
    """Requests in the order of the case, and the masks of the crops."""
    crops, patches, order = 2 * given["batch"], int(np.prod(given["grid"])), arrays[f"{prefix}/order"]
    ratios, share = given["mask_ratio_min_max"], given["mask_sample_probability"]
    rng, drawn, ratio_draws = random.Random(given["seed"]), [], np.zeros(crops)
    edges = np.linspace(*ratios, int(crops * share) + 1, dtype="float32")
    for n, (low, high) in enumerate(itertools.pairwise(edges)):
        ratio_draws[n] = rng.random()
        ratio = low + (high - low) * np.float32(ratio_draws[n])
        sizes = given["min_num_patches"], given["max_num_patches"]
        draws, rows = _rules(rng, int(patches * ratio), given["grid"], *sizes)
        drawn.append(([(0, ratio), *draws], rows))
    drawn += [([], [])] * (crops - len(drawn))
    places = np.empty(crops)
    places[order] = (np.arange(crops) + 0.5) / crops
    in_order = np.stack([ratio_draws[order], places]).astype("float32")
    requests = ops.convert_to_numpy(masks.requested_patches(ops.convert_to_tensor(in_order), patches, ratios, share))
    made = _made([drawn[n] for n in order], requests, given)
    size = masks.most_masked_patches(crops, patches, ratios, share)
    indices, weights = map(ops.convert_to_numpy, masks.masked_places(ops.convert_to_tensor(made), size))
    number, unsorted = int((weights > 0).sum()), np.empty(crops, "int64")
    unsorted[order] = requests
    return {
        f"{prefix}/requests": unsorted,
        f"{prefix}/order": order,
        f"{prefix}/masks": made.reshape(crops, -1),
        f"{prefix}/mask_indices": indices[:number],
        f"{prefix}/masks_weight": weights[:number],
        f"{prefix}/n_masked_patches": np.array(number),
        f"{prefix}/upperbound": np.array(size),
        **_draws(prefix, [draws for draws, _ in drawn]),
    }


def _rules(rng, request, grid, minimum, maximum):
    """The rules of a mask, one after another: the draws (kind, value), and their numbers in [0, 1) by try."""
    (height, width), draws, rows, count = grid, [], [], 0
    mask = np.zeros(grid, bool)
    failures = 0
    while count < request and failures < 10:
        limit, uniform = min(request - count, maximum), [rng.random(), rng.random()]
        area = minimum + (limit - minimum) * uniform[0]
        log_ratio = np.log(0.3) + (np.log(1 / 0.3) - np.log(0.3)) * uniform[1]
        draws += [(0, area), (0, log_ratio)]
        sides = [round(np.sqrt(area * np.exp(sign * log_ratio))) for sign in (1, -1)]
        rows.append([*uniform, 0.5, 0.5])
        failures += 1
        if sides[0] < height and sides[1] < width:
            top, left = (rng.randint(0, whole - side) for whole, side in zip(grid, sides, strict=True))
            draws += [(1, top), (1, left)]
            rows[-1][2:] = [(top + 0.5) / (height - sides[0] + 1), (left + 0.5) / (width - sides[1] + 1)]
            block = np.zeros(grid, bool)
            block[top : top + sides[0], left : left + sides[1]] = True
            new = block & ~mask
            if 0 < new.sum() <= limit:
                mask, count, failures = mask | new, count + new.sum(), 0
    return draws, rows


def _made(drawn, requests, given):
    """Our masks with these draws by mask."""
    tries = max(len(rows) for _, rows in drawn)
    padded = np.full((tries, 4, len(drawn)), 0.5, "float32")
    for number, (_, rows) in enumerate(drawn):
        if rows:
            padded[: len(rows), :, number] = rows
    return _block_masks(padded, requests, given)


def _block_masks(draws, requests, given):
    tensors = (ops.convert_to_tensor(value) for value in (draws, np.asarray(requests, "int32")))
    sizes = {"minimum": given["min_num_patches"], "maximum": given["max_num_patches"]}
    return ops.convert_to_numpy(masks.block_masks(*tensors, tuple(given["grid"]), **sizes))


def _draws(prefix, drawn):
    """The draws of `_rules`, which must be those of the case."""
    kinds, values = np.array([draw for draws in drawn for draw in draws]).T
    return {f"{prefix}/draw_kind": kinds, f"{prefix}/draws": values}
