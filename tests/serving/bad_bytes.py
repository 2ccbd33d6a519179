"""Sends damaged images beside good ones through an exported model: bad_bytes.py FOLDER COUNT; prints JSON.

A process of its own, so that its death and its memory are its own.
"""

import io
import json
import pathlib
import sys

import numpy as np
import PIL.Image
import tensorflow as tf
from drawn import draw, encode

BATCH, GOOD_ROWS = 8, 3
MAX_PIXELS = 64_000_000
_SIZES = ((40, 50), (97, 131), (240, 320), (200, 90))
_FORMATS = ("JPEG", "PNG", "BMP", "GIF")


def good_files():
    """Eight images, two of each format."""
    return [encode(draw(seed, _SIZES[seed % 4]), _FORMATS[seed % 4 - seed // 4]) for seed in range(BATCH)]


def damaged_files(count, seed=0):
    """Yields `count` files: odd ones that can be decoded or not, then good ones, each damaged in one of six ways."""
    rng, sound = np.random.default_rng(seed), [*good_files(), *(encode(draw(9), kind) for kind in _FORMATS)]
    odd = _odd_files()
    for number in range(count):
        if number < len(odd):
            yield odd[number]
            continue
        file, other = (sound[index] for index in rng.integers(0, len(sound), 2))
        yield _DAMAGES[number % len(_DAMAGES)](rng, file, other)


def _flip_bits(rng, file, other):
    data = np.frombuffer(file, np.uint8).copy()
    places = rng.integers(0, len(data), rng.integers(1, 20))
    data[places] ^= (1 << rng.integers(0, 8, len(places))).astype(np.uint8)
    return data.tobytes()


def _flip_bits_of_header(rng, file, other):
    return _flip_bits(rng, file[:64], other) + file[64:]


def _cut(rng, file, other):
    return file[: rng.integers(0, len(file))]


def _splice(rng, file, other):
    """The beginning of one file on another's rest."""
    place = rng.integers(2, 200)
    return file[:place] + other[place:]


def _wrong_ending(rng, file, other):
    return file[: -rng.integers(1, 20)] + rng.bytes(rng.integers(0, 100))


def _text(rng, file, other):
    return bytes(rng.integers(32, 127, rng.integers(1, 3000)).astype(np.uint8))


_DAMAGES = (_flip_bits, _flip_bits_of_header, _cut, _splice, _wrong_ending, _text)


def _odd_files():
    huge = bytearray(encode(PIL.Image.new("L", (8, 8)), "PNG"))
    huge[16:24] = (60_000).to_bytes(4, "big") * 2
    return [
        b"",
        bytes(huge) + b"\0" * 2000,
        _gif_bomb(frames=200, side=4000),
        encode(PIL.Image.new("CMYK", (30, 40), (10, 200, 30, 40)), "JPEG"),
        *(
            encode(PIL.Image.new("RGB", size, "teal"), kind)
            for kind in _FORMATS
            for size in ((1, 1), (1, 5000), (5000, 1))
        ),
        encode(PIL.Image.new("RGB", (9_000, 9_000)), "JPEG"),
        encode(PIL.Image.new("RGB", (8_000, 8_000), "olive"), "PNG"),  # as many pixels as may be
        encode(PIL.Image.new("RGB", (8_000, 8_000), "olive"), "JPEG"),
        encode(PIL.Image.new("RGB", (4_600, 4_600), "olive"), "JPEG", progressive=True, subsampling=0),
        encode(PIL.Image.new("RGB", (8_000, 8_000), "olive"), "JPEG", progressive=True, subsampling=0),
        encode(draw(0).convert("LA"), "PNG"),
    ]


def _gif_bomb(frames, side):
    """A file of half a megabyte whose frames take three gigabytes."""
    stream = io.BytesIO()
    PIL.Image.new("P", (side, side)).save(stream, "GIF")
    contents = stream.getvalue()
    start = contents.index(b"\x2c", 13)
    return contents[:start] + contents[start:-1] * frames + b"\x3b"


def main(folder, count):
    """Returns what was seen: how many rows were damaged, refused, wrongly refused or accepted; neighbours; memory."""
    call = tf.saved_model.load(folder).signatures["serving_default"]
    good = good_files()
    expected = {name: value.numpy() for name, value in call(tf.constant(good)).items()}
    alone = np.concatenate([call(tf.constant([file]))["scores"].numpy() for file in good])
    rng, files = np.random.default_rng(1), list(damaged_files(count))
    before = _megabytes_from_here()
    errors, equal, from_alone = [], True, 0.0
    for start in range(0, count, BATCH - GOOD_ROWS):
        damaged = files[start : start + BATCH - GOOD_ROWS]
        batch, rows = list(good), np.sort(rng.permutation(BATCH)[: len(damaged)])
        for row, file in zip(rows, damaged, strict=True):
            batch[row] = file
        answer = {name: value.numpy() for name, value in call(tf.constant(batch)).items()}
        others = np.setdiff1d(np.arange(BATCH), rows)
        equal &= all(np.array_equal(answer[name][others], expected[name][others]) for name in answer)
        from_alone = max(from_alone, float(np.abs(answer["scores"][others] - alone[others]).max()))
        errors += answer["error"][rows].tolist()
        for row in rows:
            has_error = answer["error"][row] != b""
            assert has_error == (not answer["scores"][row].any()) == (set(answer["classes"][row]) == {b""})
    growth = _megabytes("VmHWM") - before
    refused = [error != b"" for error in errors]
    strict = [_is_refused(file) for file in files]  # None: too large to be tried
    return {
        "damaged": len(files),
        "refused": sum(refused),
        "accepted_though_refused_alone": [
            n for n, (s, r) in enumerate(zip(strict, refused, strict=True)) if s and not r
        ],
        "refused_though_accepted_alone": [
            n for n, (s, r) in enumerate(zip(strict, refused, strict=True)) if s is False and r
        ],
        "neighbours_bit_equal": bool(equal),
        "neighbours_from_alone": from_alone,
        "megabytes": growth,
        "reasons": sorted({error.decode().split(" of ")[0].split(" that ")[0] for error in errors}),
    }


def _is_refused(file):
    """Whether TensorFlow refuses to decode a file, None for one that nobody should try to decode.

    A BMP is also refused if Pillow refuses it: TensorFlow reads neither the kind of its header nor its compression.
    """
    if len(file) > 100_000 and file.startswith(b"GIF") or _pixels(file) > MAX_PIXELS:
        return None
    if file.startswith(b"\xff\xd8") and b"\xff\xc2" in file and 3 * _pixels(file) > MAX_PIXELS:
        return None
    try:
        tf.io.decode_image(file, channels=3, expand_animations=False)
        if file.startswith(b"BM"):
            with PIL.Image.open(io.BytesIO(file)) as image:
                image.load()
    except (tf.errors.InvalidArgumentError, OSError):
        return True
    return False


def _pixels(file):
    """What the header claims, by Pillow, which reads no more of it."""
    PIL.Image.MAX_IMAGE_PIXELS = None
    try:
        with PIL.Image.open(io.BytesIO(file)) as image:
            return image.size[0] * image.size[1]
    except Exception:  # whatever Pillow says of a file that is none
        return 0


def _megabytes_from_here():
    """Resident memory now; to make the files took more, so that the peak is set back to it."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return _megabytes("VmRSS")


def _megabytes(field):
    fields = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    return int(fields[field].split()[0]) / 1024


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
